"""Two trees compared on the same episodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from custard.tree.tree import Tree

__all__ = ["Candidate"]


@dataclass(frozen=True)
class Candidate:
    """A tree and its returns on a list of episodes, without and with random actions in between."""

    tree: Tree
    returns: np.ndarray
    shaken: np.ndarray  # the same if some actions are random, for trees that are perfect without; empty for others

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    def beats(self, other: Candidate) -> bool:
        """More return on the same episodes; or as much from a smaller tree; or from one as small and steadier."""
        slack = 1e-9 * max(1.0, abs(other.mean))
        if abs(self.mean - other.mean) > slack:
            return self.mean > other.mean
        if (self.tree.n_leaves, self.tree.depth) != (other.tree.n_leaves, other.tree.depth):
            return (self.tree.n_leaves, self.tree.depth) < (other.tree.n_leaves, other.tree.depth)
        if len(self.shaken) == 0 or len(other.shaken) == 0:
            return len(self.shaken) > 0
        return float(self.shaken.mean()) > float(other.shaken.mean()) * (1.0 + 1e-3)

    def clearly_beats(self, other: Candidate) -> bool:
        """Beats it by more than the standard error of the difference, so that luck does not replace the best tree."""
        difference = self.returns - other.returns
        error = float(difference.std()) / np.sqrt(len(difference))
        return self.beats(other) and (float(difference.mean()) >= error or self.mean == other.mean)
