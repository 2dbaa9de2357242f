"""The same decisions with fewer questions: those in a row about one feature put in the best order.

Questions about the same feature that follow each other, whatever their order, cut it into intervals, each with what
happens there. Neighbours where the same happens are one interval, and which interval a value lies in can be asked in
any order. So there are at most as many leaves as before, and the longest way is the shortest these intervals allow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.tree.simplify import simplify
from custard.tree.tree import LEAF, Tree

__all__ = ["balance"]


def balance(tree: Tree) -> Tree:
    """Return a tree that decides the same (see `simplify`) with no more leaves and no greater depth, often less.

    >>> from custard import Actions, Features, Tree
    >>> feature, threshold = [0, -1, 0, -1, 0, -1, -1], [1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 0.0]
    >>> left, right, value = [1, -1, 3, -1, 5, -1, -1], [2, -1, 4, -1, 6, -1, -1], [0, 0, 0, 1, 0, 0, 1]
    >>> x, ab = Features(("x",), [0], [4]), Actions("discrete", ("a", "b"))
    >>> chain = Tree(*map(np.array, (feature, threshold, left, right, value)), features=x, actions=ab)
    >>> chain.depth, balance(chain).depth
    (3, 2)
    """
    small = simplify(tree)
    better = simplify(_rearranged(small))
    while better.n_leaves < small.n_leaves:  # what was apart may be in a row now
        small, better = better, simplify(_rearranged(better))
    return better


def _rearranged(tree: Tree) -> Tree:
    """Return the tree with splits in a row on one feature in the best order."""
    feature, threshold = tree.feature.tolist(), tree.threshold.tolist()
    kids = tree.children_left.tolist(), tree.children_right.tolist()
    parent, forest = tree.parent.tolist(), _Forest()
    new = [0] * tree.n_nodes  # what takes the place of a leaf, or of the first of questions in a row about one feature
    for node in range(tree.n_nodes - 1, -1, -1):
        c = feature[node]
        if c == LEAF:
            new[node] = forest.leaf(node, tree.leaf_key(node))
        elif parent[node] == LEAF or feature[parent[node]] != c:
            cuts, ends = _intervals(node, feature, threshold, kids)
            places = [new[end] for end in ends]
            inside = [k for k in range(len(cuts)) if places[k] != places[k + 1]]  # cuts between different intervals
            places = [places[k] for k in [*inside, len(cuts)]]
            present_height = _present_height(node, feature, kids, [forest.height[new[end]] for end in ends])
            if (
                len(inside) == len(cuts)
                and present_height == _least_heights([forest.height[place] for place in places])[-1]
            ):
                new[node] = forest.copy(node, feature, threshold, kids, new)
            else:
                new[node] = forest.arranged(c, [cuts[k] for k in inside], places)
    return forest.tree(new[0], tree)


class _Forest:
    """Parts of trees, each different one once."""

    def __init__(self) -> None:
        self.part: list[Any] = []  # (c, v, left, right), or the number of a leaf's node
        self.height: list[int] = []
        self.known: dict[Any, int] = {}

    def leaf(self, node: int, action: bytes) -> int:
        """Return the number of the part that is a leaf with an action."""
        if action not in self.known:
            self.known[action] = len(self.part)
            self.part.append(node)
            self.height.append(0)
        return self.known[action]

    def split(self, c: int, v: float, left: int, right: int) -> int:
        """Return the number of the part that splits feature c at v."""
        shape = (c, v, left, right)
        if shape not in self.known:
            self.known[shape] = len(self.part)
            self.part.append(shape)
            self.height.append(1 + max(self.height[left], self.height[right]))
        return self.known[shape]

    def copy(
        self, top: int, feature: list[int], threshold: list[float], kids: tuple[list[int], list[int]], new: list[int]
    ) -> int:
        """Return splits in a row on one feature as they are, with what was found for the parts below them."""
        order = [top]
        for node in order:
            order += [side[node] for side in kids if feature[side[node]] == feature[top]]
        for node in reversed(order):
            new[node] = self.split(feature[top], threshold[node], new[kids[0][node]], new[kids[1][node]])
        return new[top]

    def arranged(self, c: int, cuts: list[float], places: list[int]) -> int:
        """Return the shortest tree that tells intervals apart; among several the one whose halves have as many each."""
        heights = [self.height[place] for place in places]
        done: list[int] = []
        to_do: list[tuple[int, int, int, int]] = [(0, len(places), _least_heights(heights)[-1], 0)]
        while to_do:
            first, last, max_height, cut = to_do.pop()
            if cut:  # both sides are done
                right, left = done.pop(), done.pop()
                done.append(self.split(c, cuts[cut - 1], left, right))
            elif last - first == 1:
                done.append(places[first])
            else:
                part_heights, n = heights[first:last], last - first
                before, after = _least_heights(part_heights), _least_heights(part_heights[::-1])
                fits = [m for m in range(1, n) if before[m - 1] < max_height and after[n - m - 1] < max_height]
                middle = first + min(fits, key=lambda m: abs(2 * m - n))
                to_do += [
                    (first, last, max_height, middle),
                    (middle, last, max_height - 1, 0),
                    (first, middle, max_height - 1, 0),
                ]
        return done[0]

    def tree(self, top: int, like: Tree) -> Tree:
        """Return a part as a tree, in breadth-first order."""
        order, rows = [top], []
        for at in order:
            part = self.part[at]
            if isinstance(part, tuple):
                rows.append((part[0], part[1], len(order), len(order) + 1, 0))
                order += part[2:]
            else:
                rows.append((LEAF, 0.0, LEAF, LEAF, part))
        feature, threshold, left, right, node = (np.array(column) for column in zip(*rows, strict=True))
        return like.with_nodes(feature, threshold, left, right, node)


def _intervals(
    top: int, feature: list[int], threshold: list[float], kids: tuple[list[int], list[int]]
) -> tuple[list[float], list[int]]:
    """Return where splits in a row on one feature cut it, and the node at which each interval ends up."""
    cuts, ends, stack = [], [], [(top, False)]
    while stack:
        node, left_done = stack.pop()
        if feature[node] != feature[top]:
            ends.append(node)
        elif left_done:
            cuts.append(threshold[node])
            stack.append((kids[1][node], False))
        else:
            stack += [(node, True), (kids[0][node], False)]
    return cuts, ends


def _present_height(top: int, feature: list[int], kids: tuple[list[int], list[int]], heights: list[int]) -> int:
    """Return the height of splits in a row on one feature, where what follows each interval has these heights."""
    most, at, stack = 0, 0, [(top, 0)]
    while stack:
        node, depth = stack.pop()
        if feature[node] == feature[top]:
            stack += [(kids[1][node], depth + 1), (kids[0][node], depth + 1)]
        else:
            most, at = max(most, depth + heights[at]), at + 1
    return most


def _least_heights(heights: list[int]) -> list[int]:
    """Return the least height of an ordered tree over the first 1, 2, … of some parts with these heights.

    A part of height h takes a place of width 2^h, at a multiple of that; a tree of height d has room for 2^d.

    >>> _least_heights([0, 0, 0]), _least_heights([0, 2, 0])
    ([0, 1, 2], [0, 3, 4])
    """
    end, needed = 0, []
    for h in heights:
        end = (-(-end >> h) + 1) << h
        needed.append((end - 1).bit_length())
    return needed
