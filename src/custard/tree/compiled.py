"""Prediction for batches, compiled: no branch depends on the data.

A tree's thresholds cut each feature's line into intervals, and its decisions are constant on the cells of that grid.
Comparing a block of rows with every threshold of a feature is one vector instruction a few rows; adding up strides
gives the number of each row's cell, and a table gives the answer. Walking the tree instead would guess, and mispredict,
a branch at every node.

Where one table would be too large, features are put into groups with a table each, whose entries are the sets of
leaves still possible (QuickScorer's bit masks: Lucchese et al., SIGIR 2015). Trees of more than 64 leaves are walked,
four rows at a time and without branches.

Observations that are float32 are compared in float32 with thresholds rounded down, which decides exactly as comparing
both in float64 does.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from custard.threads import in_parts
from custard.tree.rounding import round_down

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["leaf_of", "predictor"]

SEARCHED, FEW = 7, 3  # how many thresholds of a feature are searched together; what is left over may be few
CACHE = 4096  # entries of the rows handled together: they stay in the nearest cache
TABLE_BITS = 13  # the logarithm of the cells one table may have
MANY = 100_000  # rows from which several threads pay
WIDTH = 16  # rows of at most this many features get a loop compiled for their length
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)


def predictor(tree: Tree) -> Callable[[np.ndarray], np.ndarray]:
    """A function from checked observations [B, n] to actions [B] or [B, k]."""
    # Vector actions are looked up by leaf afterwards; a single number comes out of the loop itself.
    payload = tree.value if tree.actions.discrete else np.arange(tree.n_nodes, dtype=np.int64)
    decide = _by_cells(tree, payload) if 1 < tree.n_leaves <= 64 else _by_walking(tree, payload)

    def predict(x: np.ndarray) -> np.ndarray:
        if x.dtype != np.float64 and x.dtype != np.float32:
            x = x.astype(np.float64)
        if not x.flags.c_contiguous:
            x = np.ascontiguousarray(x)
        out = np.empty(len(x), dtype=np.int64)
        in_parts(lambda a, b: decide(x[a:b], out[a:b]), len(x), parallel=len(x) >= MANY)
        return out if tree.actions.discrete else tree.value[out]

    return predict


def _by_cells(tree: Tree, payload: np.ndarray) -> Callable[[np.ndarray, np.ndarray], None]:
    inner = np.flatnonzero(tree.feature >= 0)
    cuts = {int(c): np.unique(tree.threshold[inner[tree.feature[inner] == c]]) for c in np.unique(tree.feature[inner])}
    bits = {c: len(cuts[c]).bit_length() for c in cuts}  # a feature with k cuts has the ranks 0…k
    groups: list[list[int]] = []
    for c in sorted(cuts, key=lambda c: bits[c]):
        if not groups or sum(bits[d] for d in groups[-1]) + bits[c] > TABLE_BITS:
            groups.append([])
        groups[-1].append(c)

    leaves = tree.leaves()
    bit = np.zeros(tree.n_nodes, dtype=np.uint64)
    bit[leaves] = np.uint64(1) << np.arange(len(leaves), dtype=np.uint64)
    below = bit.copy()  # the leaves under each node
    for node in inner[::-1]:
        below[node] = below[tree.children_left[node]] | below[tree.children_right[node]]

    used, threshold, stride = [], [], []  # type: ignore[var-annotated]
    first, group_first, base = [0], [0], [0]
    tables = []
    for group in groups:
        cells = 1 << sum(bits[c] for c in group)
        possible = np.full(cells, below[0], dtype=np.uint64)
        low_bits = 0
        for c in group:
            rank = (np.arange(cells) >> low_bits) & ((1 << bits[c]) - 1)  # how many of the cuts lie below the value
            for node in inner[tree.feature[inner] == c]:
                right = rank > np.searchsorted(cuts[c], tree.threshold[node])
                possible &= np.where(right, ~below[tree.children_left[node]], ~below[tree.children_right[node]])
            rest = len(cuts[c]) % SEARCHED
            threshold += [*cuts[c], *[np.inf] * (0 if rest == 0 else FEW - rest if rest <= FEW else SEARCHED - rest)]
            used.append(c)
            stride.append(1 << low_bits)
            first.append(len(threshold))
            low_bits += bits[c]
        group_first.append(len(used))
        base.append(base[-1] + cells)
        tables.append(possible)
    table = np.concatenate(tables)
    by_hash = np.zeros(64, dtype=np.int64)
    for leaf in leaves:
        by_hash[int(bit[leaf]) * int(_DE_BRUIJN) % 2**64 >> 58] = payload[leaf]
    if len(groups) == 1:  # one leaf is left in each cell: put its action into the table itself
        table = by_hash[(table * _DE_BRUIJN) >> np.uint64(58)].view(np.uint64)

    n = tree.features.n
    shape = (0,) * n if n <= WIDTH else ()
    rows = int(np.clip(CACHE // n, 64, 1024))
    # In short rows four neighbouring columns cost little more to read than one; `slot` is where each ends up.
    width = 4 if 4 <= n <= 6 else 1
    starts = sorted({min(c - c % 4, n - 4) for c in used}) if width == 4 else sorted(set(used))
    slot = [next(width * q + c - s for q, s in enumerate(starts) if s <= c < s + width) for c in used]
    plan = np.array(group_first), np.array(base), np.array(starts), np.array(slot), np.array(first)
    exact = np.array(stride, dtype=np.float64), np.array(threshold)
    single = exact[0].astype(np.float32), round_down(exact[1])

    def decide(x: np.ndarray, out: np.ndarray) -> None:
        cut = exact if x.dtype == np.float64 else single
        _cells(x.reshape(-1), shape, n, rows, *plan, *cut, table, by_hash, out)  # type: ignore[call-arg]

    return decide


@njit(cache=True, nogil=True)
def _cells(x, shape, n, most, group_first, base, starts, slot, first, stride, threshold, table, by_hash, out):
    if len(shape) > 0:
        n = len(shape)  # known when compiling, so that a column is read by vector instructions
    groups = len(base) - 1
    top = x.dtype.type(np.inf)
    columns = np.empty((4 * len(starts), most), x.dtype)
    cell = np.empty(most, x.dtype)  # counted in x's own type, exactly, so that vector lanes match
    bits = np.empty(most, np.uint64)
    for start in range(0, len(out), most):
        rows = min(len(out) - start, most)
        block = x[n * start : n * (start + rows)]
        result = out[start : start + rows]
        for q in range(len(starts)):
            entries = block[starts[q] :]
            if 4 <= n <= 6:
                a, b, c, d = columns[4 * q], columns[4 * q + 1], columns[4 * q + 2], columns[4 * q + 3]
                for k in range(rows):
                    a[k] = entries[n * k]
                    b[k] = entries[n * k + 1]
                    c[k] = entries[n * k + 2]
                    d[k] = entries[n * k + 3]
            else:
                a = columns[q]
                for k in range(rows):
                    a[k] = entries[n * k]
        for g in range(groups):
            for k in range(rows):
                cell[k] = base[g]
            for u in range(group_first[g], group_first[g + 1]):
                column = columns[slot[u]]
                one = stride[u]
                two, four, none = one + one, one + one + one + one, one - one
                j = first[u]
                while j + SEARCHED <= first[u + 1]:
                    # A binary search among seven thresholds by selection: three comparisons and no branch.
                    t0, t1, t2, t3 = threshold[j], threshold[j + 1], threshold[j + 2], threshold[j + 3]
                    t4, t5, t6 = threshold[j + 4], threshold[j + 5], threshold[j + 6]
                    for k in range(rows):
                        v = column[k]
                        v = v if v <= top else top  # NaN goes right everywhere
                        high = v > t3
                        middle = v > (t5 if high else t1)
                        low = v > ((t6 if middle else t4) if high else (t2 if middle else t0))
                        cell[k] += (four if high else none) + (two if middle else none) + (one if low else none)
                    j += SEARCHED
                if j < first[u + 1]:
                    t0, t1, t2 = threshold[j], threshold[j + 1], threshold[j + 2]
                    for k in range(rows):
                        v = column[k]
                        v = v if v <= top else top
                        middle = v > t1
                        low = v > (t2 if middle else t0)
                        cell[k] += (two if middle else none) + (one if low else none)
            if groups == 1:
                for k in range(rows):
                    result[k] = table[int(cell[k])]
            elif g == 0:
                for k in range(rows):
                    bits[k] = table[int(cell[k])]
            else:
                for k in range(rows):
                    bits[k] &= table[int(cell[k])]
        if groups > 1:
            for k in range(rows):
                result[k] = by_hash[(bits[k] * _DE_BRUIJN) >> np.uint64(58)]


@njit(cache=True, nogil=True)
def leaf_of(tree, x):
    """The leaf that one state [n] reaches; `tree` is the tuple of a tree's arrays."""
    feature, threshold, left, right, _ = tree
    node = 0
    while feature[node] >= 0:
        node = left[node] if x[feature[node]] <= threshold[node] else right[node]
    return node


def _by_walking(tree: Tree, payload: np.ndarray) -> Callable[[np.ndarray, np.ndarray], None]:
    leaf = tree.feature < 0
    itself = np.arange(tree.n_nodes)
    feature = np.where(leaf, 0, tree.feature)
    kids = np.stack([np.where(leaf, itself, tree.children_left), np.where(leaf, itself, tree.children_right)], axis=1)
    children = np.ascontiguousarray(kids.reshape(-1))
    depth = tree.depth

    def decide(x: np.ndarray, out: np.ndarray) -> None:
        _walk(x, feature, tree.threshold, children, depth, payload, out)

    return decide


@njit(cache=True, nogil=True)
def _walk(x, feature, threshold, children, depth, payload, out):
    """Leaves lead to themselves, so that every row takes `depth` steps; four rows at a time, or until all rest."""
    rows = len(out)
    for i in range(0, rows, 4):
        i1, i2, i3 = min(i + 1, rows - 1), min(i + 2, rows - 1), min(i + 3, rows - 1)
        a = b = c = d = 0
        for level in range(depth):
            if level & 31 == 31 and (
                children[2 * a] == a and children[2 * b] == b and children[2 * c] == c and children[2 * d] == d
            ):
                break
            a = children[2 * a + (not (x[i, feature[a]] <= threshold[a]))]
            b = children[2 * b + (not (x[i1, feature[b]] <= threshold[b]))]
            c = children[2 * c + (not (x[i2, feature[c]] <= threshold[c]))]
            d = children[2 * d + (not (x[i3, feature[d]] <= threshold[d]))]
        out[i], out[i1], out[i2], out[i3] = payload[a], payload[b], payload[c], payload[d]
