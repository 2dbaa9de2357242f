"""Random features, trees and numbers for property tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from custard import Actions, Features, Tree

KINDS = ("real", "integer", "binary")


def random_features(rng: np.random.Generator, n: int) -> Features:
    kinds = tuple(str(kind) for kind in rng.choice(KINDS, size=n, p=[0.6, 0.25, 0.15]))
    low, high = np.zeros(n), np.zeros(n)
    for i, kind in enumerate(kinds):
        if kind == "binary":
            low[i], high[i] = 0, 1
        elif kind == "integer":
            low[i] = rng.integers(-3, 3)
            high[i] = low[i] + rng.integers(1, 7)
        else:
            low[i] = rng.normal() * 10.0 ** rng.integers(-3, 4)
            high[i] = low[i] + abs(rng.normal()) * 10.0 ** rng.integers(-3, 4) + 1e-9
    return Features(tuple(f"f{i}" for i in range(n)), low, high, kinds)


def random_tree(
    rng: np.random.Generator, n: int = 3, splits: int = 8, kind: str = "discrete", features: Features | None = None
) -> Tree:
    """A tree grown by splitting random leaves at thresholds from a small pool, so that questions repeat."""
    features = features or random_features(rng, n)
    n = features.n
    if kind == "discrete":
        actions = Actions("discrete", ("a", "b", "c"), start=int(rng.integers(0, 3)))
    else:
        actions = Actions(kind, ("u", "w"), low=np.array([-2.0, -2.0]), high=np.array([2.0, 2.0]))
    pool = [np.sort(rng.uniform(features.low[c], features.high[c], size=4)) for c in range(n)]
    feature, threshold, left, right = [-1], [0.0], [-1], [-1]
    leaves = [0]
    for _ in range(splits):
        node = leaves.pop(int(rng.integers(len(leaves))))
        c = int(rng.integers(n))
        feature[node], threshold[node] = c, float(rng.choice(pool[c]))
        left[node], right[node] = len(feature), len(feature) + 1
        leaves += [left[node], right[node]]
        for column, value in ((feature, -1), (threshold, 0.0), (left, -1), (right, -1)):
            column += [value, value]
    count = len(feature)
    if kind == "discrete":
        value = rng.integers(actions.start, actions.start + 3, size=count)
    else:
        value = rng.integers(-2, 3, size=(count, 2)).astype(float)
    return Tree(feature, threshold, left, right, value, features, actions)


def probing_points(tree: Tree, rng: np.random.Generator, count: int = 200) -> np.ndarray:
    """Observations that matter: thresholds, their float neighbours, infinities, NaN, and ordinary values."""
    n = tree.features.n
    pools = []
    for c in range(n):
        own = tree.threshold[tree.feature == c]
        span = tree.features.high[c] - tree.features.low[c]
        ordinary = rng.uniform(tree.features.low[c] - span, tree.features.high[c] + span, size=8)
        near = [own, np.nextafter(own, np.inf), np.nextafter(own, -np.inf), own.astype(np.float32).astype(float)]
        pools.append(np.concatenate([*near, ordinary, [np.inf, -np.inf, np.nan, 0.0, -0.0]]))
    return np.stack([rng.choice(pool, size=count) for pool in pools], axis=1)


def hard_points(tree: Tree, count: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    """`count` observations [count, n]: random ones, thresholds, their neighbours in float64 and float32, ±inf and NaN.

    Every threshold and each of its neighbours stands in some row (if `count` allows), and rows mix all sorts.

    """
    rng = np.random.default_rng(seed)
    n = tree.features.n
    with np.errstate(over="ignore"):
        columns = [_column(tree, c, count, rng).astype(dtype) for c in range(n)]
    return np.stack(columns, axis=1)


def _column(tree: Tree, c: int, count: int, rng: np.random.Generator) -> np.ndarray:
    own = np.unique(tree.threshold[tree.feature == c])
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


seeds = st.integers(min_value=0, max_value=2**32 - 1)
