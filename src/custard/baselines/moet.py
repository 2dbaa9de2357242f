"""MoËT (Vasic et al. 2019): imitate an expert with a mixture of small trees, chosen among by a linear gate.

VIPER with another student: DAgger from any expert, and in every iteration a mixture of expert trees is fitted to the
states so far (`custard.baselines.mixture`). The result is the hard mixture, a `Tree` with weighted sums in its first
tests. The policy that is imitated is the expert, here as everywhere; `experts` counts the trees of the mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from custard.baselines.dagger import (
    STATE_WEIGHTINGS,
    LabelledStates,
    Rollouts,
    expert_or_stored,
    state_weights,
    stored_expert,
    stored_tree,
    tree_stored,
)
from custard.baselines.growing_tree import default_budget
from custard.baselines.mixture import Fitting, fit_mixture
from custard.core.errors import CustardError, one_of, require_least, require_shares
from custard.experts.expert import Expert
from custard.solvers.common.selection import Selection
from custard.task.problem import Problem, Snapshot
from custard.task.source import episode_seeds
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "solve"]

MAX_MIXTURE_TREES = 8  # the hard mixture of E trees holds 2 ** (E - 1) of them
MAX_STUDENT_JUDGING_SHARE = 0.5  # of what the expert leaves of the budget, above which only the last student is judged
BUDGET_PER_ITERATION_ROLLOUT = 2000  # of the budget, for each rollout of an iteration


@dataclass(frozen=True)
class Settings:
    """Settings of MoËT; `expert` is what is imitated, `experts` is how many trees the student has."""

    budget: int | None = None  # environment steps, the expert's included; None: 5 million, a tenth where Python steps
    experts: int = 4  # E, trees in the mixture, at most 8; 1: a single tree
    expert_depth: int = 2  # d, of each of them
    iterations: int = 40  # of DAgger
    batch_rollouts: int = 10  # rollouts per iteration
    test_rollouts: int = 100  # on which the best student is judged
    max_samples: int = 10_000  # states a student is fitted to, drawn by weight
    train_share: float = 0.8  # share of the states for fitting; the others choose the epoch
    epochs: int = 50  # of EM
    learning_rate: float = 0.3  # of the gate, by Adam
    rate_decay: float = 0.97  # of that rate, per epoch
    weights: str = "auto"  # "q": max Q - min Q; "policy": of log-probabilities; "none"; "auto": the first possible
    expert: str | Callable[..., Any] = "dqn"  # "dqn", "linear", "bi", a file or a function (`custard.experts.kinds`)
    expert_preset: str = "tuned"  # preset of the DQN expert
    expert_settings: dict[str, Any] = field(default_factory=dict)  # settings of the DQN expert over its preset's
    expert_out: str | None = None  # file in which to save the trained DQN expert (.npz)
    normalise: str | None = None  # file of VecNormalize statistics of a Stable-Baselines3 expert
    ties: str = "random"  # how backward induction chooses among equally good actions: first, random or downstream
    keep_best: bool = True  # return the best student judged; False: the last one

    def __post_init__(self) -> None:
        if self.weights not in STATE_WEIGHTINGS:
            raise CustardError(one_of("weighting", self.weights, STATE_WEIGHTINGS))
        require_shares(self, "train_share", "rate_decay")
        require_least(self, 1, "experts", "iterations", "batch_rollouts", "test_rollouts", "max_samples")
        require_least(self, 0, "expert_depth", "epochs", "learning_rate")
        if self.experts > MAX_MIXTURE_TREES:
            raise CustardError(
                f"experts={self.experts} must be at most {MAX_MIXTURE_TREES}: each more doubles the tree"
            )


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {"": {}},
    "paper": {"": {"max_samples": 200_000, "expert_preset": "paper"}, "CartPole": {"test_rollouts": 250}},
}


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Train or load the expert, then imitate it; yield at every check of the expert and every iteration."""
    problem.require_discrete_actions("moet")
    s, base = settings, problem.base
    seeds, budget = problem.seeds("expert", "rollouts", "fit"), default_budget(problem, settings.budget)
    expert: Expert | None = None
    steps = 0
    stored = None if state is None else state["moet.expert"]
    for item in expert_or_stored(problem, replace(settings, budget=budget), seeds["expert"], stored):
        if isinstance(item, Snapshot):
            steps = item.steps
            if state is None:  # a resumed run has a tree already
                yield item
        else:
            expert = item
    assert expert is not None
    expert_bytes = stored_expert(expert)
    weigh, fitting = state_weights(expert, s.weights), _mixture_fitting(problem, s)
    rollouts = Rollouts(problem, steps + problem.probe_steps, problem.episode_cap(budget), budget)
    selection = Selection(problem, s.test_rollouts, budget=budget)
    selection.returns_vary = True  # the best student has all rollouts, also if the first few return the same
    selection.flawless_max_episodes = selection.max_episodes
    batch = int(min(s.batch_rollouts, max(1, budget // BUDGET_PER_ITERATION_ROLLOUT)))
    batch_seeds = episode_seeds(seeds["rollouts"], s.iterations * batch)
    data, latest, first, expert_steps = LabelledStates(base.features.n), None, 0, rollouts.steps
    if state is not None:
        first, rollouts.steps, expert_steps = (int(number) for number in state["moet.counts"])
        data.add(state["moet.x"], state["moet.action"], state["moet.weight"])
        latest = tree_stored(state["moet.latest"])
        selection.restore(state)
    for iteration in range(first, s.iterations):
        if latest is not None and rollouts.steps + selection.steps >= budget:
            break
        rollouts.budget = budget - selection.steps
        driver: Expert | Tree = expert if latest is None else latest
        visited = rollouts.visited_states(driver, batch_seeds[iteration * batch :][:batch])
        action = expert.act(visited)
        disagreement = float((latest.predict(visited) - base.actions.start != action).mean()) if latest else 0.0
        data.add(visited, action, weigh(visited))
        rng = np.random.default_rng([seeds["fit"], iteration])
        mixture, accuracy = fit_mixture(*data.draw(rng, s.max_samples), base.features, base.actions, fitting, rng)
        latest = mixture.tree(base.features, base.actions)
        selection.spent = rollouts.steps
        used = rollouts.steps + selection.steps
        is_last = iteration + 1 == s.iterations or used >= budget
        if is_last or selection.best is None or selection.steps <= MAX_STUDENT_JUDGING_SHARE * (budget - expert_steps):
            selection.judge(latest, s.keep_best)
        used, best = rollouts.steps + selection.steps, selection.best
        assert best is not None
        value = selection.show(is_last)
        metrics = {
            "iteration": iteration, "samples": len(data.x), "accuracy": accuracy, "disagreement": disagreement,
            "tree_return": selection.last_mean, "leaves": latest.n_leaves, "depth": latest.depth,
            "coefficients": latest.n_coefficients,
        }  # fmt: skip
        kept = {
            "moet.counts": np.array([iteration + 1, rollouts.steps, expert_steps]), "moet.x": data.x,
            "moet.action": data.action, "moet.weight": data.weight,
            "moet.latest": stored_tree(latest), "moet.expert": expert_bytes, **selection.state(),
        }  # fmt: skip
        message = f"{iteration + 1} iterations, expert: {expert.name}"
        used += selection.shown_steps
        yield Snapshot(used, best.tree, value, budget, metrics, latest, message, lambda kept=kept: kept)  # type: ignore[misc]


def _mixture_fitting(problem: Problem, settings: Settings) -> Fitting:
    """Return how a mixture is fitted: with fewer or shallower trees where the depth limit asks for it."""
    count, depth = settings.experts, settings.expert_depth
    if problem.max_depth is not None:  # the gate of E trees has depth E - 1
        count = min(count, problem.max_depth + 1)
        depth = min(depth, problem.max_depth - (count - 1))
    return Fitting(count, depth, settings.epochs, settings.learning_rate, settings.rate_decay, settings.train_share)
