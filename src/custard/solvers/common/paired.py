"""Two trees compared on the same episodes.

What one tree returns more than another is measured episode by episode, so that the luck of single episodes cancels out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from custard.tree.tree import Tree

__all__ = ["Candidate", "Episodes", "compare", "is_perfect", "paired_gain", "run_candidate"]

ROUNDING_RETURN_SHARE = 1e-9  # share of the largest return below which a difference is rounding
MIN_SECOND_STAGE_EPISODES = 4  # episodes of a comparison's second stage, at the least
EPISODES_PER_RARE_FAILURE = 5  # a nearly perfect tree fails in at most one of this many episodes


class Episodes(Protocol):
    """Runs episodes of trees, one per seed."""

    @property
    def max_return(self) -> float:
        """The return of an episode of full length that earns the largest reward seen so far at every step."""

    def returns(self, tree: Tree, seeds: np.ndarray) -> np.ndarray:
        """Return the return of one episode per seed."""


def is_perfect(mean: float, max_return: float) -> bool:
    """Return whether episodes with this mean return all have the largest return possible."""
    return max_return > 0 and mean >= max_return * (1.0 - ROUNDING_RETURN_SHARE)


def paired_gain(returns: np.ndarray, others: np.ndarray, margin: float = 1.0) -> tuple[float, float]:
    """Return the mean of `returns - others`, episode by episode, and `margin` standard errors of that mean.

    >>> paired_gain(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 1.0, 3.0, 3.0]))
    (0.5, 0.25)
    """
    gain = returns - others
    return float(gain.mean()), float(margin * gain.std() / np.sqrt(len(gain)))


@dataclass(frozen=True)
class Candidate:
    """A tree and its returns on a list of episodes."""

    tree: Tree
    seeds: np.ndarray  # [N]
    returns: np.ndarray  # [N]
    failures: np.ndarray  # [N] trees compared with it so far that returned less than the most possible

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def largest(self) -> float:
        """The largest return or loss."""
        return float(np.abs(self.returns).max())

    def with_episodes(self, seeds: np.ndarray, returns: np.ndarray) -> Candidate:
        """Return the candidate with further episodes."""
        failures = np.append(self.failures, np.zeros(len(seeds), np.int64))
        return Candidate(self.tree, np.append(self.seeds, seeds), np.append(self.returns, returns), failures)

    def failing_seeds(self, max_return: float) -> np.ndarray:
        """Return the seeds of episodes in which a nearly perfect tree fails; none for a tree that fails often."""
        fails = self.returns < max_return
        rare = EPISODES_PER_RARE_FAILURE * int(fails.sum()) <= len(fails)
        return self.seeds[fails] if rare and is_perfect(float(self.returns.max()), max_return) else self.seeds[:0]

    def hardest_first(self, max_return: float) -> np.ndarray:
        """Return the order of episodes: where this tree fails (only there can another be better), then where others
        did (there another is likely to be worse)."""
        fails = self.returns < max_return
        others_failed = np.flatnonzero((self.failures > 0) & ~fails)
        rest = np.flatnonzero((self.failures == 0) & ~fails)
        most_failures_first = others_failed[np.argsort(-self.failures[others_failed], kind="stable")]
        return np.concatenate([np.flatnonzero(fails), most_failures_first, rest])

    def beats(self, other: Candidate) -> bool:
        """Return whether it returns more on the same episodes, or as much with a smaller tree."""
        if abs(self.mean - other.mean) > ROUNDING_RETURN_SHARE * max(self.largest, other.largest):
            return self.mean > other.mean
        return (self.tree.n_leaves, self.tree.depth) < (other.tree.n_leaves, other.tree.depth)

    def clearly_beats(self, other: Candidate) -> bool:
        """Return whether it beats the other by a standard error, so that luck does not replace the best tree."""
        gain, error = paired_gain(self.returns, other.returns)
        return self.beats(other) and (gain >= error or self.mean == other.mean)


def run_candidate(episodes: Episodes, tree: Tree, seeds: np.ndarray) -> Candidate:
    """Return a tree with its returns on the episodes of the seeds."""
    return Candidate(tree, seeds, episodes.returns(tree, seeds), np.zeros(len(seeds), np.int64))


def compare(episodes: Episodes, tree: Tree, incumbent: Candidate) -> Candidate:
    """Return the better of a tree and the incumbent on the incumbent's episodes, with failures counted.

    Episodes are run in stages, each four times as many as before; the tree is rejected at the first stage after which
    it looks worse. If the incumbent is nearly perfect, the first stage is the episodes in which it fails.
    """
    count, failing = len(incumbent.seeds), len(incumbent.failing_seeds(episodes.max_return))
    first, second = failing or 2, max(MIN_SECOND_STAGE_EPISODES, min(count, 500) // 5)
    ends = [first, *(second * 4**k for k in range(9) if first < second * 4**k < count), count]
    order = incumbent.hardest_first(episodes.max_return) if failing else np.arange(count)
    returns, failures = np.zeros(count), incumbent.failures.copy()
    begin = 0
    for end in ends:
        stage, so_far = order[begin:end], order[:end]
        returns[stage] = episodes.returns(tree, incumbent.seeds[stage])
        failures[stage] += returns[stage] < episodes.max_return
        gain = float((returns[so_far] - incumbent.returns[so_far]).mean())
        worse = gain < -ROUNDING_RETURN_SHARE * incumbent.largest
        if begin == 0 and failing:
            worse = worse or (gain <= 0 and tree.n_leaves >= incumbent.tree.n_leaves)
        elif begin == 0:  # two episodes say little
            worse = returns[stage].max() < incumbent.returns.min()
        if worse:
            return replace(incumbent, failures=failures)
        begin = end
    other = Candidate(tree, incumbent.seeds, returns, failures)
    return other if other.beats(incumbent) else replace(incumbent, failures=failures)
