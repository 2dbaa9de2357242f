"""Smaller trees that decide the same; and, kept apart because it may change decisions, pruning by what was visited."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from custard.tree.tree import LEAF, Tree

__all__ = ["Pruned", "centre_integer_thresholds", "prune_unvisited", "simplify"]


def simplify(tree: Tree, *, use_bounds: bool = False) -> Tree:
    """Return a tree that decides the same with fewer nodes: no branch out of reach, no split that changes nothing.

    A branch is unreachable where the questions above it contradict it, or, for whole-number features, leave no number
    in between. A derived feature counts as one of its own: what one sum implies of another is left alone. With
    `use_bounds` states are also taken to lie within `tree.features`' bounds; without it the result agrees with the tree
    on every observation whatsoever, NaN and values outside the bounds included (whole-number features are taken to hold
    whole numbers or NaN).

    >>> from custard import Actions, Features, Tree
    >>> leaf_again = Tree.stump(0, 0.5, 1, 1, Features(("x",), [0], [1]), Actions("discrete", ("a", "b")))
    >>> simplify(leaf_again).n_nodes
    1
    """
    kept = _skip_unreachable(tree, use_bounds)
    return _rebuild(tree, _merge_equal_branches(tree, kept))


@dataclass(frozen=True)
class Pruned:
    """A pruned tree, and how much pruning it could matter for."""

    tree: Tree
    branches: int  # how many branches were removed
    leaves: int  # how many of the tree's leaves none of the states reached
    could_change: int  # how many of the removed leaves hold another action than the branch that replaced theirs


def prune_unvisited(tree: Tree, observations: Any, *, at_least: int = 1) -> Pruned:
    """Remove branches that fewer than `at_least` of the given observations visit.

    Unlike `simplify` this may change what the tree does in states that were not given: `could_change` counts the
    leaves for which it might. Report it.
    """
    leaf = tree.apply(observations)
    visits = np.bincount(leaf, minlength=tree.n_nodes)
    kids = np.stack([tree.children_left, tree.children_right], axis=1).astype(np.int64)
    inner = np.flatnonzero(tree.feature != LEAF)
    for node in inner[::-1]:
        visits[node] = visits[kids[node, 0]] + visits[kids[node, 1]]
    goes = np.arange(tree.n_nodes)  # which node stands in for each
    branches = 0
    for node in inner[::-1]:
        seen = visits[kids[node]] >= at_least
        if seen.sum() == 1:
            goes[node] = goes[kids[node, int(seen[1])]]
            branches += 1
        elif not seen.any() and visits[node] >= at_least:
            goes[node] = goes[kids[node, int(np.argmax(visits[kids[node]]))]]
            branches += 1
    pruned = _rebuild(tree, _merge_equal_branches(tree, goes))
    unvisited = np.flatnonzero((tree.feature == LEAF) & (visits < at_least))
    return Pruned(pruned, branches, len(unvisited), _count_changed(tree, goes, unvisited))


def _count_changed(tree: Tree, goes: np.ndarray, unvisited: np.ndarray) -> int:
    """Return how many of the unvisited leaves decide otherwise than some leaf that now stands in their place."""
    changed = 0
    for leaf in unvisited.tolist():
        path, replacement = [leaf], None
        while tree.parent[path[-1]] != LEAF:
            path.append(int(tree.parent[path[-1]]))
            if goes[path[-1]] not in path:  # the branch with this leaf was removed here
                replacement = int(goes[path[-1]])
        if replacement is not None:
            actions = {tree.leaf_key(other) for other in _leaves_below(tree, goes, replacement)}
            changed += actions != {tree.leaf_key(leaf)}
    return changed


def _leaves_below(tree: Tree, goes: np.ndarray, node: int) -> list[int]:
    """Return the leaves below a node, with stand-ins in place."""
    found, stack = [], [node]
    while stack:
        at = int(goes[stack.pop()])
        if tree.feature[at] == LEAF:
            found.append(at)
        else:
            stack += [int(tree.children_left[at]), int(tree.children_right[at])]
    return found


def _skip_unreachable(tree: Tree, use_bounds: bool) -> np.ndarray:
    """Return for each node what stands in for it, [n_nodes]: the only child a state can reach, or itself."""
    n = tree.features.n
    whole = tree.features.integer.tolist()
    above, most = [-np.inf] * n, [np.inf] * n
    if use_bounds:
        # A state may equal the lowest bound, whereas it exceeds a lower bound won by asking.
        above, most = np.nextafter(tree.features.low, -np.inf).tolist(), tree.features.high.tolist()
    goes = list(range(tree.n_nodes))
    feature, threshold = tree.feature.tolist(), tree.threshold.tolist()
    kids = tree.children_left.tolist(), tree.children_right.tolist()
    # Depth first with the bounds of the present path in place; (node, side, what to put back) on the stack.
    stack: list[tuple[int, int, float]] = [(0, -1, 0.0)]
    while stack:
        node, side, restore = stack.pop()
        c = feature[node]
        if side == 0:  # left is done: put its bound back
            most[c] = restore
            continue
        if side == 1:
            above[c] = restore
            continue
        if side == 2:  # now go right
            stack.append((node, 1, above[c]))
            above[c] = max(above[c], threshold[node])
            stack.append((kids[1][node], -1, 0.0))
            continue
        if c == LEAF:
            continue
        t = threshold[node]
        low, high = above[c], most[c]
        if whole[c]:
            can_left = np.floor(min(t, high)) > np.floor(low)
            can_right = np.floor(high) > np.floor(max(t, low))
        else:
            can_left, can_right = min(t, high) > low, high > max(t, low)
        if can_left and can_right:
            stack.append((node, 2, 0.0))
            stack.append((node, 0, high))
            most[c] = min(high, t)
            stack.append((kids[0][node], -1, 0.0))
        elif can_left or can_right:
            goes[node] = kids[1][node] if can_right else kids[0][node]
            stack.append((goes[node], -1, 0.0))
    return np.array(goes)


def _merge_equal_branches(tree: Tree, goes: np.ndarray) -> np.ndarray:
    """Resolve stand-ins from the leaves up, replacing a question whose branches are the same by either of them."""
    result = np.arange(tree.n_nodes)
    number: dict[Any, int] = {}  # a subtree's shape -> its class
    classes = [0] * tree.n_nodes
    feature, threshold = tree.feature.tolist(), tree.threshold.tolist()
    left, right = tree.children_left.tolist(), tree.children_right.tolist()
    stand_in = goes.tolist()
    for node in range(tree.n_nodes - 1, -1, -1):
        if stand_in[node] != node:
            result[node] = result[stand_in[node]]
            classes[node] = classes[stand_in[node]]
            continue
        if feature[node] == LEAF:
            shape: Any = tree.leaf_key(node)
        else:
            a, b = classes[left[node]], classes[right[node]]
            if a == b:
                result[node], classes[node] = result[left[node]], a
                continue
            shape = (feature[node], threshold[node], a, b)
        classes[node] = number.setdefault(shape, len(number))
    return result


def _rebuild(tree: Tree, goes: np.ndarray) -> Tree:
    """Return the tree that remains when each node is replaced by its stand-in, in breadth-first order."""
    order: list[np.ndarray] = []
    left, right = [], []
    level = goes[:1]
    count = 1
    while len(level):
        order.append(level)
        inner = tree.feature[level] != LEAF
        first = np.full(len(level), LEAF, dtype=np.int64)
        first[inner] = count + 2 * np.arange(inner.sum())
        left.append(first)
        right.append(np.where(inner, first + 1, LEAF))
        at = level[inner]
        level = goes[np.stack([tree.children_left[at], tree.children_right[at]], axis=1).reshape(-1)]
        count += len(level)
    nodes = np.concatenate(order)
    return tree.with_nodes(
        tree.feature[nodes], tree.threshold[nodes], np.concatenate(left), np.concatenate(right), nodes
    )


def centre_integer_thresholds(tree: Tree) -> Tree:
    """Return the tree with every threshold of a whole-number feature half-way between two of its values."""
    whole = (tree.feature != LEAF) & tree.features.integer[tree.feature]
    return replace(tree, threshold=np.where(whole, np.floor(tree.threshold) + 0.5, tree.threshold))
