"""A table from keys to rows, compiled: exact hits by hash, nearest neighbours for keys it has never seen.

A key is a vector of float64. The hash index uses open addressing, so that a look-up costs the same however full the
table is (it is kept at most half full). The same rows hang in a k-d tree that grows with every insertion and answers
exact nearest-neighbour queries, so that nothing has to be rebuilt while learning. A node of it splits where its key and
the first below it differ most: bounds take few values, and cycling through the axes would split on those for nothing.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

__all__ = ["ALL", "Keys", "find", "insert", "make_keys", "nearest", "restore_keys"]

NONE = -1
LEFT, RIGHT, AXIS = range(3)  # entries of a row of `Keys.link`
_MIX = np.uint64(0x9E3779B97F4A7C15)
ALL = 2**62
_STACK = 128  # at first; it grows
_CLOSE = 1.0 - 1e-12  # sums of squares are rounded: nothing that may be as near is left out


class Keys(NamedTuple):
    """Stored keys with their indices. Row r of whatever belongs to the table is the r-th key inserted."""

    key: Any  # [capacity, w] float64
    index: Any  # [power of two] int32, row or NONE: open addressing
    link: Any  # [capacity, 4] int32, k-d tree: the children, and the axis in which they differ; side by side in memory
    size: Any  # [1] int64: how many keys are stored


def make_keys(capacity: int, width: int) -> Keys:
    """An empty table.

    >>> keys = make_keys(4, 2)
    >>> int(insert(keys, np.array([0.5, 1.0]))), int(find(keys, np.array([0.5, 1.0]))), int(find(keys, np.ones(2)))
    (0, 0, -1)
    """
    slots = 1 << max(4, int(2 * capacity - 1).bit_length())
    return Keys(
        key=np.zeros((capacity, width)),
        index=np.full(slots, NONE, dtype=np.int32),
        link=np.full((capacity, 4), NONE, dtype=np.int32),
        size=np.zeros(1, dtype=np.int64),
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
    keys.link[row] = NONE
    keys.size[0] = row + 1
    if row > 0:
        at = 0
        while True:
            link = keys.link[at]
            if link[LEFT] < 0 and link[RIGHT] < 0:
                link[AXIS] = np.argmax(np.abs(key - keys.key[at]))
            axis = link[AXIS]
            side = LEFT if key[axis] < keys.key[at, axis] else RIGHT
            if link[side] < 0:
                link[side] = row
                break
            at = link[side]
    return row


@njit(cache=True)
def nearest(keys, key, rows, distances, most=ALL):
    """The rows of the nearest stored keys (squared Euclidean distance, nearest first); returns how many there are.

    `rows` and `distances` have room for k. Ties go to the key stored first. The search ends after `most` keys, those in
    the same branches first: then there may be nearer ones.
    """
    k, n = len(rows), len(key)
    found = looked_at = 0
    if keys.size[0] == 0 or k == 0:
        return 0
    stack, gaps = np.empty(_STACK, np.int64), np.empty((_STACK, n + 1))
    away = np.zeros(n)  # how far the part of space that is looked at lies from the key, in every axis
    top = 1
    stack[0], gaps[0] = 0, 0.0
    while top > 0 and looked_at < most:
        top -= 1
        at, gap = stack[top], gaps[top, n]
        if found == k and gap > distances[k - 1]:
            continue
        away[:] = gaps[top, :n]
        while at >= 0:
            looked_at += 1
            distance = 0.0
            for i in range(n):
                difference = key[i] - keys.key[at, i]
                distance += difference * difference
            if found < k or distance < distances[k - 1] or (distance == distances[k - 1] and at < rows[k - 1]):
                place = found if found < k else k - 1
                while place > 0 and (
                    distance < distances[place - 1] or (distance == distances[place - 1] and at < rows[place - 1])
                ):
                    rows[place], distances[place] = rows[place - 1], distances[place - 1]
                    place -= 1
                rows[place], distances[place] = at, distance
                if found < k:
                    found += 1
            left, right, axis = keys.link[at, LEFT], keys.link[at, RIGHT], keys.link[at, AXIS]
            if axis < 0:  # nothing below
                break
            across = key[axis] - keys.key[at, axis]
            near, far = (left, right) if across < 0 else (right, left)
            if far >= 0:
                beyond = (gap + across * across - away[axis] * away[axis]) * _CLOSE
                if found < k or beyond <= distances[k - 1]:
                    if top == len(stack):
                        stack, gaps = _grown(stack), _grown(gaps)
                    stack[top], gaps[top, :n], gaps[top, n] = far, away, beyond
                    gaps[top, axis] = across
                    top += 1
            at = near
    return found


@njit(cache=True)
def _grown(array):
    bigger = np.empty((2 * len(array), *array.shape[1:]), array.dtype)
    bigger[: len(array)] = array
    return bigger


@njit(cache=True)
def restore_keys(keys, stored):
    """Store keys in order again: a look-up afterwards answers as it did before."""
    keys.size[0] = 0
    keys.index[:] = NONE
    for row in range(len(stored)):
        insert(keys, stored[row])
