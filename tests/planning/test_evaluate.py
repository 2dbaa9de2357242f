"""Exact values against closed forms, rollouts and each other."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import custard
from custard.core.mdp import FiniteMDP
from custard.planning.env import FiniteEnv
from custard.planning.evaluate import mean_questions, policy_value, random_value, tree_value, visits
from custard.planning.solve import optimal_value
from custard.tree.mdp_policy import mdp_policy
from tests.planning.random_mdp import random_mdp


def chain(p: float, reward: float, gamma: float, horizon: int | None = None) -> FiniteMDP:
    """One state that is left with probability p."""
    return FiniteMDP.from_entries(
        np.array([[0, 0, 1, p], [0, 0, 0, 1 - p], [0, 1, 1, 1.0]]),
        np.array([[reward], [0.0]]),
        terminal=np.array([False, True]),
        start=np.array([1.0, 0.0]),
        gamma=gamma,
        x=np.zeros((2, 1)),
        features=custard.Features(("x",), np.zeros(1), np.ones(1)),
        actions=custard.Actions("discrete", ("go",)),
        horizon=horizon,
    )


@pytest.mark.parametrize(("p", "gamma"), [(0.5, 1.0), (0.1, 1.0), (0.3, 0.9), (0.0, 0.5)])
def test_a_geometric_episode_has_its_closed_form(p: float, gamma: float) -> None:
    assert policy_value(np.zeros(2, int), chain(p, -1.0, gamma)) == pytest.approx(-1 / (1 - gamma * (1 - p)))


def test_endless_episodes_are_worth_what_their_loop_earns() -> None:
    none = np.zeros(2, int)
    assert policy_value(none, chain(0.0, -1.0, 1.0)) == -np.inf
    assert policy_value(none, chain(0.0, 1.0, 1.0)) == np.inf
    assert policy_value(none, chain(0.0, 0.0, 1.0)) == 0.0
    assert policy_value(none, chain(0.0, -1.0, 1.0, horizon=7)) == pytest.approx(-7.0)


@given(seed=st.integers(0, 10_000), horizon=st.sampled_from([None, 1, 4, 200]), gamma=st.sampled_from([0.9, 1.0]))
@settings(max_examples=40, deadline=None)
def test_values_equal_visits_times_rewards(seed: int, horizon: int | None, gamma: float) -> None:
    mdp = random_mdp(3, 3, seed, gamma=gamma, horizon=horizon)
    choice = np.random.default_rng(seed).integers(3, size=mdp.n_states)
    occupancy, _ = visits(choice, mdp)
    earned = occupancy @ np.where(mdp.terminal, 0, mdp.rewards[np.arange(mdp.n_states), choice])
    assert policy_value(choice, mdp) == pytest.approx(earned, abs=1e-9)
    assert policy_value(choice, mdp) <= optimal_value(mdp) + 1e-9


def test_rollouts_agree_with_the_exact_value() -> None:
    mdp = random_mdp(3, 2, seed=5, gamma=1.0, ending=0.2)
    tree = custard.Tree.stump(1, 0.5, 0, 1, mdp.features, mdp.actions)
    low, high = custard.evaluate(tree, lambda: FiniteEnv(mdp), episodes=3000, seed=3).ci95
    margin = high - low
    assert low - margin <= tree_value(tree, mdp) <= high + margin


def test_random_actions_have_an_exact_value() -> None:
    mdp = random_mdp(2, 3, seed=5, gamma=0.9)
    mean = sum(matrix.toarray() for matrix in mdp.transitions) / 3
    mean[mdp.terminal] = 0.0
    expected, left = 0.0, mdp.start.copy()
    for step in range(400):
        expected += 0.9**step * float(left @ np.where(mdp.terminal, 0.0, mdp.rewards.mean(axis=1)))
        left = left @ mean
    assert random_value(mdp) == pytest.approx(expected)
    with pytest.raises(custard.CustardError, match="gamma below 1"):
        random_value(random_mdp(2, 3, seed=5, gamma=1.0))


def test_questions_are_counted_by_visits() -> None:
    mdp = chain(0.5, -1.0, 1.0)
    tree = custard.Tree.stump(0, 0.5, 0, 0, mdp.features, mdp.actions)
    assert mean_questions(tree, mdp) == pytest.approx(2.0)
    assert mean_questions(custard.Tree.leaf(0, mdp.features, mdp.actions), mdp) == 0.0


def test_a_tree_for_other_features_is_refused() -> None:
    mdp = random_mdp(2, 2, seed=0)
    other = random_mdp(3, 2, seed=0)
    with pytest.raises(custard.CustardError, match="3 features"):
        mdp_policy(custard.Tree.leaf(0, other.features, other.actions), mdp)


def test_an_endless_policy_has_no_visits() -> None:
    with pytest.raises(custard.CustardError, match="never terminates"):
        visits(np.zeros(2, int), chain(0.0, -1.0, 1.0))


def test_the_environment_follows_gymnasium() -> None:
    from gymnasium.utils.env_checker import check_env

    env = FiniteEnv(random_mdp(2, 2, seed=0, horizon=5))
    check_env(env, skip_render_check=True)
    with pytest.raises(custard.CustardError, match="outside"):
        env.step(7)
    assert gym.spec("FiniteMDP-v0").entry_point == "custard.planning.env:FiniteEnv"
