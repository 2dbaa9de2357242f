"""Worlds without chance as `trace_search` sees them: steps, cells of states between thresholds, whole episodes.

Trees are arrays in heap order, as in `local_search`; their leaves are actions.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from custard.envs.native import advance, observe
from custard.planning.local_search import perturb_heap

__all__ = ["STATE_TABLE", "TraceWorld", "cells_of", "climb_on_traces", "find_cell", "run_heap", "take_step"]

STATE_TABLE = -2  # the kind of world whose parameters are a table of states, see `TraceWorld`
MAX_CHANGES = 3  # random changes of a tree at once


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
