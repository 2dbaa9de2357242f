"""The first split of the best tree of up to three splits, from histograms, compiled.

Features are small whole numbers here, `codes`: how many thresholds of the grid a value exceeds. Cut k of a feature
sends codes of at most k to the left. The functions share their parameters, N states of n features and A actions:

    codes  [N, n] int32    each state's code of each feature
    value  [N, A] float64  what each action collects in each state
    sizes  [n] int64       how many codes each feature has
    index  [M] int64       the states that count
    price  float           what one split costs per state that meets it
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from custard.core.numba_tools import njit

__all__ = ["best_first_split", "leaf_total", "purest_split"]


@njit(cache=True)
def best_first_split(codes, value, sizes, index, depth, price):
    """Return what the best tree of at most `depth` (1 to 3) collects, and its first split: feature, cut."""
    n, n_actions = codes.shape[1], value.shape[1]
    if depth == 1:
        return _best_one(codes, value, sizes, index, price)
    if depth == 2:
        total, c, cut, _ = _best_two(codes, value, sizes, index, price)
        return total, c, cut
    ceiling = 0.0  # no branch collects more than the best action in every state
    best_value = np.empty(len(index))
    for k in range(len(index)):
        m = value[index[k], 0]
        for a in range(1, n_actions):
            m = max(m, value[index[k], a])
        best_value[k] = m
        ceiling += m
    best, best_c, best_cut, _ = _best_two(codes, value, sizes, index, price)
    left, right = np.empty(len(index), np.int64), np.empty(len(index), np.int64)
    for c in range(n):
        for cut in range(sizes[c] - 1):
            a = b = 0
            for k in range(len(index)):
                if codes[index[k], c] <= cut:
                    left[a] = index[k]
                    a += 1
                else:
                    right[b] = index[k]
                    b += 1
            if a == 0 or b == 0 or ceiling - price * len(index) <= best:
                continue
            total = -price * len(index)
            first, _, _, leaf = _best_two(codes, value, sizes, left[:a], price)
            total += max(first, leaf)
            rest = 0.0
            for k in range(len(index)):
                if codes[index[k], c] > cut:
                    rest += best_value[k]
            if total + rest <= best:
                continue
            second, _, _, leaf = _best_two(codes, value, sizes, right[:b], price)
            total += max(second, leaf)
            if total > best + 1e-12 * abs(best):
                best, best_c, best_cut = total, c, cut
    return best, best_c, best_cut


@njit(cache=True)
def purest_split(codes, label, weight, sizes, index, n_labels):
    """Return the split of the lowest weighed Gini impurity: feature and cut, -1 where none separates. CART's rule.

    label   [N] int64    the best action of each state
    weight  [N] float64  what each state counts
    """
    best, best_c, best_cut = 1e300, -1, -1
    everything = np.zeros(n_labels)
    for i in index:
        everything[label[i]] += weight[i]
    for c in range(codes.shape[1]):
        sums, number = np.zeros((sizes[c], n_labels)), np.zeros(sizes[c], np.int64)
        for i in index:
            sums[codes[i, c], label[i]] += weight[i]
            number[codes[i, c]] += 1
        below, seen = np.zeros(n_labels), 0
        for cut in range(sizes[c] - 1):
            seen += number[cut]
            low = high = low_squares = high_squares = 0.0
            for k in range(n_labels):
                below[k] += sums[cut, k]
                above = everything[k] - below[k]
                low, high = low + below[k], high + above
                low_squares, high_squares = low_squares + below[k] ** 2, high_squares + above**2
            if seen == 0 or seen == len(index) or number[cut] == 0:
                continue
            impurity = low + high
            impurity -= low_squares / low if low > 0.0 else 0.0
            impurity -= high_squares / high if high > 0.0 else 0.0
            if impurity < best - 1e-12 * abs(best):
                best, best_c, best_cut = impurity, c, cut
    return best_c, best_cut


@njit(cache=True)
def leaf_total(sums):
    """Return what the best action collects, of sums [A]."""
    best = sums[0]
    for a in range(1, len(sums)):
        best = max(best, sums[a])
    return best


@njit(cache=True)
def _best_one(codes, value, sizes, index, price):
    """Return what the best tree of exactly one split collects, its feature and its cut."""
    n_actions = value.shape[1]
    best, best_c, best_cut = -1e300, -1, -1
    everything = np.zeros(n_actions)
    for i in index:
        for a in range(n_actions):
            everything[a] += value[i, a]
    below = np.empty(n_actions)
    for c in range(codes.shape[1]):
        sums = np.zeros((sizes[c], n_actions))
        for i in index:
            for a in range(n_actions):
                sums[codes[i, c], a] += value[i, a]
        for a in range(n_actions):
            below[a] = 0.0
        for cut in range(sizes[c] - 1):
            low = high = -np.inf
            for a in range(n_actions):
                below[a] += sums[cut, a]
                low = max(low, below[a])
                high = max(high, everything[a] - below[a])
            total = low + high - price * len(index)
            if total > best + 1e-12 * abs(best):
                best, best_c, best_cut = total, c, cut
    return best, best_c, best_cut


@njit(cache=True)
def _best_two(codes, value, sizes, index, price):
    """Return what the best tree of one or two splits per path collects, its first split, and what a leaf collects."""
    n, n_actions, count = codes.shape[1], value.shape[1], len(index)
    widest = sizes.max()
    everything = np.zeros(n_actions)
    for i in index:
        for a in range(n_actions):
            everything[a] += value[i, a]
    # What the best second stage of each branch of each first split collects, over all second features.
    lows, highs = np.full((n, widest), -np.inf), np.full((n, widest), -np.inf)
    number = np.zeros((n, widest))  # how many states lie at or below each first cut
    sums = np.empty((widest, widest, n_actions))
    low, high = np.empty(n_actions), np.empty(n_actions)
    low_below, high_below = np.empty(n_actions), np.empty(n_actions)
    column_low, column_all = np.empty((widest, n_actions)), np.empty((widest, n_actions))
    # The loops below stay in one function: handed over, the arrays might overlap for all the compiler knows, and the
    # sums take a tenth longer.
    for c in range(n):
        for i in index:
            number[c, codes[i, c]] += 1.0
        for cut in range(1, sizes[c]):
            number[c, cut] += number[c, cut - 1]
        for d in range(n):
            for p in range(sizes[c]):
                for q in range(sizes[d]):
                    for a in range(n_actions):
                        sums[p, q, a] = 0.0
            for i in index:
                p, q = codes[i, c], codes[i, d]
                for a in range(n_actions):
                    sums[p, q, a] += value[i, a]
            for q in range(sizes[d]):
                for a in range(n_actions):
                    column_low[q, a] = column_all[q, a] = 0.0
            for p in range(sizes[c]):
                for q in range(sizes[d]):
                    for a in range(n_actions):
                        column_all[q, a] += sums[p, q, a]
            for cut in range(sizes[c] - 1):
                for a in range(n_actions):
                    low[a] = 0.0
                for q in range(sizes[d]):
                    for a in range(n_actions):
                        column_low[q, a] += sums[cut, q, a]
                        low[a] += column_low[q, a]
                for a in range(n_actions):
                    high[a] = everything[a] - low[a]
                below = number[c, cut]
                best_low, best_high = leaf_total(low), leaf_total(high)
                for a in range(n_actions):
                    low_below[a] = high_below[a] = 0.0
                for second in range(sizes[d] - 1):
                    ll = lr = hl = hr = -np.inf
                    for a in range(n_actions):
                        low_below[a] += column_low[second, a]
                        high_below[a] += column_all[second, a] - column_low[second, a]
                        ll, lr = max(ll, low_below[a]), max(lr, low[a] - low_below[a])
                        hl, hr = max(hl, high_below[a]), max(hr, high[a] - high_below[a])
                    best_low = max(best_low, ll + lr - price * below)
                    best_high = max(best_high, hl + hr - price * (count - below))
                lows[c, cut] = max(lows[c, cut], best_low)
                highs[c, cut] = max(highs[c, cut], best_high)
    return *_best_cut(lows, highs, number, sizes, count, price), leaf_total(everything)


@njit(cache=True)
def _best_cut(lows, highs, number, sizes, count, price):
    """Return the best first split, of lows and highs [n, P]: what it collects, its feature and its cut.

    `number` [n, P] says how many of the `count` states lie at or below each cut: those that separate none are left out.
    """
    best, best_c, best_cut = -1e300, -1, -1
    for c in range(len(sizes)):
        for cut in range(sizes[c] - 1):
            if number[c, cut] == 0 or number[c, cut] == count:
                continue
            total = lows[c, cut] + highs[c, cut] - price * count
            if total > best + 1e-12 * abs(best):
                best, best_c, best_cut = total, c, cut
    return best, best_c, best_cut
