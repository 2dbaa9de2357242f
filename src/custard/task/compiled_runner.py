"""Episodes of trees and linear policies in compiled environments, many times faster than stepping them from Python."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numba import njit

from custard.core.numba_tools import without_refcounts
from custard.core.spaces import describe
from custard.core.threads import in_parts
from custard.envs.pcg64 import streams
from custard.task.compiled_rollouts import (
    World,
    copy_row,
    observe_features,
    rollouts_for,
    start_episode,
    take_action,
    world_of,
)
from custard.task.episodes import EpisodeRequest, Episodes, InProcess
from custard.task.policies import LinearPolicy
from custard.task.problem import Problem
from custard.tree.tree import Tree

__all__ = ["CompiledRunner"]


class CompiledRunner:
    """Runs episodes in compiled code, on all cores; those whose states are kept, and discounted ones, in Python."""

    def __init__(self, problem: Problem) -> None:
        assert problem.source.make_compiled is not None
        self.venv: Any = problem.source.make_compiled(1)
        env = problem.source.make()
        self.stepped = InProcess(env, describe(env))

    def run(self, requests: Sequence[EpisodeRequest]) -> list[Episodes]:
        """Run all requests; the episodes of each, in order."""
        compiled = [k for k, request in enumerate(requests) if is_compiled(request)]
        parts = in_parts(lambda a, b: [self._roll_out(requests[k]) for k in compiled[a:b]], len(compiled))
        results = dict(zip(compiled, (result for part in parts for result in part), strict=True))
        return [results[k] if k in results else self.stepped.run([each])[0] for k, each in enumerate(requests)]

    def _roll_out(self, request: EpisodeRequest) -> Episodes:
        policy = request.policy
        world, rng = world_of(self.venv, request.max_steps), streams(request.seeds.tolist())
        if isinstance(policy, LinearPolicy):
            returns, lengths, truncated = linear_policy_rollouts(policy, world, rng)
        else:
            assert isinstance(policy, Tree)
            returns, lengths, truncated = rollouts_for(policy)(policy, world, rng)[:3]
        nothing = np.zeros(len(rng), dtype=np.int64)
        no_states = np.zeros((0, self.stepped.base.features.n)), np.ones((0, 0), dtype=bool)
        return Episodes(returns, lengths, ~truncated, truncated, nothing, np.nan, *no_states)

    def close(self) -> None:
        """Close the environments."""
        self.venv.close()
        self.stepped.env.close()


def is_compiled(request: EpisodeRequest) -> bool:
    """Return whether compiled code can run the episodes of a request."""
    if request.keep_states or request.noise or request.gamma != 1.0:
        return False
    policy = request.policy
    if isinstance(policy, Tree):
        return not policy.is_linear or policy.keep_used_sums().features.is_linear
    return isinstance(policy, LinearPolicy)


def linear_policy_rollouts(
    policy: LinearPolicy, world: World, rng: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run one episode per random stream [N, 4]: returns, lengths, truncated [N].

    Of an action vector the environment takes its only component.
    """
    actions, run = policy.actions, cast("Any", _roll_out_scores)
    is_vector = not actions.discrete
    low, high = (float(actions.low[0]), float(actions.high[0])) if is_vector else (0.0, 0.0)  # type: ignore[index]
    results = np.zeros(len(rng)), np.zeros(len(rng), np.int64), np.zeros(len(rng), np.bool_)
    n = world.n_features
    weights = np.ascontiguousarray(policy.weights, dtype=np.float64)
    bias = np.ascontiguousarray(policy.bias, dtype=np.float64)
    run(weights, bias, is_vector, low, high, world, rng, results, (np.zeros(n), np.zeros(n), np.zeros(4, np.uint64)))
    returns, lengths, terminated = results
    return returns, lengths, ~terminated


@njit(cache=True, nogil=True)
def _roll_out_scores(weights, bias, is_vector, low, high, world, rng, results, scratch):
    """Run one episode per random stream and write returns, lengths and terminated."""
    (kind, params, limit, _), rng, results = without_refcounts((world, rng, results))
    weights, bias, scratch = without_refcounts((weights, bias, scratch))
    returns, lengths, terminated = results
    state, x, stream = scratch
    for k in range(len(rng)):
        copy_row(rng[k], stream)
        start_episode(kind, params, state, stream)
        total, t, ended = 0.0, 0, False
        while not ended and t < limit:
            observe_features(kind, state, x)
            best, action = -np.inf, 0.0
            for a in range(len(bias)):
                score = bias[a]
                for c in range(weights.shape[1]):
                    score += weights[a, c] * x[c]
                if is_vector:
                    action = min(max(score, low), high)
                elif score > best:
                    best, action = score, float(a)
            reward, ended = take_action(kind, params, state, action, stream)
            total += reward
            t += 1
        returns[k], lengths[k], terminated[k] = total, t, ended
