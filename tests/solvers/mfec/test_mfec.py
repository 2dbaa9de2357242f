"""MFEC against known answers; seeds, checkpoints, selection."""

from __future__ import annotations

from itertools import islice

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.errors import CustardError
from custard.core.spaces import describe
from custard.planning.env import FiniteEnv
from custard.planning.evaluate import tree_value
from custard.planning.model import model_of
from custard.planning.solve import value_iteration
from custard.solvers.common.mutations import shift_threshold
from custard.solvers.common.selection import FLAWLESS_EPISODES_FACTOR, Judged, Selection, better
from custard.solvers.mfec import mfec
from custard.solvers.mfec.bounds_table import greedy_base_action, table_policy
from custard.solvers.mfec.episodes import recompute_values
from custard.task.problem import Problem
from custard.task.runners import run_episodes
from custard.task.settings import settings_for
from custard.task.source import source
from custard.tree.extract import extract
from custard.tree.shape import Split, tree_of
from tests.planning.exhaustive import best_tree_exhaustive
from tests.planning.random_mdp import random_mdp

PREREQ = "custard/PrereqWorld-v0"


def problem_of(env, kwargs=None, seed=0, max_depth=None):
    where = source(env, kwargs)
    return Problem(where, describe(where.make_vec(1)), seed, max_depth)


def test_prereq_world_is_solved_with_the_smallest_tree():
    run = custard.learn(PREREQ, "mfec", env_kwargs={"m": 5}, seed=3, budget=300_000)
    assert (run.value, run.tree.depth, run.tree.n_leaves) == (-3.0, 2, 4)
    assert run.steps >= 15_000
    assert {"return", "tree_return", "hit_rate", "unseen", "nodes", "states", "best_leaves"} <= set(run.metrics[0])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_mdps_are_solved_as_well_as_by_trying_all_trees(seed):
    mdp = random_mdp(3, 2, seed=seed, gamma=1.0, ending=0.2)
    _, best = best_tree_exhaustive(mdp, 2)
    run = custard.learn(FiniteEnv(mdp), "mfec", max_depth=2, seed=seed, budget=20_000, gamma_b=1.0)
    assert run.tree.depth <= 2
    assert tree_value(run.tree, mdp) >= best - 0.05


def test_the_extracted_tree_is_the_tables_own_policy():
    """Following the table and following the extracted tree give the same action, also under a limit."""
    learner = mfec.Learner(problem_of("CartPole-v1", max_depth=3), mfec.Settings(budget=60_000))
    while learner.progress.cycle_steps < 0.8 * learner.cycle_length and learner.progress.cycle == 0:
        learner.advance()
    table = learner.tables.bounds
    tree = extract(table_policy(table, learner.rules), learner.rules)
    rng = np.random.default_rng(0)
    x = rng.uniform(learner.rules.features.low, learner.rules.features.high, size=(500, 4))
    x = np.vstack([x, tree.threshold[:, None] * np.ones(4)])
    actions = [greedy_base_action(table, learner.tables.rules, 0, row) for row in x]
    assert tree.apply(x).shape == (len(x),)
    assert tree.predict(x).tolist() == actions
    assert tree.depth <= 3


def test_remembered_outcomes_give_the_values_of_the_mdp():
    """Once everything has been tried, what is remembered of a deterministic MDP is the MDP."""
    learner = mfec.Learner(problem_of(PREREQ, {"m": 4}), mfec.Settings(budget=40_000, gamma_b=0.9))
    while learner.progress.cycle == 0:
        learner.advance()
    tables, size = learner.tables, int(learner.tables.state_keys.size[0])
    for _ in range(10):
        recompute_values(tables, np.arange(size))
    mdp = model_of(source(PREREQ, {"m": 4}), gamma=0.9)
    exact = {tuple(x): value for x, value in zip(mdp.x, value_iteration(mdp)[0], strict=True)}
    assert size > 4
    assert tables.v_star[:size].tolist() == pytest.approx([exact[tuple(x)] for x in tables.state_x[:size]])


@pytest.mark.parametrize(
    ("env", "kwargs", "depth", "given"),
    [
        (PREREQ, {"m": 5}, None, {"first_cycle_steps": 2_000}),
        ("CartPole-v1", None, 2, {"first_cycle_steps": 2_000}),
        ("FrozenLake-v1", {"is_slippery": False}, 2, {"budget": 12_000, "first_cycle_steps": 2_000}),
        (PREREQ, {"m": 4}, None, {"preset": "paper", "budget": 40_000}),
        ("FrozenLake-v1", {"is_slippery": False}, 2, {"preset": "paper", "budget": 12_000}),
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(env, kwargs, depth, given):
    given = {"budget": 60_000, **given}
    settings = settings_for(mfec, env, given.pop("preset", None), given)
    whole = list(mfec.solve(problem_of(env, kwargs, 5, depth), settings))
    assert len(whole) > 6
    for stop in (1, 5):
        state = list(islice(mfec.solve(problem_of(env, kwargs, 5, depth), settings), stop))[-1].state()
        assert all(isinstance(value, np.ndarray) and value.dtype != object for value in state.values())
        rest = list(mfec.solve(problem_of(env, kwargs, 5, depth), settings, state))
        assert len(rest) == len(whole) - stop
        for a, b in zip(rest, whole[stop:], strict=True):
            assert (a.steps, a.value, a.message) == (b.steps, b.value, b.message) or np.isnan(a.value)
            assert a.tree == b.tree
            assert a.final == b.final


def test_the_same_seed_gives_the_same_tree_and_another_seed_another_run():
    runs = [custard.learn("CartPole-v1", "mfec", max_depth=2, seed=s, budget=60_000) for s in (1, 1, 2)]
    assert runs[0].tree == runs[1].tree
    assert (runs[0].value, runs[0].steps) == (runs[1].value, runs[1].steps)
    assert runs[0].steps != runs[2].steps or runs[0].tree != runs[2].tree


def test_full_tables_go_on():
    run = custard.learn("CartPole-v1", "mfec", max_depth=2, seed=0, budget=60_000, capacity=64)
    assert run.metrics[-1]["states"] <= 64
    assert run.metrics[-1]["nodes"] <= 64
    assert run.tree.depth <= 2


def test_the_papers_preset_learns_prereq_world():
    run = custard.learn(PREREQ, "mfec", env_kwargs={"m": 4}, seed=0, preset="paper", budget=200_000)
    assert run.value == -2.0
    assert run.metrics[-1]["unseen"] < 0.1


def test_the_papers_preset_has_settings_of_its_own():
    assert isinstance(settings_for(mfec, PREREQ, "paper", {}), mfec.PaperSettings)
    with pytest.raises(
        CustardError, match="'sampled_trees' is not read under the preset 'paper', which reads budget, splits"
    ):
        custard.learn(PREREQ, "mfec", preset="paper", sampled_trees=3)
    with pytest.raises(CustardError, match="unknown setting 'shared'"):
        custard.learn(PREREQ, "mfec", shared=False)


def test_native_judging_equals_rollouts():
    tree = custard.Tree.stump(2, 0.01, 0, 1, *_cartpole())
    problem = problem_of("CartPole-v1")
    selection = Selection(problem, 16)
    selection.consider(tree)
    returns, lengths, *_ = run_episodes(tree, problem.source, selection.seeds[:16])
    assert selection.best.returns.tolist() == returns.tolist()
    assert selection.steps == lengths.sum()
    assert selection.best.n_reached_leaves == 2


def test_a_tree_that_never_fails_is_judged_for_longer():
    problem = problem_of("CartPole-v1")
    features, actions = _cartpole()
    selection = Selection(problem, 4, 4)
    selection.consider(custard.Tree.leaf(0, features, actions))
    assert len(selection.best.returns) == 4
    upright = Split(2, 0.0, Split(3, 0.5, 0, 1), Split(3, -0.5, 0, 1))
    assert selection.consider(tree_of(upright, selection.best.tree))
    assert len(selection.best.returns) == selection.max_episodes == FLAWLESS_EPISODES_FACTOR * 4
    again = Selection(problem, 4, 4)
    again.restore(selection.state())
    assert again.max_episodes == selection.max_episodes


def test_of_equal_trees_the_smaller_one_stays():
    features, actions = _cartpole()
    leaf = custard.Tree.leaf(0, features, actions)
    stump = custard.Tree.stump(2, 0.01, 0, 1, features, actions)

    def judged(tree, returns):
        return Judged(tree, tree, np.array(returns, dtype=float), np.zeros(tree.n_nodes, dtype=np.int64))

    assert better(judged(leaf, [5, 5]), judged(stump, [5, 5]))
    assert not better(judged(stump, [5, 5]), judged(leaf, [5, 5]))
    assert better(judged(stump, [6, 6]), judged(leaf, [5, 5]))
    assert not better(judged(leaf, [4, 4]), judged(stump, [5, 5]))


def test_selection_seeds_are_not_those_of_evaluation():
    selection = Selection(problem_of(PREREQ, {"m": 4}))
    assert not set(selection.seeds.tolist()) & set(source_seeds(0))


def source_seeds(seed):
    from custard.task.source import episode_seeds

    return episode_seeds(seed, 1000).tolist()


def test_continuous_actions_are_refused():
    with pytest.raises(CustardError, match="discrete actions"):
        custard.learn("Pendulum-v1", "mfec", budget=1000)


def _cartpole():
    base = describe(gym.make("CartPole-v1"))
    return base.features, base.actions


def test_a_moved_threshold_is_one_of_a_real_feature_and_the_rest_stays():
    learned = custard.learn("CartPole-v1", "mfec", seed=1, budget=20_000, max_depth=2)
    tree, rng = learned.tree, np.random.default_rng(0)
    moved = [shift_threshold(tree, rng, np.ones(4)) for _ in range(20)]
    assert all((new.threshold != tree.threshold).sum() == 1 for new in moved)
    assert all(tree.feature[new.threshold != tree.threshold] >= 0 for new in moved)
    whole = custard.learn("custard/PrereqWorld-v0", "mfec", seed=1, budget=20_000)
    assert shift_threshold(whole.tree, rng, np.ones(whole.tree.features.n)) is None
