"""Trees that keep to allowed actions: equal to trying every tree, and conflicts of which no point can be spared."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from custard.planning.agreement import agreeing_tree, agrees, full_words, smallest_conflict
from custard.tree.shape import Shape, Split

N_ACTIONS = 3


def has_tree(codes: np.ndarray, words: np.ndarray, index: np.ndarray, depth: int) -> bool:
    """Try every tree."""
    if len(index) == 0 or np.bitwise_and.reduce(words[index, 0]):
        return True
    return depth > 0 and any(
        has_tree(codes, words, index[goes_left], depth - 1) and has_tree(codes, words, index[~goes_left], depth - 1)
        for c in range(codes.shape[1])
        for goes_left in (codes[index, c] <= cut for cut in range(codes[:, c].max()))
    )


def splits_on_a_path(shape: Shape) -> int:
    return 1 + max(map(splits_on_a_path, (shape.left, shape.right))) if isinstance(shape, Split) else 0


@given(seed=st.integers(0, 10**6), depth=st.integers(0, 3), n=st.integers(1, 3), size=st.integers(2, 4))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_equal_to_trying_every_tree(seed: int, depth: int, n: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 12))
    codes, sizes = rng.integers(0, size, (count, n)).astype(np.int32), np.full(n, size)
    words = rng.integers(1, 2**N_ACTIONS, (count, 1)).astype(np.uint64)
    index, full, work = np.arange(count), full_words(count, N_ACTIONS), np.array([10**9])
    answer = has_tree(codes, words, index, depth)
    assert agrees(codes, sizes, words, index, depth, work) == answer
    tree = agreeing_tree(codes, sizes, words, index, depth, [np.arange(size - 1.0)] * n, work)
    assert (tree is not None) == answer
    if tree is not None:
        assert splits_on_a_path(tree) <= depth
        for p in range(count):
            part = tree
            while isinstance(part, Split):
                part = part.left if codes[p, part.feature] <= part.threshold else part.right
            assert int(part[0]) & int(words[p, 0]) == int(part[0]) & (2**N_ACTIONS - 1)
    conflict = smallest_conflict(codes, sizes, full, words, np.arange(0), index, depth, work)
    assert (len(conflict) == 0) == answer
    if len(conflict):
        asked = full.copy()
        asked[conflict] = words[conflict]
        assert not has_tree(codes, asked, index, depth)
        for spared in conflict:
            fewer = asked.copy()
            fewer[spared] = full[spared]
            assert has_tree(codes, fewer, index, depth)


def test_without_work_left_every_answer_is_yes() -> None:
    codes, words = np.array([[0], [1]], dtype=np.int32), np.array([[1], [2]], dtype=np.uint64)
    index = np.arange(2)
    assert not agrees(codes, np.array([2]), words, index, 0, np.array([100]))
    assert agrees(codes, np.array([2]), words, index, 0, np.array([0]))
