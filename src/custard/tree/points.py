"""Observations that tell a tree from a careless copy of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.tree.tree import LEAF, Tree

__all__ = ["hard_points"]


def hard_points(tree: Tree, count: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    """`count` observations [count, n]: random ones, thresholds, their neighbours in float64 and float32, ±inf and NaN.

    Every threshold and each of its neighbours stands in some row (if `count` allows), and rows mix all sorts.

    >>> from custard import Actions, Features, Tree
    >>> tree = Tree.stump(0, 0.1, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b")))
    >>> bool((hard_points(tree, 1000) == 0.1).any())
    True
    """
    rng = np.random.default_rng(seed)
    n = tree.features.n
    with np.errstate(over="ignore"):
        columns = [_column(tree, c, count, rng).astype(dtype) for c in range(n)]
    return np.stack(columns, axis=1)


def _column(tree: Tree, c: int, count: int, rng: np.random.Generator) -> np.ndarray:
    own = np.unique(tree.threshold[(tree.feature == c) & (tree.feature != LEAF)])
    special = [np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1.8e308, -1.7e308, 1e-40, 3.5e38])]
    with np.errstate(over="ignore"):
        for near in (own, own.astype(np.float32)):
            up = np.nextafter(near, near.dtype.type(np.inf))
            down = np.nextafter(near, near.dtype.type(-np.inf))
            special += [near.astype(np.float64), up.astype(np.float64), down.astype(np.float64)]
    hard = np.unique(np.concatenate(special))
    centre, spread = (float(own.mean()), float(own.std()) or 1.0) if len(own) else (0.0, 1.0)
    if not np.isfinite(spread) or not np.isfinite(centre):
        centre, spread = 0.0, 1e300
    values = centre + 2.0 * spread * rng.standard_normal(count)
    where = rng.random(count) < 0.5
    values[where] = hard[rng.integers(len(hard), size=int(where.sum()))]
    first = min(len(hard), count)
    values[rng.permutation(count)[:first]] = hard[:first]
    return values
