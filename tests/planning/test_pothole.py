"""PotholeWorld's limits: the known yardsticks, and rollouts of the trees that reach them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.planning.evaluate import policy_value
from custard.planning.pothole import best_intervals, expected_rewards, grid_model, position_visits
from custard.planning.solve import optimal_value

KNOWN = (45.00, 45.24, 46.43, 47.77, 49.64, 50.00)


@pytest.fixture(scope="module")
def env() -> object:
    return gym.make("custard/PotholeWorld-v0").unwrapped


def test_limits_by_depth(env: object) -> None:
    found = best_intervals(env, 32)
    assert found.by_depth(5) == pytest.approx(KNOWN, abs=0.02)
    assert found.values[17] == pytest.approx(50.0, abs=1e-6)
    assert found.values[16] < 49.999
    assert (np.diff(found.values) >= 0).all()


def test_a_finer_grid_changes_little(env: object) -> None:
    coarse, fine = (best_intervals(env, 32, step).by_depth(5) for step in (0.01, 0.001))
    assert coarse == pytest.approx(fine, abs=0.005)


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4, 5])
def test_the_trees_earn_what_they_promise(depth: int) -> None:
    run = custard.learn("custard/PotholeWorld-v0", "plan", max_depth=depth)
    assert run.tree.depth <= depth
    assert custard.evaluate(run.tree, "custard/PotholeWorld-v0", episodes=4000, seed=2).mean == pytest.approx(
        run.value, abs=0.04
    )


def test_expected_rewards_are_those_of_rollouts(env: object) -> None:
    rng = np.random.default_rng(0)
    from custard.envs.pothole_world import drive

    for position in (0.0, 0.4, 3.0, 21.0, 49.2, 49.8):
        exact = expected_rewards(env, np.array([position]))[0]
        for lane in range(3):
            seen = [drive(env.potholes, position, lane, d, 50.0)[1] for d in rng.uniform(0.5, 1.0, 4000)]  # type: ignore[attr-defined]
            assert np.mean(seen) == pytest.approx(exact[lane], abs=0.15)


def test_visits_follow_the_renewal_theorem() -> None:
    visits = position_visits(50.0, 0.01)
    assert visits.sum() == pytest.approx(50 / 0.75 + 0.5, abs=0.3)
    assert visits[3000:4000].sum() == pytest.approx(10 / 0.75, abs=0.01)


def test_the_grid_model_has_the_same_optimum(env: object) -> None:
    mdp = grid_model(env)
    assert optimal_value(mdp) == pytest.approx(50.0, abs=0.01)
    assert policy_value(np.zeros(mdp.n_states, dtype=int), mdp) == pytest.approx(45.0, abs=0.01)


def test_mistakes_are_one_line(env: object) -> None:
    with pytest.raises(custard.CustardError, match="must divide"):
        best_intervals(env, 2, step=0.3)
    with pytest.raises(custard.CustardError, match="plain return"):
        custard.learn("custard/PotholeWorld-v0", "plan", zeta=-0.01)
