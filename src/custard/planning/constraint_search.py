"""The best tree of a model by search over constraints on what points may do.

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
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit

from custard.planning.agreement import agreeing_tree, agrees, full_words, smallest_conflict
from custard.planning.points import Points
from custard.planning.relaxation import MIN_VISITS, DenseRelaxation, SparseRelaxation
from custard.tree.shape import Shape

__all__ = ["MAX_DENSE_STATES", "ConstraintSearch"]

MAX_WAITING = 400_000  # nodes kept; beyond, the least promising half is given up and its bound remembered
MAX_TIE_ROUNDS = 4  # how often the relaxed policy follows a tree that loses nothing before a tie is branched on
MAX_DENSE_STATES = 1200  # by default
MAX_TEST_WORK = 2e7  # points looked at in one test for a tree: about 20 ms. Beyond, fewer points are asked to agree
MIN_TEST_POINTS = 16  # points asked to agree at the least
WORK_PER_SECOND = 5e8  # points that tests for a tree look at


@dataclass(frozen=True, eq=False)
class _Node:
    bound: float
    parent: _Node | None
    points: np.ndarray  # those that it confines further than its parent does
    words: np.ndarray  # [len(points), W], to what
    choice: np.ndarray  # [S], the best policy within the constraints


class ConstraintSearch:
    """Nodes that wait, best bound first, and the relaxed policy that moves from one to the other.

    points  the model
    depth   the largest number of splits on a path
    goal    returns what a tree must exceed to matter: the best known return plus a tolerance
    offer   is called with trees worth evaluating; their leaves are action numbers

    With more than `max_dense_states` states (by default 1,200), values are iterated instead of solved for.
    """

    def __init__(
        self, points: Points, depth: int, goal: Callable[[], float], offer: Callable[[Shape], None],
        max_dense_states: int | None = None,
    ) -> None:  # fmt: skip
        self.points, self.depth, self.goal, self.offer = points, depth, goal, offer
        model = points.model
        self.full = full_words(points.count, model.reward.shape[1])
        self.work = np.zeros(1, dtype=np.int64)
        self.given_up = -np.inf  # the best bound among nodes that were given up
        self.deadline = np.inf  # on `time.monotonic`'s clock
        self.explored = self.pushed = 0
        self.heap: list[tuple[float, int, _Node]] = []
        most = MAX_DENSE_STATES if max_dense_states is None else max_dense_states
        is_dense = points.n_states <= most and model.gamma < 1.0
        self.relaxation: DenseRelaxation | SparseRelaxation = (
            DenseRelaxation(model, points.greedy_choice, self.full)
            if is_dense
            else SparseRelaxation(model, points.top, self.full)
        )
        per_point = float(points.x.shape[1]) * np.log2(np.maximum(points.sizes, 2)).sum() ** max(0, depth - 1)
        self.max_points = max(MIN_TEST_POINTS, int(MAX_TEST_WORK / per_point))
        root = self.relaxation.choice.astype(np.int32)
        self.push(_Node(self.relaxation.bound, None, np.arange(0), self.full[:0], root))

    @property
    def bound(self) -> float:
        """No tree returns more than this or the goal."""
        return max(-self.heap[0][0] if self.heap else -np.inf, self.given_up)

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to expand."""
        return not self.heap or -self.heap[0][0] <= self.goal()

    def run(self, until: float, deadline: float) -> None:
        """Expand the most promising nodes until a time on `time.monotonic`'s clock; none outlasts the deadline."""
        self.deadline = deadline
        while not self.is_finished and time.monotonic() < until:
            self.work[0] = int(WORK_PER_SECOND * max(0.0, deadline - time.monotonic()))
            self.expand(heapq.heappop(self.heap)[2])
            if len(self.heap) > MAX_WAITING:
                self.heap.sort(key=lambda item: item[:2])
                self.given_up = max(self.given_up, -self.heap[MAX_WAITING // 2][0])
                del self.heap[MAX_WAITING // 2 :]

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
        points, relaxation = self.points, self.relaxation
        words = self.constraints(node)
        relaxation.move(node.choice.astype(np.int64), words)
        background = np.flatnonzero((words != self.full).any(axis=1))[-self.max_points :]
        tie = points.tie * max(1.0, abs(node.bound))
        for _ in range(MAX_TIE_ROUNDS):
            lost = relaxation.losses(words, points.count)
            is_partial = self._ask_fewer(lost, tie)
            level, conflict, feasible = choose_level(
                points.codes, points.sizes, words, lost, background, node.bound - self.goal(), tie, self.depth,
                self.work,
            )  # fmt: skip
            if self.work[0] < 0:
                self.given_up = max(self.given_up, node.bound)
                return
            if feasible < 0.0:
                break
            choice = self.propose(words, lost, feasible, background)
            if level > 0.0 or choice is None:
                break
            if not self.follow_tree(choice, lost, tie):
                if is_partial:
                    self.given_up = max(self.given_up, node.bound)
                return  # the tree does as the relaxed policy does wherever it goes: nothing is better
        if level > 0.0:
            self.branch(node, words, lost, conflict, level)
        elif choice is None:
            self.given_up = max(self.given_up, node.bound)
        else:
            self.branch_on_tie(node, words, lost, choice, tie)

    def _ask_fewer(self, lost: np.ndarray, tie: float) -> bool:
        """Drop the losses of all but the most important points, in place, where a test of all would take too long."""
        worst = lost.max(axis=1)
        asked = int((worst > tie).sum())
        if asked <= self.max_points:
            return False
        rest = np.argpartition(-worst, self.max_points)[self.max_points :]
        lost[rest] = np.minimum(lost[rest], 0.0)
        return True

    def propose(self, words: np.ndarray, lost: np.ndarray, level: float, background: np.ndarray) -> np.ndarray | None:
        """Offer the tree that loses less than the level in every point; return its actions [P], None if out of time."""
        points = self.points
        wanted = wanted_words(words, lost, level)
        index = np.union1d(np.flatnonzero((wanted != words).any(axis=1)), background)
        shape = agreeing_tree(points.codes, points.sizes, wanted, index, self.depth, points.thresholds, self.work)
        if shape is None:
            return None
        shape = points.settle(shape, lost)
        self.offer(shape)
        return points.decide(shape)

    def follow_tree(self, choice: np.ndarray, lost: np.ndarray, tie: float) -> bool:
        """Let the relaxed policy do as a tree does where that loses nothing; return whether anything changes."""
        point = self.points.model.point
        wanted, mine = choice[point], self.relaxation.choice
        loses_nothing = (lost[point, wanted] >= 0.0) & (lost[point, wanted] <= tie)
        changed = loses_nothing & (self.relaxation.visits > MIN_VISITS) & (mine != wanted)
        if not changed.any():
            return False
        self.relaxation.follow(np.where(changed, wanted, mine))
        return True

    def branch_on_tie(self, node: _Node, words: np.ndarray, lost: np.ndarray, choice: np.ndarray, tie: float) -> None:
        """Branch on a visited point that may do several things without a loss: as the tree does, or not."""
        weight = np.bincount(self.points.model.point, self.relaxation.visits, minlength=self.points.count)
        ties = ((lost >= 0.0) & (lost <= tie)).sum(axis=1)
        candidates = np.where(ties > 1, weight, -1.0)
        p = int(candidates.argmax())
        if candidates[p] > 0.0:
            self.add_both(node, words, p, int(choice[p]))

    def branch(self, node: _Node, words: np.ndarray, lost: np.ndarray, conflict: np.ndarray, level: float) -> None:
        """Add one child for each point of the conflict: it violates the level, the points before it do not."""
        wanted = wanted_words(words, lost, level)
        if len(conflict) == 1 and not wanted[conflict[0]].any():
            p = int(conflict[0])  # its states want different things: nothing is without a loss
            self.add_both(node, words, p, int(np.where(lost[p] >= 0.0, lost[p], np.inf).argmin()))
            return
        least = np.where(lost[conflict] >= level, lost[conflict], np.inf).min(axis=1)
        kept: list[tuple[int, np.ndarray]] = []
        for p in conflict[np.argsort(-least, kind="stable")].tolist():
            if time.monotonic() >= self.deadline:  # the children that are missing have no more than their parent
                self.given_up = max(self.given_up, node.bound)
                return
            self.add(node, words, [*kept, (p, words[p] & ~wanted[p])])
            kept.append((p, wanted[p]))

    def add_both(self, node: _Node, words: np.ndarray, p: int, action: int) -> None:
        """Add two children: a point takes an action, or any other."""
        only = np.zeros_like(words[p])
        only[action >> 6] = np.uint64(1) << np.uint64(action & 63)
        self.add(node, words, [(p, words[p] & only)])
        self.add(node, words, [(p, words[p] & ~only)])

    def add(self, node: _Node, words: np.ndarray, changes: list[tuple[int, np.ndarray]]) -> None:
        """Let a child wait unless it cannot matter."""
        if any(not row.any() for _, row in changes):
            return
        where = np.array([p for p, _ in changes])
        rows = np.stack([row for _, row in changes])
        child = words.copy()
        child[where] = rows
        bound, choice = self.relaxation.child(child)
        bound = min(node.bound, bound)
        if bound <= self.goal() or (math.isinf(bound) and bound < 0):
            return
        confined = np.flatnonzero((child != self.full).any(axis=1))
        if len(confined) > self.max_points:
            confined = np.union1d(confined[-self.max_points :], where)
        if agrees(self.points.codes, self.points.sizes, child, confined, self.depth, self.work):
            self.push(_Node(bound, node, where, rows, choice))


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
def _conflict_at(codes, sizes, words, lost, background, level, depth, work, only_test):  # type: ignore[no-untyped-def]
    """Return the smallest conflict at a level; with `only_test` one point if there is a conflict, or none."""
    wanted = wanted_words(words, lost, level)
    count = 0
    order, worst = np.empty(len(words), np.int64), np.empty(len(words))
    is_asked = np.zeros(len(words), np.bool_)
    for p in range(len(words)):
        most = -1.0
        for a in range(lost.shape[1]):
            most = max(most, lost[p, a])
        if most >= level:
            order[count], worst[count] = p, -most
            is_asked[p] = True
            count += 1
    order = order[:count][np.argsort(worst[:count])]
    if not only_test:
        return smallest_conflict(codes, sizes, words, wanted, background, order, depth, work)
    index = np.empty(len(background) + count, np.int64)
    index[:count] = order
    size = count
    for k in range(len(background)):
        if not is_asked[background[k]]:
            index[size] = background[k]
            size += 1
    return order[:0] if agrees(codes, sizes, wanted, index[:size], depth, work) else order[:1]


@njit(cache=True)
def choose_level(codes, sizes, words, lost, background, gap, tie, depth, work):  # type: ignore[no-untyped-def]
    """Return the level to branch at, the conflict there, and a level that some tree meets (-1: none was needed).

    The level is the gap if no tree meets that: all children then lose it. Otherwise it is the highest that no tree
    meets, and 0 if a tree loses nothing in any point.
    """
    conflict = _conflict_at(codes, sizes, words, lost, background, gap, depth, work, False)
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
        if len(_conflict_at(codes, sizes, words, lost, background, events[middle], depth, work, True)):
            low = middle
        else:
            high = middle
    if low < 0:
        return 0.0, conflict, events[high]
    conflict = _conflict_at(codes, sizes, words, lost, background, events[low], depth, work, False)
    return events[low], conflict, events[high]
