"""The optimal-tree engine: given states and what each action is worth there, the tree that collects most.

An ordinary supervised problem once the values are known: maximise the sum of value[s, T(s)] over the states, less a
price for every split on the way. Thresholds come from a grid (quantiles unless given), so that a feature is a small
whole number, and the sums a split needs are read off histograms (`custard.tree.lookahead`). Trees of up to three splits
per path are found exactly: below every first split, the best two further splits of both branches come from pairwise
histograms. Deeper trees choose each split by the best three-split tree below it, and come with an upper bound; given
`effort`, a search improves on both until they meet (`custard.tree.anytime`). With one feature the best tree of any
depth is found (`custard.tree.intervals`); with very many, splits are chosen by the best two- or one-split tree below
them. Where that is no proof, a tree grown by CART's rule over the same thresholds is tried too: the better one is kept.
Unless thresholds are asked for, those that CART chooses among all join the quantiles where it collects more by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features
from custard.tree.anytime import Problem, SmallTree, Unsplit, best_within
from custard.tree.intervals import best_intervals
from custard.tree.lookahead import best_first_split, purest_split
from custard.tree.shape import LEFT, RIGHT, Shape, Split, build_tree, map_leaves
from custard.tree.three_splits import best_three, fits_three
from custard.tree.tree import Tree

__all__ = ["Fitted", "fit_tree", "quantile_cuts"]

DEFAULT_CUTS = 15  # thresholds of each feature
MAX_LOOKAHEAD = 3  # splits per path that are chosen together, which makes trees of that depth exact
MAX_LOOKAHEAD_ADDITIONS = 1e9  # beyond, fewer splits are chosen together
MAX_INTERVAL_ACTIONS = 2**15 - 1  # `custard.tree.intervals` keeps action numbers as int16
MAX_EXACT_INTERVAL_DEPTH = 6  # `custard.tree.intervals` looks for up to 2**6 intervals


@dataclass(frozen=True)
class Fitted:
    """The best tree found and what is known about it."""

    tree: Tree
    total: float  # the sum of values it collects, less the price of its splits
    bound: float  # no tree over the same thresholds collects more

    @property
    def exact(self) -> bool:
        """Whether the tree is proved to be the best."""
        return self.total >= self.bound - 1e-9 * max(1.0, abs(self.bound))


def quantile_cuts(x: np.ndarray, count: int = 15) -> list[np.ndarray]:
    """Return for each feature at most `count` thresholds between distinct values, at quantiles of the states.

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
    max_depth: int = MAX_LOOKAHEAD,
    price: float = 0.0,
    cuts: Sequence[np.ndarray] | int | None = None,
    max_leaves: int | None = None,
    effort: float = 0,
    max_additions: float = MAX_LOOKAHEAD_ADDITIONS,
) -> Fitted:
    """Return the tree of at most `max_depth` that collects most of `value` [N, A] over the states `x` [N, n].

    x           [N, n], the states
    value       [N, A], what each discrete action is worth in each state
    features    of the states
    actions     the A actions
    max_depth   the largest number of splits on a path
    price       what one split costs in one state: |zeta|. With the same total, the tree with fewer leaves is taken
    cuts        thresholds of each feature, or how many of each to take at quantiles. None: 15 of each, and where CART
                collects more by choosing among all thresholds, those it chooses too
    max_leaves  a tree with more loses those that collect least over what their parent would
    effort      how many problems of few splits may be solved to better a tree of many and to prove how good it is;
                infinity goes on until nothing is better
    max_additions  that choosing one split may take: beyond, fewer splits are chosen together

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

    def fit(grid: Sequence[np.ndarray]) -> Fitted:
        return _fit_on(
            grid, x, value, features, actions, max_depth=max_depth, price=price, max_leaves=max_leaves, effort=effort,
            max_additions=max_additions,
        )  # fmt: skip

    if cuts is None:
        grid = quantile_cuts(x, DEFAULT_CUTS)
    elif isinstance(cuts, int):
        grid = quantile_cuts(x, cuts)
    else:
        grid = [np.sort(np.asarray(c, dtype=np.float64)) for c in cuts]
    fitted = fit(grid)
    all_cuts = quantile_cuts(x, len(x)) if cuts is None else []
    work = float(min(2 ** min(max_depth, 60), len(x))) * sum(map(len, all_cuts)) * value.shape[1]
    if cuts is not None or fitted.total >= value.max(axis=1).sum() or work > max_additions:
        return fitted
    cart = _Grower(*_codes(all_cuts, x), value, price, 1)
    total = cart.grow_purest(max_depth)
    if max_leaves is not None and sum(node.split is None for node in cart.nodes) > max_leaves:
        total = cart.prune(max_leaves)
    if total <= fitted.total + 1e-12 * max(1.0, abs(total)):
        return fitted
    grid = [np.union1d(quantiles, used) for quantiles, used in zip(grid, cart.cuts_used(all_cuts), strict=True)]
    finer = fit(grid)
    if finer.total >= total:
        return finer
    tree = build_tree(cart.shape(all_cuts, actions.start), features, actions)
    return Fitted(tree, total, max(total, finer.bound))


def _codes(grid: Sequence[np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many thresholds each value exceeds [N, n], and how many such codes each feature has [n]."""
    codes = np.stack([np.searchsorted(cut, column) for cut, column in zip(grid, x.T, strict=True)], axis=1)
    return np.ascontiguousarray(codes.astype(np.int32)), np.array([len(cut) + 1 for cut in grid], dtype=np.int64)


def _fit_on(
    grid: Sequence[np.ndarray],
    x: np.ndarray,
    value: np.ndarray,
    features: Features,
    actions: Actions,
    *,
    max_depth: int,
    price: float,
    max_leaves: int | None,
    effort: float,
    max_additions: float,
) -> Fitted:
    """Return the best tree over the thresholds of a grid; the other parameters are those of `fit_tree`."""
    codes, sizes = _codes(grid, x)
    bound = float(value.max(axis=1).sum())
    if x.shape[1] == 1 and max_depth > 0 and value.shape[1] <= MAX_INTERVAL_ACTIONS:
        sums = np.zeros((sizes[0], value.shape[1]))
        np.add.at(sums, codes[:, 0], value)
        counts = np.bincount(codes[:, 0], minlength=sizes[0]).astype(np.float64)
        shape, total, most = best_intervals(sums, counts, grid[0], max_depth, max_leaves, price)
        tree = build_tree(map_leaves(shape, lambda number: number + actions.start), features, actions)
        return Fitted(tree, total, min(bound, most) if max_depth <= MAX_EXACT_INTERVAL_DEPTH else max(bound, total))
    ahead = _lookahead(codes, sizes, value.shape[1], max_additions)
    grower = _Grower(codes, sizes, value, price, ahead)
    if effort > 0 and max_depth > ahead:
        total, bound = grower.search(max_depth, effort)
    else:
        total = grower.grow(np.arange(len(x)), max_depth)
    if max_depth > ahead and total < bound:
        rival = _Grower(codes, sizes, value, price, ahead)
        rival_total = rival.grow_purest(max_depth)
        if rival_total > total + 1e-12 * max(1.0, abs(total)):
            grower, total = rival, rival_total
    leaves = sum(node.split is None for node in grower.nodes)
    if max_depth <= ahead and (max_leaves is None or leaves <= max_leaves):
        bound = total
    if max_leaves is not None and leaves > max_leaves:
        total = grower.prune(max_leaves)
    return Fitted(build_tree(grower.shape(grid, actions.start), features, actions), total, bound)


def _lookahead(codes: np.ndarray, sizes: np.ndarray, n_actions: int, max_additions: float) -> int:
    """Return how many splits can be chosen together without taking too long."""
    count, n = codes.shape
    two = (n * n * count + float(sizes.sum()) ** 2) * n_actions
    if two * float(sizes.sum()) <= max_additions:
        return MAX_LOOKAHEAD
    return 2 if two <= max_additions else 1


@dataclass(frozen=True)
class _Cells:
    """States that no split tells apart, as one: what each action loses there against the best one."""

    codes: np.ndarray  # [K, n]
    lost: np.ndarray  # [K, A], at most 0
    shift: float  # what the best action of every cell collects

    @classmethod
    def of(cls, codes: np.ndarray, value: np.ndarray, together: bool) -> _Cells:
        """Return the cells of states; each state is its own unless they are put together."""
        if together:
            codes, cell = np.unique(codes, axis=0, return_inverse=True)
            summed = np.zeros((len(codes), value.shape[1]))
            np.add.at(summed, cell.reshape(-1), value)
            value = summed
        best = value.max(axis=1, keepdims=True)
        return cls(np.ascontiguousarray(codes), value - best, float(best.sum()))


@dataclass
class _Node:
    """A node while a tree grows."""

    sums: np.ndarray  # [A], what each action collects in the node's states
    count: int  # how many states reach it
    split: tuple[int, int] | None = None  # feature and cut; a leaf has none
    left: int = -1
    right: int = -1


class _Grower:
    """Grows a tree from the root, one split at a time, each the first of the best `ahead` below it.

    Nodes are a flat list in depth-first order, not a `Shape`, until the tree is done: growing takes no recursion,
    however deep the tree, and pruning needs what each node collects.
    """

    def __init__(self, codes: np.ndarray, sizes: np.ndarray, value: np.ndarray, price: float, ahead: int) -> None:
        self.codes, self.sizes, self.value, self.price, self.ahead = codes, sizes, value, price, ahead
        self.is_fast = False  # whether three splits are chosen by `best_three`, which rounds otherwise
        self.nodes: list[_Node] = []

    def shape(self, grid: Sequence[np.ndarray], first_action: int) -> Shape:
        """Return the tree as a shape over the thresholds of a grid, its leaves holding the environment's actions."""
        built: list[Shape] = [None] * len(self.nodes)
        for number in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[number]
            if node.split is None:
                built[number] = int(node.sums.argmax()) + first_action
            else:
                c, cut = node.split
                built[number] = Split(c, float(grid[c][cut]), built[node.left], built[node.right])
        return built[0]

    def cuts_used(self, grid: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the thresholds of each feature that the tree uses, of a grid."""
        splits = [node.split for node in self.nodes if node.split is not None]
        return [grid[c][sorted({cut for feature, cut in splits if feature == c})] for c in range(len(grid))]

    def search(self, depth: int, effort: float) -> tuple[float, float]:
        """Build the best tree that so much effort finds; return what it collects, and the most any could."""
        is_fast = self.price == 0.0 and fits_three(self.sizes, self.value.shape[1])
        self.is_fast = is_fast and effort == np.inf  # a search that may stop early begins with the tree of effort 0
        quick = self.grow(np.arange(len(self.value)), depth)
        if quick >= float(self.value.max(axis=1).sum()):
            return quick, quick
        self.is_fast = is_fast
        cells = _Cells.of(self.codes, self.value, together=self.price == 0.0)

        def best_small(states: np.ndarray, depth: int) -> SmallTree:
            return SmallTree(*self.first_split(cells.codes, cells.lost, states, depth))

        problem = Problem(cells.codes, cells.lost, self.price, self.ahead, best_small)
        found, _ = best_within(problem, np.arange(len(cells.lost)), depth, effort, quick - cells.shift)
        most = max(quick, found.bound + cells.shift)
        if found.total + cells.shift <= quick:
            return quick, most
        self.nodes.clear()
        stack: list[tuple[Shape, np.ndarray, int, int]] = [(found.shape, np.arange(len(self.value)), -1, LEFT)]
        total = 0.0
        while stack:
            part, states, parent, side = stack.pop()
            if isinstance(part, Unsplit):
                total += self.grow(states, part.depth, parent, side)
                continue
            total -= self.price * len(states)
            at = self.add(states, parent, side)
            self.nodes[at].split = (part.feature, part.threshold)
            goes_left = self.codes[states, part.feature] <= part.threshold
            stack += [(part.right, states[~goes_left], at, RIGHT), (part.left, states[goes_left], at, LEFT)]
        return total, max(total, most)

    def first_split(
        self, codes: np.ndarray, value: np.ndarray, states: np.ndarray, depth: int
    ) -> tuple[float, int, int]:
        """Return what the best tree of at most `depth` splits per path collects, and its first split: feature, cut."""
        if self.is_fast and depth == MAX_LOOKAHEAD:
            return best_three(codes, value, self.sizes, states)
        return best_first_split(codes, value, self.sizes, states, depth, self.price)

    def add(self, states: np.ndarray, parent: int, side: int) -> int:
        """Add a leaf for some states as a parent's child and return its number."""
        number = len(self.nodes)
        if parent >= 0 and side == LEFT:
            self.nodes[parent].left = number
        elif parent >= 0:
            self.nodes[parent].right = number
        self.nodes.append(_Node(self.value[states].sum(axis=0), len(states)))
        return number

    def grow(self, index: np.ndarray, depth: int, parent: int = -1, side: int = LEFT) -> float:
        """Add splits for some states, each the first of the best few, and return what they collect."""
        stack = [(index, depth, parent, side)]
        total = 0.0
        while stack:
            states, splits_left, parent, side = stack.pop()
            number = self.add(states, parent, side)
            node = self.nodes[number]
            leaf_total = float(node.sums.max()) if len(states) else 0.0
            split_total, c, cut = -np.inf, -1, -1
            if splits_left > 0 and len(states) > 1:
                split_total, c, cut = self.first_split(self.codes, self.value, states, min(splits_left, self.ahead))
            if split_total <= leaf_total + 1e-12 * max(1.0, abs(leaf_total)):
                total += leaf_total
                continue
            total -= self.price * len(states)
            node.split = (c, cut)
            goes_left = self.codes[states, c] <= cut
            stack.append((states[~goes_left], splits_left - 1, number, RIGHT))
            stack.append((states[goes_left], splits_left - 1, number, LEFT))
        return total

    def grow_purest(self, depth: int) -> float:
        """Build a tree by CART's rule, without splits that do not pay; return what it collects."""
        label = self.value.argmax(axis=1)
        weight = self.value.max(axis=1) - self.value.min(axis=1)
        stack = [(np.arange(len(label)), depth, -1, LEFT)]
        while stack:
            states, splits_left, parent, side = stack.pop()
            number = self.add(states, parent, side)
            if splits_left == 0 or (label[states] == label[states[0]]).all():
                continue
            c, cut = purest_split(self.codes, label, weight, self.sizes, states, self.value.shape[1])
            if c >= 0:
                self.nodes[number].split = (c, cut)
                goes_left = self.codes[states, c] <= cut
                stack.append((states[~goes_left], splits_left - 1, number, RIGHT))
                stack.append((states[goes_left], splits_left - 1, number, LEFT))
        collected = [float(node.sums.max()) for node in self.nodes]
        for number in range(len(self.nodes) - 1, -1, -1):  # children come after their parent
            node = self.nodes[number]
            if node.split is not None:
                below = collected[node.left] + collected[node.right] - self.price * node.count
                if below > collected[number] + 1e-12 * max(1.0, abs(collected[number])):
                    collected[number] = below
                else:
                    node.split = None
        self._drop_unreached()
        return collected[0]

    def _drop_unreached(self) -> None:
        """Drop nodes below those that lost their split; the others keep their order."""
        reached = [0]
        for number in reached:
            if self.nodes[number].split is not None:
                reached += [self.nodes[number].left, self.nodes[number].right]
        place = {old: new for new, old in enumerate(sorted(reached))}
        self.nodes = [self.nodes[old] for old in sorted(reached)]
        for node in self.nodes:
            if node.split is not None:
                node.left, node.right = place[node.left], place[node.right]

    def prune(self, max_leaves: int) -> float:
        """Remove the splits that gain least until few enough leaves are left; return what the tree then collects."""
        best = [float(node.sums.max()) for node in self.nodes]
        inner = [i for i, node in enumerate(self.nodes) if node.split is not None]
        total = sum(best[i] for i, node in enumerate(self.nodes) if node.split is None)
        total -= self.price * sum(self.nodes[i].count for i in inner)
        while len(inner) >= max_leaves:
            gains = []
            for i in inner:
                node = self.nodes[i]
                if self.nodes[node.left].split is None and self.nodes[node.right].split is None:
                    gains.append((best[node.left] + best[node.right] - best[i] - self.price * node.count, i))
            gain, number = min(gains)
            self.nodes[number].split = None
            inner.remove(number)
            total -= gain
        return total
