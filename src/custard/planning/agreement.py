"""Is there a tree of a given depth that gives every point one of its allowed actions? Compiled.

Fewer points are easier: if the points below a threshold have such a tree, so have those below every lower one. So of
each feature only one first cut matters, the highest whose left branch has a tree, and it is found by bisection.

The functions share their parameters, P points of n features and A actions:

    codes  [P, n] int32     each point's rank among the values of each feature; cut k sends ranks of at most k left
    sizes  [n] int64        how many values each feature has
    words  [P, W] uint64    the actions that each point may take, 64 to a word
    index  [M] int64        the points that count
    work   [1] int64        how many points may still be looked at; once it is used up, every answer is yes
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from custard.tree.shape import Shape, Split

__all__ = ["agreeing_tree", "agrees", "full_words", "smallest_conflict"]


def full_words(count: int, n_actions: int) -> np.ndarray:
    """Return the words of points that may take any action, [count, W] uint64."""
    row = np.zeros((n_actions + 63) // 64, dtype=np.uint64)
    for action in range(n_actions):
        row[action >> 6] |= np.uint64(1) << np.uint64(action & 63)
    return np.tile(row, (count, 1))


@njit(cache=True)
def allows(words, point, action):
    """Return whether a point may take an action."""
    return (words[point, action >> 6] >> np.uint64(action & 63)) & np.uint64(1) != 0


@njit(cache=True)
def _share_action(words, index):
    """Return whether one action is allowed in all points."""
    for w in range(words.shape[1]):
        common = ~np.uint64(0)
        for k in range(len(index)):
            common &= words[index[k], w]
            if common == 0:
                break
        if common != 0:
            return True
    return len(index) == 0


@njit(cache=True)
def _one_split(codes, sizes, words, index):
    """Return whether one split is enough."""
    n_words = words.shape[1]
    for c in range(codes.shape[1]):
        size = sizes[c]
        if size < 2:
            continue
        column = np.full((size, n_words), ~np.uint64(0))
        for k in range(len(index)):
            row = codes[index[k], c]
            for w in range(n_words):
                column[row, w] &= words[index[k], w]
        common = np.full(n_words, ~np.uint64(0))
        cut = 0
        while cut < size:
            alive = False
            for w in range(n_words):
                if common[w] & column[cut, w] != 0:
                    alive = True
            if not alive:
                break
            for w in range(n_words):
                common[w] &= column[cut, w]
            cut += 1
        if cut == size:
            return True
        for w in range(n_words):
            rest = ~np.uint64(0)
            for row in range(cut, size):
                rest &= column[row, w]
            if rest != 0:
                return True
    return False


def _side(codes: np.ndarray, index: np.ndarray, c: int, cut: int, left: bool) -> np.ndarray:
    """Return the points at or below a cut, or those above it."""
    return index[(codes[index, c] <= cut) == left]


@njit(cache=True)
def agrees(codes, sizes, words, index, depth, work):
    """Return whether some tree of at most `depth` gives every point an allowed action.

    A stack of its own instead of recursion, whose compiled form cannot be cached: level k holds the points of a branch
    with k splits above it, the feature whose cuts are searched, and where the bisection stands.
    """
    n, count = codes.shape[1], len(index)
    inside, length = np.empty((depth + 1, count), np.int64), np.zeros(depth + 1, np.int64)
    feature, low, found = np.zeros(depth + 1, np.int64), np.zeros(depth + 1, np.int64), np.zeros(depth + 1, np.int64)
    high, on_right = np.zeros(depth + 1, np.int64), np.zeros(depth + 1, np.bool_)
    inside[0] = index
    length[0] = count
    level, entering, answer = 0, True, False
    while True:
        mine = inside[level, : length[level]]
        if entering:
            entering = False
            work[0] -= length[level] * n
            if work[0] < 0:
                return True
            splits_left = depth - level
            if splits_left <= 1 or _share_action(words, mine):
                answer = _share_action(words, mine) or (splits_left == 1 and _one_split(codes, sizes, words, mine))
                if level == 0:
                    return answer
                level -= 1
                continue
            feature[level] = -1
            low[level], found[level], high[level], on_right[level] = 0, -1, -1, False
        elif on_right[level]:
            if answer:
                if level == 0:
                    return True
                level -= 1
                continue
            low[level], found[level], high[level] = 0, -1, -1
        else:
            middle = (found[level] + high[level] + 1) // 2
            if answer:
                found[level] = middle
            else:
                high[level] = middle - 1
        if found[level] < high[level]:
            middle, to_left = (found[level] + high[level] + 1) // 2, True
        elif found[level] >= low[level] and not on_right[level] and feature[level] >= 0:
            middle, to_left = found[level], False
            on_right[level] = True
        else:
            feature[level] += 1
            if feature[level] == n:
                answer = False
                if level == 0:
                    return False
                level -= 1
                continue
            least, most = sizes[feature[level]], -1
            for k in range(len(mine)):
                least = min(least, codes[mine[k], feature[level]])
                most = max(most, codes[mine[k], feature[level]])
            low[level], found[level], high[level], on_right[level] = least, least - 1, most - 1, False
            if found[level] >= high[level]:
                # Nothing to separate: as if the right branch had no tree, so that the next feature follows.
                on_right[level], answer = True, False
                continue
            middle, to_left = (found[level] + high[level] + 1) // 2, True
        size = 0
        for k in range(len(mine)):
            if (codes[mine[k], feature[level]] <= middle) == to_left:
                inside[level + 1, size] = mine[k]
                size += 1
        length[level + 1] = size
        level += 1
        entering = True


def highest_cut(
    codes: np.ndarray, sizes: np.ndarray, words: np.ndarray, index: np.ndarray, depth: int, c: int, work: np.ndarray
) -> int:
    """Return the highest cut of a feature whose left branch has a tree of one split less per path; -1 for none."""
    low = int(codes[index, c].min())
    found, high = low - 1, int(codes[index, c].max()) - 1
    while found < high:
        middle = (found + high + 1) // 2
        if agrees(codes, sizes, words, _side(codes, index, c, middle, True), depth - 1, work):
            found = middle
        else:
            high = middle - 1
    return found if found >= low else -1


def agreeing_tree(
    codes: np.ndarray, sizes: np.ndarray, words: np.ndarray, index: np.ndarray, depth: int,
    thresholds: Sequence[np.ndarray], work: np.ndarray,
) -> Shape | None:  # fmt: skip
    """Return a tree whose leaves are words [W] of actions all right for their points; None if there is none, or if
    the work is used up.

    thresholds  of each feature, one per cut
    """
    if _share_action(words, index):
        return np.bitwise_and.reduce(words[index], axis=0) if len(index) else words[:1].max(axis=0) | ~np.uint64(0)
    if depth == 0 or work[0] < 0:
        return None
    for c in range(codes.shape[1]):
        cut = highest_cut(codes, sizes, words, index, depth, c, work)
        if cut < 0:
            continue
        below, above = (_side(codes, index, c, cut, is_left) for is_left in (True, False))
        right = agreeing_tree(codes, sizes, words, above, depth - 1, thresholds, work)
        if right is not None:
            left = agreeing_tree(codes, sizes, words, below, depth - 1, thresholds, work)
            return None if left is None else Split(c, float(thresholds[c][cut]), left, right)
    return None


@njit(cache=True)
def _prefix_agrees(codes, sizes, words, wanted, background, order, count, depth, work):
    """Return whether a tree agrees with `words`, and with `wanted` in the first `count` points of `order`."""
    trial = words.copy()
    in_order = np.zeros(len(words), np.bool_)
    for k in range(count):
        p = order[k]
        in_order[p] = True
        for w in range(words.shape[1]):
            trial[p, w] = wanted[p, w]
    index = np.empty(len(background) + count, np.int64)
    size = 0
    for k in range(len(background)):
        if not in_order[background[k]]:
            index[size] = background[k]
            size += 1
    for k in range(count):
        index[size] = order[k]
        size += 1
    return agrees(codes, sizes, trial, index[:size], depth, work)


@njit(cache=True)
def smallest_conflict(codes, sizes, words, wanted, background, order, depth, work):
    """Return points of which no tree satisfies all, none of them dispensable, [K] int64; empty if a tree satisfies all,
    or if the work is used up.

    words       what points may do anyway; `background` [B] are those that it confines
    wanted      [P, W], a part of `words` that each point in `order` [N] is asked to keep to; earlier ones are preferred
    """
    words = words.copy()
    found = np.empty(len(order), np.int64)
    size = 0
    fixed = np.empty(len(background) + len(order), np.int64)
    fixed[: len(background)] = background
    n_fixed = len(background)
    count = len(order)
    if _prefix_agrees(codes, sizes, words, wanted, background, order, count, depth, work):
        return found[:0]
    while True:
        if not _prefix_agrees(codes, sizes, words, wanted, fixed[:n_fixed], order, 0, depth, work):
            return found[:size]
        low, high = 0, count  # a prefix of `low` agrees, one of `high` does not
        while high - low > 1:
            middle = (low + high) // 2
            if _prefix_agrees(codes, sizes, words, wanted, fixed[:n_fixed], order, middle, depth, work):
                low = middle
            else:
                high = middle
        if work[0] < 0:
            return found[:0]
        p = order[high - 1]
        found[size] = p
        size += 1
        known = False
        for k in range(n_fixed):
            if fixed[k] == p:
                known = True
        if not known:
            fixed[n_fixed] = p
            n_fixed += 1
        for w in range(words.shape[1]):
            words[p, w] = wanted[p, w]
        count = high - 1
