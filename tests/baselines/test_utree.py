"""utree: its model by hand, its test against scipy, its fringe, and a maze that no tree without memory solves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import kolmogorov

import custard
from benchmarks.hidden_maze import best_without_memory
from custard.baselines import utree
from custard.baselines.growing_tree import ks_scale, split_leaf
from custard.planning.evaluate import tree_value
from custard.planning.model import model_of
from custard.task.history import remembered
from custard.task.source import source
from tests.baselines.test_growing_trees import Line, problem_of

ROWS = ((0.2, 1, -1.0, 0.8, False), (0.8, 1, 10.0, 0.8, True), (0.8, 0, -1.0, 0.2, False))


def tables_of(memory: int) -> utree.Tables:
    tables = utree.make_tables(problem_of(Line), utree.Settings(memory=memory, gamma=0.5, sweep_every=1), seed=0)
    split_leaf(tables.tree, 0, 0, 0.5)
    return tables


def learn(tables, rows):
    for x, action, reward, after, terminated in rows:
        utree.learn_step(tables, np.array([x]), action, reward, np.array([after]), terminated)


def test_three_steps_by_hand():
    """Left of 0.5, action 1 leads to the right for -1; right of it, action 1 ends with 10. gamma 0.5."""
    tables = tables_of(8)
    learn(tables, ROWS[:1])
    np.testing.assert_allclose(tables.tree.q[1], [-1.0, -1.0])  # never taken: as the worst that was
    learn(tables, ROWS[1:2])
    # The sweep uses the values before it: the left leaf sees the right one's 0, the right leaf gets 10.
    np.testing.assert_allclose(tables.tree.q[1:3], [[-1.0, -1.0], [10.0, 10.0]])
    learn(tables, ROWS[2:])
    # Q(left, 1) = -1 + 5; Q(right, 0) = -1 + 0.5 * (-1).
    np.testing.assert_allclose(tables.tree.q[1:3], [[4.0, 4.0], [-1.5, 10.0]])
    assert tables.visits[1:3].tolist() == [[0, 1], [1, 1]]
    assert tables.followed[1, 1, 2] == tables.followed[2, 0, 1] == 1
    assert tables.followed[2, 1].sum() == 0  # an end leads nowhere


def test_the_oldest_instances_are_forgotten_and_recounting_agrees():
    tables = tables_of(2)
    learn(tables, ROWS)
    assert tables.visits[1:3].tolist() == [[0, 0], [1, 1]]  # the first is gone
    counted = tables.visits.copy(), tables.rewards.copy(), tables.followed.copy()
    utree._recount_model(tables)
    for mine, anew in zip(counted, (tables.visits, tables.rewards, tables.followed), strict=True):
        np.testing.assert_allclose(mine, anew, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_fringe_test_is_scipys(seed):
    """What a distinction selects against the whole leaf, ties included."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 3, (60, 3)).astype(float)
    q = (rng.standard_normal(60) + 2.0 * (x[:, 1] > 1)).round(1)
    order, accepted = np.argsort(q), {}
    for c in range(3):
        for threshold in (0.5, 1.5):
            for side in (x[:, c] <= threshold, x[:, c] > threshold):
                d = stats.ks_2samp(q[side], q).statistic
                assert utree.fringe_statistic(side, q, order) == pytest.approx(d)
                root = np.sqrt(side.sum() * 60 / (side.sum() + 60))
                if side.sum() >= 10 and kolmogorov(d * (root + 0.12 + 0.11 / root)) < 0.05:
                    accepted[c, threshold] = max(d, accepted.get((c, threshold), 0.0))
    feature, threshold, second, _, _, d = utree.best_extension(x, q, 1, 8, 10, ks_scale(0.05))
    assert (feature, second) == (1, -1)
    assert d == pytest.approx(max(accepted.values())) == accepted[feature, threshold]


def test_two_distinctions_together_where_one_tells_nothing():
    """Returns are 1 where exactly one of two features is 1: only pairs of distinctions tell."""
    x = np.array([[a, b, c] for a in (0.0, 1.0) for b in (0.0, 1.0) for c in (0.0, 1.0)] * 40)
    q = (x[:, 0] != x[:, 2]).astype(float)
    assert utree.best_extension(x, q, 1, 8, 10, ks_scale(1e-3))[0] == -1
    feature, threshold, second, second_threshold, side, d = utree.best_extension(x, q, 2, 8, 10, ks_scale(1e-3))
    assert {feature, second} == {0, 2}
    assert (threshold, second_threshold, side, d) == (0.5, 0.5, 0, 0.5)
    same = np.zeros(len(x))
    assert utree.best_extension(x, same, 2, 8, 10, ks_scale(1e-3))[0] == -1


@pytest.mark.parametrize("seed", range(2))
def test_with_a_history_it_solves_a_maze_that_no_tree_without_memory_solves(seed):
    best, starts = best_without_memory()  # of all 4,096 policies without memory
    assert best < 0.15
    assert starts == 4  # of ten, from which any of them finds the cheese
    tree = custard.learn("CheeseMaze-v0", "utree", history=1, seed=seed, budget=20_000, workers=0).tree
    where = remembered(tree, source("CheeseMaze-v0"))[0]
    assert tree_value(tree, model_of(where, limit=True)) > 4.6  # exactly; 4.71 is the best that knows the cell
    assert not custard.evaluate(tree, episodes=100).time_limited.any()
