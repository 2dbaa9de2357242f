"""Backward induction on a grid: interpolation is exact where it can be, and the experts are as good as is known."""

from __future__ import annotations

import numpy as np
import pytest

import custard
from custard.planning.grid import corners, make_grid, q_function
from custard.task.runners import run_episodes
from custard.task.source import episode_seeds, source


def test_interpolation_is_exact_for_what_is_linear_in_each_feature() -> None:
    grid = make_grid(np.array([-1.0, 0.0, 2.0]), np.array([1.0, 3.0, 4.0]), 400)
    assert grid.size == 7

    def f(x: np.ndarray) -> np.ndarray:
        return 1.0 + 2.0 * x[:, 0] - x[:, 1] * x[:, 2] + 0.5 * x[:, 0] * x[:, 1] * x[:, 2]

    x = np.random.default_rng(0).uniform([-1.0, 0.0, 2.0], [1.0, 3.0, 4.0], (200, 3))
    index, share = corners(grid, x)
    np.testing.assert_allclose((f(grid.points)[index] * share).sum(axis=1), f(x), atol=1e-12)
    outside, edge = corners(grid, np.array([[9.0, 9.0, -9.0]])), corners(grid, np.array([[1.0, 3.0, 2.0]]))
    assert (f(grid.points)[outside[0]] * outside[1]).sum() == (f(grid.points)[edge[0]] * edge[1]).sum()


@pytest.mark.parametrize(
    ("env", "least"), [("custard/CartPole-v0", 200.0), ("MountainCar-v0", -98.5)]
)  # where the best known of any kind have 200 and about -97.5
def test_the_expert_acts_well(env: str, least: float) -> None:
    where = source(env)
    q = q_function(where)
    assert q is not None
    returns, *_ = run_episodes(lambda x: q(x).argmax(axis=1), where, episode_seeds(7, 500))
    assert returns.mean() >= least


def test_falling_is_worth_one_more_step() -> None:
    q = q_function(source("custard/CartPole-v0"))
    assert q is not None
    falling = np.array([[0.0, 0.0, 0.209, 3.0], [2.39, 3.0, 0.0, 0.0]])
    assert (q(falling) == 1.0).all()


def test_only_for_states_without_chance() -> None:
    for env in ("custard/PotholeWorld-v0", "custard/PrereqWorld-v0", "Acrobot-v1", "FrozenLake-v1"):
        assert q_function(source(env)) is None
    with pytest.raises(custard.CustardError, match="no exact model"):
        custard.learn("Acrobot-v1", "viper-bi", iterations=1)


def test_viper_learns_from_it() -> None:
    run = custard.learn(
        "custard/CartPole-v0", "viper-bi", max_depth=2, iterations=10, test_rollouts=50, final_rollouts=200
    )
    assert run.tree.depth == 2
    assert run.message.endswith("expert: backward induction on a grid")
    assert custard.evaluate(run.tree, "custard/CartPole-v0", 300, seed=9).mean > 190
