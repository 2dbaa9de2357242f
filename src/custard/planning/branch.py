"""Branch and bound over trees: partial trees, bounded by letting whatever is undecided act as it likes.

A partial tree divides the states into regions. A decided region is confined to one action, an open one is not; the
bound is the best return of that relaxed problem (`Reduced.bound`). One open region at a time is closed with each action
or divided by each question that still tells apart states that can be reached. Partial trees that divide the states that
matter alike are looked at once.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from custard.planning.candidates import count_leaves, decide, fit
from custard.planning.exhaustive import Node
from custard.planning.reduced import Reduced, best_actions, reachable

__all__ = ["Standing", "search"]

OPEN = -1
MOST_WAITING = 400_000  # partial trees kept; beyond, the least promising half is given up and its bound remembered


@dataclass(frozen=True, eq=False)
class _Region:
    where: np.ndarray  # [S] bool
    depth: int
    action: int  # OPEN if undecided


@dataclass(frozen=True, eq=False)
class _Partial:
    bound: float
    regions: tuple[_Region, ...]  # in the order of the tree's leaves
    shape: Node  # nested (question, left, right); leaves are numbers of regions
    values: np.ndarray  # [S], upper bounds to go on from
    seen: np.ndarray  # [S] bool: states that can be reached
    leaves: int  # of any completion, at least


@dataclass(frozen=True)
class Standing:
    """Where the search stands."""

    node: Node | None  # the best tree found by this search
    value: float
    bound: float  # no tree returns more
    explored: int
    finished: bool


def search(
    problem: Reduced,
    depth: int,
    *,
    best: float,
    price: float = 0.0,
    most_leaves: int | None = None,
    accept_equal: bool = False,
    deadline: float = np.inf,
) -> Iterator[Standing]:
    """Look for a tree that returns more than `best` (as much, with `accept_equal`, then stop), until none can exist."""
    goal = best - problem.tolerance if accept_equal else best + problem.tolerance
    everything = np.full(problem.n, (1 << problem.n_actions) - 1, dtype=np.int64)
    whole = _Region(np.ones(problem.n, dtype=bool), 0, OPEN)
    top = problem.top.copy()
    bound = problem.bound(everything, np.zeros(problem.n), top, -np.inf)
    seen = reachable(problem.pointer, problem.successor, problem.start, everything, problem.n_actions)
    heap: list[tuple[float, int, int, _Partial]] = []
    count = 0
    found: Node | None = None
    known: set[bytes] = set()
    heapq.heappush(heap, (-bound, 0, 0, _Partial(bound, (whole,), 0, top, seen, 1)))
    explored, spoke = 0, time.monotonic()
    given_up = -np.inf  # the best bound among partial trees that were given up
    while heap:
        if -heap[0][0] < goal:
            break
        if len(heap) > MOST_WAITING:
            heap.sort()
            given_up = max(given_up, -heap[MOST_WAITING // 2][0])
            del heap[MOST_WAITING // 2 :]
        partial = heapq.heappop(heap)[3]
        while True:  # dive: follow the most promising child at once
            explored += 1
            now = time.monotonic()
            if now - spoke > 0.2 or now > deadline:
                limit = max(partial.bound, given_up, -heap[0][0] if heap else -np.inf)
                yield Standing(found, best, limit, explored, False)
                spoke = time.monotonic()
                if now > deadline:
                    return
            spot = _next(partial)
            if spot is None:
                node = _closed(partial)
                choice, level = decide(problem, node)
                value = problem.value(choice, price * level)
                if value >= goal:
                    best, found = value, node
                    if accept_equal:
                        yield Standing(found, best, best, explored, True)
                        return
                    goal = best + problem.tolerance
                break
            if explored % 25 == 1 and not accept_equal:
                better = _completed(problem, partial, depth, price, most_leaves)
                if better is not None and better[0] >= goal:
                    best, found = better
                    goal = best + problem.tolerance
            children = []
            for child in _children(problem, partial, spot, depth, price, goal, most_leaves):
                sign = _signature(child, depth, price > 0.0)
                if sign not in known:
                    known.add(sign)
                    children.append(child)
            if not children:
                break
            children.sort(key=lambda child: (child.bound, -_open(child)))
            for child in children[:-1]:
                count += 1
                heapq.heappush(heap, (-child.bound, _open(child), -count, child))
            partial = children[-1]
            if partial.bound < goal:
                break
    finished = given_up < goal
    yield Standing(found, best, best if finished else given_up, explored, finished)


def _open(partial: _Partial) -> int:
    return sum(region.action == OPEN for region in partial.regions)


def _next(partial: _Partial) -> int | None:
    """The open region to decide next: the deepest, and among those the one of most states that can be reached."""
    spots = [
        (region.depth, int((region.where & partial.seen).sum()), -i)
        for i, region in enumerate(partial.regions)
        if region.action == OPEN and (region.where & partial.seen).any()
    ]
    return -max(spots)[2] if spots else None


def _children(
    problem: Reduced, partial: _Partial, spot: int, depth: int, price: float, goal: float, most_leaves: int | None
) -> Iterator[_Partial]:
    region = partial.regions[spot]
    allowed, cost = _confined(problem, partial.regions, price)
    for action in range(problem.n_actions):
        confined = np.where(region.where, 1 << action, allowed)
        values = partial.values.copy()
        bound = min(partial.bound, problem.bound(confined, cost, values, goal - 2 * problem.tolerance))
        if bound < goal:
            continue
        regions = _replaced(partial.regions, spot, (_Region(region.where, region.depth, action),))
        seen = reachable(problem.pointer, problem.successor, problem.start, confined, problem.n_actions)
        yield _Partial(bound, regions, partial.shape, values, seen, _least(regions, seen))
    if region.depth >= depth or (most_leaves is not None and partial.leaves + 1 > most_leaves):
        return
    inside = region.where & partial.seen
    divided = set()
    for q, yes in enumerate(problem.yes):
        left = yes & inside
        sign = left.tobytes()
        if not left.any() or (left == inside).all() or sign in divided:
            continue
        divided.add(sign)
        halves = tuple(_Region(region.where & side, region.depth + 1, OPEN) for side in (yes, ~yes))
        regions = _replaced(partial.regions, spot, halves)
        bound, values = partial.bound, partial.values
        if price > 0.0:
            values = partial.values.copy()
            bound = min(bound, problem.bound(*_confined(problem, regions, price), values, goal - 2 * problem.tolerance))
            if bound < goal:
                continue
        shape = _divided(partial.shape, spot, q)
        yield _Partial(bound, regions, shape, values, partial.seen, partial.leaves + 1)


def _confined(problem: Reduced, regions: tuple[_Region, ...], price: float) -> tuple[np.ndarray, np.ndarray]:
    """The allowed actions (bit sets) and what a visit costs, for each state."""
    allowed = np.full(problem.n, (1 << problem.n_actions) - 1, dtype=np.int64)
    cost = np.zeros(problem.n)
    for region in regions:
        if region.action != OPEN:
            allowed[region.where] = 1 << region.action
        if price > 0.0:
            cost[region.where] = price * region.depth
    return allowed, cost


def _least(regions: tuple[_Region, ...], seen: np.ndarray) -> int:
    """Leaves of any completion: regions that can be reached (others can be folded away)."""
    return max(1, sum(bool((region.where & seen).any()) for region in regions))


def _replaced(regions: tuple[_Region, ...], spot: int, by: tuple[_Region, ...]) -> tuple[_Region, ...]:
    return regions[:spot] + by + regions[spot + 1 :]


def _divided(shape: Node, spot: int, question: int) -> Node:
    """The shape with region `spot` divided; later regions move up by one."""
    if isinstance(shape, tuple):
        return (shape[0], _divided(shape[1], spot, question), _divided(shape[2], spot, question))
    return (question, spot, spot + 1) if shape == spot else shape + (shape > spot)


def _signature(partial: _Partial, depth: int, priced: bool) -> bytes:
    """What makes partial trees equal: their regions over the states that can be reached, and what is left to decide."""
    parts = []
    for region in partial.regions:
        inside = region.where & partial.seen
        if inside.any():
            left = depth - region.depth if region.action == OPEN else -1
            parts.append(
                np.packbits(inside).tobytes() + bytes((region.action + 1, left + 1, region.depth if priced else 0))
            )
    return b"".join(sorted(parts))


def _closed(partial: _Partial) -> Node:
    """The tree of a partial one whose open regions cannot be reached; those are folded away."""
    return _folded(partial.shape, [
        region.action if region.action != OPEN and (region.where & partial.seen).any() else None
        for region in partial.regions
    ]) or 0  # fmt: skip


def _folded(shape: Node, actions: list[int | None]) -> Node | None:
    if not isinstance(shape, tuple):
        return actions[shape]
    left, right = _folded(shape[1], actions), _folded(shape[2], actions)
    if left is None or right is None:
        return right if left is None else left
    return left if left == right else (shape[0], left, right)


def _completed(
    problem: Reduced, partial: _Partial, depth: int, price: float, most_leaves: int | None
) -> tuple[float, Node] | None:
    """The partial tree with its open regions fitted to the relaxed problem's own Q-values."""
    allowed, _ = _confined(problem, partial.regions, 0.0)
    q = best_actions(problem, partial.values, allowed)
    finite = np.isfinite(q)
    q = np.where(finite, q, q[finite].min(initial=0.0) - 100.0)
    lead = q - q.max(axis=1, keepdims=True)
    parts: list[Node] = []
    for region in partial.regions:
        inside = np.flatnonzero(region.where & partial.seen)
        if region.action != OPEN:
            parts.append(region.action)
        else:
            parts.append(fit(problem, lead, inside, min(depth - region.depth, 2))[1] if len(inside) else 0)

    def filled(shape: Node) -> Node:
        return (shape[0], filled(shape[1]), filled(shape[2])) if isinstance(shape, tuple) else parts[shape]

    node = filled(partial.shape)
    if most_leaves is not None and count_leaves(node) > most_leaves:
        return None
    choice, level = decide(problem, node)
    return problem.value(choice, price * level), node
