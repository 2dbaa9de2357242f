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

from custard.envs.native import advance, observe
from custard.planning.agreement import agreeing_tree, agrees
from custard.planning.local_search import heap_of, perturb_heap
from custard.tree.shape import Shape, map_leaves

__all__ = ["STATE_TABLE", "TraceSearch", "TraceWorld", "find_cell", "run_heap", "take_step"]

STATE_TABLE = -2  # the kind of world whose parameters are a table of states, see `TraceWorld`
FIRST_HORIZON = 8  # steps of the first round; each further round has a quarter more
FIRST_CAPACITY = 64  # cells on a trace; arrays grow with it
WORK_PER_SECOND = 3e8  # points that tests for a tree look at
STEP_WORK = 10  # what a step of the environment counts, in such points
MAX_CHANGES, MAX_IDLE_TRIES = 3, 3000  # random changes of a tree at once; without a gain before climbing starts anew
DONE, BETTER, PAUSED, FULL = range(4)  # why `follow_traces` returns


class TraceWorld(NamedTuple):
    """A deterministic world and the questions that trees ask. n features, A actions, K starts.

    A `STATE_TABLE` has one row of parameters per state: A next states, A rewards, whether it is terminal, n features.
    """

    kind: int  # which compiled environment (`custard.envs.native`), or `STATE_TABLE`
    params: np.ndarray
    starts: np.ndarray  # [K, n_state], the rows of state that episodes begin with
    cuts: np.ndarray  # [n, C], each feature's thresholds in order, filled up with inf
    sizes: np.ndarray  # [n], how many cells each feature has: one more than thresholds
    n_actions: int
    discounts: np.ndarray  # [L + 1], of the reward of each step
    rest: np.ndarray  # [L + 1], the most that can follow in an episode that has not ended after so many steps


class Stack(NamedTuple):
    """The cells of the present trace in the order in which it came to them, and where it stood there."""

    codes: np.ndarray  # [N, n] int32, the cell
    keys: np.ndarray  # [N], a hash of it
    words: np.ndarray  # [N, W] uint64, its action as a set of one
    action: np.ndarray  # [N], the action
    tried: np.ndarray  # [N], how many actions were tried
    failed: np.ndarray  # [N], how many of them agreed with no tree
    first: np.ndarray  # [N], the action to try first
    state: np.ndarray  # [N, n_state]
    clock: np.ndarray  # [N, 3]: steps so far in this episode, its number, and how many episodes were cut
    total: np.ndarray  # [N], rewards so far


def new_stack(world: TraceWorld, capacity: int, old: Stack | None = None) -> Stack:
    """Return room for a trace of so many cells, with a shorter one's content."""
    n, n_state, n_words = len(world.cuts), world.starts.shape[1], (world.n_actions + 63) // 64
    kinds = (((n,), np.int32), ((), np.int64), ((n_words,), np.uint64), ((), np.int64), ((), np.int64), ((), np.int64),
             ((), np.int64), ((n_state,), np.float64), ((3,), np.int64), ((), np.float64))  # fmt: skip
    made = Stack(*(np.zeros((capacity, *shape), kind) for shape, kind in kinds))
    for mine, before in zip(made, old or (), strict=False):
        mine[: len(before)] = before
    return made


@njit(cache=True)
def take_step(kind, params, n_actions, state, action, no_rng):
    """Take an action in place; return reward and whether the episode ended."""
    if kind == STATE_TABLE:
        row = int(state[0])
        state[0] = params[row, action]
        return params[row, n_actions + action], params[int(state[0]), 2 * n_actions] > 0.5
    return advance(kind, params, state, action, no_rng)


@njit(cache=True)
def find_cell(kind, params, n_actions, state, cuts, x, code):
    """Write a state's cell into `code` and return its hash; `x` is scratch."""
    if kind == STATE_TABLE:
        for c in range(len(x)):
            x[c] = params[int(state[0]), 2 * n_actions + 1 + c]
    else:
        observe(kind, state, x)
    key = 0
    for c in range(len(x)):
        low, high = 0, cuts.shape[1]  # the first threshold that is not below x
        while low < high:
            middle = (low + high) // 2
            if cuts[c, middle] < x[c]:
                low = middle + 1
            else:
                high = middle
        code[c] = low
        key = key * 1000003 ^ low
    return key


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
    codes, keys, words, actions, tried, failed, first, states, clock, totals = stack
    limit, n_starts = len(rest) - 1, len(starts)
    state, x, code = starts[0].copy(), np.zeros(len(cuts)), np.zeros(len(cuts), np.int32)
    no_rng, everyone = np.zeros(4, np.uint64), np.arange(len(keys))
    t, episode, n_cut, total, last = 0, 0, 0, 0.0, 0
    is_running = size == 0
    while True:
        if is_running:
            key = find_cell(kind, params, n_actions, state, cuts, x, code)
            known = -1
            for k in range(size - 1, -1, -1):
                if keys[k] == key and (codes[k] == code).all():
                    known = k
                    break
            if known < 0:
                if size == len(keys):
                    # Tried anew from the last cell: the trace to here is followed once more with more room.
                    if size > 0:
                        tried[size - 1] -= 1
                    return FULL, size
                codes[size], keys[size], states[size] = code, key, state
                tried[size], failed[size], first[size], totals[size] = 0, 0, last, total
                clock[size, 0], clock[size, 1], clock[size, 2] = t, episode, n_cut
                size += 1
                is_running = False
                continue
            last = actions[known]
        else:
            if size == 0:
                return DONE, 0
            if work[0] < pause_at:
                return PAUSED, size
            top = size - 1
            if tried[top] == n_actions:
                size -= 1
                continue
            last = (first[top] + tried[top]) % n_actions
            tried[top] += 1
            actions[top] = last
            words[top] = 0
            words[top, last >> 6] = np.uint64(1) << np.uint64(last & 63)
            is_only = tried[top] == n_actions and failed[top] == n_actions - 1  # some action agrees with some tree
            fits = is_only or agrees(codes[:size], sizes, words[:size], everyone[:size], depth, work)
            if work[0] < 0:
                tried[top] -= 1
                return PAUSED, size
            if not fits:
                failed[top] += 1
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


@njit(cache=True)
def leaf_of_heap(features, ranks, split, leaf, code):
    """Return the action of a tree in heap order for a cell.

    Split k asks whether feature `features[k]` is at most its threshold of rank `ranks[k]`.
    """
    node = 0
    while node < len(split):
        node = 2 * node + (1 if code[features[split[node]]] <= ranks[split[node]] else 2)
    return leaf[node - len(split)]


@njit(cache=True)
def run_heap(world, features, ranks, split, leaf):
    """Return the sum of the returns of a tree in heap order; arguments as in `leaf_of_heap`."""
    kind, params, starts, cuts, _, n_actions, discounts, rest = world
    x, code, no_rng = np.zeros(len(cuts)), np.zeros(len(cuts), np.int32), np.zeros(4, np.uint64)
    total = 0.0
    for k in range(len(starts)):
        state = starts[k].copy()
        for t in range(len(rest) - 1):
            find_cell(kind, params, n_actions, state, cuts, x, code)
            action = leaf_of_heap(features, ranks, split, leaf, code)
            reward, ended = take_step(kind, params, n_actions, state, action, no_rng)
            total += discounts[t] * reward
            if ended:
                break
    return total


@njit(cache=True)
def cells_of(world, features, ranks, split, leaf):
    """Return the cells that a tree's traces come to, [N, n], and its actions there, [N]; cells may come twice."""
    kind, params, starts, cuts, _, n_actions, _, rest = world
    size = len(starts) * (len(rest) - 1)
    x, codes, actions, no_rng = (
        np.zeros(len(cuts)),
        np.zeros((size, len(cuts)), np.int32),
        np.zeros(size, np.int64),
        np.zeros(4, np.uint64),
    )
    count = 0
    for k in range(len(starts)):
        state = starts[k].copy()
        for _ in range(len(rest) - 1):
            code = codes[count]
            find_cell(kind, params, n_actions, state, cuts, x, code)
            actions[count] = leaf_of_heap(features, ranks, split, leaf, code)
            count += 1
            if take_step(kind, params, n_actions, state, actions[count - 1], no_rng)[1]:
                break
    return codes[:count], actions[:count]


@njit(cache=True)
def climb_on_traces(world, features, ranks, split, leaf, value, random_state, tries):
    """Change a tree at random where that loses nothing, in place; return its return and the tries since it gained."""
    n_splits, idle = len(features), 0
    for _ in range(tries):
        new_split, new_leaf = split.copy(), leaf.copy()
        changes = 1 + idle % MAX_CHANGES
        perturb_heap(new_split, new_leaf, n_splits, world[5], changes, random_state)
        found = run_heap(world, features, ranks, new_split, new_leaf)
        idle += 1
        if found >= value:
            if found > value:
                idle = 0
            value, split[:], leaf[:] = found, new_split, new_leaf
    return value, idle


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
        horizon, stack = FIRST_HORIZON, new_stack(self.world, FIRST_CAPACITY)
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
                if why == FULL:
                    stack = new_stack(self.world, 2 * len(stack.keys), stack)
                elif why == BETTER:
                    self.traces += 1
                    self._offer_trace(stack, size)
                elif why == PAUSED:
                    yield horizon
            self.bound = min(self.bound, max(float(goals.max()), self.value))
            self.is_proved = self.bound <= self.value + self.tolerance
            yield horizon
            horizon += horizon // 4

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
