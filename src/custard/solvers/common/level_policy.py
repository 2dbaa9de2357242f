"""A policy over bounds whose decisions come from nodes of its own, such as the rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from custard.ibmdp.splits import Rules, narrowed, project

__all__ = ["LevelPolicy"]


class LevelPolicy:
    """The policy over bounds as `custard.extract` calls it: level by level, never with a base state.

    Extraction passes bounds in single precision and without depth. So the policy keeps the nodes that its own splits
    lead to, with their exact bounds, and finds each node of the next level among them.
    """

    def __init__(self, rules: Rules, root: Any, decide: Callable[..., tuple[int, tuple[Any, ...]]]) -> None:
        """Start at the node `root`.

        `decide(node, lower, upper, depth, mask)` returns the IBMDP action of a node with these bounds [n], [n] and, if
        that is a split, the nodes on its left and right side.
        """
        self.rules, self.decide, self.fractions, self.depth = rules, decide, rules.fractions, 0
        self.level = {rules.normalised(*rules.root()).tobytes(): (root, *rules.root())}

    def __call__(self, bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the IBMDP actions of nodes with bounds [B, 2n] and mask [B, n_actions]."""
        next_level: dict[bytes, tuple[Any, np.ndarray, np.ndarray]] = {}
        actions = np.zeros(len(bounds), dtype=np.int64)
        for i, row in enumerate(bounds):
            node, lower, upper = self.level[row.tobytes()]
            actions[i], children = self.decide(node, lower, upper, self.depth, mask[i])
            if actions[i] < self.rules.n_base:
                continue
            c, j = divmod(int(actions[i]) - self.rules.n_base, len(self.fractions))
            v_p = project(lower[c], upper[c], self.fractions[j])
            for child, is_left in zip(children, (True, False), strict=True):
                pair = lower.copy(), upper.copy()
                pair[0][c], pair[1][c] = narrowed(lower[c], upper[c], v_p, is_left)
                next_level[self.rules.normalised(*pair).tobytes()] = child, *pair
        self.depth, self.level = self.depth + 1, next_level or self.level
        return actions
