"""A table from keys to rows, compiled: exact hits by hash, nearest neighbours for keys it has never seen.

A key is a vector of float64. The hash index uses open addressing and is at most half full, so that a look-up costs the
same however many keys are stored. The same rows lie in the buckets of a k-d tree that grows with every insertion and
answers nearest-neighbour queries, so that nothing is rebuilt while learning. A full bucket is halved where its keys
differ most. Buckets of several keys keep branches few: the processor fetches the keys of a bucket side by side, whereas
with one key per branch it would wait for each in turn.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from custard.core.numba_tools import njit

__all__ = ["Keys", "find", "forget_keys", "insert", "make_keys", "nearest", "replace_key", "restore_keys"]

NONE = -1
MAX_BUCKET_KEYS = 16
HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
DISTANCE_ROUNDING_FACTOR = 1.0 - 1e-12  # sums of squares are rounded: no key that may be as near is left out

BRANCH = np.dtype(
    [
        ("left", np.int32),  # the place of the keys that are smaller than the threshold
        ("right", np.int32),  # the place of the others
        ("axis", np.int32),  # the component of the key that is compared
        ("threshold", np.float64),
    ],
    align=True,
)
KD_TREE = np.dtype(
    [
        ("root", np.int64),  # its place
        ("branches", np.int64),  # how many are in use
        ("buckets", np.int64),  # how many are in use
        ("depth", np.int64),  # the most branches on the way to a bucket
    ]
)


class Keys(NamedTuple):
    """Stored keys with their indices. Row r of whatever belongs to the table is the r-th key inserted.

    A place in the k-d tree is the number of a branch, or ~b for bucket b. Without neighbours its arrays are empty.
    """

    key: Any  # [capacity, w] float64
    index: Any  # [power of two] int32, row or NONE: open addressing
    size: Any  # [1] int64: how many keys are stored
    branch: Any  # [capacity] BRANCH
    bucket: Any  # [capacity, MAX_BUCKET_KEYS] int32: rows
    bucket_size: Any  # [capacity] int32: how many rows a bucket holds
    kd_tree: Any  # [1] KD_TREE


def make_keys(capacity: int, width: int, neighbours: bool = False) -> Keys:
    """Return an empty table for keys of `width` numbers; `nearest` needs one with neighbours.

    >>> keys = make_keys(4, 2)
    >>> int(insert(keys, np.array([0.5, 1.0]))), int(find(keys, np.array([0.5, 1.0]))), int(find(keys, np.ones(2)))
    (0, 0, -1)
    """
    slots = 1 << max(4, int(2 * capacity - 1).bit_length())
    tree_capacity = capacity if neighbours else 0  # pages that are never written take no memory
    return Keys(
        key=np.zeros((capacity, width)),
        index=np.full(slots, NONE, dtype=np.int32),
        size=np.zeros(1, dtype=np.int64),
        branch=np.zeros(tree_capacity, dtype=BRANCH),
        bucket=np.zeros((tree_capacity, MAX_BUCKET_KEYS), dtype=np.int32),
        bucket_size=np.zeros(tree_capacity, dtype=np.int32),
        kd_tree=np.array([(~0, 0, 1, 0)], dtype=KD_TREE),
    )


@njit(cache=True)
def _slot(keys, key):
    """Return the slot of the hash index that holds a key, or the empty one where it belongs."""
    bits = key.view(np.uint64)
    code = np.uint64(0)
    for i in range(len(bits)):
        code = (code ^ bits[i]) * HASH_MULTIPLIER
        code ^= code >> np.uint64(29)
    mask = np.uint64(len(keys.index) - 1)
    slot = code & mask
    while True:
        row = keys.index[slot]
        if row < 0:
            return slot
        same = True
        for i in range(len(key)):
            if keys.key[row, i] != key[i]:
                same = False
                break
        if same:
            return slot
        slot = (slot + np.uint64(1)) & mask


@njit(cache=True, inline="always")
def find(keys, key):
    """Return the row of a key, or NONE. Keys must not hold -0.0: it equals 0.0 but hashes apart."""
    return keys.index[_slot(keys, key)]


@njit(cache=True)
def insert(keys, key):
    """Store a key that is not stored yet; return its row, or NONE if the table is full."""
    row = keys.size[0]
    if row >= len(keys.key):
        return np.int64(NONE)
    keys.index[_slot(keys, key)] = row
    keys.key[row] = key
    keys.size[0] = row + 1
    if len(keys.branch) > 0:
        _insert_into_kd_tree(keys, row)
    return row


@njit(cache=True)
def replace_key(keys, row, key):
    """Store a key that is not stored yet in the row of another, which is forgotten. Needs a table with neighbours."""
    _remove_from_index(keys, row)
    _remove_from_kd_tree(keys, row)
    keys.key[row] = key
    keys.index[_slot(keys, key)] = row
    if keys.kd_tree[0].buckets == len(keys.bucket_size):  # keys that went left buckets almost empty: build it anew
        tree = keys.kd_tree[0]
        tree.root, tree.branches, tree.buckets, tree.depth = ~0, 0, 1, 0
        keys.bucket_size[0] = 0
        for other in range(keys.size[0]):
            if other != row:
                _insert_into_kd_tree(keys, other)
    _insert_into_kd_tree(keys, row)


@njit(cache=True)
def _remove_from_index(keys, row):
    """Empty a row's slot of the hash index, and move those that were displaced by it closer to where they belong."""
    mask = np.uint64(len(keys.index) - 1)
    gap = _slot(keys, keys.key[row])
    keys.index[gap] = NONE
    slot = (gap + np.uint64(1)) & mask
    while keys.index[slot] >= 0:
        displaced = keys.index[slot]
        keys.index[slot] = NONE
        keys.index[_slot(keys, keys.key[displaced])] = displaced
        slot = (slot + np.uint64(1)) & mask


@njit(cache=True)
def _remove_from_kd_tree(keys, row):
    """Take a row out of its bucket."""
    place = keys.kd_tree[0].root
    while place >= 0:
        branch = keys.branch[place]
        place = np.int64(branch.left if keys.key[row, branch.axis] < branch.threshold else branch.right)
    bucket = ~place
    last = keys.bucket_size[bucket] - 1
    for i in range(last):
        if keys.bucket[bucket, i] == row:
            keys.bucket[bucket, i] = keys.bucket[bucket, last]
    keys.bucket_size[bucket] = last


@njit(cache=True)
def _insert_into_kd_tree(keys, row):
    """Put a row into its bucket of the k-d tree; a full bucket becomes a branch with two."""
    key, tree = keys.key, keys.kd_tree[0]
    parent, is_left, place, depth = -1, True, tree.root, 1
    while place >= 0:
        parent, branch = place, keys.branch[place]
        is_left = key[row, branch.axis] < branch.threshold
        place = np.int64(branch.left if is_left else branch.right)
        depth += 1
    bucket = ~place
    if keys.bucket_size[bucket] < MAX_BUCKET_KEYS:
        keys.bucket[bucket, keys.bucket_size[bucket]] = row
        keys.bucket_size[bucket] += 1
        return
    rows = np.append(keys.bucket[bucket], np.int32(row))
    axis, threshold = _widest_axis_and_median(key, rows)
    new_bucket, number = tree.buckets, tree.branches
    tree.branches, tree.buckets, tree.depth = number + 1, new_bucket + 1, max(tree.depth, depth)
    branch = keys.branch[number]
    branch.left, branch.right, branch.axis, branch.threshold = ~bucket, ~new_bucket, axis, threshold
    keys.bucket_size[bucket] = keys.bucket_size[new_bucket] = 0
    for r in rows:
        b = bucket if key[r, axis] < threshold else new_bucket
        keys.bucket[b, keys.bucket_size[b]] = r
        keys.bucket_size[b] += 1
    if parent < 0:
        tree.root = number
    elif is_left:
        keys.branch[parent].left = number
    else:
        keys.branch[parent].right = number


@njit(cache=True)
def _widest_axis_and_median(key, rows):
    """Return the component in which the keys of these rows differ most, and their median in it (above the least)."""
    axis, spread = 0, -1.0
    for i in range(key.shape[1]):
        low = high = key[rows[0], i]
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
    return axis, values[middle]


@njit(cache=True)
def nearest(keys, key, rows, distances):
    """Find the rows of the nearest stored keys, nearest first; return how many there are.

    keys: a table with neighbours
    key [w]: the key whose neighbours are wanted
    rows [k], distances [k]: filled with the neighbours and their squared Euclidean distances

    Ties go to the key stored first.
    """
    k, n = len(rows), len(key)
    found = 0
    if keys.size[0] == 0 or k == 0:
        return 0
    tree = keys.kd_tree[0]
    capacity = tree.depth + 1  # one place not searched yet for each branch above
    stack, stack_gaps = np.empty(capacity, np.int64), np.empty((capacity, n + 1))
    gaps = np.zeros(n)  # how far the part of space that is searched lies from the key, in every axis
    top = 1
    stack[0] = tree.root
    for i in range(n + 1):
        stack_gaps[0, i] = 0.0
    while top > 0:
        top -= 1
        place, distance_to_part = stack[top], stack_gaps[top, n]
        if found == k and distance_to_part > distances[k - 1]:
            continue
        for i in range(n):  # an element at a time: numba's slices take longer than all the rest
            gaps[i] = stack_gaps[top, i]
        while place >= 0:
            branch = keys.branch[place]
            left, right, axis = branch.left, branch.right, branch.axis
            gap = key[axis] - branch.threshold
            near, far = (left, right) if gap < 0 else (right, left)
            distance_to_far = (distance_to_part + gap * gap - gaps[axis] * gaps[axis]) * DISTANCE_ROUNDING_FACTOR
            if found < k or distance_to_far <= distances[k - 1]:
                for i in range(n):
                    stack_gaps[top, i] = gaps[i]
                stack[top], stack_gaps[top, axis], stack_gaps[top, n] = far, gap, distance_to_far
                top += 1
            place = near
        bucket = ~place
        for i in range(keys.bucket_size[bucket]):
            row = keys.bucket[bucket, i]
            distance = 0.0
            for j in range(n):
                difference = key[j] - keys.key[row, j]
                distance += difference * difference
            if found < k or distance < distances[k - 1] or (distance == distances[k - 1] and row < rows[k - 1]):
                rank = found if found < k else k - 1
                while rank > 0 and (
                    distance < distances[rank - 1] or (distance == distances[rank - 1] and row < rows[rank - 1])
                ):
                    rows[rank], distances[rank] = rows[rank - 1], distances[rank - 1]
                    rank -= 1
                rows[rank], distances[rank] = row, distance
                if found < k:
                    found += 1
    return found


@njit(cache=True)
def forget_keys(keys):
    """Empty the table."""
    keys.size[0] = 0
    keys.index[:] = NONE
    tree = keys.kd_tree[0]
    tree.root, tree.branches, tree.buckets, tree.depth = ~0, 0, 1, 0
    if len(keys.bucket_size) > 0:
        keys.bucket_size[0] = 0


@njit(cache=True)
def restore_keys(keys, stored):
    """Store keys in order again: a look-up afterwards answers as it did before."""
    forget_keys(keys)
    for row in range(len(stored)):
        insert(keys, stored[row])
