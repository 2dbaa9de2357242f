"""The best tree of an environment without a model, from fixed starts: a search over traces (after Broccoli, AAAI 2025).

Where nothing is left to chance, a tree's return is decided by its trace: the states that it meets, one after the other.
Demirović, Schilling and Lukina try one threshold after the other and skip those that cannot change the trace. Here
every trace is looked at once, whatever trees have it. Thresholds divide states into cells. A trace is followed until it
comes to a new cell, which gets one action after the other, as long as some tree of the depth over these thresholds
agrees with all cells so far (`agreement`). A trace is given up once it cannot return more than the best tree.

First episodes are cut after few steps, then after more and more: what is still running counts with the most that may
follow, and so each round bounds what any tree returns.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit

from custard.planning.agreement import agreeing_tree, agrees
from custard.planning.local_search import heap_of
from custard.planning.trace_world import TraceWorld, cells_of, climb_on_traces, find_cell, run_heap, take_step
from custard.tree.shape import Shape, map_leaves

__all__ = ["TraceSearch", "agrees_after"]

FIRST_HORIZON = 8  # steps of the first round; each further round has half as many more
MAX_FIRST_CAPACITY = 8192  # cells on a trace; where more come the arrays grow
WORK_PER_SECOND = 3e8  # points that tests for a tree look at
STEP_WORK = 10  # what a step of the environment counts, in such points
MAX_IDLE_TRIES = 3000  # random changes of a tree without a gain before climbing starts anew
DONE, BETTER, PAUSED, FULL = range(4)  # why `follow_traces` returns


class Stack(NamedTuple):
    """The cells of the present trace in the order in which it came to them, and where it stood there."""

    codes: np.ndarray  # [N, n] int32, the cell
    slots: np.ndarray  # [4N], where each cell is found by its hash; -1 is none. N is a power of two
    slot_of: np.ndarray  # [N]
    words: np.ndarray  # [N, W] uint64, its action as a set of one
    action: np.ndarray  # [N], the action
    tried: np.ndarray  # [N], how many actions were tried
    highest: np.ndarray  # [N, n], see `agrees_after`
    root: np.ndarray  # [N], the first feature that a tree asks about which agrees with the cells to here
    first: np.ndarray  # [N], the action to try first
    state: np.ndarray  # [N, n_state]
    clock: np.ndarray  # [N, 3]: steps so far in this episode, its number, and how many episodes were cut
    total: np.ndarray  # [N], rewards so far


def new_stack(world: TraceWorld, capacity: int) -> Stack:
    """Return room for a trace of so many cells."""
    n, n_state, n_words = len(world.cuts), world.starts.shape[1], (world.n_actions + 63) // 64
    numbers = [np.zeros(capacity, np.int64) for _ in range(5)]
    slot_of, actions, tried, root, first = numbers
    return Stack(
        np.zeros((capacity, n), np.int32), np.full(4 * capacity, -1), slot_of, np.zeros((capacity, n_words), np.uint64),
        actions, tried, np.zeros((capacity, n), np.int64), root, first, np.zeros((capacity, n_state)),
        np.zeros((capacity, 3), np.int64), np.zeros(capacity),
    )  # fmt: skip


@njit(cache=True)
def _one_split_parts(codes, actions, count, c, cut, is_left, low, high):
    """Return whether one split is enough for the cells on one side of a cut; low and high [2, n] are scratch."""
    n, first, second = codes.shape[1], -1, -1
    for k in range(count):
        if (codes[k, c] <= cut) != is_left:
            continue
        if actions[k] == first:
            which = 0
        elif actions[k] == second:
            which = 1
        elif first < 0 or second < 0:
            which = 0 if first < 0 else 1
            if which == 0:
                first = actions[k]
            else:
                second = actions[k]
            for f in range(n):
                low[which, f] = high[which, f] = codes[k, f]
        else:
            return False
        for f in range(n):
            low[which, f], high[which, f] = min(low[which, f], codes[k, f]), max(high[which, f], codes[k, f])
    if second < 0:
        return True
    is_parted = False
    for f in range(n):
        is_parted |= high[0, f] < low[1, f] or high[1, f] < low[0, f]
    return is_parted


@njit(cache=True)
def _side_agrees(trace, count, c, cut, is_left, depth, work):
    """Return whether the cells on one side of a cut have a tree; `trace` as in `agrees_after`."""
    codes, sizes, words, actions, low, high = trace
    work[0] -= count
    if depth == 1:
        return _one_split_parts(codes, actions, count, c, cut, is_left, low, high)
    index = np.empty(count if depth > 0 else 0, np.int64)
    size, first = 0, -1
    for k in range(count):
        if (codes[k, c] <= cut) == is_left:
            if depth > 0:
                index[size] = k
                size += 1
            elif first < 0:
                first = actions[k]
            elif actions[k] != first:
                return False
    return depth == 0 or agrees(codes, sizes, words, index[:size], depth, work)


@njit(cache=True)
def agrees_after(trace, count, depth, highest, root, work):
    """Return the first feature that a tree asks about which agrees with `count` cells; -1 if there is no such tree.

    All but the last cell agreed with one before. The more cells, the lower the highest cut of a feature that leaves a
    tree for its left branch; so the search goes on from what is known.

    trace    codes [N, n], sizes [n], words [N, W] and actions [N] of the cells; scratch [2, n] twice
    highest  [n], changed in place: above this cut of a feature its left branch has no tree; -1 where no tree begins so
    root     the feature of the tree before, whose highest cut left a tree for both branches
    """
    codes, n, last = trace[0], trace[0].shape[1], count - 1
    if depth == 0:
        return 0 if trace[3][last] == trace[3][0] else -1
    for k in range(n):
        c = (root + k) % n
        if highest[c] < 0:
            continue
        was_right = c == root and count > 1  # this cut left a tree for both branches without the last cell
        goes_left = codes[last, c] <= highest[c]
        if not (was_right and not goes_left) and not _side_agrees(trace, count, c, highest[c], True, depth - 1, work):
            found, high = -1, highest[c] - 1
            while found < high:
                middle = (found + high + 1) // 2
                if _side_agrees(trace, count, c, middle, True, depth - 1, work):
                    found = middle
                else:
                    high = middle - 1
            highest[c], was_right = found, False
            if found < 0:
                continue
        if was_right and goes_left:
            return c
        if _side_agrees(trace, count, c, highest[c], False, depth - 1, work):
            return c
        highest[c] = -1
    return -1


@njit(cache=True)
def follow_traces(world, stack, size, depth, horizon, goals, tolerance, work, pause_at):
    """Follow traces, depth first, until one is better than all before; return why it ended, and the cells of the trace.

    size       cells on the stack; 0 begins with the first trace
    horizon    steps after which episodes are cut
    goals      [2], changed in place: the best return of a tree, and the best bound of a trace with an episode that
               was cut
    work       [1], see `agreement`; a step counts as well
    pause_at   what is left of `work` when it is time to return
    """
    kind, params, starts, cuts, sizes, n_actions, discounts, rest = world
    codes, slots, slot_of, words, actions, tried, highest, root, first, states, clock, totals = stack
    limit, n_starts = len(rest) - 1, len(starts)
    state, x, code = starts[0].copy(), np.zeros(len(cuts)), np.zeros(len(cuts), np.int32)
    no_rng, mask = np.zeros(4, np.uint64), len(slots) - 1
    trace = codes, sizes, words, actions, np.zeros((2, len(cuts)), np.int32), np.zeros((2, len(cuts)), np.int32)
    t, episode, n_cut, total, last = 0, 0, 0, 0.0, 0
    is_running = size == 0
    while True:
        if is_running:
            key = find_cell(kind, params, n_actions, state, cuts, x, code)
            slot = (key ^ key >> 21) & mask
            while slots[slot] >= 0 and not (codes[slots[slot]] == code).all():
                slot = (slot + 1) & mask
            if slots[slot] < 0:
                if size == len(codes):
                    return FULL, size
                codes[size], states[size] = code, state
                slots[slot], slot_of[size] = size, slot
                tried[size], first[size], totals[size] = 0, last, total
                clock[size, 0], clock[size, 1], clock[size, 2] = t, episode, n_cut
                size += 1
                is_running = False
                continue
            last = actions[slots[slot]]
        else:
            if size == 0:
                return DONE, 0
            if work[0] < pause_at:
                return PAUSED, size
            top = size - 1
            if tried[top] == n_actions:
                size -= 1
                slots[slot_of[top]] = -1  # what came later is gone already, so nothing else is found by this slot
                continue
            last = (first[top] + tried[top]) % n_actions
            tried[top] += 1
            actions[top] = last
            words[top] = 0
            words[top, last >> 6] = np.uint64(1) << np.uint64(last & 63)
            if top == 0:
                highest[0], root[0] = sizes - 2, 0
            else:
                highest[top], root[top] = highest[top - 1], root[top - 1]
            root[top] = agrees_after(trace, size, depth, highest[top], root[top], work)
            if work[0] < 0:
                tried[top] -= 1
                return PAUSED, size
            if root[top] < 0:
                continue
            state[:] = states[top]
            t, episode, n_cut, total = clock[top, 0], clock[top, 1], clock[top, 2], totals[top]
            is_running = True
        reward, ended = take_step(kind, params, n_actions, state, last, no_rng)
        work[0] -= STEP_WORK
        total += discounts[t] * reward
        t += 1
        if ended or t == horizon:
            if not ended and t < limit:
                total += rest[t]
                n_cut += 1
            episode += 1
            t = 0
            if episode < n_starts:
                state[:] = starts[episode]
        most = total + (rest[t] if t > 0 else 0.0) + max(0, n_starts - episode - (1 if t > 0 else 0)) * rest[0]
        if most <= max(goals[0], goals[1]) + tolerance:
            is_running = False
        elif episode == n_starts:
            goals[1 if n_cut > 0 else 0] = total
            return BETTER, size


class TraceSearch:
    """The best tree so far, and what no tree exceeds. Returns are sums over the starts."""

    def __init__(self, world: TraceWorld, depth: int, seed: int = 0) -> None:
        self.world, self.depth = world, depth
        self.thresholds = [row[: size - 1] for row, size in zip(world.cuts, world.sizes, strict=True)]
        self.splits = [(c, float(t)) for c, own in enumerate(self.thresholds) for t in own]
        self.features = np.array([c for c, _ in self.splits], dtype=np.int64)
        self.ranks = np.concatenate([np.arange(len(own)) for own in self.thresholds])
        self.split_number = {split: number for number, split in enumerate(self.splits)}
        self.rng = np.random.default_rng(seed)
        self.random_state = np.array([int(self.rng.integers(1, 2**62)), 0])
        self.value, self.shape = -np.inf, 0
        self.bound = len(world.starts) * float(world.rest[0])
        self.traces, self.is_proved = 0, False
        self.climbing: tuple[np.ndarray, np.ndarray, float] | None = None

    @property
    def tolerance(self) -> float:
        """How much more a tree must return to be better."""
        return 1e-9 * max(1.0, abs(self.value) if np.isfinite(self.value) else 0.0)

    def offer(self, shape: Shape) -> None:
        """Keep a tree if it is better."""
        self._keep(*heap_of(shape, self.depth, self.split_number))

    def _keep(self, split: np.ndarray, leaf: np.ndarray) -> None:
        value = float(run_heap(self.world, self.features, self.ranks, split, leaf))
        if value > self.value + self.tolerance:
            self.value = value
            codes, actions = cells_of(self.world, self.features, self.ranks, split, leaf)
            codes, first = np.unique(codes, axis=0, return_index=True)
            self.shape = self._shallowest(codes, _words(actions[first], self.world.n_actions))

    def compile_first(self) -> None:
        """Call what is compiled, so that compiling counts for no time limit."""
        split, leaf = heap_of(0, self.depth, self.split_number)
        run_heap(self.world, self.features, self.ranks, split, leaf)
        cells_of(self.world, self.features, self.ranks, split, leaf)
        climb_on_traces(self.world, self.features, self.ranks, split, leaf, 0.0, self.random_state, 0)
        goals, no_work = np.full(2, -np.inf), np.zeros(1, dtype=np.int64)
        follow_traces(self.world, new_stack(self.world, 1), 0, self.depth, 1, goals, 0.0, no_work, 1)

    def climb(self, until: float) -> None:
        """Change trees at random until a time on `time.monotonic`'s clock; start anew where nothing is gained."""
        tries, idle = 1, 0
        while self.splits and time.monotonic() < until and self.value < self.bound:
            if self.climbing is None:
                split = self.rng.integers(len(self.splits), size=2**self.depth - 1)
                leaf = self.rng.integers(self.world.n_actions, size=2**self.depth)
                self.climbing = split, leaf, float(run_heap(self.world, self.features, self.ranks, split, leaf))
            split, leaf, value = self.climbing
            began = time.monotonic()
            now, since = climb_on_traces(
                self.world, self.features, self.ranks, split, leaf, value, self.random_state, tries
            )  # fmt: skip
            idle = idle + tries if now <= value else int(since)
            self._keep(split, leaf)
            self.climbing = None if idle > MAX_IDLE_TRIES else (split, leaf, float(now))
            idle = 0 if self.climbing is None else idle
            tries = 2 * tries if time.monotonic() - began < 0.01 else tries

    def rounds(self, deadline: float, slice_seconds: float) -> Iterator[int]:
        """Follow all traces of longer and longer episodes; yield each round's steps, at least once per slice."""
        limit = len(self.world.rest) - 1
        capacity = min(MAX_FIRST_CAPACITY, 1 << (limit * len(self.world.starts)).bit_length())
        horizon, stack = FIRST_HORIZON, new_stack(self.world, capacity)
        work = np.zeros(1, dtype=np.int64)
        while not self.is_proved:
            horizon = min(horizon, limit)
            goals, size, why = np.array([self.value, -np.inf]), 0, PAUSED
            while why != DONE:
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                work[0] = int(WORK_PER_SECOND * left)
                goals[0] = max(goals[0], self.value)
                pause_at = work[0] - int(WORK_PER_SECOND * min(left, slice_seconds))
                why, size = follow_traces(
                    self.world, stack, size, self.depth, horizon, goals, self.tolerance, work, pause_at
                )
                if why == FULL:  # with more room the round begins anew
                    stack, size = new_stack(self.world, 2 * len(stack.codes)), 0
                elif why == BETTER:
                    self.traces += 1
                    self._offer_trace(stack, size)
                elif why == PAUSED:
                    yield horizon
            self.bound = min(self.bound, max(float(goals.max()), self.value))
            self.is_proved = self.bound <= self.value + self.tolerance
            yield horizon
            horizon += horizon // 2

    def _offer_trace(self, stack: Stack, size: int) -> None:
        """Keep a tree that has the present trace."""
        self.offer(self._shallowest(stack.codes[:size], stack.words[:size]))

    def _shallowest(self, codes: np.ndarray, words: np.ndarray) -> Shape:
        """Return a tree of the least depth that gives cells [N, n] their actions [N, W]; there is one."""
        everyone, no_limit = np.arange(len(codes)), np.array([np.iinfo(np.int64).max])
        found = (
            agreeing_tree(codes, self.world.sizes, words, everyone, depth, self.thresholds, no_limit)
            for depth in range(self.depth + 1)
        )
        return map_leaves(next(shape for shape in found if shape is not None), _first_action)


def _words(actions: np.ndarray, n_actions: int) -> np.ndarray:
    """Return actions as sets of one, [N, W]."""
    words = np.zeros((len(actions), (n_actions + 63) // 64), dtype=np.uint64)
    words[np.arange(len(actions)), actions >> 6] = np.uint64(1) << (actions & 63).astype(np.uint64)
    return words


def _first_action(words: np.ndarray) -> int:
    """Return the first action of a set."""
    return next(a for a in range(64 * len(words)) if int(words[a >> 6]) >> (a & 63) & 1)
