"""Trees of more splits than can be chosen together: branch and bound that may be stopped at any time.

A first split divides the states into two smaller problems with one split less per path. Those of few splits are solved
outright; what larger ones may still collect is bounded by what is known of neighbours: with values measured from each
state's best action, so that none is positive, more states never collect more. If the states below one threshold collect
at most u, so do those below every higher one; and of two thresholds that are solved, the lower one bounds the left
branch and the upper one the right branch of all between them (Brita et al., "Optimal classification trees for
continuous feature data using dynamic programming with branch-and-bound", AAAI 2025, prune by the same idea). Two splits
in either order leave the same states: what was found for some states is remembered. And a branch that cannot make up
for what the other one lacks is given up before it is solved.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from custard.tree.shape import Shape, Split

__all__ = ["Found", "Problem", "Unsplit", "best_within"]

MIN_BRANCH_EFFORT = 8  # small problems that a branch may solve at the least
BRANCH_EFFORT_SHARE = 1 / 4  # of the effort that is left, what one branch may use
MAX_REMEMBERED_PARTS = 1_000_000  # sets of states with a depth, whose best trees are kept


class Unsplit(NamedTuple):
    """A leaf of a shape that is still to be grown: the splits below it are found by looking ahead."""

    states: np.ndarray  # their numbers
    depth: int  # the largest number of splits on a path below


class Found(NamedTuple):
    """What is known of some states and a depth."""

    shape: Shape  # its thresholds are cuts (see `custard.tree.lookahead`) and its leaves are `Unsplit`
    total: float  # what the best tree found collects
    bound: float  # no tree collects more


class SmallTree(NamedTuple):
    """The best tree of few splits, by its first one."""

    total: float  # what it collects
    feature: int  # -1 for a leaf
    cut: int


@dataclass(frozen=True)
class Problem:
    """States as codes [N, n], values [N, A] of at most 0, and how a part of it is solved where few splits are left."""

    codes: np.ndarray
    value: np.ndarray
    price: float
    ahead: int  # splits per path up to which `best_small` is exact
    best_small: Callable[[np.ndarray, int], SmallTree]  # of states and a depth
    remembered: dict[tuple[bytes, int], Found] = field(default_factory=dict)

    def recall(self, key: tuple[bytes, int], needed: float, tolerance: float) -> Found | None:
        """Return what was found before, if it is exact, or enough to see that no more than `needed` is collected."""
        found = self.remembered.get(key)
        if found is None or (found.bound > found.total + tolerance and found.bound > needed):
            return None
        return found

    def remember(self, key: tuple[bytes, int], found: Found) -> Found:
        """Keep what was found and return it."""
        if len(self.remembered) < MAX_REMEMBERED_PARTS:
            self.remembered[key] = found
        return found


def best_within(
    problem: Problem, states: np.ndarray, depth: int, effort: float, needed: float = -np.inf
) -> tuple[Found, int]:
    """Return the best tree found, and how many small problems were solved for it.

    problem  what is to be collected
    states   numbers of those that count, ascending
    depth    the largest number of splits on a path
    effort   how many small problems may be solved
    needed   once it is clear that no tree collects more than this, the search ends
    """
    leaf = float(problem.value[states].sum(axis=0).max()) if len(states) else 0.0
    if depth == 0 or len(states) < 2 or leaf == 0.0:
        return Found(Unsplit(states, 0), leaf, leaf), 0
    tolerance = 1e-12 * max(1.0, float(-problem.value[states].min()) * len(states))
    key = (hashlib.blake2b(states.tobytes(), digest_size=16).digest(), depth)
    known = problem.recall(key, needed, tolerance)
    if known is not None:
        return known, 0
    first = problem.best_small(states, min(depth, problem.ahead))
    best, spent = max(leaf, first.total), 1
    if depth <= problem.ahead:
        return problem.remember(key, Found(Unsplit(states, depth), best, best)), spent
    shape: Shape = Unsplit(states, depth)
    cost = problem.price * len(states)
    tried_bound = best  # the most that a first split already tried may collect
    # Of each interval of cuts: minus what it may collect, whether its feature looks best, feature, ends, bounds.
    waiting: list[tuple[float, bool, int, int, int, float, float]] = []
    for c in range(problem.codes.shape[1]):
        column = problem.codes[states, c]
        low, high = int(column.min()), int(column.max())
        if low < high:
            heapq.heappush(waiting, (cost, c != first.feature, c, low, high - 1, 0.0, 0.0))
    while waiting and -waiting[0][0] > max(best, needed) + tolerance and spent < effort:
        _, other, c, low, high, left_max, right_max = heapq.heappop(waiting)
        is_first = not other and low <= first.cut <= high
        cut = first.cut if is_first else (low + high) // 2
        goes_left = problem.codes[states, c] <= cut
        share = max(MIN_BRANCH_EFFORT, (effort - spent) * BRANCH_EFFORT_SHARE)
        wanted = max(best, needed) + cost
        left, used = best_within(problem, states[goes_left], depth - 1, share, wanted - right_max)
        spent += used
        left_bound, right_bound = min(left.bound, left_max), right_max
        if left_bound + right_max > wanted + tolerance:
            right, used = best_within(problem, states[~goes_left], depth - 1, share, wanted - left_bound)
            spent += used
            right_bound = min(right.bound, right_max)
            if left.total + right.total - cost > best + tolerance:
                best, shape = left.total + right.total - cost, Split(c, cut, left.shape, right.shape)
        tried_bound = max(tried_bound, left_bound + right_bound - cost)
        if low < cut:
            heapq.heappush(waiting, (cost - left_max - right_bound, True, c, low, cut - 1, left_max, right_bound))
        if cut < high:
            heapq.heappush(waiting, (cost - left_bound - right_max, True, c, cut + 1, high, left_bound, right_max))
    bound = max(best, tried_bound, -waiting[0][0] if waiting else best)
    return problem.remember(key, Found(shape, best, bound)), spent
