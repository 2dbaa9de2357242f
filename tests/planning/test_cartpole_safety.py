"""Bounded safety of CartPole trees: what is proved agrees with simulation, and the intervals contain the truth."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import Actions, CustardError, Features, Tree
from custard.envs.cartpole import FORCE, step_cartpole
from custard.planning.cartpole_safety import (
    _cut_along_grid,
    _divided_by_action,
    _merged_per_cell,
    _step_boxes,
    last_left,
    prove_safe,
)

BASE = custard.describe(gym.make("CartPole-v1"))
GOOD = Tree(
    [1, -1, 2, -1, -1], [-0.3499, 0, 0.01526, 0, 0], [1, -1, 3, -1, -1], [2, -1, 4, -1, -1], [0, 1, 0, 0, 1],
    BASE.features, BASE.actions,
)  # fmt: skip


def test_images_contain_what_the_environment_does() -> None:
    rng = np.random.default_rng(0)
    low = rng.uniform([-2, -2, -0.2, -3], [2, 2, 0.19, 3], (300, 4))
    high = low + rng.uniform(0, [0.1, 0.1, 0.01, 0.1], (300, 4)) * rng.integers(2, size=(300, 1))
    action = rng.integers(2, size=300)
    lower, upper = _step_boxes(low, high, np.where(action == 1, FORCE, -FORCE))
    for share in (0.0, 0.3, 1.0, rng.random((300, 4))):
        state = low + share * (high - low)
        for k in range(300):
            step_cartpole(state[k], action[k])
        assert (lower <= state).all()
        assert (state <= upper).all()
    assert (upper - lower < high - low + 0.05).all()  # and they are not idle


def test_the_environment_is_gymnasiums_own() -> None:
    env = gym.make("CartPole-v1").unwrapped
    for seed in range(20):
        env.reset(seed=seed)
        state = np.array(env.state, dtype=np.float64)
        for action in np.random.default_rng(seed).integers(2, size=10):
            step_cartpole(state, action)
            observation = env.step(int(action))[0]
            np.testing.assert_allclose(state, env.state, rtol=0, atol=1e-14)
            np.testing.assert_array_equal(observation, np.array(env.state, dtype=np.float32))


def test_the_last_value_that_goes_left() -> None:
    rng = np.random.default_rng(1)
    for t in [0.1, -0.1, 0.0, 1.0, 0.01526, *rng.standard_normal(200).tolist()]:
        x = last_left(t)
        assert float(np.float32(x)) <= t
        assert float(np.float32(np.nextafter(x, np.inf))) > t


def test_cutting_and_merging_lose_nothing() -> None:
    rng = np.random.default_rng(2)
    low = rng.uniform(-0.3, 0.3, (50, 4))
    high = low + rng.uniform(0, 0.2, (50, 4))
    cell = np.array([0.05, 0.02, 0.07])
    low2, high2 = _merged_per_cell(_cut_along_grid((low, high), cell), cell)
    low3, high3, action = _divided_by_action(GOOD, (low2, high2))
    for k in range(50):
        for point in low[k] + rng.random((20, 4)) * (high[k] - low[k]):
            inside = ((low2 <= point) & (point <= high2)).all(axis=1)
            assert inside.any()
            mine = ((low3 <= point) & (point <= high3)).all(axis=1)
            assert GOOD.act(point.astype(np.float32)) in action[mine]


def test_a_good_tree_is_proved_for_more_than_ten_steps() -> None:
    result = prove_safe(GOOD, 25)
    assert result.verdict == "proved"
    assert result.proved == 25
    assert result.left == ""


def test_a_learned_tree_is_proved_for_the_papers_whole_episode() -> None:
    tree = Tree.load(Path(__file__).parents[1] / "golden" / "cartpole_safe.json")
    assert tree.depth == 2
    result = prove_safe(tree, 200, simulations=100)
    assert result.verdict == "proved", result


def test_a_bad_tree_is_refuted_by_a_start_that_fails() -> None:
    result = prove_safe(Tree.leaf(1, BASE.features, BASE.actions), 30)
    assert result.verdict == "refuted"
    state = result.failing_start.copy()
    assert (np.abs(state) <= 0.05).all()
    env = gym.make("CartPole-v1").unwrapped
    env.reset()
    env.state = tuple(state)
    falls = next(step for step in range(1, 40) if env.step(1)[2])
    assert falls == result.fails_at
    assert 1 <= result.proved < falls


def test_what_cannot_be_proved_in_time_is_undecided() -> None:
    result = prove_safe(GOOD, 500, seconds=0.5, simulations=5)
    assert result.verdict == "undecided"
    assert result.proved >= 5
    assert result.left


def test_only_cartpole() -> None:
    features = Features(("a",), [0], [1])
    with pytest.raises(CustardError, match="CartPole trees"):
        prove_safe(Tree.leaf(0, features, Actions("discrete", ("x", "y"))))
    with pytest.raises(CustardError, match="at least 1"):
        prove_safe(GOOD, 0)
