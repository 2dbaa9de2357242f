"""A tree while it is being changed: nested splits, edited without touching the original.

A shape is a leaf's action (an int, an array for vectors, or a `LinearLeaf`) or a `Split` of two shapes. A path
leads from the root to a part of a shape: a tuple of `LEFT` and `RIGHT`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from custard.core.actions import Actions
from custard.core.features import Features
from custard.tree.tree import LEAF, Tree

__all__ = [
    "LEFT", "RIGHT", "LinearLeaf", "Shape", "Split", "build_tree", "count_leaves", "leaves_below", "map_leaves",
    "path_to", "paths", "replace_part", "shape_of", "subshape", "tree_of", "with_actions", "with_split_leaf",
]  # fmt: skip

Shape = Any  # an action, or a Split
Path = tuple[int, ...]
LEFT, RIGHT = 2, 3  # fields of a Split


class Split(NamedTuple):
    """A split and what follows it: `left` where the feature is at most the threshold, `right` elsewhere."""

    feature: int
    threshold: float
    left: Shape
    right: Shape


class LinearLeaf(NamedTuple):
    """A leaf whose action is clip(value + gains · observation)."""

    value: np.ndarray  # [k]
    gains: np.ndarray  # [k, n_raw]


def shape_of(tree: Tree) -> Shape:
    """Return a tree as a shape."""
    built: list[Shape] = [None] * tree.n_nodes
    for node in range(tree.n_nodes - 1, -1, -1):
        if tree.feature[node] == LEAF:
            built[node] = int(tree.value[node]) if tree.actions.discrete else tree.value[node]
            if tree.gains is not None and tree.gains[node].any():
                built[node] = LinearLeaf(tree.value[node], tree.gains[node])
        else:
            children = built[tree.children_left[node]], built[tree.children_right[node]]
            built[node] = Split(int(tree.feature[node]), float(tree.threshold[node]), *children)
    return built[0]


def tree_of(shape: Shape, like: Tree) -> Tree:
    """Return a shape as a tree with the features, actions and origin of another."""
    return build_tree(shape, like.features, like.actions, like.origin)


def build_tree(shape: Shape, features: Features, actions: Actions, origin: Mapping[str, Any] | None = None) -> Tree:
    """Return a shape as a tree, its nodes in depth-first order, left before right."""
    rows: list[list[float]] = []
    values: list[Any] = []
    gains: dict[int, np.ndarray] = {}
    no_action: Any = actions.start if actions.discrete else np.zeros(actions.size)
    stack: list[tuple[Shape, int, int]] = [(shape, -1, 0)]
    while stack:
        part, parent, side = stack.pop()
        if parent >= 0:
            rows[parent][side] = len(rows)
        if isinstance(part, Split):
            stack += [(part.right, len(rows), RIGHT), (part.left, len(rows), LEFT)]
            rows.append([part.feature, part.threshold, LEAF, LEAF])
            values.append(no_action)
        else:
            if isinstance(part, LinearLeaf):
                part, gains[len(rows)] = part
            rows.append([LEAF, 0.0, LEAF, LEAF])
            values.append(part)
    table = np.array(rows)
    feature, left, right = (table[:, k].astype(np.int64) for k in (0, LEFT, RIGHT))
    all_gains = np.zeros((len(rows), actions.size, features.n_raw)) if gains else None
    for node, gain in gains.items():
        assert all_gains is not None
        all_gains[node] = gain
    return Tree(feature, table[:, 1], left, right, np.array(values), features, actions, origin or {}, all_gains)


def map_leaves(shape: Shape, replacement: Callable[[Any], Shape]) -> Shape:
    """Return the shape with each leaf replaced by what a function makes of it."""
    if isinstance(shape, Split):
        return Split(shape.feature, shape.threshold, *(map_leaves(part, replacement) for part in shape[LEFT:]))
    return replacement(shape)


def with_actions(shape: Shape, actions: np.ndarray) -> Shape:
    """Return the shape with each leaf's number replaced by the action of that number."""
    return map_leaves(shape, lambda number: int(actions[number]) if actions.ndim == 1 else actions[number])


def paths(shape: Shape) -> list[Path]:
    """Return the path of every part of a shape, its own first."""
    found: list[Path] = []
    stack: list[tuple[Shape, Path]] = [(shape, ())]
    while stack:
        part, path = stack.pop()
        found.append(path)
        if isinstance(part, Split):
            stack += [(part.left, (*path, LEFT)), (part.right, (*path, RIGHT))]
    return found


def path_to(tree: Tree, node: int) -> Path:
    """Return the path from the root of a tree to a node."""
    sides: list[int] = []
    while node != 0:
        parent = int(tree.parent[node])
        sides.insert(0, LEFT if tree.children_left[parent] == node else RIGHT)
        node = parent
    return tuple(sides)


def with_split_leaf(tree: Tree, node: int, feature: int, threshold: float) -> Shape:
    """Return the shape of a tree that acts the same with one leaf split in two alike."""
    shape, path = shape_of(tree), path_to(tree, node)
    leaf = subshape(shape, path)
    return replace_part(shape, path, Split(feature, threshold, leaf, leaf))


def count_leaves(shape: Shape) -> int:
    """Return how many leaves a shape has."""
    return count_leaves(shape.left) + count_leaves(shape.right) if isinstance(shape, Split) else 1


def subshape(shape: Shape, path: Path) -> Shape:
    """Return the part of a shape at a path."""
    for side in path:
        shape = shape[side]
    return shape


def replace_part(shape: Shape, path: Path, part: Shape) -> Shape:
    """Return the shape with another part at a path."""
    if not path:
        return part
    fields = list(shape)
    fields[path[0]] = replace_part(shape[path[0]], path[1:], part)
    return Split(*fields)


def leaves_below(tree: Tree, path: Path) -> list[int]:
    """Return the numbers of a tree's leaves below a path."""
    node = 0
    for side in path:
        node = int(tree.children_left[node] if side == LEFT else tree.children_right[node])
    found, stack = [], [node]
    while stack:
        at = stack.pop()
        if tree.feature[at] == LEAF:
            found.append(at)
        else:
            stack += [int(tree.children_left[at]), int(tree.children_right[at])]
    return found
