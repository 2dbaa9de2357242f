"""The optimal-tree engine: given states and what each action is worth there, the tree that collects most.

An ordinary supervised problem once the values are known: maximise the sum of value[s, T(s)] over the states, less a
price for every question asked. Thresholds come from a grid (quantiles unless given), so that a feature is a small
whole number, and the sums a split needs are read off histograms. Trees of up to three questions are found exactly:
below every first question, the best two further questions of both branches come from pairwise histograms. Deeper
trees choose each question by the best three-question tree below it, and come with an upper bound; given `effort`, a
search improves on both until they meet (`custard.tree.anytime`). With one feature
the best tree of any depth is found (`custard.tree.intervals`); with very many, questions are chosen by the best two-
or one-question tree below them.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features
from custard.tree.intervals import best_intervals
from custard.tree.tree import LEAF, Tree

__all__ = ["Fitted", "fit_tree", "quantile_cuts"]

EXACT = 3  # questions up to which the answer is proved
WORK = 1e9  # additions up to which the best three-question tree is looked for


@dataclass(frozen=True)
class Fitted:
    """The best tree found and what is known about it."""

    tree: Tree
    total: float  # the sum of values it collects, less the price of its questions
    bound: float  # no tree over the same thresholds collects more

    @property
    def exact(self) -> bool:
        """Whether the tree is proved to be the best."""
        return self.total >= self.bound - 1e-9 * max(1.0, abs(self.bound))


def quantile_cuts(x: np.ndarray, count: int = 15) -> list[np.ndarray]:
    """For each feature at most `count` thresholds between distinct values, at quantiles of the states.

    >>> [c.tolist() for c in quantile_cuts(np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]]))]
    [[0.5, 1.5], []]
    """
    cuts = []
    for column in np.asarray(x, dtype=np.float64).T:
        values, counts = np.unique(column, return_counts=True)
        middles = values[:-1] + (values[1:] - values[:-1]) / 2
        if len(middles) > count:
            share = np.cumsum(counts)[:-1] / counts.sum()
            wanted = (np.arange(count) + 1) / (count + 1)
            middles = middles[np.unique(np.searchsorted(share, wanted).clip(0, len(middles) - 1))]
        cuts.append(middles)
    return cuts


def fit_tree(
    x: np.ndarray,
    value: np.ndarray,
    features: Features,
    actions: Actions,
    *,
    max_depth: int = EXACT,
    price: float = 0.0,
    cuts: Sequence[np.ndarray] | int = 15,
    max_leaves: int | None = None,
    effort: float = 0,
) -> Fitted:
    """The tree of at most `max_depth` questions a path that collects most of `value` [N, A] over states `x` [N, n].

    `price` is what one question costs in one state: |zeta|. With the same total, the tree with fewer leaves is taken.
    A tree with more than `max_leaves` leaves loses those that collect least over what their parent would. `effort` is
    how many problems of few questions may be solved to better a tree of many and to prove how good it is; infinity
    goes on until nothing is better.

    >>> x, value = np.array([[0.0], [1.0], [2.0]]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> fitted = fit_tree(x, value, Features(("x",), [0], [2]), Actions("discrete", ("a", "b")))
    >>> fitted.total, fitted.tree.n_leaves, fitted.exact
    (3.0, 3, True)
    """
    x, value = np.ascontiguousarray(x, dtype=np.float64), np.ascontiguousarray(value, dtype=np.float64)
    if x.ndim != 2 or value.ndim != 2 or len(x) != len(value) or len(x) == 0:
        raise CustardError(f"fit_tree needs states [N, n] and values [N, A], got {x.shape} and {value.shape}")
    if not actions.discrete or value.shape[1] != actions.n:
        raise CustardError(f"fit_tree needs one column of values for each of {actions.n} discrete actions")
    grid = quantile_cuts(x, cuts) if isinstance(cuts, int) else [np.sort(np.asarray(c, dtype=np.float64)) for c in cuts]
    codes = np.stack([np.searchsorted(cut, column) for cut, column in zip(grid, x.T, strict=True)], axis=1)
    codes = np.ascontiguousarray(codes.astype(np.int32))
    sizes = np.array([len(cut) + 1 for cut in grid], dtype=np.int64)
    bound = float(value.max(axis=1).sum())
    if x.shape[1] == 1 and max_depth > 0 and value.shape[1] < 2**15:
        sums = np.zeros((sizes[0], value.shape[1]))
        np.add.at(sums, codes[:, 0], value)
        counts = np.bincount(codes[:, 0], minlength=sizes[0]).astype(np.float64)
        rows, total, most = best_intervals(sums, counts, max_depth, max_leaves, price)
        return Fitted(
            _as_tree(rows, grid, features, actions), total, min(bound, most) if max_depth <= 6 else max(bound, total)
        )
    ahead = _questions_ahead(codes, sizes, value.shape[1])
    builder = _Builder(codes, value, sizes, price, ahead)
    if effort > 0 and max_depth > ahead:
        total, bound = builder.search(max_depth, effort)
    else:
        total = builder.grow(np.arange(len(x)), max_depth)
    leaves = sum(row[0] == LEAF for row in builder.rows)
    if max_depth <= ahead and (max_leaves is None or leaves <= max_leaves):
        bound = total
    if max_leaves is not None and leaves > max_leaves:
        total = builder.prune(max_leaves)
    return Fitted(_as_tree(builder.rows, grid, features, actions), total, bound)


def _questions_ahead(codes: np.ndarray, sizes: np.ndarray, n_actions: int) -> int:
    """How many questions can be looked at together without taking too long."""
    count, n = codes.shape
    two = (n * n * count + float(sizes.sum()) ** 2) * n_actions
    return EXACT if two * float(sizes.sum()) <= WORK else 2 if two <= WORK else 1


def _as_tree(rows: list[list[float]], grid: Sequence[np.ndarray], features: Features, actions: Actions) -> Tree:
    table = np.array(rows, dtype=np.float64)
    feature = table[:, 0].astype(np.int64)
    threshold = [0.0 if c == LEAF else grid[c][int(cut)] for c, cut in zip(feature, table[:, 1], strict=True)]
    return Tree(
        feature, np.array(threshold), table[:, 2].astype(np.int64), table[:, 3].astype(np.int64),
        table[:, 4].astype(np.int64) + actions.start, features, actions,
    )  # fmt: skip


class _Builder:
    """Grows a tree from the root, one question at a time, each the first of the best `ahead` below it."""

    def __init__(self, codes: np.ndarray, value: np.ndarray, sizes: np.ndarray, price: float, ahead: int) -> None:
        self.codes, self.value, self.sizes, self.price, self.ahead = codes, value, sizes, price, ahead
        self.rows: list[list[float]] = []  # feature, cut, left, right, action
        self.sums: list[np.ndarray] = []  # what each action collects in a node's states
        self.sizes_of: list[int] = []  # how many states reach a node

    def search(self, depth: int, effort: float) -> tuple[float, float]:
        """Build the best tree that so much effort finds; what it collects, and the most any could."""
        from custard.tree.anytime import Problem, best_within

        lost = self.value - self.value.max(axis=1, keepdims=True)
        everything = np.arange(len(lost))

        def look(states: np.ndarray, questions: int) -> float:
            return float(_best_first(self.codes, lost, self.sizes, states, questions, self.price)[0])

        def grow(states: np.ndarray, questions: int) -> tuple[float, int]:
            scratch = _Builder(self.codes, lost, self.sizes, self.price, self.ahead)
            return scratch.grow(states, questions), len(scratch.rows)

        problem = Problem(self.codes, lost, self.price, self.ahead, look, grow)
        node, total, most, _ = best_within(problem, everything, depth, effort)
        shift = float(self.value.max(axis=1).sum())
        stack: list[tuple[Any, np.ndarray, int, int]] = [(node, everything, -1, 0)]
        while stack:
            part, states, parent, side = stack.pop()
            if len(part) == 2:
                self.grow(states, part[1], parent, side)
                continue
            c, cut, left, right = part
            at = self.add(states, parent, side)
            self.rows[at][:2] = [c, cut]
            goes_left = self.codes[states, c] <= cut
            stack += [(right, states[~goes_left], at, 1), (left, states[goes_left], at, 0)]
        return total + shift, most + shift

    def add(self, states: np.ndarray, parent: int, side: int) -> int:
        """A leaf with the best action for some states; its number."""
        node = len(self.rows)
        if parent >= 0:
            self.rows[parent][2 + side] = node
        sums = self.value[states].sum(axis=0)
        self.rows.append([LEAF, 0, LEAF, LEAF, int(sums.argmax())])
        self.sums.append(sums)
        self.sizes_of.append(len(states))
        return node

    def grow(self, index: np.ndarray, depth: int, parent: int = -1, side: int = 0) -> float:
        """Questions for some states, each the first of the best few; what they collect."""
        stack = [(index, depth, parent, side)]
        total = 0.0
        while stack:
            states, left, parent, side = stack.pop()
            node = self.add(states, parent, side)
            best = float(self.sums[node].max()) if len(states) else 0.0
            gain, c, cut = -np.inf, -1, -1
            if left > 0 and len(states) > 1:
                gain, c, cut = _best_first(
                    self.codes, self.value, self.sizes, states, min(left, self.ahead), self.price
                )
            if gain <= best + 1e-12 * max(1.0, abs(best)):
                total += best
                continue
            total -= self.price * len(states)
            self.rows[node][:2] = [c, cut]
            goes_left = self.codes[states, c] <= cut
            stack.append((states[~goes_left], left - 1, node, 1))
            stack.append((states[goes_left], left - 1, node, 0))
        return total

    def prune(self, max_leaves: int) -> float:
        """Close the questions that gain least until few enough leaves are left; what the tree then collects."""
        best = [float(sums.max()) for sums in self.sums]
        inner = [i for i, row in enumerate(self.rows) if row[0] != LEAF]
        total = sum(best[i] for i, row in enumerate(self.rows) if row[0] == LEAF)
        total -= self.price * sum(self.sizes_of[i] for i in inner)
        while len(inner) >= max_leaves:
            gains = []
            for i in inner:
                left, right = int(self.rows[i][2]), int(self.rows[i][3])
                if self.rows[left][0] == LEAF and self.rows[right][0] == LEAF:
                    gains.append((best[left] + best[right] - best[i] - self.price * self.sizes_of[i], i))
            gain, node = min(gains)
            self.rows[node] = [LEAF, 0, LEAF, LEAF, int(self.sums[node].argmax())]
            inner.remove(node)
            total -= gain
        self.rows = _reachable(self.rows)
        return total


def _reachable(rows: list[list[float]]) -> list[list[float]]:
    """The rows below the root, numbered again."""
    kept: list[list[float]] = []
    stack = [(0, -1, 0)]
    while stack:
        node, parent, side = stack.pop()
        if parent >= 0:
            kept[parent][2 + side] = len(kept)
        if rows[node][0] != LEAF:
            stack += [(int(rows[node][3]), len(kept), 1), (int(rows[node][2]), len(kept), 0)]
        kept.append(list(rows[node]))
    return kept


@njit(cache=True)
def _best_first(codes, value, sizes, index, depth, price):
    """The first question of the best tree of at most `depth` (one to three) questions: total, feature, cut."""
    n, n_actions = codes.shape[1], value.shape[1]
    if depth == 1:
        return _best_one(codes, value, sizes, index, price)
    if depth == 2:
        total, c, cut, _ = _best_two(codes, value, sizes, index, price)
        return total, c, cut
    ceiling = 0.0  # no branch collects more than the best action in every state
    most = np.empty(len(index))
    for k in range(len(index)):
        m = value[index[k], 0]
        for a in range(1, n_actions):
            m = max(m, value[index[k], a])
        most[k] = m
        ceiling += m
    best, best_c, best_cut, _ = _best_two(codes, value, sizes, index, price)
    left, right = np.empty(len(index), np.int64), np.empty(len(index), np.int64)
    for c in range(n):
        for cut in range(sizes[c] - 1):
            a = b = 0
            for k in range(len(index)):
                if codes[index[k], c] <= cut:
                    left[a] = index[k]
                    a += 1
                else:
                    right[b] = index[k]
                    b += 1
            if a == 0 or b == 0 or ceiling - price * len(index) <= best:
                continue
            total = -price * len(index)
            first, _, _, leaf = _best_two(codes, value, sizes, left[:a], price)
            total += max(first, leaf)
            rest = 0.0
            for k in range(len(index)):
                if codes[index[k], c] > cut:
                    rest += most[k]
            if total + rest <= best:
                continue
            second, _, _, leaf = _best_two(codes, value, sizes, right[:b], price)
            total += max(second, leaf)
            if total > best + 1e-12 * abs(best):
                best, best_c, best_cut = total, c, cut
    return best, best_c, best_cut


@njit(cache=True)
def _leaf(sums):
    best = sums[0]
    for a in range(1, len(sums)):
        best = max(best, sums[a])
    return best


@njit(cache=True)
def _best_one(codes, value, sizes, index, price):
    """The best tree of exactly one question: total, feature, cut."""
    n_actions = value.shape[1]
    best, best_c, best_cut = -1e300, -1, -1
    everything = np.zeros(n_actions)
    for i in index:
        for a in range(n_actions):
            everything[a] += value[i, a]
    below = np.empty(n_actions)
    for c in range(codes.shape[1]):
        sums = np.zeros((sizes[c], n_actions))
        for i in index:
            for a in range(n_actions):
                sums[codes[i, c], a] += value[i, a]
        for a in range(n_actions):
            below[a] = 0.0
        for cut in range(sizes[c] - 1):
            low = high = -np.inf
            for a in range(n_actions):
                below[a] += sums[cut, a]
                low = max(low, below[a])
                high = max(high, everything[a] - below[a])
            total = low + high - price * len(index)
            if total > best + 1e-12 * abs(best):
                best, best_c, best_cut = total, c, cut
    return best, best_c, best_cut


@njit(cache=True)
def _best_two(codes, value, sizes, index, price):
    """The best tree of one or two questions a path: total, its first question, and the total of a single leaf."""
    n, n_actions, count = codes.shape[1], value.shape[1], len(index)
    widest = 0
    for c in range(n):
        widest = max(widest, sizes[c])
    everything = np.zeros(n_actions)
    for i in index:
        for a in range(n_actions):
            everything[a] += value[i, a]
    # The best second stage of each branch of each first question, over all second features.
    lows, highs = np.full((n, widest), -np.inf), np.full((n, widest), -np.inf)
    number = np.zeros((n, widest))  # how many states lie at or below each first cut
    sums = np.empty((widest, widest, n_actions))
    counts = np.empty(widest)
    low, high = np.empty(n_actions), np.empty(n_actions)
    low_below, high_below = np.empty(n_actions), np.empty(n_actions)
    column_low, column_all = np.empty((widest, n_actions)), np.empty((widest, n_actions))
    for c in range(n):
        for p in range(sizes[c]):
            counts[p] = 0.0
        for i in index:
            counts[codes[i, c]] += 1.0
        running = 0.0
        for cut in range(sizes[c]):
            running += counts[cut]
            number[c, cut] = running
        for d in range(n):
            for p in range(sizes[c]):
                for q in range(sizes[d]):
                    for a in range(n_actions):
                        sums[p, q, a] = 0.0
            for i in index:
                p, q = codes[i, c], codes[i, d]
                for a in range(n_actions):
                    sums[p, q, a] += value[i, a]
            for q in range(sizes[d]):
                for a in range(n_actions):
                    column_low[q, a] = column_all[q, a] = 0.0
            for p in range(sizes[c]):
                for q in range(sizes[d]):
                    for a in range(n_actions):
                        column_all[q, a] += sums[p, q, a]
            for cut in range(sizes[c] - 1):
                for a in range(n_actions):
                    low[a] = 0.0
                for q in range(sizes[d]):
                    for a in range(n_actions):
                        column_low[q, a] += sums[cut, q, a]
                        low[a] += column_low[q, a]
                for a in range(n_actions):
                    high[a] = everything[a] - low[a]
                below = number[c, cut]
                best_low, best_high = _leaf(low), _leaf(high)
                for a in range(n_actions):
                    low_below[a] = high_below[a] = 0.0
                for second in range(sizes[d] - 1):
                    ll = lr = hl = hr = -np.inf
                    for a in range(n_actions):
                        low_below[a] += column_low[second, a]
                        high_below[a] += column_all[second, a] - column_low[second, a]
                        ll, lr = max(ll, low_below[a]), max(lr, low[a] - low_below[a])
                        hl, hr = max(hl, high_below[a]), max(hr, high[a] - high_below[a])
                    best_low = max(best_low, ll + lr - price * below)
                    best_high = max(best_high, hl + hr - price * (count - below))
                lows[c, cut] = max(lows[c, cut], best_low)
                highs[c, cut] = max(highs[c, cut], best_high)
    best, best_c, best_cut = -1e300, -1, -1
    for c in range(n):
        for cut in range(sizes[c] - 1):
            if number[c, cut] == 0 or number[c, cut] == count:
                continue
            total = lows[c, cut] + highs[c, cut] - price * count
            if total > best + 1e-12 * abs(best):
                best, best_c, best_cut = total, c, cut
    return best, best_c, best_cut, _leaf(everything)
