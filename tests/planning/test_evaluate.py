"""Exact values against closed forms, rollouts and each other."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import custard
from custard.core.mdp import FiniteMDP
from custard.planning import evaluate as module
from custard.planning.env import FiniteEnv
from custard.planning.evaluate import (
    mean_questions,
    policy_value,
    random_value,
    state_values,
    states_visited,
    tree_value,
    visits,
)
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


def random_chain(seed: int, gamma: float = 1.0, horizon: int | None = None) -> tuple[FiniteMDP, np.ndarray, np.ndarray]:
    """An MDP of one action with terminal states, loops that earn, lose or do nothing; its matrix and rewards, dense.

    Some episodes begin in a terminal state, and some states are out of reach.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 9))
    begins = rng.choice(count, size=int(rng.integers(1, 3)), replace=False)
    terminal = rng.random(count) < 0.2
    terminal[begins[0]] = False
    matrix = np.zeros((count, count))
    for s in range(count):
        successors = rng.choice(count, size=int(rng.integers(1, 3)))
        np.add.at(matrix[s], successors, 1.0 / len(successors))
    matrix[terminal] = np.eye(count)[terminal]
    rewards = np.where(terminal | (rng.random(count) < 0.5), 0.0, rng.integers(-2, 3, count))
    start = np.zeros(count)
    start[begins] = 1.0 / len(begins)
    rows, columns = np.nonzero(matrix)
    mdp = FiniteMDP.from_entries(
        np.stack([np.zeros(len(rows)), rows, columns, matrix[rows, columns]], axis=1), rewards[:, None],
        terminal=terminal, start=start, gamma=gamma, x=np.arange(count)[:, None].astype(float), horizon=horizon,
        features=custard.Features(("x",), [0], [count]), actions=custard.Actions("discrete", ("go",)),
    )  # fmt: skip
    return mdp, matrix, rewards


def values_by_classes(matrix: np.ndarray, rewards: np.ndarray, terminal: np.ndarray) -> np.ndarray:
    """Undiscounted values by their definition: which recurrent classes a state reaches, else by iteration."""
    count = len(rewards)
    reaches = np.linalg.matrix_power(np.eye(count) + matrix, count) > 0
    long_run = np.eye(count)
    for _ in range(40):  # averaged, so that cycles settle
        long_run = long_run @ (0.5 * np.eye(count) + 0.5 * matrix)
        long_run = long_run @ long_run if _ < 12 else long_run
    recurrent = [all(reaches[t, s] for t in np.flatnonzero(reaches[s])) for s in range(count)]
    worth = np.zeros(count)
    for sign in (np.inf, -np.inf):
        for s in np.flatnonzero(recurrent):
            members = reaches[s] & reaches[:, s]
            gain = long_run[s] @ rewards
            if not terminal[s] and (rewards[members] != 0).any() and (gain > 1e-9) == (sign > 0):
                worth[reaches[:, s]] = sign
    total, step = np.zeros(count), np.where(terminal, 0.0, rewards)
    for _ in range(3000):
        total, step = total + step, matrix @ step
    return np.where(np.isinf(worth), worth, total)


@given(seed=st.integers(0, 100_000))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_undiscounted_values_are_what_the_classes_of_states_earn(seed: int) -> None:
    mdp, matrix, rewards = random_chain(seed)
    known = values_by_classes(matrix, rewards, mdp.terminal)
    reached = (np.linalg.matrix_power(np.eye(len(known)) + matrix, len(known)) > 0)[mdp.start > 0].any(axis=0)
    choice = np.zeros(len(known), int)
    assert state_values(choice, mdp) == pytest.approx(np.where(reached, known, 0.0), abs=1e-6)
    begun = known[mdp.start > 0]
    whole = -np.inf if np.isneginf(begun).any() else float(mdp.start[mdp.start > 0] @ begun)
    assert policy_value(choice, mdp) == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("unfiltered", [0, 5_000])
@pytest.mark.parametrize(("gamma", "horizon"), [(0.9, None), (1.0, None), (1.0, 6), (0.8, 6), (0.9, 2000)])
def test_visits_are_those_of_every_step(
    monkeypatch: pytest.MonkeyPatch, unfiltered: int, gamma: float, horizon: int | None
) -> None:
    monkeypatch.setattr(module, "MAX_UNFILTERED_STATES", unfiltered)
    endless = 0
    for seed in range(40):
        mdp, matrix, _ = random_chain(seed, gamma, horizon)
        choice = np.zeros(mdp.n_states, int)
        mass, known, weight = np.where(mdp.terminal, 0.0, mdp.start), np.zeros(mdp.n_states), 1.0
        for _ in range(horizon or 3000):
            known += weight * mass
            mass, weight = np.where(mdp.terminal, 0.0, mass @ matrix), weight * gamma
        if horizon is None and gamma == 1.0 and mass.sum() > 1e-9:
            endless += 1
            with pytest.raises(custard.CustardError, match="never terminates"):
                visits(choice, mdp)
            continue
        occupancy, left = visits(choice, mdp)
        assert occupancy == pytest.approx(known, abs=1e-9)
        assert left == (0.0 if horizon is None else pytest.approx(mass.sum() if horizon < 100 else left))
    assert (endless > 0) == (horizon is None and gamma == 1.0)


def test_large_rewards_are_summed_to_the_last_digits() -> None:
    """How long states are followed depends on what they could still earn."""
    mdp = chain(0.01, -1e9, 1.0, horizon=100_000)
    assert policy_value(np.zeros(2, int), mdp) == pytest.approx(-1e11, rel=1e-12)


def test_states_are_repeated_in_the_proportions_of_their_visits() -> None:
    """One visit of the first state, and a third of one of the second: three quarters and one."""
    mdp = FiniteMDP.from_entries(
        np.array([[0, 0, 1, 1 / 3], [0, 0, 2, 2 / 3], [0, 1, 2, 1.0], [0, 2, 2, 1.0]]), -np.ones((3, 1)),
        terminal=np.arange(3) == 2, start=np.array([1.0, 0.0, 0.0]), gamma=1.0, x=np.array([[5.0], [7.0], [9.0]]),
        features=custard.Features(("x",), [0], [9]), actions=custard.Actions("discrete", ("go",)),
    )  # fmt: skip
    tree = custard.Tree.leaf(0, mdp.features, mdp.actions)
    assert states_visited(tree, mdp, 4).tolist() == [[5.0]] * 3 + [[7.0]]
    assert states_visited(tree, mdp, 10).tolist() == [[5.0]] * 8 + [[7.0]] * 3


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
