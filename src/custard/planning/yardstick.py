"""The most any tree could return: what a learned tree's gap is measured against."""

from __future__ import annotations

import math

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP
from custard.planning.evaluate import tree_value
from custard.planning.model import model_of
from custard.planning.solve import optimal_value
from custard.task.source import Source
from custard.tree.tree import Tree

__all__ = ["best_return", "exact_return", "slack"]

MAX_STATES = 20_000  # of models that are solved for the sake of a bound


def best_return(source: Source, max_depth: int | None = None) -> float | None:
    """Return an upper bound on the expected return of every tree, or None where none is known.

    PotholeWorld: the exact limit for the depth. Environments with an exact model: the best policy's value within the
    time limit. `plan` proves tighter bounds for a depth.

    >>> from custard.task.source import source
    >>> best_return(source("custard/PrereqWorld-v0", {"m": 7}), max_depth=3), best_return(source("CartPole-v1"))
    (-4.0, 500.0)
    """
    if source.without_history is not None:  # no policy with memory is better than the best one that knows the state
        return best_return(source.without_history)
    name = _bare_name(source)
    if name == "CartPole" and source.time_limit is not None:
        return float(source.time_limit)  # a reward of one per step
    if name == "PotholeWorld":
        from custard.planning.pothole import MAX_INTERVALS, best_intervals

        intervals = MAX_INTERVALS if max_depth is None else min(2**max_depth, MAX_INTERVALS)
        return float(best_intervals(source.make().unwrapped, intervals).values[-1])
    mdp = _small_model(source)
    if mdp is None:
        return None
    value = optimal_value(mdp)
    return value if math.isfinite(value) else None


def exact_return(source: Source, tree: Tree) -> float | None:
    """Return a tree's expected return without rollouts, or None where there is no exact model (or too large a one).

    >>> from custard.task.source import source
    >>> where = source("custard/PotholeWorld-v0")
    >>> mdp = model_of(where)
    >>> round(exact_return(where, Tree.leaf(0, mdp.features, mdp.actions)), 6)
    45.0
    """
    if _bare_name(source) == "PotholeWorld":
        if source.history:
            return None  # what is exact about its model holds for trees of the position alone
        import numpy as np

        from custard.planning.pothole import GRID_STEP, expected_rewards, position_visits

        road = source.make().unwrapped
        visits = position_visits(road.length, GRID_STEP)  # type: ignore[attr-defined]
        places = np.arange(len(visits)) * GRID_STEP
        lanes = tree.predict(places[:, None]).astype(np.int64)
        return float(visits @ expected_rewards(road, places)[np.arange(len(visits)), lanes])
    mdp = _small_model(source)
    return None if mdp is None else tree_value(tree, mdp)


def _small_model(source: Source) -> FiniteMDP | None:
    """Return the exact model with its time limit, or None where there is none or it is too large."""
    try:
        mdp = model_of(source, limit=True)
    except CustardError:
        return None
    return mdp if mdp.n_states <= MAX_STATES else None


def slack(source: Source, bound: float) -> float:
    """Return how far below the bound still counts as reaching it: rounding, and on PotholeWorld's grid 0.01."""
    return 0.01 if _bare_name(source) == "PotholeWorld" else 1e-9 * max(1.0, abs(bound))


def _bare_name(source: Source) -> str:
    """Return the environment's name without namespace and version."""
    return source.name.rpartition("/")[2].rpartition("-v")[0]
