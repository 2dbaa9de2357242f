"""Episodes of trees and linear policies in compiled environments, many times faster than stepping them from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from custard.core.spaces import describe
from custard.core.threads import in_parts
from custard.envs.pcg64 import streams
from custard.task.compiled_rollouts import rollouts_for, world_of
from custard.task.episodes import EpisodeRequest, Episodes, InProcess
from custard.task.linear_rollouts import states_met
from custard.task.policies import LinearPolicy
from custard.task.problem import Problem
from custard.tree.tree import Tree

__all__ = ["CompiledRunner"]


class CompiledRunner:
    """Runs episodes in compiled code, on all cores; those with random actions, and discounted ones, in Python."""

    def __init__(self, problem: Problem) -> None:
        assert problem.source.make_compiled is not None
        self.venv: Any = problem.source.make_compiled(1)
        env = problem.source.make()
        self.stepped = InProcess(env, describe(env))

    def run(self, requests: Sequence[EpisodeRequest]) -> list[Episodes]:
        """Run all requests; the episodes of each, in order."""
        compiled = [k for k, request in enumerate(requests) if is_compiled(request)]
        parts = in_parts(lambda a, b: [self._roll_out_request(requests[k]) for k in compiled[a:b]], len(compiled))
        results = dict(zip(compiled, (result for part in parts for result in part), strict=True))
        return [results[k] if k in results else self.stepped.run([each])[0] for k, each in enumerate(requests)]

    def _roll_out_request(self, request: EpisodeRequest) -> Episodes:
        policy: Any = request.policy
        world, rng = world_of(self.venv, request.max_steps), streams(request.seeds.tolist())
        returns, lengths, truncated, _ = rollouts_for(policy)(policy, world, rng)
        nothing, steps = np.zeros(len(rng), dtype=np.int64), int(lengths.sum()) if request.keep_states else 0
        states = states_met(policy, world, rng, steps)
        return Episodes(returns, lengths, ~truncated, truncated, nothing, states, np.ones((steps, 0), dtype=bool))

    def close(self) -> None:
        """Close the environments."""
        self.venv.close()
        self.stepped.env.close()


def is_compiled(request: EpisodeRequest) -> bool:
    """Return whether compiled code can run the episodes of a request."""
    if request.noise or request.gamma != 1.0:
        return False
    policy = request.policy
    if isinstance(policy, Tree):
        return not policy.is_linear or policy.keep_used_sums().features.is_linear
    return isinstance(policy, LinearPolicy)
