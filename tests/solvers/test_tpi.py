"""Tree policy iteration against known best trees."""

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.lab.source import episode_seeds, source
from custard.planning.env import FiniteEnv
from custard.planning.evaluate import tree_value
from custard.planning.exhaustive import best_tree_exhaustive
from custard.planning.random import random_mdp
from custard.solvers.api import Problem
from custard.solvers.mutate import mutated, random_shape, shape_of, tree_of
from custard.solvers.simulate import Foreign, Native
from custard.solvers.tabular import Expert
from custard.solvers.tpi import Settings, solve
from custard.spaces import describe
from tests.strategies import random_tree


def problem(name, seed=0, max_depth=None, **kwargs):
    where = source(name, kwargs)
    return Problem(where, describe(where.vector(1)), seed, max_depth)


@pytest.mark.parametrize(("m", "value", "depth", "leaves"), [(4, -2, 2, 3), (7, -4, 3, 5), (10, -6, 3, 7)])
def test_prereq_worlds_smallest_best_trees(m, value, depth, leaves):
    run = custard.learn("custard/PrereqWorld-v0", "tpi", env_kwargs={"m": m}, max_depth=3, budget=8_000_000, seed=5)
    assert (run.value, run.tree.depth, run.tree.n_leaves) == (value, depth, leaves)


def test_cartpole():
    run = custard.learn("CartPole-v1", "tpi", max_depth=2, seed=3)
    assert custard.evaluate(run.tree, "CartPole-v1", episodes=500, seed=8).mean >= 499
    assert run.tree.n_leaves <= 4


def test_pothole_world_at_a_depth_limit():
    run = custard.learn("custard/PotholeWorld-v0", "tpi", max_depth=2, budget=10_000_000, seed=1)
    assert custard.evaluate(run.tree, "custard/PotholeWorld-v0", episodes=500, seed=8).mean > 46.0  # the limit is 46.43


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_models(seed):
    mdp = random_mdp(n_features=3, n_actions=2, seed=seed, gamma=1.0)
    _, best = best_tree_exhaustive(mdp, 2)
    worst = tree_value(custard.Tree.leaf(0, mdp.features, mdp.actions), mdp)
    if not np.isfinite(best):
        pytest.skip("no tree of this model ever ends")
    run = custard.learn(
        lambda: gym.wrappers.TimeLimit(FiniteEnv(mdp), 50), "tpi", max_depth=2, budget=60_000, seed=seed
    )
    found = tree_value(run.tree, mdp)
    assert found >= best - 0.1 * max(1.0, abs(best - worst))


def test_a_run_goes_on_where_it_stopped():
    settings = Settings(budget=400_000, patience=3)
    task = problem("custard/PrereqWorld-v0", seed=2, m=5)
    whole = list(solve(task, settings))
    state = None
    for snapshot in solve(task, settings):
        state = snapshot.state()
        break
    rest = list(solve(task, settings, state))
    assert len(rest) == len(whole) - 1
    if rest:
        assert rest[-1].tree == whole[-1].tree
        assert rest[-1].steps == whole[-1].steps


def test_compiled_and_foreign_simulators_agree():
    task = problem("CartPole-v1")
    lone = Problem(source(lambda: gym.make("CartPole-v1")), task.base)
    tree = custard.Tree.stump(2, 0.0, 0, 1, task.base.features, task.base.actions)
    seeds = episode_seeds(4, 20)
    native, foreign = Native(task), Foreign(lone)
    np.testing.assert_array_equal(native.returns(tree, seeds), foreign.returns(tree, seeds))
    assert native.steps == foreign.steps
    assert foreign.values_actions
    for sim in (native, foreign):
        x, q = sim.action_values(tree, 3, 40, 0.1)
        assert x.shape == (40, 4)
        assert (q >= 1).all()


def test_the_tabular_expert_learns_the_optimum():
    task = problem("custard/PrereqWorld-v0", m=5)
    expert = Expert(task)
    assert expert.possible
    expert.learn(200_000, seed=0)
    assert expert.q[0].max() == pytest.approx(-3, abs=0.1)
    returns = [
        custard.evaluate(tree, "custard/PrereqWorld-v0", 1, env_kwargs={"m": 5}).mean for tree in expert.trees(3, 0, 5)
    ]
    assert max(returns) == -3
    assert not Expert(problem("CartPole-v1")).possible


def test_changes_keep_the_depth_limit_and_shapes_round_trip():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3))
    for seed in range(30):
        tree = random_tree(np.random.default_rng(seed), n=3, splits=6)
        assert tree_of(shape_of(tree), tree) == tree_of(shape_of(tree_of(shape_of(tree), tree)), tree)
        np.testing.assert_array_equal(
            tree_of(shape_of(tree), tree).predict(x, compiled=False), tree.predict(x, compiled=False)
        )
    shape = random_shape(rng, x, range(3), 2)
    like = custard.Tree.leaf(
        0, custard.Features(("a", "b", "c"), -np.ones(3), np.ones(3)), custard.Actions("discrete", "abc")
    )
    for _ in range(500):
        shape = mutated(shape, rng, x, range(3), 2)
        assert tree_of(shape, like).depth <= 2


def test_continuous_actions_are_refused():
    with pytest.raises(custard.CustardError, match="discrete actions"):
        custard.learn("Pendulum-v1", "tpi")
