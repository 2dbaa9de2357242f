"""Prediction for batches, compiled: no branch depends on the data.

Walking a tree guesses, and mispredicts, a branch at every node. Here every row is compared with every threshold
instead, sixteen rows at a time: a row that is not at or below a threshold loses the leaves to the left of that node
from the set of leaves it may still reach, kept as bits, and the lowest bit left at the end is its leaf (QuickScorer:
Lucchese et al., SIGIR 2015). Rows are handled in blocks that stay in the nearest cache, first turned into columns, and
the next block is fetched while the present one is compared. Trees of more than 64 leaves are walked, four rows at a
time and without branches.

Observations that are float32 are compared in float32 with thresholds rounded down, which decides exactly as comparing
both in float64 does.

Sums that a tree asks about are computed first, in float64, and put beside the observation's own features. Compiled code
here has no fast-math: products are rounded before they are added (`custard.core.sums`).
"""
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from custard.core.numba_tools import njit
from custard.core.threads import in_parts
from custard.tree.lanes import LANES, TESTS_PER_PASS, lowest_bit, narrow, prefetch, transpose
from custard.tree.rounding import round_down

if TYPE_CHECKING:
    from custard.core.features import Features
    from custard.tree.tree import Tree

__all__ = ["compiled_sums", "leaf_of", "linear_action", "predictor", "sum_value"]

MAX_BLOCK_ROWS = 192  # rows handled together; fewer where rows are long
BLOCK_ENTRIES = 1024  # entries of the rows handled together: they stay in the nearest cache
CACHE_LINE_BYTES = 64  # bytes that memory hands over together
ROWS_EXTENDED = 2048  # rows whose sums are computed before they are compared
MIN_ROWS_FOR_THREADS = 100_000  # rows from which several threads pay


def predictor(tree: Tree) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from checked observations [B, n_raw] or [B, n] to actions [B] or [B, k]."""
    if tree.is_linear:
        return _linear_predictor(tree)
    if tree.features.derived:  # none of which is asked about
        n_raw, plain = tree.features.n_raw, predictor(tree.keep_used_sums())
        return lambda x: plain(x[:, :n_raw])
    # Vector actions are looked up by leaf afterwards; a single number comes out of the loop itself.
    discrete = tree.actions.discrete
    payload = tree.value if discrete else np.arange(tree.n_nodes, dtype=np.int64)
    decide = _decide_by_masks(tree, payload) if 1 < tree.n_leaves <= 64 else _decide_by_walking(tree, payload)

    def predict(x: np.ndarray) -> np.ndarray:
        if x.dtype != np.float64 and x.dtype != np.float32:
            x = x.astype(np.float64)
        if not x.flags.c_contiguous:
            x = np.ascontiguousarray(x)
        out = np.empty(len(x), dtype=np.int64)
        if len(x) < MIN_ROWS_FOR_THREADS:
            decide(x, out)
        else:
            in_parts(lambda a, b: decide(x[a:b], out[a:b]), len(x))
        return out if discrete else tree.value[out]

    return predict


def _linear_predictor(tree: Tree) -> Callable[[np.ndarray], np.ndarray]:
    """Return the predictor of a tree with sums or linear leaves."""
    small = tree.keep_used_sums()
    features, n_raw, n = small.features, small.features.n_raw, small.features.n
    number = np.arange(small.n_nodes, dtype=np.int64)
    payload = small.value if small.actions.discrete else number
    decide = _decide_by_masks(small, payload) if 1 < small.n_leaves <= 64 else _decide_by_walking(small, payload)
    sums = compiled_sums(features)
    low, high = (np.zeros(0), np.zeros(0)) if small.gains is None else (small.actions.low, small.actions.high)

    def part(x: np.ndarray, out: np.ndarray, action: np.ndarray | None) -> None:
        full = np.empty((min(len(x), ROWS_EXTENDED), n))
        for a in range(0, len(x), ROWS_EXTENDED):
            rows = x[a : a + ROWS_EXTENDED]
            block, leaf = full[: len(rows)], out[a : a + ROWS_EXTENDED]
            _extend_rows(rows, n_raw, *sums, block)
            for c in range(n_raw, n):
                if not features.sum_of(c).is_linear:
                    block[:, c] = features.sum_of(c).values(block)
            decide(block, leaf)
            if action is not None:
                _linear_actions(block, leaf, small.value, small.gains, low, high, action[a : a + ROWS_EXTENDED])

    def predict(x: np.ndarray) -> np.ndarray:
        if x.dtype != np.float64 and x.dtype != np.float32:
            x = x.astype(np.float64)
        x, out = np.ascontiguousarray(x[:, :n_raw]), np.empty(len(x), dtype=np.int64)
        action = None if small.gains is None else np.empty((len(x), small.actions.size))
        if len(x) < MIN_ROWS_FOR_THREADS:
            part(x, out, action)
        else:
            in_parts(lambda a, b: part(x[a:b], out[a:b], None if action is None else action[a:b]), len(x))
        if action is not None:
            return action
        return out if small.actions.discrete else small.value[out]

    return predict


def compiled_sums(features: Features) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the linear sums of features for compiled loops: constant [m], first [m + 1], index and weight [terms].

    Sum k has the terms first[k] to first[k + 1]. Sums that are not linear have none, and the constant NaN.
    """
    linear = [entry if entry.is_linear else None for entry in features.derived]
    constant = np.array([np.nan if entry is None else entry.constant for entry in linear], dtype=np.float64)
    terms = [[] if entry is None else list(entry.terms) for entry in linear]
    first = np.cumsum([0] + [len(part) for part in terms]).astype(np.int64)
    index = np.array([i for part in terms for i, _ in part], dtype=np.int64)
    weight = np.array([w for part in terms for _, w in part], dtype=np.float64)
    return constant, first, index, weight


@njit(cache=True, nogil=True)
def sum_value(x, constant, begin, end, index, weight):
    """Return one sum of the features x [n_raw]; see `compiled_sums` for the arrays."""
    total = constant
    for j in range(begin, end):
        product = weight[j] * x[index[j]]
        total = product if j == begin and constant == 0.0 else total + product
    return total


@njit(cache=True, nogil=True)
def _extend_rows(x, n_raw, constant, first, index, weight, full):
    """Copy observations x [B, n_raw] into full [B, n] and compute its linear sums."""
    for i in range(len(x)):
        row = full[i]
        for c in range(n_raw):
            row[c] = x[i, c]
        for k in range(len(constant)):
            row[n_raw + k] = sum_value(row, constant[k], first[k], first[k + 1], index, weight)


@njit(cache=True, nogil=True)
def _linear_actions(x, leaf, value, gains, low, high, action):
    """Write the actions [B, k] of observations x [B, >= n_raw] at their leaves [B]."""
    for i in range(len(leaf)):
        linear_action(x[i], leaf[i], value, gains, low, high, action[i])


@njit(cache=True, nogil=True)
def linear_action(x, leaf, value, gains, low, high, action):
    """Write the action [k] of one observation x [>= n_raw] at a leaf; `gains` is [n_nodes, k, n_raw]."""
    for k in range(len(action)):
        total, is_constant = value[leaf, k], True
        for c in range(gains.shape[2]):
            gain = gains[leaf, k, c]
            if gain != 0.0:
                total, is_constant = total + gain * x[c], False
        if is_constant:
            action[k] = total
        elif total < low[k]:
            action[k] = low[k]
        elif total > high[k]:
            action[k] = high[k]
        else:
            action[k] = total


def _decide_by_masks(tree: Tree, payload: np.ndarray) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return a function that writes the payload of each row's leaf, for trees of at most 64 leaves."""
    nodes, stack = [], [0]  # from the left to the right, each above its children
    while stack:
        node = stack.pop()
        nodes.append(node)
        if tree.feature[node] >= 0:
            stack += [tree.children_right[node], tree.children_left[node]]
    leaves = [node for node in nodes if tree.feature[node] < 0]
    below = {leaf: 1 << i for i, leaf in enumerate(leaves)}  # the leaves under each node, as bits
    lost: dict[tuple[int, float], int] = {}  # the leaves that a row above a feature's threshold cannot reach
    for node in nodes[::-1]:
        if tree.feature[node] >= 0:
            low, high = below[tree.children_left[node]], below[tree.children_right[node]]
            below[node] = low | high
            test = int(tree.feature[node]), float(tree.threshold[node])
            lost[test] = lost.get(test, 0) | low

    n = tree.features.n
    rows = int(np.clip(BLOCK_ENTRIES // n // LANES * LANES, LANES, MAX_BLOCK_ROWS))
    # Four neighbouring columns are read together; `start` is where each four begin.
    start = sorted({max(min(c - c % 4, n - 4), 0) for c, _ in lost})
    tests = sorted(lost)
    place = [next((4 * q + c - s) * rows for q, s in enumerate(start) if s <= c < s + 4) for c, _ in tests]
    spare = -len(tests) % TESTS_PER_PASS  # comparisons that take nothing away fill up the last pass
    every = 2**64 - 1
    threshold = np.array([t for _, t in tests] + [0.0] * spare)
    mask = np.array([every - lost[test] for test in tests] + [every] * spare, dtype=np.uint64)
    entries = np.add.outer(n * np.arange(rows), start).reshape(-1)
    starts, places, answers = np.array(start), np.array(place + [0] * spare), payload[leaves]

    def plan(dtype: type, threshold: np.ndarray, mask: np.ndarray) -> tuple:
        line = CACHE_LINE_BYTES // np.dtype(dtype).itemsize
        return n, rows, starts, np.unique(entries // line) * line, places, threshold, mask, answers

    exact = plan(np.float64, threshold, mask)
    # Lanes of comparisons and of bits should be equally wide: 32 leaves fit beside float32.
    narrow = (round_down(threshold), mask.astype(np.uint32)) if len(leaves) <= 32 else (threshold, mask)
    single = plan(np.float32, *narrow)

    def decide(x: np.ndarray, out: np.ndarray) -> None:
        _match_leaf_masks(x.reshape(-1), *(exact if x.dtype == np.float64 else single), out)

    return decide


@njit(cache=True, nogil=True)
def _match_leaf_masks(x, n, most, starts, lines, place, threshold, mask, payload, out):
    """Compare every row with every threshold and look up the leaf that is left.

    x, n             the rows one after the other, and entries per row
    most             rows per block
    starts           the first of each four neighbouring columns that are read together
    lines            entries of the next block to fetch
    place            where each test's column begins
    threshold, mask  of each test: the leaves that a row above the threshold keeps, as bits
    payload, out     what to write for each leaf, and where
    """
    columns = np.empty(4 * most * len(starts), threshold.dtype)
    bits = np.empty(most, mask.dtype)
    per_pass = -(-len(lines) * TESTS_PER_PASS // len(place))
    for begin in range(0, len(out), most):
        rows = min(len(out) - begin, most)
        block, result = x[n * begin : n * (begin + rows)], out[begin : begin + rows]
        # Rows of fewer than four features are read together with what follows them.
        whole = max(min(rows, (len(block) - 4) // n + 1), 0) // 4 * 4 if n < 4 else rows // 4 * 4
        for q in range(len(starts)):
            for k in range(0, whole, 4):
                transpose(block, n * k + starts[q], n, columns, 4 * most * q + k, most)
            for k in range(whole, rows):
                for c in range(min(n, 4)):
                    columns[most * (4 * q + c) + k] = block[n * k + starts[q] + c]
        bits[:] = ~mask.dtype.type(0)
        for j in range(0, len(place), TESTS_PER_PASS):
            for line in lines[j // TESTS_PER_PASS * per_pass : (j // TESTS_PER_PASS + 1) * per_pass]:
                prefetch(x, n * (begin + most) + line)
            narrow(columns, place, threshold, mask, bits, j, rows)
        for k in range(rows):
            result[k] = payload[lowest_bit(bits[k])]


@njit(cache=True, nogil=True)
def leaf_of(tree, x):
    """Return the leaf that one state [n] reaches; `tree` is the tuple of a tree's arrays."""
    feature, threshold, left, right, _ = tree
    node = 0
    while feature[node] >= 0:
        node = left[node] if x[feature[node]] <= threshold[node] else right[node]
    return node


def _decide_by_walking(tree: Tree, payload: np.ndarray) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return a function that writes the payload of each row's leaf, for trees of any size."""
    leaf = tree.feature < 0
    itself = np.arange(tree.n_nodes)
    feature = np.where(leaf, 0, tree.feature)
    kids = np.stack([np.where(leaf, itself, tree.children_left), np.where(leaf, itself, tree.children_right)], axis=1)
    children = np.ascontiguousarray(kids.reshape(-1))
    depth = tree.depth

    def decide(x: np.ndarray, out: np.ndarray) -> None:
        _walk_rows(x, feature, tree.threshold, children, depth, payload, out)

    return decide


@njit(cache=True, nogil=True)
def _walk_rows(x, feature, threshold, children, depth, payload, out):
    """Walk every row to its leaf, four rows at a time; leaves lead to themselves, so that each takes `depth` steps.

    x                  [B, n]
    feature, threshold [n_nodes]
    children           [2 * n_nodes], left and right of each node
    depth              of the tree
    payload            [n_nodes], what is written to out [B]
    """
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
