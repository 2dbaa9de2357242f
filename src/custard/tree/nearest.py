"""The nearest observation that reaches a leaf past sums: least distance to a polyhedron, then checked by the tree.

What must hold at a leaf is a list of linear inequalities over the observation's own features. The nearest point that
meets them, in feature-scaled Euclidean distance, is found by least distance programming (Lawson and Hanson, Solving
Least Squares Problems, chapter 23: one non-negative least squares problem, solved in finitely many steps); features
that take whole numbers only are branched on. The point found is moved inside by as little as it takes for the tree
itself, in its own arithmetic, to reach the leaf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from custard.core.errors import CustardError

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["constraints", "nearest_point"]

MAX_BRANCHES = 500  # of whole-number features, per leaf
MARGINS = (0.0, *(4.0**k * 2.0**-52 for k in range(1, 15)))  # shares of a constraint's size by which it is tightened
MIN_DISTANCE = 1e-12  # of what counts as moving at all


def constraints(tree: Tree, leaf: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Return what must hold to reach a leaf as weights · x <= limit: [m, n_raw], [m], which are strict [m].

    The last is whether these are all: a derived feature that is no weighted sum has no such form.
    """
    weights, limits, strict, complete = [], [], [], True
    for c, (above, most) in tree.box(leaf).items():
        total = tree.features.sum_of(c)
        if not total.is_linear:
            complete = False
            continue
        row = np.zeros(tree.features.n_raw)
        for i, weight in total.terms:
            assert isinstance(i, int)
            row[i] = weight
        for sign, limit, is_strict in ((1.0, most, False), (-1.0, -above, True)):
            if np.isfinite(limit):
                weights.append(sign * row)
                limits.append(limit - sign * total.constant)
                strict.append(is_strict)
    shape = (len(weights), tree.features.n_raw)
    return np.array(weights).reshape(shape), np.array(limits), np.array(strict, dtype=bool), complete


def nearest_point(
    tree: Tree, leaf: int, x: np.ndarray, width: np.ndarray, held: np.ndarray
) -> tuple[np.ndarray, float] | None:
    """Return the observation nearest to x [n_raw] that reaches a leaf, and its distance; None if none was found.

    width  [n_raw] what a change of each feature is divided by
    held   [n_raw] bool, which features must stay as they are
    """
    weights, limits, _, complete = constraints(tree, leaf)
    if not complete:
        return None
    raw = tree.features.raw
    low, high = np.array(raw.low), np.array(raw.high)
    outside = ~((low <= x) & (x <= high))  # changes stay within the bounds, unless the observation lies outside them
    low[outside], high[outside] = -np.inf, np.inf
    start = np.where(np.isfinite(x), x, np.clip(0.0, np.maximum(low, -1e300), np.minimum(high, 1e300)))
    if held[~np.isfinite(x)].any():
        return None
    low, high = np.where(held, start, low), np.where(held, start, high)
    size = np.abs(weights) @ np.maximum(np.abs(start), width) + np.abs(limits)
    for margin in MARGINS:
        found = _least_distance(start, width, weights, limits - margin * size, low, high, raw.integer)
        if found is None:
            return None
        point = np.where(np.isfinite(x) & (np.abs(found - start) <= MIN_DISTANCE * width), x, found)
        if tree.path(point)[-1] == leaf:
            moved = ~((point == x) | (np.isnan(point) & np.isnan(x)))
            gap = np.where(np.isfinite(x[moved]), (point[moved] - start[moved]) / width[moved], np.inf)
            return point, float(np.sqrt((gap**2).sum()))
    return None


def _least_distance(
    x: np.ndarray, width: np.ndarray, weights: np.ndarray, limits: np.ndarray, low: np.ndarray, high: np.ndarray,
    whole: np.ndarray,
) -> np.ndarray | None:  # fmt: skip
    """Return the point nearest to x within bounds and weights · point <= limits; None if there is none.

    x, width      [n], where to start and what changes are divided by
    weights       [m, n]
    limits        [m]
    low, high     [n], bounds, maybe infinite
    whole         [n] bool, features that take whole numbers only
    """
    best: tuple[float, np.ndarray] | None = None
    stack = [(low, high)]
    for _ in range(MAX_BRANCHES):
        if not stack:
            break
        low, high = stack.pop()
        point = _relaxed(x, width, weights, limits, low, high)
        if point is None:
            continue
        distance = float((((point - x) / width) ** 2).sum())
        if best is not None and distance >= best[0]:
            continue
        broken = np.flatnonzero(whole & (np.abs(point - np.round(point)) > 1e-9))
        if not len(broken):
            point = np.where(whole, np.round(point), point)
            best = distance, point
            continue
        i = int(broken[0])
        below, above = high.copy(), low.copy()
        below[i], above[i] = np.floor(point[i]), np.floor(point[i]) + 1.0
        stack += [(low, below), (above, high)] if point[i] % 1.0 > 0.5 else [(above, high), (low, below)]
    else:
        raise CustardError("the nearest change was not found: too many whole-number features appear in sums")
    return None if best is None else best[1]


def _relaxed(
    x: np.ndarray, width: np.ndarray, weights: np.ndarray, limits: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray | None:
    """Return the nearest point of the polyhedron for real-valued features. Parameters as for `_least_distance`."""
    from scipy.optimize import nnls

    if (low > high).any():
        return None
    free = np.flatnonzero(low < high)
    base = np.where(low == high, low, x)
    # In z = (point - base) / width of the free features: rows · z >= rhs.
    rows, rhs = [-(weights[:, free] * width[free])], [weights @ base - limits]
    for side, sign in ((low, 1.0), (high, -1.0)):
        finite = free[np.isfinite(side[free])]
        unit = np.zeros((len(finite), len(free)))
        unit[np.arange(len(finite)), np.searchsorted(free, finite)] = sign
        rows.append(unit)
        rhs.append(sign * (side[finite] - base[finite]) / width[finite])
    matrix, target = np.concatenate(rows), np.concatenate(rhs)
    length = np.sqrt((matrix**2).sum(axis=1))
    if (target[length == 0.0] > 0.0).any():
        return None
    keep = length > 0.0
    matrix, target = matrix[keep] / length[keep, None], target[keep] / length[keep]
    if (target <= 0.0).all():
        return base
    stacked = np.concatenate([matrix.T, target[None]])
    wanted = np.zeros(len(free) + 1)
    wanted[-1] = 1.0
    multipliers, _ = nnls(stacked, wanted, maxiter=50 * stacked.shape[1])
    residual = stacked @ multipliers - wanted
    if residual[-1] > -1e-11 or np.linalg.norm(residual) < 1e-10:
        return None
    z = -residual[:-1] / residual[-1]
    if (matrix @ z < target - 1e-7 * (1.0 + np.abs(target))).any():
        return None
    point = base.copy()
    point[free] = np.clip(base[free] + width[free] * z, low[free], high[free])
    return point
