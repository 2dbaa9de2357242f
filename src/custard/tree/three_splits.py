"""What the best tree of three splits per path collects, from histograms of three features at a time, compiled.

A tree's first two splits on a path, taken in either order, leave the same states. So for every two sides of splits it
is computed once what the best further split collects where both hold. With sums over the values of three features, in
prefix form, that takes a few additions, whatever the number of states.

Codes, values and sizes are those of `custard.tree.lookahead`; splits have no price here.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from custard.core.numba_tools import njit
from custard.tree.lookahead import leaf_total

__all__ = ["best_three", "fits_three"]

MAX_HISTOGRAM_NUMBERS = 4_000_000  # of two features, and of three: 32 MB each


def fits_three(sizes: np.ndarray, n_actions: int) -> bool:
    """Return whether the histograms of `best_three` need little memory.

    >>> fits_three(np.full(16, 16), 4), fits_three(np.full(2, 500), 2)
    (True, False)
    """
    most, n = float(sizes.max(initial=1)), len(sizes)
    return max(most**3 * n_actions, n * n * most * most * max(n_actions, 4)) <= MAX_HISTOGRAM_NUMBERS


@njit(cache=True)
def best_three(codes, value, sizes, index):
    """Return what the best tree of one to three splits per path collects, and its first split: feature, cut.

    The split is -1, -1 where none separates states.
    """
    ranks, kept, code_of, present = _compressed(codes, sizes, index)
    n, n_actions, most = len(kept), value.shape[1], code_of.shape[1]
    worth = np.empty((len(index), n_actions))
    everything = np.zeros(n_actions)
    for i in range(len(index)):
        for a in range(n_actions):
            worth[i, a] = value[index[i], a]
            everything[a] += worth[i, a]
    pair = np.zeros((n, n, most, most, n_actions))  # first <= second feature
    inner = np.full((n, n, most, most, 4), -1e300)  # what one more split collects where two sides hold, first < second
    sums = np.empty((most, most, most, n_actions))
    is_binary = most == 2
    corner = np.zeros((n, n, n, n_actions) if is_binary else (0, 0, 0, 0))
    if is_binary:
        _binary_sums(ranks, worth, everything, pair, corner)
    else:
        for c in range(n):
            for d in range(c, n):
                _pair_sums(ranks[c], ranks[d], worth, present[c], present[d], pair[c, d])
    for c in range(n):
        for d in range(c + 1, n):
            for e in range(d + 1, n):
                x, y, z = present[c], present[d], present[e]
                if is_binary:
                    for a in range(n_actions):
                        sums[0, 0, 0, a], sums[1, 1, 1, a] = corner[c, d, e, a], everything[a]
                        sums[0, 0, 1, a], sums[0, 1, 1, a] = pair[c, d, 0, 0, a], pair[c, c, 0, 0, a]
                        sums[0, 1, 0, a], sums[1, 0, 1, a] = pair[c, e, 0, 0, a], pair[d, d, 0, 0, a]
                        sums[1, 0, 0, a], sums[1, 1, 0, a] = pair[d, e, 0, 0, a], pair[e, e, 0, 0, a]
                else:
                    _triple_sums(ranks[c], ranks[d], ranks[e], worth, x, y, z, sums)
                _split_third(sums, x, y, z, 0, inner[c, d])
                _split_third(sums, x, z, y, 1, inner[c, e])
                _split_third(sums, y, z, x, 2, inner[d, e])
    two = np.full((n, most, 2), -1e300)  # what two more splits collect on each side of a first one
    for c in range(n):
        _split_same(pair, present, c, two)
        for d in range(c + 1, n):
            _split_either(pair[c, d], present[c], present[d], inner[c, d])
            for k in range(present[c] - 1):
                for p in range(present[d] - 1):
                    g = inner[c, d, k, p]
                    two[c, k, 0] = max(two[c, k, 0], g[0] + g[1])
                    two[c, k, 1] = max(two[c, k, 1], g[2] + g[3])
                    two[d, p, 0] = max(two[d, p, 0], g[0] + g[2])
                    two[d, p, 1] = max(two[d, p, 1], g[1] + g[3])
    best, best_c, best_cut = -1e300, -1, -1
    for c in range(n):
        for k in range(present[c] - 1):
            total = two[c, k, 0] + two[c, k, 1]
            if total > best + 1e-12 * abs(best):
                best, best_c, best_cut = total, kept[c], code_of[c, k]
    return best, best_c, best_cut


@njit(cache=True)
def _compressed(codes, sizes, index):
    """Return the codes of some states without those that none of them has.

    Returns ranks [m, M] (each code's number among those present, of the m features that differ), kept [m] (these
    features), code_of [m, most] (the code of each rank) and present [m] (how many ranks each feature has).
    """
    n, count = codes.shape[1], len(index)
    largest = sizes.max()
    number = np.zeros((n, largest), np.int64)
    for i in index:
        for c in range(n):
            number[c, codes[i, c]] = 1
    kept, present = np.empty(n, np.int64), np.empty(n, np.int64)
    m = most = 0
    for c in range(n):
        seen = 0
        for code in range(sizes[c]):
            if number[c, code]:
                number[c, code] = seen
                seen += 1
        if seen > 1:
            kept[m], present[m] = c, seen
            m += 1
            most = max(most, seen)
    ranks, code_of = np.empty((m, count), np.int64), np.zeros((m, most), np.int64)
    for k in range(m):
        for i in range(count):
            code = codes[index[i], kept[k]]
            rank = number[kept[k], code]
            ranks[k, i] = rank
            code_of[k, rank] = code
        if present[k] == 2 and 2 * ranks[k].sum() < count:  # the sides of one cut may change places: 0 is the rarer one
            ranks[k] = 1 - ranks[k]
    return ranks, kept[:m], code_of, present[:m]


@njit(cache=True)
def _pair_sums(first, second, worth, x, y, sums):
    """Add up what states with ranks of at most k and p collect, [most, most, A]."""
    n_actions = worth.shape[1]
    for i in range(len(first)):
        for a in range(n_actions):
            sums[first[i], second[i], a] += worth[i, a]
    for k in range(x):
        for p in range(1, y):
            for a in range(n_actions):
                sums[k, p, a] += sums[k, p - 1, a]
        if k > 0:
            for p in range(y):
                for a in range(n_actions):
                    sums[k, p, a] += sums[k - 1, p, a]


@njit(cache=True)
def _binary_sums(ranks, worth, everything, pair, corner):
    """Add up what states collect where one, two (`pair`) or three (`corner`) binary features have rank 0."""
    n, n_actions = len(ranks), worth.shape[1]
    zeros = np.empty(n, np.int64)
    for i in range(len(worth)):
        count = 0
        for c in range(n):
            if ranks[c, i] == 0:
                zeros[count] = c
                count += 1
        for j in range(count):
            c = zeros[j]
            for k in range(j, count):
                d = zeros[k]
                for a in range(n_actions):
                    pair[c, d, 0, 0, a] += worth[i, a]
                if k > j:
                    for m in range(k + 1, count):
                        for a in range(n_actions):
                            corner[c, d, zeros[m], a] += worth[i, a]
    for c in range(n):
        for d in range(c, n):
            for a in range(n_actions):
                pair[c, d, 0, 1, a] = pair[c, c, 0, 0, a]
                pair[c, d, 1, 0, a] = pair[d, d, 0, 0, a]
                pair[c, d, 1, 1, a] = everything[a]


@njit(cache=True)
def _triple_sums(first, second, third, worth, x, y, z, sums):
    """Write what states with ranks of at most k, p and q collect, [most, most, most, A]."""
    n_actions = worth.shape[1]
    for k in range(x):
        for p in range(y):
            for q in range(z):
                for a in range(n_actions):
                    sums[k, p, q, a] = 0.0
    for i in range(len(first)):
        for a in range(n_actions):
            sums[first[i], second[i], third[i], a] += worth[i, a]
    for k in range(x):
        for p in range(y):
            for q in range(1, z):
                for a in range(n_actions):
                    sums[k, p, q, a] += sums[k, p, q - 1, a]
            if p > 0:
                for q in range(z):
                    for a in range(n_actions):
                        sums[k, p, q, a] += sums[k, p - 1, q, a]
        if k > 0:
            for p in range(y):
                for q in range(z):
                    for a in range(n_actions):
                        sums[k, p, q, a] += sums[k - 1, p, q, a]


@njit(cache=True)
def _split_third(sums, size_x, size_y, size_z, order, inner):
    """Raise `inner` [most, most, 4] to what a split of the third feature collects on the sides of cuts k and p.

    The four: at most k and p, at most k and above p, above k and at most p, above both.

    order  which of the three features of `sums` is the third: 0 the last, 1 the middle one, 2 the first
    """
    n_actions = sums.shape[3]
    x, y, z = size_x - 1, size_y - 1, size_z - 1
    for k in range(x):
        for p in range(y):
            b0 = b1 = b2 = b3 = -1e300
            for q in range(z):
                l0 = l1 = l2 = l3 = h0 = h1 = h2 = h3 = -1e300
                for a in range(n_actions):
                    if order == 0:
                        s, sy, sx, sxy = sums[k, p, q, a], sums[k, y, q, a], sums[x, p, q, a], sums[x, y, q, a]
                        t, ty, tx, txy = sums[k, p, z, a], sums[k, y, z, a], sums[x, p, z, a], sums[x, y, z, a]
                    elif order == 1:
                        s, sy, sx, sxy = sums[k, q, p, a], sums[k, q, y, a], sums[x, q, p, a], sums[x, q, y, a]
                        t, ty, tx, txy = sums[k, z, p, a], sums[k, z, y, a], sums[x, z, p, a], sums[x, z, y, a]
                    else:
                        s, sy, sx, sxy = sums[q, k, p, a], sums[q, k, y, a], sums[q, x, p, a], sums[q, x, y, a]
                        t, ty, tx, txy = sums[z, k, p, a], sums[z, k, y, a], sums[z, x, p, a], sums[z, x, y, a]
                    u1, u2, u3 = sy - s, sx - s, sxy - sy - sx + s
                    v1, v2, v3 = ty - t, tx - t, txy - ty - tx + t
                    l0, h0 = max(l0, s), max(h0, t - s)
                    l1, h1 = max(l1, u1), max(h1, v1 - u1)
                    l2, h2 = max(l2, u2), max(h2, v2 - u2)
                    l3, h3 = max(l3, u3), max(h3, v3 - u3)
                b0, b1 = max(b0, l0 + h0), max(b1, l1 + h1)
                b2, b3 = max(b2, l2 + h2), max(b3, l3 + h3)
            inner[k, p, 0], inner[k, p, 1] = max(inner[k, p, 0], b0), max(inner[k, p, 1], b1)
            inner[k, p, 2], inner[k, p, 3] = max(inner[k, p, 2], b2), max(inner[k, p, 3], b3)


@njit(cache=True)
def _split_either(pair, size_c, size_d, inner):
    """Raise `inner` [most, most, 4] to what a leaf, or one more split of either feature itself, collects there.

    pair  [most, most, A], of the two features
    """
    n_actions = pair.shape[2]
    x, y = size_c - 1, size_d - 1
    whole, below = np.empty((4, n_actions)), np.empty(n_actions)
    for k in range(x):
        for p in range(y):
            for a in range(n_actions):
                s, sy, sx, sxy = pair[k, p, a], pair[k, y, a], pair[x, p, a], pair[x, y, a]
                whole[0, a], whole[1, a], whole[2, a], whole[3, a] = s, sy - s, sx - s, sxy - sy - sx + s
            for side in range(4):
                best = leaf_total(whole[side])
                upper_c, upper_d = side >= 2, side % 2 == 1
                for q in range(k + 1 if upper_c else 0, x if upper_c else k):
                    for a in range(n_actions):
                        low = pair[q, y, a] - pair[q, p, a] if upper_d else pair[q, p, a]
                        if upper_c:
                            low -= pair[k, y, a] - pair[k, p, a] if upper_d else pair[k, p, a]
                        below[a] = low
                    best = max(best, _both(below, whole[side]))
                for q in range(p + 1 if upper_d else 0, y if upper_d else p):
                    for a in range(n_actions):
                        low = pair[x, q, a] - pair[k, q, a] if upper_c else pair[k, q, a]
                        if upper_d:
                            low -= pair[x, p, a] - pair[k, p, a] if upper_c else pair[k, p, a]
                        below[a] = low
                    best = max(best, _both(below, whole[side]))
                inner[k, p, side] = max(inner[k, p, side], best)


@njit(cache=True)
def _both(below, whole):
    """Return what the best actions below a cut and above it collect together."""
    low = high = -1e300
    for a in range(len(below)):
        low, high = max(low, below[a]), max(high, whole[a] - below[a])
    return low + high


@njit(cache=True)
def _split_same(pair, present, c, two):
    """Raise `two` [n, most, 2] to what a leaf, or a second split of the same feature, collects beside cuts of it.

    What lies between two cuts, or beyond one, is split once more by any feature.
    """
    n, n_actions = len(present), pair.shape[4]
    x = present[c] - 1
    whole, below = np.empty(n_actions), np.empty(n_actions)
    once = np.full((x + 1, x + 1), -1e300)  # of codes above k - 1 and at most m: what one split collects
    for k in range(x + 1):
        for m in range(k, x + 1):
            if k == 0 and m == x:
                continue
            for a in range(n_actions):
                whole[a] = pair[c, c, m, m, a] - (pair[c, c, k - 1, k - 1, a] if k > 0 else 0.0)
            best = leaf_total(whole)
            for e in range(n):
                last = present[e] - 1
                for q in range(k if e == c else 0, m if e == c else last):
                    for a in range(n_actions):
                        if e == c:
                            below[a] = pair[c, c, q, q, a] - (pair[c, c, k - 1, k - 1, a] if k > 0 else 0.0)
                        elif c < e:
                            below[a] = pair[c, e, m, q, a] - (pair[c, e, k - 1, q, a] if k > 0 else 0.0)
                        else:
                            below[a] = pair[e, c, q, m, a] - (pair[e, c, q, k - 1, a] if k > 0 else 0.0)
                    best = max(best, _both(below, whole))
            once[k, m] = best
    for k in range(x):
        two[c, k, 0], two[c, k, 1] = max(two[c, k, 0], once[0, k]), max(two[c, k, 1], once[k + 1, x])
        for m in range(k):
            two[c, k, 0] = max(two[c, k, 0], once[0, m] + once[m + 1, k])
        for m in range(k + 1, x):
            two[c, k, 1] = max(two[c, k, 1], once[k + 1, m] + once[m + 1, x])
