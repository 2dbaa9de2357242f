"""Branch and bound over trees: partial trees, bounded by letting whatever is undecided act as it likes.

A partial tree divides the states into regions. A decided region is confined to one action, an open one is not; the
bound is the best return of that relaxed problem (`ReducedMDP.bound`). One open region at a time is closed with each
action or divided by each split that still tells apart states that can be reached. Partial trees that divide the states
that matter alike are looked at once.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from custard.planning.candidates import fit
from custard.planning.reduced import ReducedMDP, action_values
from custard.planning.return_bounds import reachable
from custard.tree.shape import Shape, Split, count_leaves, map_leaves

__all__ = ["Standing", "search"]

OPEN = -1  # the action of a region that is not decided
MAX_WAITING = 400_000  # partial trees kept; beyond, the least promising half is given up and its bound remembered
REPORT_SECONDS = 0.2  # how often the search says where it stands
COMPLETION_INTERVAL = 25  # partial trees looked at from one attempt to complete one of them to the next


@dataclass(frozen=True, eq=False)
class _Region:
    where: np.ndarray  # [S] bool
    depth: int
    action: int  # OPEN if undecided


@dataclass(frozen=True, eq=False)
class _Partial:
    bound: float
    regions: tuple[_Region, ...]  # in the order of the tree's leaves
    shape: Shape  # leaves are numbers of regions
    values: np.ndarray  # [S], upper bounds to go on from
    seen: np.ndarray  # [S] bool: states that can be reached
    leaves: int  # of any completion, at least

    @property
    def n_open(self) -> int:
        """The number of undecided regions."""
        return sum(region.action == OPEN for region in self.regions)


@dataclass(frozen=True)
class Standing:
    """Where the search stands."""

    shape: Shape | None  # the best tree found by this search
    value: float
    bound: float  # no tree returns more
    explored: int
    finished: bool


def search(
    problem: ReducedMDP,
    depth: int,
    *,
    best: float,
    price: float = 0.0,
    max_leaves: int | None = None,
    accept_equal: bool = False,
    deadline: float = np.inf,
) -> Iterator[Standing]:
    """Look for a tree that returns more than `best` (as much, with `accept_equal`, then stop), until none can exist.

    problem       the reduced MDP
    depth         the largest number of splits on a path
    best          the return to beat
    price         what one split on the path costs per visit
    max_leaves    trees with more are not looked for; None for no limit
    accept_equal  whether a tree that returns as much ends the search
    deadline      on `time.monotonic`'s clock
    """
    limits = _Limits(depth, price, max_leaves)
    found = _Found(best, problem.tolerance, accept_equal)
    queue = _Queue()
    queue.push(_undivided(problem))
    explored, reported_at = 0, time.monotonic()
    while queue.heap and queue.best_bound >= found.goal:
        partial: _Partial | None = queue.pop()
        while partial is not None:  # dive: follow the most promising child at once
            explored += 1
            now = time.monotonic()
            if now - reported_at > REPORT_SECONDS or now > deadline:
                bound = max(partial.bound, queue.given_up, queue.best_bound)
                yield Standing(found.shape, found.value, bound, explored, False)
                reported_at = time.monotonic()
                if now > deadline:
                    return
            spot = _next_open(partial)
            if spot is None:
                found.offer(*_evaluated(problem, _closed(partial), price))
                if accept_equal and found.shape is not None:
                    yield Standing(found.shape, found.value, found.value, explored, True)
                    return
                break
            if explored % COMPLETION_INTERVAL == 1 and not accept_equal:
                completed = _completed(problem, partial, limits, deadline)
                if completed is not None:
                    found.offer(*completed)
            children = list(_children(problem, partial, spot, limits, found.goal, deadline))
            if time.monotonic() > deadline:  # some children may be missing: their parent's bound stands for them
                bound = max(partial.bound, queue.given_up, queue.best_bound)
                yield Standing(found.shape, found.value, bound, explored, False)
                return
            partial = queue.push_all_but_best(children, limits, found.goal)
    finished = queue.given_up < found.goal
    yield Standing(found.shape, found.value, found.value if finished else queue.given_up, explored, finished)


@dataclass(frozen=True)
class _Limits:
    """What a tree may be, and what its splits cost."""

    depth: int
    price: float  # per split on the path, per visit
    max_leaves: int | None

    def allow_leaves(self, count: int) -> bool:
        """Return whether a tree may have so many leaves."""
        return self.max_leaves is None or count <= self.max_leaves


class _Found:
    """The best tree found, and what a tree must return to replace it."""

    def __init__(self, value: float, tolerance: float, accept_equal: bool) -> None:
        self.shape: Shape | None = None
        self.value, self.tolerance = value, tolerance
        self.goal = value - tolerance if accept_equal else value + tolerance

    def offer(self, value: float, shape: Shape) -> None:
        """Keep a tree that reaches the goal."""
        if value >= self.goal:
            self.shape, self.value, self.goal = shape, value, value + self.tolerance


class _Queue:
    """Partial trees that wait, best bound first, and the signatures of all that ever did."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int, _Partial]] = []
        self.pushed = 0
        self.signatures: set[bytes] = set()
        self.given_up = -np.inf  # the best bound among partial trees that were given up

    @property
    def best_bound(self) -> float:
        """The highest bound of a waiting partial tree; minus infinity if none waits."""
        return -self.heap[0][0] if self.heap else -np.inf

    def push(self, partial: _Partial) -> None:
        """Let a partial tree wait; of equal bounds those with fewer open regions come first, then later ones."""
        self.pushed += 1
        heapq.heappush(self.heap, (-partial.bound, partial.n_open, -self.pushed, partial))

    def pop(self) -> _Partial:
        """Take out the most promising partial tree, after giving up half of them where too many wait."""
        if len(self.heap) > MAX_WAITING:
            self.heap.sort()
            self.given_up = max(self.given_up, -self.heap[MAX_WAITING // 2][0])
            del self.heap[MAX_WAITING // 2 :]
        return heapq.heappop(self.heap)[3]

    def push_all_but_best(self, children: list[_Partial], limits: _Limits, goal: float) -> _Partial | None:
        """Let those children wait that are new, except for the most promising one: return it if it reaches the goal."""
        new = []
        for child in children:
            signature = _signature(child, limits)
            if signature not in self.signatures:
                self.signatures.add(signature)
                new.append(child)
        new.sort(key=lambda child: (child.bound, -child.n_open))
        for child in new[:-1]:
            self.push(child)
        return new[-1] if new and new[-1].bound >= goal else None


def _undivided(problem: ReducedMDP) -> _Partial:
    """Return the partial tree of one open region."""
    everything = problem.any_action
    values = problem.top.copy()
    bound = problem.bound(everything, np.zeros(problem.n), values, -np.inf)
    seen = reachable(problem.pointer, problem.successor, problem.start, everything, problem.n_actions)
    return _Partial(bound, (_Region(np.ones(problem.n, dtype=bool), 0, OPEN),), 0, values, seen, 1)


def _next_open(partial: _Partial) -> int | None:
    """Return the open region to decide next: the deepest, and among those the one of most states in reach."""
    spots = [
        (region.depth, int((region.where & partial.seen).sum()), -i)
        for i, region in enumerate(partial.regions)
        if region.action == OPEN and (region.where & partial.seen).any()
    ]
    return -max(spots)[2] if spots else None


def _children(
    problem: ReducedMDP, partial: _Partial, spot: int, limits: _Limits, goal: float, deadline: float
) -> Iterator[_Partial]:
    """Yield the partial trees that decide or divide region `spot` and may still reach the goal.

    Past the deadline some are missing.
    """
    region = partial.regions[spot]
    cutoff = goal - 2 * problem.tolerance
    allowed, cost = _confined(problem, partial.regions, limits.price)
    only = np.arange(problem.n_actions)
    for action in range(problem.n_actions):
        if time.monotonic() > deadline:
            return
        confined = np.where(region.where[:, None], only == action, allowed)
        values = partial.values.copy()
        bound = min(partial.bound, problem.bound(confined, cost, values, cutoff))
        if bound < goal:
            continue
        regions = _replaced(partial.regions, spot, (_Region(region.where, region.depth, action),))
        seen = reachable(problem.pointer, problem.successor, problem.start, confined, problem.n_actions)
        yield _Partial(bound, regions, partial.shape, values, seen, _least_leaves(regions, seen))
    if region.depth >= limits.depth or not limits.allow_leaves(partial.leaves + 1):
        return
    inside = region.where & partial.seen
    divided = set()
    for split, goes_left in zip(problem.splits, problem.goes_left, strict=True):
        left = goes_left & inside
        signature = left.tobytes()
        if not left.any() or (left == inside).all() or signature in divided:
            continue
        if limits.price > 0.0 and time.monotonic() > deadline:
            return
        divided.add(signature)
        halves = tuple(_Region(region.where & side, region.depth + 1, OPEN) for side in (goes_left, ~goes_left))
        regions = _replaced(partial.regions, spot, halves)
        bound, values = partial.bound, partial.values
        if limits.price > 0.0:
            values = partial.values.copy()
            bound = min(bound, problem.bound(*_confined(problem, regions, limits.price), values, cutoff))
            if bound < goal:
                continue
        shape = _divided(partial.shape, spot, split)
        yield _Partial(bound, regions, shape, values, partial.seen, partial.leaves + 1)


def _confined(problem: ReducedMDP, regions: tuple[_Region, ...], price: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the allowed actions ([S, A] bool) and what a visit costs, for each state."""
    allowed, cost = problem.any_action, np.zeros(problem.n)
    for region in regions:
        if region.action != OPEN:
            allowed[region.where] = np.arange(problem.n_actions) == region.action
        if price > 0.0:
            cost[region.where] = price * region.depth
    return allowed, cost


def _least_leaves(regions: tuple[_Region, ...], seen: np.ndarray) -> int:
    """Return how many leaves any completion has: regions that can be reached (others can be folded away)."""
    return max(1, sum(bool((region.where & seen).any()) for region in regions))


def _replaced(regions: tuple[_Region, ...], spot: int, by: tuple[_Region, ...]) -> tuple[_Region, ...]:
    """Return the regions with others in place of region `spot`."""
    return regions[:spot] + by + regions[spot + 1 :]


def _divided(shape: Shape, spot: int, split: tuple[int, float]) -> Shape:
    """Return the shape with region `spot` divided; later regions move up by one."""
    return map_leaves(shape, lambda k: Split(*split, spot, spot + 1) if k == spot else k + (k > spot))


def _signature(partial: _Partial, limits: _Limits) -> bytes:
    """Return what makes partial trees equal: their regions over the states in reach, and what is left to decide."""
    parts = []
    for region in partial.regions:
        inside = region.where & partial.seen
        if inside.any():
            splits_left = limits.depth - region.depth if region.action == OPEN else -1
            charged = region.depth if limits.price > 0.0 else 0
            parts.append(np.packbits(inside).tobytes() + str((region.action, splits_left, charged)).encode())
    return b"".join(sorted(parts))


def _closed(partial: _Partial) -> Shape:
    """Return the tree of a partial one whose open regions cannot be reached; those are folded away."""
    return _folded(partial.shape, [
        region.action if region.action != OPEN and (region.where & partial.seen).any() else None
        for region in partial.regions
    ]) or 0  # fmt: skip


def _folded(shape: Shape, actions: list[int | None]) -> Shape | None:
    """Return the shape with actions for regions, without the regions that have none and splits that change nothing."""
    if not isinstance(shape, Split):
        return actions[shape]
    left, right = _folded(shape.left, actions), _folded(shape.right, actions)
    if left is None or right is None:
        return right if left is None else left
    return left if left == right else Split(shape.feature, shape.threshold, left, right)


def _completed(problem: ReducedMDP, partial: _Partial, limits: _Limits, deadline: float) -> tuple[float, Shape] | None:
    """Return the partial tree with its open regions fitted to the relaxed problem's Q-values, and its value."""
    allowed, _ = _confined(problem, partial.regions, 0.0)
    q = action_values(problem, partial.values, allowed)
    finite = np.isfinite(q)
    q = np.where(finite, q, q[finite].min(initial=0.0) - 100.0)
    lead = q - q.max(axis=1, keepdims=True)
    parts: list[Shape] = []
    for region in partial.regions:
        inside = np.flatnonzero(region.where & partial.seen)
        if region.action != OPEN:
            parts.append(region.action)
        else:
            depth = min(limits.depth - region.depth, 2)
            parts.append(fit(problem, lead, inside, depth, deadline=deadline)[1] if len(inside) else 0)
    shape = map_leaves(partial.shape, lambda number: parts[number])
    return _evaluated(problem, shape, limits.price) if limits.allow_leaves(count_leaves(shape)) else None


def _evaluated(problem: ReducedMDP, shape: Shape, price: float) -> tuple[float, Shape]:
    """Return the exact return of a tree, its splits charged, and the tree."""
    choice, level = problem.decide(shape)
    return problem.value(choice, price * level), shape
