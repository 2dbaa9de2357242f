"""Optimal trees over one feature: the best intervals by dynamic programming, then the cheapest tree that finds them.

With one feature a tree is a list of intervals with an action each. The best lists of 1, 2, … intervals are found
together, in time linear in the number of thresholds, whatever the depth; for each, the tree with fewest splits on the
way within the depth limit is Knuth's optimal search tree. With price 0 the result is the best tree there is; with a
price it is for up to `MAX_BINS_DIVIDED` bins, where every division of every range is tried.

Bins [B] are what thresholds [B - 1] cut the feature into.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from custard.core.numba_tools import njit
from custard.tree.shape import Shape, Split

__all__ = ["best_intervals"]

MAX_INTERVALS = 64
MAX_BINS_DIVIDED = 60  # with a price, up to so many bins all divisions are tried


def best_intervals(
    sums: np.ndarray, counts: np.ndarray, thresholds: np.ndarray, max_depth: int, max_leaves: int | None, price: float
) -> tuple[Shape, float, float]:
    """Return the best tree over bins with action numbers for leaves, what it collects, and a bound on what any could.

    sums        [B, A], what each action collects in each bin
    counts      [B], how many states lie in each bin
    thresholds  [B - 1], between the bins
    max_depth   the largest number of splits on a path
    max_leaves  None for no limit of its own
    price       what one split costs per state that meets it

    >>> sums = np.array([[1.0, 0], [0, 3], [2, 0]])
    >>> best_intervals(sums, np.ones(3), np.array([0.5, 1.5]), 2, None, 0.0)[1:]
    (6.0, 6.0)
    """
    if price > 0.0 and len(sums) <= MAX_BINS_DIVIDED and max_leaves is None:
        return _best_divisions(sums, counts, thresholds, max_depth, price)
    most = min(2 ** min(max_depth, 6), len(sums), max_leaves or MAX_INTERVALS)
    values, back = _segment(np.ascontiguousarray(sums, dtype=np.float64), most)
    best: tuple[float, np.ndarray, np.ndarray, np.ndarray] | None = None
    tolerance = 1e-12 * max(1.0, float(np.abs(values[np.isfinite(values)]).max()))
    for k in range(1, most + 1):
        if not np.isfinite(values[k - 1].max()) or (
            k > 1 and values[k - 1].max() <= values[k - 2].max() + tolerance and price == 0.0
        ):
            continue
        ends, action = _walk_back(back, values, k)
        inside = np.diff(np.concatenate([[0.0], np.cumsum(counts)[ends]]))
        splits_met, middle = _search_tree(inside, max_depth)
        total = float(values[k - 1].max()) - price * splits_met
        if best is None or total > best[0] + tolerance:
            best = total, ends, action, middle
    assert best is not None
    total, ends, action, middle = best

    def over(i: int, j: int, depth: int) -> Shape:
        """Return the tree over intervals i to j."""
        if i == j:
            return int(action[i])
        m = int(middle[min(depth, middle.shape[0] - 1), i, j])
        return Split(0, float(thresholds[ends[m]]), over(i, m, depth - 1), over(m + 1, j, depth - 1))

    bound = total if price == 0.0 else float(values[np.isfinite(values)].max())
    return over(0, len(ends) - 1, max_depth), total, bound


def _best_divisions(
    sums: np.ndarray, counts: np.ndarray, thresholds: np.ndarray, max_depth: int, price: float
) -> tuple[Shape, float, float]:
    """Do the same by trying all divisions of all ranges of bins, down to the depth limit."""
    max_depth = min(max_depth, len(sums) - 1)
    total, middle, leaf = _divide(np.ascontiguousarray(sums, dtype=np.float64), counts, max_depth, price)

    def over(i: int, j: int, depth: int) -> Shape:
        """Return the tree over bins i to j."""
        m = int(middle[depth, i, j])
        if m < 0:
            return int(leaf[i, j])
        return Split(0, float(thresholds[m]), over(i, m, depth - 1), over(m + 1, j, depth - 1))

    return over(0, len(sums) - 1, max_depth), total, total


@njit(cache=True)
def _segment(sums, most):
    """Return the most that 1…most intervals collect, ending in each action, [most, A], and how they came about."""
    bins, n_actions = sums.shape
    values = np.full((most, n_actions), -np.inf)
    back = np.full((bins, most, n_actions), -1, np.int16)  # the action of the interval before, -1: the same goes on
    values[0] = sums[0]
    for b in range(1, bins):
        for k in range(most - 1, -1, -1):
            for a in range(n_actions):
                best, source = values[k, a], -1
                if k > 0:
                    for other in range(n_actions):
                        if other != a and values[k - 1, other] > best:
                            best, source = values[k - 1, other], other
                back[b, k, a] = source
                values[k, a] = best + sums[b, a]
    for k in range(1, most):  # at most k intervals
        if values[k].max() < values[k - 1].max():
            values[k] = -np.inf
    return values, back


@njit(cache=True)
def _walk_back(back, values, k):
    """Return the last bin and the action of each of k intervals."""
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
    """Return how many splits all states together meet in the best search tree, and where each range is divided."""
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
    """Return the most that ranges of bins collect within a depth, where they are divided, and their best actions."""
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
