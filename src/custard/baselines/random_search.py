"""Random search over trees: draw them blindly, keep the one that returns most. The floor every learner must clear.

Nothing is learned. A tree has a random depth up to the limit and, at each split, a random feature and a threshold
between two values that random actions met; leaves have random actions. All are judged on the same episodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.core.errors import require_least
from custard.solvers.common.mutations import random_shape
from custard.solvers.common.selection import Selection
from custard.task.problem import Problem, Snapshot
from custard.task.runners import visited_states
from custard.task.source import episode_seeds
from custard.tree.leaf_actions import LeafActions
from custard.tree.shape import build_tree

__all__ = ["PRESETS", "Settings", "solve"]

DEFAULT_COMPILED_ENV_BUDGET, DEFAULT_PYTHON_ENV_BUDGET = 2_000_000, 200_000  # environment steps
RANDOM_ACTION_EPISODES = 100  # whose states thresholds lie between
MAX_RANDOM_ACTION_BUDGET_SHARE = 0.1  # of the budget for them
TREES_PER_SNAPSHOT = 200


@dataclass(frozen=True)
class Settings:
    """Settings of random search."""

    budget: int | None = None  # environment steps; None: 2 million, a tenth where Python steps the environment
    default_max_depth: int = 5  # of the deepest trees drawn where there is no depth limit

    def __post_init__(self) -> None:
        require_least(self, 0, "default_max_depth")


PRESETS: dict[str, dict[str, dict[str, Any]]] = {"tuned": {"": {}}}


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Draw and judge trees until the budget is used; yield the best one after every 200."""
    budget = settings.budget or (DEFAULT_COMPILED_ENV_BUDGET if problem.is_compiled else DEFAULT_PYTHON_ENV_BUDGET)
    max_depth = settings.default_max_depth if problem.max_depth is None else problem.max_depth
    seeds = problem.seeds("trees", "behaviour")
    x, steps = _states_of_random_actions(problem, seeds["behaviour"], budget)
    features, leaf_actions = problem.base.features, LeafActions(problem.base.actions)
    selection, drawn, message = Selection(problem, budget=budget, spent=steps), 0, ""
    if state is not None:
        selection.restore(state)
        drawn = int(state["drawn"])
    while not message:
        rng = np.random.default_rng([seeds["trees"], drawn])
        for _ in range(TREES_PER_SNAPSHOT):
            shape = random_shape(rng, x, leaf_actions, int(rng.integers(max_depth + 1)))
            selection.consider(build_tree(shape, features, problem.base.actions))
            drawn += 1
            if selection.is_over:
                message = "budget used"
                break
        assert selection.best is not None
        value = selection.show(is_last=bool(message))
        kept = {**selection.state(), "drawn": np.array(drawn)}
        yield Snapshot(
            steps + selection.steps + selection.shown_steps, selection.best.tree, value, budget, {"trees": drawn},
            message=message, state=lambda kept=kept: kept,  # type: ignore[misc]
        )  # fmt: skip


def _states_of_random_actions(problem: Problem, seed: int, budget: int) -> tuple[np.ndarray, int]:
    """Return states [N, n] that random actions visit, and the environment steps taken."""
    rng, leaf_actions = np.random.default_rng(seed), LeafActions(problem.base.actions)
    cap = max(
        1, int(min(problem.episode_cap(budget), budget * MAX_RANDOM_ACTION_BUDGET_SHARE / RANDOM_ACTION_EPISODES))
    )

    def act(x: np.ndarray) -> np.ndarray:
        return np.array([leaf_actions.random(rng) for _ in range(len(x))])

    x, results = visited_states(act, problem, episode_seeds(seed, RANDOM_ACTION_EPISODES), cap)
    return x, int(results.lengths.sum()) + problem.probe_steps
