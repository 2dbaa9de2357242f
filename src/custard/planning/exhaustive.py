"""Every tree there is: the slow, obviously right answer that tests compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.features import Features
from custard.core.mdp import FiniteMDP
from custard.planning.evaluate import policy_value
from custard.tree.tree import LEAF, Tree

__all__ = ["Node", "best_tree_exhaustive", "cuts", "grow"]

#: A tree as nested tuples: an action number, or (feature, threshold, left, right).
Node = Any
LIMIT = 2_000_000


def cuts(x: np.ndarray, whole: np.ndarray | None = None) -> list[tuple[int, float]]:
    """Every question that separates some of the states x [S, n]: midpoints between neighbouring values.

    >>> cuts(np.array([[0.0, 5.0], [1.0, 5.0]]))
    [(0, 0.5)]
    """
    questions = []
    for c in range(x.shape[1]):
        seen = np.unique(x[:, c])
        for below, above in zip(seen[:-1].tolist(), seen[1:].tolist(), strict=True):
            middle = below + (above - below) / 2
            questions.append((c, middle if below <= middle < above else below))
    return questions


def grow(node: Node, mdp_features: Features, actions: Any) -> Tree:
    """A `Tree` from nested tuples."""
    feature: list[int] = []
    threshold: list[float] = []
    left: list[int] = []
    right: list[int] = []
    value: list[int] = []

    def add(part: Node) -> int:
        here = len(feature)
        leaf = not isinstance(part, tuple)
        feature.append(LEAF if leaf else part[0])
        threshold.append(0.0 if leaf else part[1])
        value.append(int(part) + actions.start if leaf else 0)
        left.append(LEAF)
        right.append(LEAF)
        if not leaf:
            left[here], right[here] = add(part[2]), add(part[3])
        return here

    add(node)
    return Tree(feature, threshold, left, right, value, mdp_features, actions)  # type: ignore[arg-type]


def best_tree_exhaustive(mdp: FiniteMDP, max_depth: int, tolerance: float = 1e-9) -> tuple[Tree, float]:
    """The tree of highest value, then of fewest leaves, by trying every one of at most `max_depth`.

    Trees that decide alike in every state count once. Only for tiny models: a CustardError says when there are
    more than two million different ones.

    >>> from custard.planning.random import random_mdp
    >>> tree, value = best_tree_exhaustive(random_mdp(2, 2, seed=1), max_depth=1)
    >>> tree.depth <= 1
    True
    """
    states = np.flatnonzero(~mdp.terminal)
    policies = _policies(mdp, states, max_depth)
    best: tuple[float, int, Node] | None = None
    for choice, (leaves, node) in policies.items():
        full = np.zeros(mdp.n_states, dtype=np.int64)
        full[states] = choice
        value = policy_value(full, mdp)
        if best is None or value > best[0] + tolerance or (value >= best[0] - tolerance and leaves < best[1]):
            best = (value, leaves, node)
    assert best is not None
    return grow(best[2], mdp.features, mdp.actions), best[0]


def _policies(mdp: FiniteMDP, states: np.ndarray, depth: int) -> dict[tuple[int, ...], tuple[int, Node]]:
    """choice over `states` -> (fewest leaves, tree) for every tree of at most `depth`."""
    found: dict[tuple[int, ...], tuple[int, Node]] = {(a,) * len(states): (1, a) for a in range(mdp.actions.n)}
    if depth == 0:
        return found
    for c, threshold in cuts(mdp.x[states]):
        yes = mdp.x[states, c] <= threshold
        left = _policies(mdp, states[yes], depth - 1)
        right = _policies(mdp, states[~yes], depth - 1)
        if len(left) * len(right) + len(found) > LIMIT:
            raise CustardError(f"more than {LIMIT:,} different trees: too many to try them all")
        where = np.empty(len(states), dtype=np.int64)
        for a_choice, (a_leaves, a_node) in left.items():
            where[yes] = a_choice
            for b_choice, (b_leaves, b_node) in right.items():
                where[~yes] = b_choice
                key = tuple(where.tolist())
                if key not in found or found[key][0] > a_leaves + b_leaves:
                    found[key] = (a_leaves + b_leaves, (c, threshold, a_node, b_node))
    return found
