"""Trees of more splits than can be chosen together: branch and bound that may be stopped at any time.

A first split divides the states into two smaller problems with one split less per path. Those of few splits are solved
outright; what larger ones may still collect is bounded by what is known of neighbours: with values measured from each
state's best action, so that none is positive, more states never collect more. If the states below one threshold collect
at most u, so do those below every higher one; and of two thresholds that are solved, the lower one bounds the left
branch and the upper one the right branch of all between them (Brita et al., "Optimal classification trees for
continuous feature data using dynamic programming with branch-and-bound", AAAI 2025, prune by the same idea).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from custard.tree.shape import Shape, Split

__all__ = ["Problem", "Unsplit", "best_within"]

MIN_BRANCH_EFFORT = 8  # small problems that a branch may solve at the least
BRANCH_EFFORT_SHARE = 1 / 4  # of the effort that is left, what one branch may use


class Unsplit(NamedTuple):
    """A leaf of a shape that is still to be grown: the splits below it are found by looking ahead."""

    states: np.ndarray  # their numbers
    depth: int  # the largest number of splits on a path below


@dataclass(frozen=True)
class Problem:
    """States as codes [N, n], values [N, A] of at most 0, and the two ways to solve a part of it."""

    codes: np.ndarray
    value: np.ndarray
    price: float
    ahead: int  # splits per path up to which `look` is exact
    look: Callable[[np.ndarray, int], float]  # what the best tree of so few splits collects
    grow: Callable[[np.ndarray, int], tuple[float, int]]  # what a tree grown by looking ahead collects, and its price


def best_within(problem: Problem, states: np.ndarray, depth: int, effort: float) -> tuple[Shape, float, float, int]:
    """Return the best tree found, what it collects, the most any could, and how many small problems were solved.

    The tree's thresholds are cuts (see `custard.tree.lookahead`) and its leaves are `Unsplit`.
    """
    leaf = float(problem.value[states].sum(axis=0).max()) if len(states) else 0.0
    if depth <= problem.ahead or len(states) < 2:
        best = max(leaf, problem.look(states, depth)) if depth > 0 and len(states) > 1 else leaf
        return Unsplit(states, depth), best, best, 1
    best, spent = problem.grow(states, depth)
    shape: Shape = Unsplit(states, depth)
    if best < leaf:  # looking ahead never gives less, but for rounding
        best = leaf
    tolerance = 1e-12 * max(1.0, float(-problem.value[states].min()) * len(states))
    cost = problem.price * len(states)
    open_ended = best  # the most that a first split already looked at may collect
    waiting: list[tuple[float, int, int, int, float, float]] = []  # minus what it may collect, feature, cuts, bounds
    for c in range(problem.codes.shape[1]):
        column = problem.codes[states, c]
        if column.min() < column.max():
            heapq.heappush(waiting, (cost, c, int(column.min()), int(column.max()) - 1, 0.0, 0.0))
    while waiting and -waiting[0][0] > best + tolerance and spent < effort:
        _, c, low, high, left_most, right_most = heapq.heappop(waiting)
        cut = (low + high) // 2
        goes_left = problem.codes[states, c] <= cut
        share = max(MIN_BRANCH_EFFORT, (effort - spent) * BRANCH_EFFORT_SHARE)
        left, left_least, left_upper, used = best_within(problem, states[goes_left], depth - 1, share)
        spent += used
        left_upper, right_upper = min(left_upper, left_most), right_most
        if left_upper + right_most - cost > best + tolerance:
            right, right_least, right_upper, used = best_within(problem, states[~goes_left], depth - 1, share)
            spent += used
            right_upper = min(right_upper, right_most)
            if left_least + right_least - cost > best + tolerance:
                best, shape = left_least + right_least - cost, Split(c, cut, left, right)
        open_ended = max(open_ended, left_upper + right_upper - cost)
        if low < cut:
            heapq.heappush(waiting, (cost - left_most - right_upper, c, low, cut - 1, left_most, right_upper))
        if cut < high:
            heapq.heappush(waiting, (cost - left_upper - right_most, c, cut + 1, high, left_upper, right_most))
    most = max(best, open_ended, -waiting[0][0] if waiting else best)
    return shape, best, most, spent
