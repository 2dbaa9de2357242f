"""Linear policies as experts: a score per action, linear in the features, found by direct search on the return.

Weights are searched for standardised features (`direct_search`) and folded back, so that the policy takes raw ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from custard.core.actions import Actions
from custard.experts.direct_search import DirectSearchSettings, SearchProgress, direct_search
from custard.experts.expert import Expert, Progress
from custard.task.episodes import EpisodeRequest, Runner
from custard.task.policies import LinearPolicy
from custard.task.problem import Problem
from custard.task.source import episode_seeds
from custard.task.workers import make_runner
from custard.tree.leaf_actions import LeafActions

__all__ = ["LinearProgress", "search_linear_policy", "train"]

FIRST_POLICIES, FIRST_EPISODES = 4, 4  # random linear policies whose states tell how features are scaled


@dataclass(frozen=True, eq=False)
class Scaling:
    """What standardises features, and what scales scores to an action space."""

    mean: np.ndarray  # [n]
    deviation: np.ndarray  # [n]
    actions: Actions

    @property
    def size(self) -> int:
        """How many parameters a policy has: a weight per feature and a bias, for each action or component."""
        return (self.actions.n if self.actions.discrete else self.actions.size) * (len(self.mean) + 1)

    def policy(self, parameters: np.ndarray) -> LinearPolicy:
        """Return the policy, for raw features, of parameters [size] for standardised ones."""
        n = len(self.mean)
        table = parameters.reshape(-1, n + 1)
        weights = table[:, :n] / self.deviation
        bias = table[:, n] - weights @ self.mean
        if not self.actions.discrete:
            box = LeafActions(self.actions)
            half, middle = (box.high - box.low) / 2, (box.high + box.low) / 2
            weights, bias = weights * half[:, None], bias * half + middle
        return LinearPolicy(weights, bias, self.actions)


@dataclass(frozen=True, eq=False)
class LinearProgress:
    """Where the search for a linear policy stands."""

    search: SearchProgress
    policy: LinearPolicy | None  # the best so far
    state: dict[str, np.ndarray]  # all that is needed to go on


def search_linear_policy(
    problem: Problem,
    runner: Runner,
    settings: DirectSearchSettings,
    seed: int,
    max_steps: int | None = None,
    state: Mapping[str, np.ndarray] | None = None,
) -> Iterator[LinearProgress]:
    """Search for a linear policy; yields after every judgement. See `direct_search`."""
    actions, n = problem.base.actions, problem.base.features.n_raw
    used = 0
    if state is None:
        rng, neutral = np.random.default_rng([seed, 0]), Scaling(np.zeros(n), np.ones(n), actions)
        episodes = episode_seeds(int(rng.integers(2**31)), FIRST_EPISODES)
        policies = [neutral.policy(rng.normal(size=neutral.size)) for _ in range(FIRST_POLICIES)]
        results = runner.run([EpisodeRequest(policy, episodes, 0.0, max_steps, True) for policy in policies])
        states = np.concatenate([result.states for result in results])
        mean, deviation, used = states.mean(axis=0), states.std(axis=0), len(states)
    else:
        mean, deviation = state["linear.mean"], state["linear.deviation"]
        used = int(state["linear.used"])
    is_constant = deviation <= 1e-8 * (1.0 + np.abs(mean))
    scaling = Scaling(mean, np.where(is_constant, 1.0, deviation), actions)
    own = {"linear.mean": mean, "linear.deviation": deviation, "linear.used": np.array(used)}
    settings = replace(settings, steps=max(1, settings.steps - used))
    for progress in direct_search(
        scaling.policy, scaling.size, runner, settings, seed, max_steps, problem.source.reward_threshold, state
    ):
        policy = None if progress.parameters is None else scaling.policy(progress.parameters)
        yield LinearProgress(replace(progress, steps=progress.steps + used), policy, {**own, **progress.state})


def train(problem: Problem, settings: DirectSearchSettings, seed: int) -> Iterator[Progress]:
    """Search for a linear policy with discrete actions as an expert; the last progress holds the best one.

    The scores of its actions, as those of a softmax policy, say how much better one is than another.
    """
    problem.require_discrete_actions("a linear expert")
    runner = make_runner(problem)
    try:
        for found in search_linear_policy(problem, runner, settings, seed, problem.episode_cap(settings.steps)):
            expert = None if found.policy is None else _expert(found.policy)
            yield Progress(found.search.steps, found.search.value, expert)
    finally:
        runner.close()


def _expert(policy: LinearPolicy) -> Expert:
    def log_policy(x: np.ndarray) -> np.ndarray:
        scores = policy.scores(x)
        scores = scores - scores.max(axis=1, keepdims=True)
        return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    return Expert("linear", lambda x: policy.scores(x).argmax(axis=1), None, log_policy)
