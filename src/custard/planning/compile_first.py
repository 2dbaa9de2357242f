"""Compile the searches before their time begins: a tiny model of the same kind goes through all of them once.

Compiled code is kept on disk, so this takes a minute on a busy machine once after installation, and a blink afterwards.
"""

from __future__ import annotations

import time

import numpy as np

from custard.core.actions import Actions, numbered
from custard.core.features import BINARY, Features
from custard.core.mdp import FiniteMDP
from custard.planning.branch import search as branch_and_bound
from custard.planning.candidates import climb, perturbed, refits
from custard.planning.climbing import Climber
from custard.planning.constraint_search import MAX_DENSE_STATES, ConstraintSearch
from custard.planning.labelling import lossless_tree
from custard.planning.points import points_of
from custard.planning.reduced import ReducedMDP, reduce

__all__ = ["compile_first"]

DEPTH, SECONDS, CLIMBS = 2, 0.02, 5  # of each search
_compiled: set[tuple[bool, ...]] = set()  # kinds of models that went through in this process


def compile_first(mdp: FiniteMDP) -> None:
    """Run the searches that a model of this kind needs on a tiny one, once per process."""
    is_discounted = mdp.gamma < 1.0 and mdp.horizon is None
    is_large = is_discounted and mdp.n_states > MAX_DENSE_STATES
    kind = is_discounted, is_large, mdp.gamma < 1.0, mdp.horizon is None
    if kind in _compiled:
        return
    _compiled.add(kind)
    for sign in (-1.0, 1.0):  # bounds differ for losses and gains
        tiny = _tiny(0.9 if mdp.gamma < 1.0 else 1.0, None if mdp.horizon is None else 4, sign)
        if is_discounted:
            _search_constraints(reduce(tiny), 0 if is_large else None)
        else:
            _search_partial_trees(reduce(tiny))


def _search_constraints(problem: ReducedMDP, max_dense_states: int | None) -> None:
    points = points_of(problem)
    climber = Climber(points, DEPTH, problem.tolerance, 0)
    climber.try_all_stumps(time.monotonic() + SECONDS)
    for _ in range(CLIMBS):  # each goes a step further than the one that compiled
        climber.run(time.monotonic() + SECONDS)
    search = ConstraintSearch(points, DEPTH, lambda: climber.value - 1.0, lambda _: None, max_dense_states)
    search.run(time.monotonic() + SECONDS, time.monotonic() + 3600.0)


def _search_partial_trees(problem: ReducedMDP) -> None:
    rng = np.random.default_rng(0)
    lossless_tree(problem, DEPTH, np.inf)
    for shape in refits(problem, DEPTH, 1, rng, np.inf):
        climb(problem, perturbed(problem, shape, DEPTH, rng), DEPTH, 0.0, rng, np.inf)
    list(branch_and_bound(problem, DEPTH, best=-np.inf, price=0.0, deadline=time.monotonic() + SECONDS))


def _tiny(gamma: float, horizon: int | None, sign: float) -> FiniteMDP:
    """Return eight states of three features, two actions and a terminal state, with rewards of one sign."""
    rng, count = np.random.default_rng(0), 8
    x = (np.arange(count + 1)[:, None] >> np.arange(3) & 1).astype(np.float64)
    after = rng.integers(count, size=(2, count))
    entries = [(a, s, t, p) for a in range(2) for s in range(count) for t, p in ((after[a, s], 0.75), (count, 0.25))]
    entries += [(a, count, count, 1.0) for a in range(2)]
    rewards = np.vstack([sign * rng.random((count, 2)), np.zeros((1, 2))])
    return FiniteMDP.from_entries(
        np.array(entries), rewards, terminal=np.arange(count + 1) == count, start=np.append(np.full(count, 1 / 8), 0.0),
        gamma=gamma, x=x, features=Features(numbered("x", 3), np.zeros(3), np.ones(3), (BINARY,) * 3),
        actions=Actions("discrete", numbered("a", 2)), horizon=horizon,
    )  # fmt: skip
