"""Trees as nested tuples, the actions their leaves may have, and small random changes for searching on the return."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from custard.actions import Actions
from custard.tree.tree import LEAF, Tree

__all__ = ["Menu", "Shape", "halved", "leaves_below", "leaves_of", "mutated", "random_shape", "relabelled", "shape_of",
           "shifted", "tree_of", "without_a_question"]  # fmt: skip

Shape = Any  # an action (an int, or an array for vectors), or a tuple (feature, threshold, left, right)

SCALES = (0.5, 0.2, 0.05, 0.02)  # of a feature's spread, or an action's range, for moving thresholds and vectors
GRID = 7  # values of a single real action that are tried in every state
VECTORS = 12  # vectors of several components that are tried


class Menu:
    """The actions that leaves may have: every discrete one, or vectors within their bounds."""

    def __init__(self, actions: Actions) -> None:
        self.actions = actions
        if actions.discrete:
            self.all: np.ndarray | None = np.arange(actions.start, actions.start + actions.n)
            return
        assert actions.low is not None
        assert actions.high is not None
        # Where there is no bound: between -1 and 1, or 2 from the other one.
        loose = np.where(np.isfinite(actions.high), actions.high - 2.0, -1.0)
        self.low = np.where(np.isfinite(actions.low), actions.low, loose)
        self.high = np.where(np.isfinite(actions.high), actions.high, self.low + 2.0)
        self.whole, self.all = actions.kind == "multi", None
        if self.whole and np.prod(self.high - self.low + 1) <= VECTORS:
            ranges = [np.arange(lo, hi + 1) for lo, hi in zip(self.low, self.high, strict=True)]
            self.all = np.array(list(product(*ranges)), dtype=np.int64)

    def random(self, rng: np.random.Generator) -> Any:
        """Any action."""
        if self.all is not None:
            action = self.all[int(rng.integers(len(self.all)))]
            return int(action) if self.actions.discrete else action
        if self.whole:
            return rng.integers(self.low, self.high + 1).astype(np.int64)
        if len(self.low) > 1 and rng.random() < 0.3:  # a corner now and then: extreme actions are often the best
            return np.where(rng.random(len(self.low)) < 0.5, self.low, self.high)
        return self.low + rng.random(len(self.low)) * (self.high - self.low)

    def other(self, rng: np.random.Generator, action: Any) -> Any:
        """Another action; of vectors more often one near by."""
        if self.actions.discrete:
            n = self.actions.n
            return (
                action if n == 1 else (action - self.actions.start + int(rng.integers(1, n))) % n + self.actions.start
            )
        if rng.random() < 0.2:
            return self.random(rng)
        if self.whole:
            c = int(rng.integers(len(action)))
            changed = np.array(action)
            changed[c] = int(rng.integers(self.low[c], self.high[c] + 1))
            return changed
        step = rng.normal(size=len(action)) * (self.high - self.low) * float(rng.choice(SCALES))
        step *= rng.random(len(action)) < max(0.5, 1.0 / len(action))
        return np.clip(action + step, self.low, self.high)

    def tried(self, rng: np.random.Generator, tree: Tree) -> np.ndarray:
        """The actions whose worth is measured in every state: all of them, or a choice with the tree's own."""
        if self.all is not None:
            return self.all
        own = np.unique(tree.value[tree.feature == LEAF], axis=0)
        own = own[rng.permutation(len(own))[:VECTORS]]
        if not self.whole and len(self.low) == 1:
            grid = np.linspace(self.low, self.high, GRID)
        else:
            grid = np.array([self.random(rng) for _ in range(VECTORS)])
            if not self.whole:
                grid[0] = (self.low + self.high) / 2
        near = np.array([self.other(rng, action) for action in own[: VECTORS // 3]]).reshape(-1, own.shape[1])
        return np.unique(np.concatenate([grid, own, near]), axis=0)


def shape_of(tree: Tree) -> Shape:
    """A tree as nested tuples."""
    built: list[Shape] = [None] * tree.n_nodes
    for node in range(tree.n_nodes - 1, -1, -1):
        if tree.feature[node] == LEAF:
            built[node] = int(tree.value[node]) if tree.actions.discrete else tree.value[node]
        else:
            kids = built[tree.children_left[node]], built[tree.children_right[node]]
            built[node] = (int(tree.feature[node]), float(tree.threshold[node]), *kids)
    return built[0]


def tree_of(shape: Shape, like: Tree) -> Tree:
    """Nested tuples as a tree with another's features and actions."""
    rows: list[list[float]] = []
    values: list[Any] = []
    nothing: Any = like.actions.start if like.actions.discrete else np.zeros(like.actions.size)
    stack: list[tuple[Shape, int, int]] = [(shape, -1, 0)]
    while stack:
        part, parent, side = stack.pop()
        if parent >= 0:
            rows[parent][2 + side] = len(rows)
        if isinstance(part, tuple):
            stack += [(part[3], len(rows), 1), (part[2], len(rows), 0)]
            rows.append([part[0], part[1], LEAF, LEAF])
            values.append(nothing)
        else:
            rows.append([LEAF, 0.0, LEAF, LEAF])
            values.append(part)
    table = np.array(rows)
    feature, left, right = (table[:, k].astype(np.int64) for k in (0, 2, 3))
    return Tree(feature, table[:, 1], left, right, np.array(values), like.features, like.actions, like.origin)


def halved(tree: Tree) -> Tree:
    """The tree with every threshold of a whole-number feature half-way between two of its values."""
    whole = (tree.feature != LEAF) & tree.features.integer[tree.feature]
    return replace(tree, threshold=np.where(whole, np.floor(tree.threshold) + 0.5, tree.threshold))


def relabelled(shape: Shape, actions: np.ndarray) -> Shape:
    """The shape with each leaf's number replaced by the action of that number."""
    if isinstance(shape, tuple):
        return (*shape[:2], relabelled(shape[2], actions), relabelled(shape[3], actions))
    return int(actions[shape]) if actions.ndim == 1 else actions[shape]


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


def leaves_of(shape: Shape) -> int:
    """How many leaves a shape has."""
    return leaves_of(shape[2]) + leaves_of(shape[3]) if isinstance(shape, tuple) else 1


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


def random_shape(rng: np.random.Generator, x: np.ndarray, menu: Menu, depth: int) -> Shape:
    """A random tree whose thresholds are values that states have."""
    if depth == 0:
        return menu.random(rng)
    c = int(rng.integers(x.shape[1]))
    t = threshold(rng, x, c)
    return (c, t, *(random_shape(rng, x, menu, depth - 1) for _ in range(2)))


def threshold(rng: np.random.Generator, x: np.ndarray, c: int) -> float:
    """A threshold between two values that states have."""
    a, b = x[rng.integers(len(x), size=2), c].tolist()
    return a + (b - a) * rng.random()


def mutated(
    shape: Shape, rng: np.random.Generator, x: np.ndarray, spread: np.ndarray, menu: Menu, depth: int, leaves: int
) -> Shape:
    """The shape after one random change that keeps the limits of depth and leaves; `spread` is a feature's scale."""
    for _ in range(20):
        changed = _changed(shape, rng, x, spread, menu, depth)
        if leaves_of(changed) <= leaves:
            return changed
    return shape


def _changed(
    shape: Shape, rng: np.random.Generator, x: np.ndarray, spread: np.ndarray, menu: Menu, depth: int
) -> Shape:
    where = paths(shape)
    path = where[int(rng.integers(len(where)))]
    part = part_at(shape, path)
    if not isinstance(part, tuple) and path and menu.actions.discrete and rng.random() < 0.5:
        path, part = path[:-1], part_at(shape, path[:-1])  # questions more often than leaves, which have few actions
    if not isinstance(part, tuple):
        other = menu.other(rng, part)
        if len(path) < depth and rng.random() < (0.5 if menu.actions.discrete else 0.25):
            c = int(rng.integers(x.shape[1]))
            sides = (part, other) if rng.random() < 0.5 else (other, part)
            return replaced(shape, path, (c, threshold(rng, x, c), *sides))
        return replaced(shape, path, other)
    c, t, left, right = part
    kind = rng.random()
    if kind < 0.55:
        return replaced(shape, path, (c, t + float(rng.normal() * spread[c] * rng.choice(SCALES)), left, right))
    if kind < 0.7:
        c = int(rng.integers(x.shape[1]))
        return replaced(shape, path, (c, threshold(rng, x, c), left, right))
    if kind < 0.8:
        return replaced(shape, path, (c, t, right, left))
    if kind < 0.9:
        return replaced(shape, path, left if rng.random() < 0.5 else right)
    return replaced(shape, path, random_shape(rng, x, menu, min(2, depth - len(path))))


def shifted(tree: Tree, rng: np.random.Generator, scale: np.ndarray) -> Tree | None:
    """The tree with the threshold of one question about a real feature moved; nothing if there is no such question."""
    questions = np.flatnonzero((tree.feature != LEAF) & ~tree.features.integer[tree.feature])
    if not len(questions):
        return None
    node = int(rng.choice(questions))
    threshold = tree.threshold.copy()
    threshold[node] += rng.normal() * scale[tree.feature[node]]
    return replace(tree, threshold=threshold)


def without_a_question(tree: Tree) -> list[Tree]:
    """The tree without one of its questions, in all ways."""
    shape = shape_of(tree)
    parts = [(path, part_at(shape, path)) for path in paths(shape)]
    kids = [(path, child) for path, part in parts if isinstance(part, tuple) for child in part[2:]]
    return [tree_of(replaced(shape, path, child), tree) for path, child in kids]


def leaves_below(tree: Tree, path: tuple[int, ...]) -> list[int]:
    """The leaves below a path."""
    node = 0
    for side in path:
        node = int(tree.children_left[node] if side == 2 else tree.children_right[node])
    found, stack = [], [node]
    while stack:
        at = stack.pop()
        if tree.feature[at] < 0:
            found.append(at)
        else:
            stack += [int(tree.children_left[at]), int(tree.children_right[at])]
    return found
