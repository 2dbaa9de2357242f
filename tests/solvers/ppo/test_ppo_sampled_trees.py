"""Which trees PPO judges beside the greedy one, and which it gives up early."""

from __future__ import annotations

import numpy as np
import pytest

from custard.core.spaces import describe
from custard.ibmdp.splits import Rules
from custard.task.problem import Problem
from custard.task.source import source
from custard.tree.tree import Tree

ppo = pytest.importorskip("custard.solvers.ppo.ppo", reason="needs the extra neural")

from custard.solvers.common.selection import Judged  # noqa: E402
from custard.solvers.ppo.policy import perturb_tree  # noqa: E402

LOW, HIGH = [-2.0, -2.0, -0.14, -1.4], [2.0, 2.0, 0.14, 1.4]


def cartpole(max_depth=2):
    where = source("custard/CartPole-v0")
    return Problem(where, describe(where.make_vec(1), low=LOW, high=HIGH), 0, max_depth)


def upright(base, threshold=0.01526, velocity=-0.3499):
    """The three leaves that hold the pole for good."""
    parts = [1, -1, 2, -1, -1], [velocity, 0, threshold, 0, 0], [1, -1, 3, -1, -1], [2, -1, 4, -1, -1], [0, 1, 0, 0, 1]
    return Tree(*(np.array(part) for part in parts), features=base.features, actions=base.actions)


def test_no_noise_leaves_a_tree_as_it_is():
    base = cartpole().base
    tree, rules = upright(base), Rules(base.features, base.actions, "parameterised")
    same = perturb_tree(tree, rules, np.random.default_rng(0), 0.0, 0.0)
    np.testing.assert_allclose(same.threshold, tree.threshold, rtol=1e-12)
    assert np.array_equal(same.value, tree.value)


def test_moved_thresholds_stay_between_the_bounds_above_them():
    base = cartpole().base
    rules, rng = Rules(base.features, base.actions, "parameterised"), np.random.default_rng(0)
    parts = [2, 2, -1, -1, -1], [0.1, -0.1, 0, 0, 0], [1, 3, -1, -1, -1], [2, 4, -1, -1, -1], [0, 0, 1, 1, 0]
    tree = Tree(*(np.array(part) for part in parts), features=base.features, actions=base.actions)
    drawn = [perturb_tree(tree, rules, rng, 2.0, 0.0) for _ in range(200)]
    assert len({tuple(one.threshold) for one in drawn}) > 100
    for one in drawn:
        assert np.array_equal(one.feature, tree.feature)
        assert -0.14 < one.threshold[1] < one.threshold[0] < 0.14


def test_vectors_stay_between_their_bounds():
    where = source("Pendulum-v1")
    base = describe(where.make_vec(1))
    tree = Tree.leaf([1.5], base.features, base.actions)
    rules, rng = Rules(base.features, base.actions, "parameterised"), np.random.default_rng(0)
    values = [float(perturb_tree(tree, rules, rng, 1.0, 1.0).value[0, 0]) for _ in range(100)]
    assert min(values) >= -2.0
    assert max(values) == 2.0
    assert 1.5 in values


def test_a_tree_is_given_up_that_gains_nothing_where_the_best_fails():
    problem = cartpole()
    learner = ppo.Learner(problem, ppo.Settings(budget=200_000, num_envs=2, num_steps=4, hidden=4))
    best, returns = upright(problem.base, 0.0), np.full(50, 200.0)
    returns[[7, 30]] = 150.0
    learner.selection.returns_vary = True
    learner.selection.best = Judged(best, best, returns, np.zeros(best.n_nodes, dtype=np.int64))
    always_left = Tree(*(np.array(part) for part in ([1, -1, -1], [0.1, 0, 0], [1, -1, -1], [2, -1, -1], [0, 0, 0])),
                       features=problem.base.features, actions=problem.base.actions)  # fmt: skip
    worse = Tree(best.feature, best.threshold, best.children_left, best.children_right, 1 - best.value,
                 features=best.features, actions=best.actions)  # fmt: skip
    assert learner.selection.challenge(worse)
    spent = learner.selection.steps
    assert 0 < spent < 2 * 50  # two episodes, soon over
    assert learner.selection.best.tree is best
    assert not learner.selection.challenge(always_left)  # smaller: a matter for the whole comparison
    assert learner.selection.challenge(upright(problem.base))
    assert learner.selection.best.tree == upright(problem.base)
    judged = learner.selection.flawless_max_episodes  # one that never fails is judged for longer
    assert learner.selection.best.returns.tolist() == [200.0] * judged
    assert learner.selection.steps == spent + (50 + judged) * 200  # tried, then judged
    assert learner.selection.challenge(worse)  # nothing to gain: no episode is needed
    assert learner.selection.steps == spent + (50 + judged) * 200
    learner.selection.best = Judged(best, best, np.linspace(100.0, 200.0, 50), np.zeros(best.n_nodes, dtype=np.int64))
    assert not learner.selection.challenge(worse)  # nothing is known to be the most
