"""The memories of episodic control: one per action, of keys and values, in one compiled table.

As in MFEC (Blundell et al. 2016): a value is read from the very key or, if there is none, as the mean of the k nearest
keys of the same action; a full memory forgets the key that was written least recently. As in NEC (Pritzel et al. 2017):
a new key is stored with its target, a known one's value moves toward it by a learning rate.

Where the values of all actions are read at one key, as a policy does, `nodes` has the rows of all of them side by side:
one look-up instead of one per action.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.solvers.common.key_table import (
    Keys,
    find,
    forget_keys,
    insert,
    make_keys,
    nearest,
    replace_key,
    restore_keys,
)

__all__ = ["Memory", "best_actions", "best_stored", "better_of", "estimate", "make_memory", "restore_memory", "write"]

KEY_DISTANCE_BETWEEN_ACTIONS = 1e6  # so that neighbours are keys of the same action


class Memory(NamedTuple):
    """The memories of A actions, C keys of width w each, in one table."""

    keys: Keys  # [A * C, 1 + w]: the action times KEY_DISTANCE_BETWEEN_ACTIONS, then the key
    value: Any  # [A * C]
    older: Any  # [A * C] the row of the same action that was written before, -1 for the first
    newer: Any  # [A * C] the row of the same action that was written after, -1 for the last
    oldest: Any  # [A] the first and
    newest: Any  # [A] the last of these rows, -1 where there is none
    size: Any  # [A] how many keys an action has
    capacity: int  # C
    nodes: Keys  # [N, w]: keys without their action, N = 0 where all actions of a key are hardly ever read together
    row_at: Any  # [N, A] the row of an action at such a key, plus one; 0 where it is not stored
    node_of: Any  # [A * C] the node of a row


def make_memory(actions: int, width: int, capacity: int, nodes: bool = True) -> Memory:
    """Return empty memories for keys of `width` numbers; `nodes`: see `Memory.nodes`."""
    rows = actions * capacity
    node_rows = rows if nodes else 0  # pages that are never written take no memory
    return Memory(
        make_keys(rows, 1 + width, neighbours=True), np.zeros(rows), np.full(rows, -1), np.full(rows, -1),
        np.full(actions, -1), np.full(actions, -1), np.zeros(actions, np.int64), capacity,
        make_keys(node_rows, width), np.zeros((node_rows, actions), np.int32), np.zeros(node_rows, np.int32),
    )  # fmt: skip


@njit(cache=True, inline="always")
def _row_of(memory, node, key, a):
    """Return the row of an action at a key [1 + w] whose node is given, if nodes are kept; -1 if it is not stored."""
    key[0] = a * KEY_DISTANCE_BETWEEN_ACTIONS
    if len(memory.row_at) == 0:
        return np.int64(find(memory.keys, key))
    return np.int64(memory.row_at[node, a]) - 1 if node >= 0 else np.int64(-1)


@njit(cache=True, inline="always")
def _node_at(memory, key):
    """Return the node of a key [1 + w], -1 if nothing is stored there or nodes are not kept."""
    return np.int64(find(memory.nodes, key[1:])) if len(memory.row_at) > 0 else np.int64(-1)


@njit(cache=True)
def estimate(memory, key, a, k, if_unknown):
    """Return an action's value at a key [1 + w], whose first number is scratch space.

    Where the key is not stored, nor k others are, `if_unknown` is the value; NaN stands for the mean of those there
    are, or 0.
    """
    row = _row_of(memory, _node_at(memory, key), key, a)
    return memory.value[row] if row >= 0 else _mean_of_nearest(memory, key, a, k, if_unknown)


@njit(cache=True)
def _mean_of_nearest(memory, key, a, k, if_unknown):
    """Return what `estimate` does where the key is not stored; its first number is the action's."""
    k_here = min(k, memory.size[a])
    if k_here < k and not np.isnan(if_unknown):
        return if_unknown
    if k_here == 0:
        return 0.0
    rows, distances = np.empty(k_here, np.int64), np.empty(k_here)
    nearest(memory.keys, key, rows, distances)
    total = 0.0
    for r in rows:
        total += memory.value[r]
    return total / k_here


@njit(cache=True)
def write(memory, key, a, target, alpha):
    """Move an action's value at a key [1 + w] toward a target; a new key is stored with it."""
    row = _row_of(memory, _node_at(memory, key), key, a)
    if row >= 0:
        memory.value[row] += alpha * (target - memory.value[row])
        _unlink_from_write_order(memory, a, row)
    else:
        if memory.size[a] == memory.capacity:
            row = memory.oldest[a]
            _unlink_from_write_order(memory, a, row)
            if len(memory.row_at) > 0:
                memory.row_at[memory.node_of[row], a] = 0
            replace_key(memory.keys, row, key)
        else:
            row = np.int64(insert(memory.keys, key))
            memory.size[a] += 1
        _store_at_node(memory, key, a, row)
        memory.value[row] = target
    last = memory.newest[a]
    memory.older[row], memory.newer[row], memory.newest[a] = last, -1, row
    if last >= 0:
        memory.newer[last] = row
    else:
        memory.oldest[a] = row


@njit(cache=True)
def _unlink_from_write_order(memory, a, row):
    """Take a row out of the order in which an action's rows were written."""
    older, newer = memory.older[row], memory.newer[row]
    if older >= 0:
        memory.newer[older] = newer
    else:
        memory.oldest[a] = newer
    if newer >= 0:
        memory.older[newer] = older
    else:
        memory.newest[a] = older


@njit(cache=True)
def _store_at_node(memory, key, a, row):
    """Enter a new row at its node, if nodes are kept."""
    if len(memory.row_at) == 0:
        return
    if memory.nodes.size[0] == len(memory.row_at) and find(memory.nodes, key[1:]) < 0:
        _reenter_rows_at_nodes(memory, row)  # without those whose rows are all forgotten
    _enter_row_at_node(memory, key, a, row)


@njit(cache=True)
def _enter_row_at_node(memory, key, a, row):
    """Enter a row at its node."""
    node = np.int64(find(memory.nodes, key[1:]))
    if node < 0:
        node = np.int64(insert(memory.nodes, key[1:]))
    memory.row_at[node, a], memory.node_of[row] = row + 1, node


@njit(cache=True)
def _reenter_rows_at_nodes(memory, leave_out):
    """Find the nodes of all rows anew, but for one."""
    forget_keys(memory.nodes)
    memory.row_at[:] = 0
    for row in range(memory.keys.size[0]):
        key = memory.keys.key[row]
        if row != leave_out:
            _enter_row_at_node(memory, key, np.int64(np.rint(key[0] / KEY_DISTANCE_BETWEEN_ACTIONS)), row)


@njit(cache=True)
def restore_memory(memory, stored):
    """Store keys [r, 1 + w] in order again in empty memories; the other arrays are the caller's."""
    restore_keys(memory.keys, stored)
    if len(memory.row_at) > 0:
        _reenter_rows_at_nodes(memory, -1)


@njit(cache=True)
def best_stored(memory, key, mask):
    """Return the afforded action with the largest value stored at a key [1 + w], the first of several, and the value.

    The action is -1 where none is stored.
    """
    best, best_value, node = -1, -np.inf, _node_at(memory, key)
    for a in range(len(mask)):
        if mask[a]:
            row = _row_of(memory, node, key, a)
            if row >= 0 and (best < 0 or memory.value[row] > best_value):
                best, best_value = a, memory.value[row]
    return best, best_value


@njit(cache=True)
def best_actions(memory, key, mask, k, if_unknown):
    """Return what `best_stored` does, the same of the estimates of actions not stored at the key, and how many those
    are. `k` and `if_unknown` are as in `estimate`."""
    best, best_value, guess, guess_value, count = -1, -np.inf, -1, -np.inf, 0
    node = _node_at(memory, key)
    for a in range(len(mask)):
        if mask[a]:
            row = _row_of(memory, node, key, a)
            if row >= 0:
                if best < 0 or memory.value[row] > best_value:
                    best, best_value = a, memory.value[row]
                continue
            count += 1
            if guess_value == np.inf:  # nothing is larger
                continue
            value = _mean_of_nearest(memory, key, a, k, if_unknown)
            if guess < 0 or value > guess_value:
                guess, guess_value = a, value
    return best, best_value, guess, guess_value, count


@njit(cache=True, inline="always")
def better_of(a, a_value, b, b_value):
    """Return the action with the larger value, the lower one of two with the same; -1 stands for none."""
    return b if a < 0 or (b >= 0 and (b_value > a_value or (b_value == a_value and b < a))) else a
