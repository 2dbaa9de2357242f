"""Small random changes to a tree, for searching on the true return."""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.tree.tree import LEAF, Tree

__all__ = ["Shape", "mutated", "random_shape", "shape_of", "tree_of"]

Shape = Any  # an action (int), or (feature, threshold, left, right)

SCALES = (0.5, 0.2, 0.05, 0.02)  # of a feature's spread, for moving thresholds


def shape_of(tree: Tree) -> Shape:
    """A tree as nested tuples."""
    built: list[Shape] = [None] * tree.n_nodes
    for node in range(tree.n_nodes - 1, -1, -1):
        if tree.feature[node] == LEAF:
            built[node] = int(tree.value[node])
        else:
            kids = built[tree.children_left[node]], built[tree.children_right[node]]
            built[node] = (int(tree.feature[node]), float(tree.threshold[node]), *kids)
    return built[0]


def tree_of(shape: Shape, like: Tree) -> Tree:
    """Nested tuples as a tree with another's features and actions."""
    rows: list[list[float]] = []
    stack: list[tuple[Shape, int, int]] = [(shape, -1, 0)]
    while stack:
        part, parent, side = stack.pop()
        if parent >= 0:
            rows[parent][2 + side] = len(rows)
        if isinstance(part, tuple):
            stack += [(part[3], len(rows), 1), (part[2], len(rows), 0)]
            rows.append([part[0], part[1], LEAF, LEAF, like.actions.start])
        else:
            rows.append([LEAF, 0.0, LEAF, LEAF, part])
    table = np.array(rows)
    columns = [table[:, k].astype(np.int64) for k in (0, 2, 3, 4)]
    return Tree(columns[0], table[:, 1], columns[1], columns[2], columns[3], like.features, like.actions, like.origin)


def paths(shape: Shape) -> list[tuple[int, ...]]:
    """Where every part is: 2 for left and 3 for right, from the root."""
    found: list[tuple[int, ...]] = []
    stack: list[tuple[Shape, tuple[int, ...]]] = [(shape, ())]
    while stack:
        part, path = stack.pop()
        found.append(path)
        if isinstance(part, tuple):
            stack += [(part[2], (*path, 2)), (part[3], (*path, 3))]
    return found


def part_at(shape: Shape, path: tuple[int, ...]) -> Shape:
    """The part at a path."""
    for side in path:
        shape = shape[side]
    return shape


def replaced(shape: Shape, path: tuple[int, ...], part: Shape) -> Shape:
    """The shape with another part at a path."""
    if not path:
        return part
    copy = list(shape)
    copy[path[0]] = replaced(shape[path[0]], path[1:], part)
    return tuple(copy)


def random_shape(rng: np.random.Generator, x: np.ndarray, actions: range, depth: int) -> Shape:
    """A random tree whose thresholds are values that states have."""
    if depth == 0:
        return int(rng.choice(actions))
    c = int(rng.integers(x.shape[1]))
    t = threshold(rng, x, c)
    return (c, t, *(random_shape(rng, x, actions, depth - 1) for _ in range(2)))


def threshold(rng: np.random.Generator, x: np.ndarray, c: int) -> float:
    """A threshold between two values that states have."""
    a, b = rng.choice(x[:, c], size=2)
    return float(a + (b - a) * rng.random())


def mutated(shape: Shape, rng: np.random.Generator, x: np.ndarray, actions: range, depth: int) -> Shape:
    """The shape after one random change that keeps the depth limit."""
    where = paths(shape)
    path = where[int(rng.integers(len(where)))]
    part = part_at(shape, path)
    if not isinstance(part, tuple):
        others = [a for a in actions if a != part]
        if len(path) < depth and rng.random() < 0.5:
            c = int(rng.integers(x.shape[1]))
            sides = [part, int(rng.choice(others)) if others else part]
            rng.shuffle(sides)
            return replaced(shape, path, (c, threshold(rng, x, c), *sides))
        return replaced(shape, path, int(rng.choice(others)) if others else part)
    c, t, left, right = part
    kind = rng.random()
    if kind < 0.55:
        spread = float(x[:, c].std()) or 1.0
        return replaced(shape, path, (c, t + float(rng.normal()) * spread * float(rng.choice(SCALES)), left, right))
    if kind < 0.7:
        c = int(rng.integers(x.shape[1]))
        return replaced(shape, path, (c, threshold(rng, x, c), left, right))
    if kind < 0.8:
        return replaced(shape, path, (c, t, right, left))
    if kind < 0.9:
        return replaced(shape, path, left if rng.random() < 0.5 else right)
    return replaced(shape, path, random_shape(rng, x, actions, min(2, depth - len(path))))
