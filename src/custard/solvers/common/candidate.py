"""Two trees compared on the same episodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from custard.tree.tree import Tree

__all__ = ["SAME", "Candidate"]

SAME = 1e-9  # the share of returns' size that is nothing but rounding


@dataclass(frozen=True)
class Candidate:
    """A tree and its returns on a list of episodes."""

    tree: Tree
    seeds: np.ndarray
    returns: np.ndarray
    failed: np.ndarray  # how many of the trees compared with it so far failed in each episode, where that can be told

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def size(self) -> float:
        """The largest return, or loss."""
        return float(np.abs(self.returns).max())

    def more(self, seeds: np.ndarray, returns: np.ndarray) -> Candidate:
        """The same with more episodes."""
        failed = np.append(self.failed, np.zeros(len(seeds), np.int64))
        return Candidate(self.tree, np.append(self.seeds, seeds), np.append(self.returns, returns), failed)

    def hardest_first(self, ceiling: float) -> np.ndarray:
        """Numbers of the episodes: first those where this tree returns less than the most possible (only there can
        another be better), then those where others did (there it is likely to be worse)."""
        fails = self.returns < ceiling
        known = np.flatnonzero((self.failed > 0) & ~fails)
        rest = np.flatnonzero((self.failed == 0) & ~fails)
        return np.concatenate([np.flatnonzero(fails), known[np.argsort(-self.failed[known], kind="stable")], rest])

    def beats(self, other: Candidate) -> bool:
        """More return on the same episodes, or as much from a smaller tree."""
        if abs(self.mean - other.mean) > SAME * max(self.size, other.size):
            return self.mean > other.mean
        return (self.tree.n_leaves, self.tree.depth) < (other.tree.n_leaves, other.tree.depth)

    def clearly_beats(self, other: Candidate) -> bool:
        """Beats it by more than the standard error of the difference, so that luck does not replace the best tree."""
        difference = self.returns - other.returns
        error = float(difference.std()) / np.sqrt(len(difference))
        return self.beats(other) and (float(difference.mean()) >= error or self.mean == other.mean)
