"""The actions that a tree's leaves may hold: every discrete one, or vectors within their bounds."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from custard.core.actions import Actions
from custard.tree.tree import LEAF, Tree

__all__ = ["STEP_SCALES", "LeafActions"]

STEP_SCALES = (0.5, 0.2, 0.05, 0.02)  # shares of a feature's spread, or an action's range, for small changes
MAX_VECTORS = 12  # vectors of several components that are tried in every state
GRID_SIZE = 7  # values of a single real component that are tried in every state


class LeafActions:
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
        if self.whole and np.prod(self.high - self.low + 1) <= MAX_VECTORS:
            ranges = [np.arange(lo, hi + 1) for lo, hi in zip(self.low, self.high, strict=True)]
            self.all = np.array(list(product(*ranges)), dtype=np.int64)

    def random(self, rng: np.random.Generator) -> Any:
        """Draw any action."""
        if self.all is not None:
            action = self.all[int(rng.integers(len(self.all)))]
            return int(action) if self.actions.discrete else action
        if self.whole:
            return rng.integers(self.low, self.high + 1).astype(np.int64)
        if len(self.low) > 1 and rng.random() < 0.3:  # a corner now and then: extreme actions are often the best
            return np.where(rng.random(len(self.low)) < 0.5, self.low, self.high)
        return self.low + rng.random(len(self.low)) * (self.high - self.low)

    def other(self, rng: np.random.Generator, action: Any) -> Any:
        """Draw another action; of vectors more often one near by."""
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
        step = rng.normal(size=len(action)) * (self.high - self.low) * float(rng.choice(STEP_SCALES))
        step *= rng.random(len(action)) < max(0.5, 1.0 / len(action))
        return np.clip(action + step, self.low, self.high)

    def tried(self, rng: np.random.Generator, tree: Tree) -> np.ndarray:
        """Return the actions whose worth is measured in every state: all of them, or a choice with the tree's own."""
        if self.all is not None:
            return self.all
        own = np.unique(tree.value[tree.feature == LEAF], axis=0)
        own = own[rng.permutation(len(own))[:MAX_VECTORS]]
        if not self.whole and len(self.low) == 1:
            grid = np.linspace(self.low, self.high, GRID_SIZE)
        else:
            grid = np.array([self.random(rng) for _ in range(MAX_VECTORS)])
            if not self.whole:
                grid[0] = (self.low + self.high) / 2
        near = np.array([self.other(rng, action) for action in own[: MAX_VECTORS // 3]]).reshape(-1, own.shape[1])
        return np.unique(np.concatenate([grid, own, near]), axis=0)
