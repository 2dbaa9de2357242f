"""Optimal trees over one feature: the best intervals by dynamic programming, then the quickest way to ask for them.

With one feature a tree is a list of intervals with an action each. The best lists of 1, 2, … intervals are found
together, in time linear in the number of thresholds, whatever the depth; for each, the tree that asks least within
the depth limit is Knuth's optimal search tree. With price 0 the result is the best tree there is; with a price it is
for up to `FEW` thresholds, where every division of every range is tried.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["best_intervals"]

MOST = 64  # intervals
FEW = 60  # thresholds


def best_intervals(
    sums: np.ndarray, counts: np.ndarray, max_depth: int, max_leaves: int | None, price: float
) -> tuple[list[list[float]], float, float]:
    """Rows (feature 0 or -1, cut, left, right, action) of the best tree over bins [B, A], its total, and a bound.

    >>> rows, total, bound = best_intervals(np.array([[1.0, 0], [0, 3], [2, 0]]), np.ones(3), 2, None, 0.0)
    >>> total, len(rows), bound
    (6.0, 5, 6.0)
    """
    if price > 0.0 and len(sums) <= FEW and max_leaves is None:
        return _best_divisions(sums, counts, max_depth, price)
    most = min(2 ** min(max_depth, 6), len(sums), max_leaves or MOST)
    values, back = _segment(np.ascontiguousarray(sums, dtype=np.float64), most)
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    tolerance = 1e-12 * max(1.0, float(np.abs(values[np.isfinite(values)]).max()))
    for k in range(1, most + 1):
        if not np.isfinite(values[k - 1].max()) or (
            k > 1 and values[k - 1].max() <= values[k - 2].max() + tolerance and price == 0.0
        ):
            continue
        ends, action = _walk_back(back, values, k)
        inside = np.diff(np.concatenate([[0.0], np.cumsum(counts)[ends]]))
        asked, middle = _search_tree(inside, max_depth)
        total = float(values[k - 1].max()) - price * asked
        if best is None or total > best[0] + tolerance:
            best = total, np.stack([ends, action]), middle
    assert best is not None
    total, segments, middle = best
    rows: list[list[float]] = []
    stack = [(0, segments.shape[1] - 1, max_depth, -1, 0)]
    while stack:
        i, j, depth, parent, side = stack.pop()
        if parent >= 0:
            rows[parent][2 + side] = len(rows)
        if i == j:
            rows.append([-1, 0, -1, -1, int(segments[1, i])])
            continue
        m = int(middle[min(depth, middle.shape[0] - 1), i, j])
        stack += [(m + 1, j, depth - 1, len(rows), 1), (i, m, depth - 1, len(rows), 0)]
        rows.append([0, int(segments[0, m]), -1, -1, 0])
    return rows, total, total if price == 0.0 else float(values[np.isfinite(values)].max())


def _best_divisions(
    sums: np.ndarray, counts: np.ndarray, max_depth: int, price: float
) -> tuple[list[list[float]], float, float]:
    """The same by trying all divisions of all ranges of bins, down to the depth limit."""
    depth = min(max_depth, len(sums) - 1)
    total, middle, leaf = _divide(np.ascontiguousarray(sums, dtype=np.float64), counts, depth, price)
    rows: list[list[float]] = []
    stack = [(0, len(sums) - 1, depth, -1, 0)]
    while stack:
        i, j, d, parent, side = stack.pop()
        if parent >= 0:
            rows[parent][2 + side] = len(rows)
        m = int(middle[d, i, j])
        if m < 0:
            rows.append([-1, 0, -1, -1, int(leaf[i, j])])
            continue
        stack += [(m + 1, j, d - 1, len(rows), 1), (i, m, d - 1, len(rows), 0)]
        rows.append([0, m, -1, -1, 0])
    return rows, total, total


@njit(cache=True)
def _segment(sums, most):
    """values [most, A]: the most that 1…most intervals collect, ending in each action; how they came about."""
    bins, n_actions = sums.shape
    now = np.full((most, n_actions), -np.inf)
    back = np.full((bins, most, n_actions), -1, np.int16)  # the action of the interval before, -1: the same goes on
    now[0] = sums[0]
    for b in range(1, bins):
        for k in range(most - 1, -1, -1):
            for a in range(n_actions):
                best, source = now[k, a], -1
                if k > 0:
                    for other in range(n_actions):
                        if other != a and now[k - 1, other] > best:
                            best, source = now[k - 1, other], other
                back[b, k, a] = source
                now[k, a] = best + sums[b, a]
    for k in range(1, most):  # at most k intervals
        if now[k].max() < now[k - 1].max():
            now[k] = -np.inf
    return now, back


@njit(cache=True)
def _walk_back(back, values, k):
    """The last bin and the action of each of k intervals."""
    ends, action = np.empty(k, np.int64), np.empty(k, np.int64)
    a, level, b = int(values[k - 1].argmax()), k - 1, len(back) - 1
    ends[level], action[level] = b, a
    while b > 0:
        source = back[b, level, a]
        b -= 1
        if source >= 0:
            a, level = int(source), level - 1
            ends[level], action[level] = b, a
    return ends, action


@njit(cache=True)
def _search_tree(weight, depth):
    """How many questions all states together are asked in the best search tree, and where each range is divided."""
    k = len(weight)
    levels = min(depth, k) + 1
    cost = np.full((levels, k, k), np.inf)
    middle = np.zeros((levels, k, k), np.int64)
    for d in range(levels):
        for i in range(k):
            cost[d, i, i] = 0.0
    for d in range(1, levels):
        for width in range(1, k):
            for i in range(k - width):
                j = i + width
                inside = weight[i : j + 1].sum()
                for m in range(i, j):
                    total = inside + cost[d - 1, i, m] + cost[d - 1, m + 1, j]
                    if total < cost[d, i, j]:
                        cost[d, i, j] = total
                        middle[d, i, j] = m
    return cost[levels - 1, 0, k - 1], middle


@njit(cache=True)
def _divide(sums, counts, depth, price):
    """The most that ranges of bins collect within `depth` questions, where they are divided, and their best actions."""
    bins, n_actions = sums.shape
    below = np.zeros((bins + 1, n_actions))
    number = np.zeros(bins + 1)
    for b in range(bins):
        below[b + 1] = below[b] + sums[b]
        number[b + 1] = number[b] + counts[b]
    total = np.zeros((depth + 1, bins, bins))
    middle = np.full((depth + 1, bins, bins), -1, np.int64)
    leaf = np.zeros((bins, bins), np.int64)
    for i in range(bins):
        for j in range(i, bins):
            inside = below[j + 1] - below[i]
            leaf[i, j] = inside.argmax()
            total[0, i, j] = inside.max()
    for d in range(1, depth + 1):
        for i in range(bins):
            for j in range(i, bins):
                best, where = total[0, i, j], -1
                cost = price * (number[j + 1] - number[i])
                for m in range(i, j):
                    value = total[d - 1, i, m] + total[d - 1, m + 1, j] - cost
                    if value > best + 1e-12 * abs(best):
                        best, where = value, m
                total[d, i, j], middle[d, i, j] = best, where
    return total[depth, 0, bins - 1], middle, leaf
