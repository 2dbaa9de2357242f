from functools import cache

import numpy as np
from hypothesis import given, settings

from custard import Actions, Features, Tree, balance, simplify
from custard.tree.balance import _least_heights
from tests.strategies import probing_points, random_tree, seeds
from tests.tree.test_simplify import whole

AB = Actions("discrete", ("a", "b"))


def chain(actions: list[int]) -> Tree:
    """One feature asked about from left to right."""
    n = len(actions) - 1
    feature, threshold, left, right, value = [], [], [], [], []
    for k in range(n):
        feature += [0, -1]
        threshold += [float(k), 0.0]
        left += [2 * k + 1, -1]
        right += [2 * k + 2, -1]
        value += [0, actions[k]]
    parts = [*feature, -1], [*threshold, 0.0], [*left, -1], [*right, -1], [*value, actions[-1]]
    return Tree(*map(np.array, parts), features=Features(("x",), [0], [n]), actions=AB)


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_no_decision_changes(seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(
        rng, n=int(rng.integers(1, 4)), splits=int(rng.integers(0, 40)), kind=("discrete", "box")[seed % 2]
    )
    small, result = simplify(tree), balance(tree)
    x = whole(tree, probing_points(tree, rng, 100))
    np.testing.assert_array_equal(result.predict(x, compiled=False), tree.predict(x, compiled=False))
    assert result.n_leaves <= small.n_leaves
    assert result.depth <= small.depth
    assert simplify(result) == result
    assert balance(result) == result


def test_a_chain_becomes_as_short_as_its_intervals_allow():
    for n in range(1, 40):
        result = balance(chain([k % 2 for k in range(n)]))
        assert (result.n_leaves, result.depth) == (n, int(np.ceil(np.log2(n))))


def test_neighbours_that_do_the_same_are_one_interval():
    parts = [0, 0, 0, -1, -1, -1, -1], [5.0, 3.0, 7.0, 0, 0, 0, 0], [1, 3, 5, -1, -1, -1, -1], [2, 4, 6, -1, -1, -1, -1]
    tree = Tree(*map(np.array, parts), np.array([0, 0, 0, 0, 1, 1, 0]), Features(("x",), [0], [9]), AB)
    assert simplify(tree).n_leaves == 4
    assert balance(tree).n_leaves == 3


def test_what_does_not_get_shorter_stays_as_it_is():
    tree = chain([0, 1, 0])
    assert balance(tree) == simplify(tree)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_heights_are_the_least_possible(seed):
    rng = np.random.default_rng(seed)
    heights = rng.integers(0, 5, size=int(rng.integers(1, 9))).tolist()

    @cache
    def least(first: int, last: int) -> int:
        if last - first == 1:
            return heights[first]
        return 1 + min(max(least(first, m), least(m, last)) for m in range(first + 1, last))

    assert _least_heights(heights) == [least(0, k + 1) for k in range(len(heights))]
    assert _least_heights(heights[::-1])[-1] == _least_heights(heights)[-1]
