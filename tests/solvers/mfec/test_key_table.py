"""Hash and k-d tree against brute force; the update of a node against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from custard import Actions, Features
from custard.ibmdp.kernels import compiled_rules
from custard.ibmdp.splits import Rules
from custard.solvers.common.key_table import find, insert, make_keys, nearest, replace_key, restore_keys
from custard.solvers.mfec.bounds_table import (
    child_node,
    greedy_base_action,
    learning_rate,
    make_bounds_table,
    root_node,
    update_node,
)


@st.composite
def points(draw):
    """Distinct keys on a coarse grid, so that ties are common, in an order that may unbalance the tree."""
    width = draw(st.integers(1, 4))
    rows = draw(st.lists(st.tuples(*[st.integers(-3, 3)] * width), min_size=1, max_size=60, unique=True))
    return np.array(sorted(rows) if draw(st.booleans()) else rows, dtype=np.float64)


@settings(max_examples=150, deadline=None)
@given(points(), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_nearest_neighbours_are_those_of_brute_force(keys, k, seed):
    table = make_keys(len(keys), keys.shape[1], neighbours=True)
    for key in keys:
        insert(table, key)
    rng = np.random.default_rng(seed)
    for query in (keys[0], rng.integers(-4, 5, size=keys.shape[1]) + 0.5 * rng.integers(0, 2)):
        rows, distances = np.empty(k, dtype=np.int64), np.empty(k)
        found = nearest(table, np.asarray(query, dtype=np.float64), rows, distances)
        true = ((keys - query) ** 2).sum(axis=1)
        expected = np.lexsort((np.arange(len(keys)), true))[:k]  # ties go to the key stored first
        assert found == len(expected)
        assert rows[:found].tolist() == expected.tolist()
        assert distances[:found].tolist() == true[expected].tolist()


@settings(max_examples=50, deadline=None)
@given(points())
def test_every_key_is_found_and_no_other(keys):
    table = make_keys(len(keys), keys.shape[1], neighbours=True)
    assert find(table, keys[0]) == -1
    rows = [insert(table, key) for key in keys]
    assert rows == list(range(len(keys)))
    assert [find(table, key) for key in keys] == rows
    assert find(table, keys[0] + 0.25) == -1
    assert insert(table, keys[0] + 0.25) == -1  # full
    again = make_keys(len(keys), keys.shape[1], neighbours=True)
    restore_keys(again, keys)
    assert all(np.array_equal(a, b) for a, b in zip(table, again, strict=True))


@settings(max_examples=100, deadline=None)
@given(points(), st.integers(0, 2**32 - 1))
def test_replaced_keys_are_gone_and_the_others_are_found(keys, seed):
    """Most keys wait to replace one that is stored; so small a tree has to be built anew at times."""
    rng, capacity = np.random.default_rng(seed), max(1, len(keys) // 3)
    table, stored = make_keys(capacity, keys.shape[1], neighbours=True), keys[:capacity].copy()
    for key in stored:
        insert(table, key)
    waiting = [*keys[capacity:], *keys[:capacity], *keys[capacity:]]
    for key in waiting:
        if find(table, key) < 0:
            row = int(rng.integers(capacity))
            replace_key(table, row, key)
            stored[row] = key
    for key in keys:
        row = np.flatnonzero((stored == key).all(axis=1))
        assert find(table, key) == (row[0] if len(row) else -1)
        rows, distances = np.empty(3, dtype=np.int64), np.empty(3)
        found = nearest(table, key, rows, distances)
        true = ((stored - key) ** 2).sum(axis=1)
        assert rows[:found].tolist() == np.lexsort((np.arange(capacity), true))[:3].tolist()


def line(max_depth=None):
    """One real feature in [0, 1], two actions, one threshold per node."""
    features, actions = Features(("x",), [0], [1]), Actions("discrete", ("a", "b"))
    rules = Rules(features, actions, 1, -0.5, 1.0, 1.0, max_depth)
    return compiled_rules(rules), make_bounds_table(8, rules)


def test_rates_fall_from_one():
    assert [learning_rate(n, 1.0, 0.0) for n in (1, 2, 4)] == [1.0, 0.5, 0.25]
    assert learning_rate(100, 1.0, 0.1) == 0.1
    assert learning_rate(1, 0.0, 0.3) == 0.3


def test_two_updates_of_the_root_by_hand():
    """Actions a, b are worth (0, 4) at x = 0.2 and (6, 2) at x = 0.8; a split costs 0.5."""
    rules, table = line()
    root = root_node(table, rules)
    update_node(table, rules, root, np.array([0.2]), np.array([0.0, 4.0]), -0.5, 1.0, 0.0, -1)
    # The first visit copies the values. The left side has no leaf yet and takes the node's best action then: a.
    assert table.q[root].tolist() == [0.0, 4.0, -0.5 + 0.0]
    assert table.greedy[root] == 1
    assert table.child_q[root, 0, 0].tolist() == [0.0, 4.0]
    assert table.child_action[root, 0].tolist() == [1, 1]
    update_node(table, rules, root, np.array([0.8]), np.array([6.0, 2.0]), -0.5, 1.0, 0.0, -1)
    # Rate 1/2. To the right nobody has been: the leaf the node was, b, is worth 2 there.
    assert table.q[root].tolist() == [3.0, 3.0, (-0.5 + (-0.5 + 2.0)) / 2]
    assert table.child_action[root, 0].tolist() == [1, 0]
    update_node(table, rules, root, np.array([0.8]), np.array([6.0, 2.0]), -0.5, 1.0, 0.0, -1)
    # Rate 1/3; now the right leaf says a, worth 6.
    assert np.allclose(table.q[root], [4.0, 8 / 3, 0.5 + (5.5 - 0.5) / 3])
    assert table.greedy[root] == 0


def test_only_one_action_learns_if_asked():
    rules, table = line()
    root = root_node(table, rules)
    update_node(table, rules, root, np.array([0.2]), np.array([1.0, 4.0]), -0.5, 1.0, 0.0, 0)
    assert table.q[root].tolist() == [1.0, 0.0, 0.0]


def test_the_greedy_base_action_is_that_of_the_greedy_tree():
    rules, table = line()
    root = root_node(table, rules)
    for _ in range(3):
        for x, q_o in ((0.2, [0.0, 4.0]), (0.8, [6.0, 2.0])):
            update_node(table, rules, root, np.array([x]), np.array(q_o), -0.01, 4.0, 0.0, -1)
    assert table.greedy[root] == 2
    assert greedy_base_action(table, rules, root, np.array([0.5])) == 1  # at the threshold: left
    assert greedy_base_action(table, rules, root, np.array([0.6])) == 0
    child = child_node(table, rules, root, 0, 1)
    assert table.keys.key[child, :2].tolist() == [0.5, 1.0]
    assert child_node(table, rules, root, 0, 1) == child


def test_a_depth_limit_masks_splits():
    rules, table = line(max_depth=1)
    root = root_node(table, rules)
    update_node(table, rules, root, np.array([0.2]), np.array([0.0, 4.0]), -0.01, 4.0, 0.0, -1)
    child = child_node(table, rules, root, 0, 0)
    assert not np.isnan(table.threshold[root, 0])
    assert np.isnan(table.threshold[child, 0])
    assert table.q[child, 2] == -np.inf
