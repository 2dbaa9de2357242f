"""Small random changes to trees, for searching on the return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from custard.tree.leaf_actions import STEP_SCALES, LeafActions
from custard.tree.shape import (
    LEFT,
    RIGHT,
    Shape,
    Split,
    count_leaves,
    path_to,
    paths,
    replace_part,
    shape_of,
    subshape,
    tree_of,
    with_split_leaf,
)
from custard.tree.tree import LEAF, Tree

__all__ = [
    "mutate_shape",
    "random_shape",
    "shift_threshold",
    "trees_without_one_split",
    "ways_to_close",
    "with_split_leaves",
    "without_splits",
]

MAX_CHANGES_DRAWN = 20  # changes drawn before a shape that would exceed its leaf limit is returned as it is


def random_shape(rng: np.random.Generator, x: np.ndarray, leaf_actions: LeafActions, depth: int) -> Shape:
    """Return a random complete shape of a depth whose thresholds lie among the states x [N, n]."""
    if depth == 0:
        return leaf_actions.random(rng)
    feature = int(rng.integers(x.shape[1]))
    threshold = random_threshold(rng, x, feature)
    return Split(feature, threshold, *(random_shape(rng, x, leaf_actions, depth - 1) for _ in range(2)))


def random_threshold(rng: np.random.Generator, x: np.ndarray, feature: int) -> float:
    """Return a threshold between two values that states x [N, n] have of a feature."""
    a, b = x[rng.integers(len(x), size=2), feature].tolist()
    return a + (b - a) * rng.random()


def mutate_shape(
    shape: Shape,
    rng: np.random.Generator,
    x: np.ndarray,
    spread: np.ndarray,
    leaf_actions: LeafActions,
    max_depth: int,
    max_leaves: int,
) -> Shape:
    """Return the shape after one random change that keeps the limits of depth and leaves.

    shape                  the tree
    rng                    draws the change
    x                      [N, n] states among which new thresholds lie
    spread                 [n] scale of each feature for moving thresholds
    leaf_actions           the actions that leaves may have
    max_depth, max_leaves  the limits
    """
    for _ in range(MAX_CHANGES_DRAWN):
        changed = _change_one_part(shape, rng, x, spread, leaf_actions, max_depth)
        if count_leaves(changed) <= max_leaves:
            return changed
    return shape


def _change_one_part(
    shape: Shape,
    rng: np.random.Generator,
    x: np.ndarray,
    spread: np.ndarray,
    leaf_actions: LeafActions,
    max_depth: int,
) -> Shape:
    """Return the shape with one part changed: a leaf relabelled or split, a split moved, swapped, closed or regrown.

    Arguments as in `mutate_shape`.
    """
    discrete = leaf_actions.actions.discrete
    places = paths(shape)
    path = places[int(rng.integers(len(places)))]
    part = subshape(shape, path)
    if not isinstance(part, Split) and path and discrete and rng.random() < 0.5:
        path, part = path[:-1], subshape(shape, path[:-1])  # splits more often than leaves, which have few actions
    if not isinstance(part, Split):
        other = leaf_actions.other(rng, part)
        if len(path) < max_depth and rng.random() < (0.5 if discrete else 0.25):
            feature = int(rng.integers(x.shape[1]))
            sides = (part, other) if rng.random() < 0.5 else (other, part)
            return replace_part(shape, path, Split(feature, random_threshold(rng, x, feature), *sides))
        return replace_part(shape, path, other)
    feature, threshold, left, right = part
    kind = rng.random()
    if kind < 0.55:
        moved = threshold + float(rng.normal() * spread[feature] * rng.choice(STEP_SCALES))
        return replace_part(shape, path, part._replace(threshold=moved))
    if kind < 0.7:
        feature = int(rng.integers(x.shape[1]))
        return replace_part(shape, path, Split(feature, random_threshold(rng, x, feature), left, right))
    if kind < 0.8:
        return replace_part(shape, path, Split(feature, threshold, right, left))
    if kind < 0.9:
        return replace_part(shape, path, left if rng.random() < 0.5 else right)
    return replace_part(shape, path, random_shape(rng, x, leaf_actions, min(2, max_depth - len(path))))


def shift_threshold(tree: Tree, rng: np.random.Generator, scale: np.ndarray) -> Tree | None:
    """Return the tree with the threshold of one split on a real feature moved; None if it has no such split.

    `scale` [n] is the standard deviation of the move for each feature.
    """
    splits = np.flatnonzero((tree.feature != LEAF) & ~tree.features.integer[tree.feature])
    if not len(splits):
        return None
    node = int(rng.choice(splits))
    threshold = tree.threshold.copy()
    threshold[node] += rng.normal() * scale[tree.feature[node]]
    return replace(tree, threshold=threshold)


def trees_without_one_split(tree: Tree) -> list[Tree]:
    """Return every tree in which one split gives way to one of its two branches."""
    return [without_splits(tree, dict([closed])) for closed in ways_to_close(tree)]


def ways_to_close(tree: Tree) -> list[tuple[int, int]]:
    """Return every split of a tree with each of its branches: a node, and `LEFT` or `RIGHT`, which takes its place."""
    return [(node, side) for node in np.flatnonzero(tree.feature != LEAF).tolist() for side in (LEFT, RIGHT)]


def without_splits(tree: Tree, closed: Mapping[int, int]) -> Tree:
    """Return the tree in which splits give way to one of their branches: `closed` says to which, by node."""

    def part(node: int) -> Shape:
        if tree.feature[node] == LEAF:
            return leaves[node]
        children = {LEFT: int(tree.children_left[node]), RIGHT: int(tree.children_right[node])}
        if node in closed:
            return part(children[closed[node]])
        return Split(int(tree.feature[node]), float(tree.threshold[node]), part(children[LEFT]), part(children[RIGHT]))

    whole = shape_of(tree)
    leaves = {int(leaf): subshape(whole, path_to(tree, int(leaf))) for leaf in np.flatnonzero(tree.feature == LEAF)}
    return tree_of(part(0), tree)


def with_split_leaves(tree: Tree, rng: np.random.Generator, x: np.ndarray, count: int, max_depth: int) -> Tree:
    """Return a tree that acts the same with `count` more leaves.

    The leaves that most of the states x [N, n] reach are split in two alike, at the median of a random feature.
    """
    for _ in range(count):
        leaves, visits = np.unique(tree.apply(x), return_counts=True)
        visits = np.where(tree.node_depth[leaves] < max_depth, visits, 0)
        if not visits.any():
            break
        node, feature = int(leaves[visits.argmax()]), int(rng.integers(x.shape[1]))
        threshold = float(np.median(x[tree.apply(x) == node, feature]))
        tree = tree_of(with_split_leaf(tree, node, feature, threshold), tree)
    return tree
