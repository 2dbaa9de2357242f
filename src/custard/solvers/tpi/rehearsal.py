"""Trees tried in a table that is learned of the environment: how it is learned, and when it is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from custard.solvers.tpi.learned import LearnedModel
from custard.solvers.tpi.simulate import Simulator

if TYPE_CHECKING:
    from custard.solvers.tpi.search import Search

__all__ = ["check", "experience", "trial_world"]

EXPLORING, FOLLOWING, CHECKING = 0.3, 0.06, 0.01  # shares of the budget for learning a table: at first, in every round
MISMATCH = 4.0  # standard errors by which a table may differ from its environment


def experience(search: Search, rng: np.random.Generator) -> None:
    """Learn the table that trees are tried in, where there is one: by exploring, later also along the best tree."""
    if search.model is None or not search.going:
        return
    if search.number == 0:
        search.model.gather(int(EXPLORING * search.budget), int(rng.integers(2**31)), None, 0.1)
    else:
        search.model.gather(int(CHECKING * search.budget), int(rng.integers(2**31)), None, 0.1)
        search.model.gather(int(FOLLOWING * search.budget), int(rng.integers(2**31)), search.best.act, 0.3)
    if search.model.grid.left:  # the environment goes beyond its bounds: a table would mix its states up
        drop(search)
    else:
        search.sim = trial_world(search, search.model)


def trial_world(search: Search, model: LearnedModel) -> Simulator:
    """The table as it is now, to try trees in."""
    world = model.world(search.problem)
    world.steps, world.most_a_step = 0 if search.sim is search.real else search.sim.steps, search.real.most_a_step
    return world


def check(search: Search, rng: np.random.Generator) -> None:
    """Where trees are tried in a table: run the best in the environment itself, and drop a table that misleads."""
    if search.model is None:
        return
    expected = search.value
    search.seen += search.model.gather(int(CHECKING * search.budget), int(rng.integers(2**31)), search.best.act, 0.0)
    returns = np.array(search.seen)
    search.value = float(returns.mean())
    error = float(returns.std()) / np.sqrt(len(returns)) + 0.01 * (abs(expected) + float(returns.std()))
    if search.number > 2 and abs(search.value - expected) > MISMATCH * error:
        drop(search)
        search.stale = 0


def drop(search: Search) -> None:
    """Try trees in the environment itself from now on."""
    search.model, search.table, search.sim = None, None, search.real
