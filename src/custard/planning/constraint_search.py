"""The best tree of a discounted model by search over constraints on what points may do.

A node of the search confines some points (states of equal features) to some actions. Its bound is the best return of
any policy within them (`relaxation`). If no tree of the depth keeps to them (`agreement`) there is nothing below it.
Otherwise the relaxed policy asks for more than a tree can give: each point's actions are ranked by what the start
loses if the point takes them, and the points are asked to lose less than a level. At the highest level that no tree
meets there is a smallest set of points of which no tree satisfies all; every tree violates the first of them, or keeps
to it and violates the second, and so on: these are the node's children, and each loses at least about the level.
The tree that meets the next level up is a candidate for the best tree.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numba import njit

from custard.planning.agreement import agreeing_tree, agrees, full_words, smallest_conflict
from custard.planning.points import Points
from custard.planning.relaxation import Model, Policy, drops, follow, invert, solve_within
from custard.tree.shape import Shape, map_leaves

__all__ = ["Standing", "search_constraints"]

MAX_WAITING = 400_000  # nodes kept; beyond, the least promising half is given up and its bound remembered
MAX_TIE_ROUNDS = 4  # how often the relaxed policy follows a tree that loses nothing before a tie is branched on
REPORT_SECONDS = 0.2  # how often the search says where it stands


@dataclass(frozen=True, eq=False)
class _Node:
    bound: float
    parent: _Node | None
    points: np.ndarray  # those that it confines further than its parent does
    words: np.ndarray  # [len(points), W], to what
    choice: np.ndarray  # [S], the best policy within the constraints


@dataclass(frozen=True)
class Standing:
    """Where the search stands."""

    bound: float  # no tree returns more, or more than the best one known
    explored: int
    finished: bool


def search_constraints(
    points: Points, depth: int, goal: Callable[[], float], offer: Callable[[Shape], None], slice_seconds: float,
) -> Iterator[Standing]:  # fmt: skip
    """Yield standings until no tree can return more than the goal.

    points         the model
    depth          the largest number of splits on a path
    goal           returns what a tree must exceed to matter: the best known return plus the tolerance
    offer          is called with trees worth evaluating; their leaves are action numbers
    slice_seconds  how long the search works from one standing to the next
    """
    yield from _Search(points, depth, goal, offer).run(slice_seconds)


class _Search:
    """The queue, and the policy that moves from node to node."""

    def __init__(
        self, points: Points, depth: int, goal: Callable[[], float], offer: Callable[[Shape], None]
    ) -> None:
        self.points, self.depth, self.goal, self.offer = points, depth, goal, offer
        self.model: Model = points.model
        self.full = full_words(points.count, self.model.reward.shape[1])
        self.policy, self.trial = Policy.empty(points.n_states), Policy.empty(points.n_states)
        self.heap: list[tuple[float, int, _Node]] = []
        self.given_up = -np.inf
        self.explored = self.pushed = 0

    def run(self, slice_seconds: float) -> Iterator[Standing]:
        """Expand the most promising node, again and again."""
        self.policy.choice[:] = self.points.greedy_choice
        invert(self.model, self.policy)
        bound = float(solve_within(self.model, self.policy, self.full))
        nothing = np.arange(0)
        self.push(_Node(bound, None, nothing, self.full[:0], self.policy.choice.astype(np.int32)))
        until = time.monotonic() + slice_seconds
        while self.heap and -self.heap[0][0] > self.goal():
            if time.monotonic() > until:
                yield Standing(max(-self.heap[0][0], self.given_up), self.explored, False)
                until = time.monotonic() + slice_seconds
            self.expand(heapq.heappop(self.heap)[2])
            if len(self.heap) > MAX_WAITING:
                self.heap.sort(key=lambda item: item[:2])
                self.given_up = max(self.given_up, -self.heap[MAX_WAITING // 2][0])
                del self.heap[MAX_WAITING // 2 :]
        finished = self.given_up <= self.goal()
        yield Standing(self.given_up, self.explored, finished)

    def push(self, node: _Node) -> None:
        """Let a node wait; of equal bounds later ones come first."""
        self.pushed += 1
        heapq.heappush(self.heap, (-node.bound, -self.pushed, node))

    def constraints(self, node: _Node | None) -> np.ndarray:
        """Return the words of a node, [P, W]."""
        chain = []
        while node is not None:
            chain.append(node)
            node = node.parent
        words = self.full.copy()
        for link in reversed(chain):
            words[link.points] = link.words
        return words

    def expand(self, node: _Node) -> None:
        """Branch on a smallest set of points that no tree satisfies."""
        self.explored += 1
        words = self.constraints(node)
        follow(self.model, self.policy, node.choice.astype(np.int64))
        bound = min(node.bound, float(solve_within(self.model, self.policy, words)))
        points = self.points
        background = np.flatnonzero((words != self.full).any(axis=1))
        for _ in range(MAX_TIE_ROUNDS):
            lost = drops(self.model, self.policy, words, points.count)
            tie = points.tie * max(1.0, abs(bound))
            level, conflict, feasible = choose_level(
                points.codes, points.sizes, words, lost, background, bound - self.goal(), tie, self.depth
            )
            if feasible >= 0.0:
                choice = self.propose(words, lost, feasible)
                if level > 0.0:
                    break
                if not self.follow_tree(choice, lost, tie):
                    return  # the tree does as the relaxed policy does wherever it goes: nothing is better
                continue
            break
        if level == 0.0:
            self.branch_on_tie(node, bound, words, lost, choice, tie)
            return
        self.branch(node, bound, words, lost, conflict, level)

    def propose(self, words: np.ndarray, lost: np.ndarray, level: float) -> np.ndarray:
        """Offer the tree that loses less than the level in every point; return its actions [P]."""
        points = self.points
        wanted = wanted_words(words, lost, level)
        index = np.flatnonzero((wanted != self.full).any(axis=1))
        shape = agreeing_tree(points.codes, points.sizes, wanted, index, self.depth, points.thresholds)
        shape = points.settle(shape, lost)
        self.offer(shape)
        return points.decide(shape)

    def follow_tree(self, choice: np.ndarray, lost: np.ndarray, tie: float) -> bool:
        """Let the relaxed policy do as a tree does where that loses nothing; return whether anything changes."""
        wanted = choice[self.model.point]
        mine = self.policy.choice
        same = (lost[self.model.point, wanted] <= tie) & (self.policy.occupancy > 1e-12) & (mine != wanted)
        if not same.any():
            return False
        follow(self.model, self.policy, np.where(same, wanted, mine))
        return True

    def branch_on_tie(
        self, node: _Node, bound: float, words: np.ndarray, lost: np.ndarray, choice: np.ndarray, tie: float
    ) -> None:
        """Branch on a visited point that may do several things without a loss: as the tree does, or not."""
        weight = np.bincount(self.model.point, self.policy.occupancy, minlength=self.points.count)
        ties = ((lost >= 0.0) & (lost <= tie)).sum(axis=1)
        candidates = np.where(ties > 1, weight, -1.0)
        p = int(candidates.argmax())
        if candidates[p] <= 0.0:
            return
        only = np.zeros_like(words[p])
        only[choice[p] >> 6] = np.uint64(1) << np.uint64(choice[p] & 63)
        self.add(node, bound, words, [(p, words[p] & only)])
        self.add(node, bound, words, [(p, words[p] & ~only)])

    def branch(
        self, node: _Node, bound: float, words: np.ndarray, lost: np.ndarray, conflict: np.ndarray, level: float
    ) -> None:
        """Add one child for each point of the conflict: it violates the level, the points before it do not."""
        wanted = wanted_words(words, lost, level)
        if len(conflict) == 1 and not wanted[conflict[0]].any():
            p = int(conflict[0])  # its states want different things: nothing is without a loss
            best = int(np.where(lost[p] >= 0.0, lost[p], np.inf).argmin())
            only = np.zeros_like(words[p])
            only[best >> 6] = np.uint64(1) << np.uint64(best & 63)
            self.add(node, bound, words, [(p, words[p] & only)])
            self.add(node, bound, words, [(p, words[p] & ~only)])
            return
        least = np.where(lost[conflict] >= level, lost[conflict], np.inf).min(axis=1)
        kept: list[tuple[int, np.ndarray]] = []
        for p in conflict[np.argsort(-least, kind="stable")].tolist():
            self.add(node, bound, words, [*kept, (p, words[p] & ~wanted[p])])
            kept.append((p, wanted[p]))

    def add(self, node: _Node, bound: float, words: np.ndarray, changes: list[tuple[int, np.ndarray]]) -> None:
        """Let a child wait unless it cannot matter."""
        if any(not row.any() for _, row in changes):
            return
        where = np.array([p for p, _ in changes])
        rows = np.stack([row for _, row in changes])
        child = words.copy()
        child[where] = rows
        for mine, theirs in zip(self.trial, self.policy, strict=True):
            mine[:] = theirs
        child_bound = min(bound, float(solve_within(self.model, self.trial, child)))
        if child_bound <= self.goal():
            return
        index = np.flatnonzero((child != self.full).any(axis=1))
        if not agrees(self.points.codes, self.points.sizes, child, index, self.depth):
            return
        self.push(_Node(child_bound, node, where, rows, self.trial.choice.astype(np.int32)))


@njit(cache=True)
def wanted_words(words, lost, level):  # type: ignore[no-untyped-def]
    """Return the allowed actions that lose less than a level, [P, W]."""
    wanted = words.copy()
    for p in range(len(words)):
        for a in range(lost.shape[1]):
            if lost[p, a] >= level:
                wanted[p, a >> 6] &= ~(np.uint64(1) << np.uint64(a & 63))
    return wanted


@njit(cache=True)
def _conflict_at(codes, sizes, words, lost, background, level, depth, only_test):  # type: ignore[no-untyped-def]
    """Return the smallest conflict at a level; with `only_test` a conflict's first point, or nothing."""
    wanted = wanted_words(words, lost, level)
    count = 0
    order, worst = np.empty(len(words), np.int64), np.empty(len(words))
    for p in range(len(words)):
        most = -1.0
        for a in range(lost.shape[1]):
            most = max(most, lost[p, a])
        if most >= level:
            order[count], worst[count] = p, -most
            count += 1
    order = order[:count][np.argsort(worst[:count])]
    if only_test:
        index = np.empty(len(background) + count, np.int64)
        index[:count] = order
        size = count
        for k in range(len(background)):
            p = background[k]
            known = False
            for a in range(lost.shape[1]):
                known = known or lost[p, a] >= level
            if not known:
                index[size] = p
                size += 1
        return order[:0] if agrees(codes, sizes, wanted, index[:size], depth) else order[:1]
    return smallest_conflict(codes, sizes, words, wanted, background, order, depth)





@njit(cache=True)
def choose_level(codes, sizes, words, lost, background, gap, tie, depth):  # type: ignore[no-untyped-def]
    """Return the level to branch at, the conflict there, and a level that some tree meets (-1: none was needed).

    The level is the gap if no tree meets that: all children then lose it. Otherwise it is the highest that no tree
    meets, and 0 if a tree loses nothing in any point.
    """
    conflict = _conflict_at(codes, sizes, words, lost, background, gap, depth, False)
    if len(conflict):
        return gap, conflict, -1.0
    events = np.empty(lost.size + 1)
    count = 0
    for p in range(lost.shape[0]):
        for a in range(lost.shape[1]):
            if tie < lost[p, a] < gap:
                events[count] = lost[p, a]
                count += 1
    events[count] = gap
    events = np.sort(events[: count + 1])
    low, high = -1, count  # no tree meets events[low], one meets events[high]
    while high - low > 1:
        middle = (low + high) // 2
        if len(_conflict_at(codes, sizes, words, lost, background, events[middle], depth, True)):
            low = middle
        else:
            high = middle
    if low < 0:
        return 0.0, conflict, events[high]
    return events[low], _conflict_at(codes, sizes, words, lost, background, events[low], depth, False), events[high]
