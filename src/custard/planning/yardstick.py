"""The most any tree could return: what a learned tree's gap is measured against."""

from __future__ import annotations

import math

from custard.errors import CustardError
from custard.lab.source import Source
from custard.planning.model import model_of
from custard.planning.solve import optimal_value

__all__ = ["best_return"]

LARGEST = 20_000  # states


def best_return(source: Source, max_depth: int | None = None) -> float | None:
    """An upper bound on the expected return of every tree, or None where none is known.

    PotholeWorld: the exact limit for the depth. Environments with an exact model: the best policy's value within the
    time limit. `plan` proves tighter bounds for a depth.

    >>> from custard.lab.source import source
    >>> best_return(source("custard/PrereqWorld-v0", {"m": 7}), max_depth=3), best_return(source("CartPole-v1"))
    (-4.0, 500.0)
    """
    name = source.name.rpartition("/")[2].rpartition("-v")[0]
    if name == "CartPole" and source.limit is not None:
        return float(source.limit)  # a reward of one a step
    if name == "PotholeWorld":
        from custard.planning.pothole import best_intervals

        intervals = 64 if max_depth is None else 2 ** min(max_depth, 6)
        return float(best_intervals(source.make().unwrapped, intervals).values[-1])
    try:
        mdp = model_of(source, limit=True)
    except CustardError:
        return None
    if mdp.n_states > LARGEST:
        return None
    value = optimal_value(mdp)
    return value if math.isfinite(value) else None
