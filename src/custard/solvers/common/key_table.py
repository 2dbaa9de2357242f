"""A table from keys to rows, compiled: exact hits by hash, nearest neighbours for keys it has never seen.

A key is a vector of float64. The hash index uses open addressing, so that a look-up costs the same however full the
table is (it is kept at most half full). The same rows lie in the buckets of a k-d tree that grows with every insertion
and answers nearest-neighbour queries (exact ones, unless only so many keys are looked at), so that nothing has to be
rebuilt while learning. A full bucket is halved
where its keys differ most. Few branches lead to many keys that are looked at together, which the processor fetches side
by side; with one key a branch it would wait for each in turn.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

__all__ = ["ALL", "Keys", "find", "forget_keys", "insert", "make_keys", "nearest", "restore_keys"]

NONE = -1
LEFT, RIGHT, AXIS = range(3)  # entries of a row of `Keys.branch`
ROOT, BRANCHES, BUCKETS, DEPTH = range(4)  # entries of `Keys.used`
BUCKET = 16  # keys in a bucket, at most
_MIX = np.uint64(0x9E3779B97F4A7C15)
ALL = 2**62
_CLOSE = 1.0 - 1e-12  # sums of squares are rounded: nothing that may be as near is left out


class Keys(NamedTuple):
    """Stored keys with their indices. Row r of whatever belongs to the table is the r-th key inserted.

    A place in the k-d tree is the number of a branch, or ~b for bucket b. Without neighbours these arrays are empty.
    """

    key: Any  # [capacity, w] float64
    index: Any  # [power of two] int32, row or NONE: open addressing
    size: Any  # [1] int64: how many keys are stored
    branch: Any  # [capacity, 3] int32: the places left and right of it, and the axis it divides
    split: Any  # [capacity] float64: what lies left of it is smaller
    bucket: Any  # [capacity, BUCKET] int32: rows
    filled: Any  # [capacity] int32: how many rows a bucket has
    used: Any  # [4] int64: the root's place, how many branches and buckets there are, the most branches on a way


def make_keys(capacity: int, width: int, neighbours: bool = False) -> Keys:
    """An empty table; `nearest` needs one with neighbours.

    >>> keys = make_keys(4, 2)
    >>> int(insert(keys, np.array([0.5, 1.0]))), int(find(keys, np.array([0.5, 1.0]))), int(find(keys, np.ones(2)))
    (0, 0, -1)
    """
    slots = 1 << max(4, int(2 * capacity - 1).bit_length())
    room = capacity if neighbours else 0  # pages that are never written take no memory
    return Keys(
        key=np.zeros((capacity, width)),
        index=np.full(slots, NONE, dtype=np.int32),
        size=np.zeros(1, dtype=np.int64),
        branch=np.zeros((room, 3), dtype=np.int32),
        split=np.zeros(room),
        bucket=np.zeros((room, BUCKET), dtype=np.int32),
        filled=np.zeros(room, dtype=np.int32),
        used=np.array([~0, 0, 1, 0], dtype=np.int64),
    )


@njit(cache=True)
def _slot(keys, key):
    """The slot that holds a key, or the empty one where it belongs."""
    bits = key.view(np.uint64)
    code = np.uint64(0)
    for i in range(len(bits)):
        code = (code ^ bits[i]) * _MIX
        code ^= code >> np.uint64(29)
    mask = np.uint64(len(keys.index) - 1)
    at = code & mask
    while True:
        row = keys.index[at]
        if row < 0:
            return at
        same = True
        for i in range(len(key)):
            if keys.key[row, i] != key[i]:
                same = False
                break
        if same:
            return at
        at = (at + np.uint64(1)) & mask


@njit(cache=True, inline="always")
def find(keys, key):
    """The row of a key, or NONE. Keys must not hold -0.0: it equals 0.0 but hashes apart."""
    return keys.index[_slot(keys, key)]


@njit(cache=True)
def insert(keys, key):
    """Store a key that is not stored yet; returns its row, or NONE if the table is full."""
    row = keys.size[0]
    if row >= len(keys.key):
        return np.int64(NONE)
    keys.index[_slot(keys, key)] = row
    keys.key[row] = key
    keys.size[0] = row + 1
    if len(keys.branch) > 0:
        _put(keys, row)
    return row


@njit(cache=True)
def _put(keys, row):
    """Put a row into its bucket of the k-d tree; a full one becomes a branch with two."""
    key, used = keys.key, keys.used
    above, side, at, depth = -1, LEFT, used[ROOT], 1
    while at >= 0:
        above, axis = at, keys.branch[at, AXIS]
        side = LEFT if key[row, axis] < keys.split[at] else RIGHT
        at = keys.branch[above, side]
        depth += 1
    full = ~at
    if keys.filled[full] < BUCKET:
        keys.bucket[full, keys.filled[full]] = row
        keys.filled[full] += 1
        return
    rows = np.append(keys.bucket[full], np.int32(row))
    axis, spread = 0, -1.0
    for i in range(key.shape[1]):
        low = high = key[row, i]
        for r in rows:
            low, high = min(low, key[r, i]), max(high, key[r, i])
        if high - low > spread:
            axis, spread = i, high - low
    values = np.empty(len(rows))
    for i in range(len(rows)):
        values[i] = key[rows[i], axis]
    values.sort()
    middle = len(values) // 2
    while values[middle] == values[0]:  # keys differ, so some value is larger
        middle += 1
    branch, fresh = used[BRANCHES], used[BUCKETS]
    used[BRANCHES], used[BUCKETS], used[DEPTH] = branch + 1, fresh + 1, max(used[DEPTH], depth)
    keys.branch[branch, LEFT], keys.branch[branch, RIGHT], keys.branch[branch, AXIS] = ~full, ~fresh, axis
    keys.split[branch] = values[middle]
    keys.filled[full] = keys.filled[fresh] = 0
    for r in rows:
        b = full if key[r, axis] < values[middle] else fresh
        keys.bucket[b, keys.filled[b]] = r
        keys.filled[b] += 1
    if above < 0:
        used[ROOT] = branch
    else:
        keys.branch[above, side] = branch


@njit(cache=True)
def nearest(keys, key, rows, distances, most=ALL):
    """The rows of the nearest stored keys (squared Euclidean distance, nearest first); returns how many there are.

    `rows` and `distances` have room for k. Ties go to the key stored first. The search ends with the bucket in which
    `most` keys have been looked at, those in the same branches first: then there may be nearer ones.
    """
    k, n = len(rows), len(key)
    found = looked_at = 0
    if keys.size[0] == 0 or k == 0:
        return 0
    room = keys.used[DEPTH] + 1  # one way not taken is left for each branch above
    stack, gaps = np.empty(room, np.int64), np.empty((room, n + 1))
    away = np.zeros(n)  # how far the part of space that is looked at lies from the key, in every axis
    top = 1
    stack[0] = keys.used[ROOT]
    for i in range(n + 1):
        gaps[0, i] = 0.0
    while top > 0 and looked_at < most:
        top -= 1
        at, gap = stack[top], gaps[top, n]
        if found == k and gap > distances[k - 1]:
            continue
        for i in range(n):  # an element at a time: numba's slices take longer than all the rest
            away[i] = gaps[top, i]
        while at >= 0:
            left, right, axis = keys.branch[at, LEFT], keys.branch[at, RIGHT], keys.branch[at, AXIS]
            across = key[axis] - keys.split[at]
            near, far = (left, right) if across < 0 else (right, left)
            beyond = (gap + across * across - away[axis] * away[axis]) * _CLOSE
            if found < k or beyond <= distances[k - 1]:
                for i in range(n):
                    gaps[top, i] = away[i]
                stack[top], gaps[top, axis], gaps[top, n] = far, across, beyond
                top += 1
            at = near
        looked_at += keys.filled[~at]
        for i in range(keys.filled[~at]):
            row = keys.bucket[~at, i]
            distance = 0.0
            for j in range(n):
                difference = key[j] - keys.key[row, j]
                distance += difference * difference
            if found < k or distance < distances[k - 1] or (distance == distances[k - 1] and row < rows[k - 1]):
                place = found if found < k else k - 1
                while place > 0 and (
                    distance < distances[place - 1] or (distance == distances[place - 1] and row < rows[place - 1])
                ):
                    rows[place], distances[place] = rows[place - 1], distances[place - 1]
                    place -= 1
                rows[place], distances[place] = row, distance
                if found < k:
                    found += 1
    return found


@njit(cache=True)
def forget_keys(keys):
    """Empty the table."""
    keys.size[0] = 0
    keys.index[:] = NONE
    keys.used[ROOT], keys.used[BRANCHES], keys.used[BUCKETS], keys.used[DEPTH] = ~0, 0, 1, 0
    if len(keys.filled) > 0:
        keys.filled[0] = 0


@njit(cache=True)
def restore_keys(keys, stored):
    """Store keys in order again: a look-up afterwards answers as it did before."""
    forget_keys(keys)
    for row in range(len(stored)):
        insert(keys, stored[row])
