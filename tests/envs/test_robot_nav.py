"""RobotNav: known steps and outcomes, and the compiled form against the single environment."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import custard
from custard.envs.robot_nav import HOLES, OBSERVATIONS, RobotNav, move_robot, observe_polar, past_hole, robot_outcome

NAME = "custard/RobotNav-v0"


def test_steps_by_hand():
    """From (9, 4) the goal lies straight up: towards it is +y, left of it -x, right of it +x."""
    for action, after in ((0, (9.0, 5.0)), (1, (8.0, 4.0)), (2, (10.0, 4.0))):
        state = np.array([9.0, 4.0, 4.5, 4.5])
        move_robot(state, action)
        assert state.tolist() == [*after, 4.5, 4.5]
    state = np.array([6.0, 5.0, 4.5, 4.5])  # 3-4-5 triangle to the goal
    move_robot(state, 0)
    np.testing.assert_allclose(state[:2], [6.6, 5.8])


def test_outcomes_and_observations_by_hand():
    hole = [4.5, 4.5]
    assert robot_outcome([9.0, 8.0, *hole]) == (0.0, True)  # on the goal's edge
    assert robot_outcome([9.0, 7.9, *hole]) == (-1.0, False)
    assert robot_outcome([4.5, 6.5, *hole]) == (-100.0, True)  # on the hole's edge
    assert robot_outcome([4.5, 6.6, *hole]) == (-1.0, False)
    assert robot_outcome([-0.1, 5.0, *hole]) == robot_outcome([5.0, 10.1, *hole]) == (-100.0, True)
    seen = np.zeros(4)
    observe_polar([9.0, 4.5, *hole], seen)
    np.testing.assert_allclose(seen, [math.pi / 2, 4.5, math.pi, 4.5])
    assert past_hole([9.0, 4.5, *hole])
    assert not past_hole([1.0, 1.0, *hole])


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("hole", HOLES)
def test_the_compiled_form_equals_the_single_environment(observation, hole):
    kwargs = {"observation": observation, "hole": hole}
    check_env(RobotNav(**kwargs), skip_render_check=True)
    native = gym.make_vec(NAME, num_envs=9, **kwargs)
    single = gym.make_vec(NAME, num_envs=9, vectorization_mode="sync", **kwargs)
    rng = np.random.default_rng(0)
    first = native.reset(seed=5)[0]
    np.testing.assert_array_equal(first, single.reset(seed=5)[0])
    if observation == "positions":
        assert (first[:, 2:4] == 4.5).all() == (hole == "fixed")
    for _ in range(300):
        actions = rng.integers(3, size=9)
        for left, right in zip(native.step(actions)[:4], single.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(left, right)


def test_straight_ahead_falls_into_the_hole_unless_the_start_is_beside_it():
    base = custard.describe(gym.make(NAME, observation="positions"))
    straight = custard.Tree.leaf(0, base.features, base.actions)
    returns = custard.evaluate(straight, NAME, 200, env_kwargs={"observation": "positions"}).returns
    assert (returns < -100).all()
    # From above the hole the way is free.
    env = RobotNav()
    env.reset(seed=0)
    env.state[:2] = 0.5, 5.0
    total, over = 0.0, False
    while not over:
        _, reward, over, _, _ = env.step(0)
        total += reward
    assert total == -8.0  # 9.39 units to the goal's centre: nine steps, the last one free


def test_rendering_and_bad_parameters():
    for mode, kind in (("ansi", str), ("rgb_array", np.ndarray)):
        env = gym.make(NAME, render_mode=mode)
        env.reset(seed=0)
        assert isinstance(env.render(), kind)
    with pytest.raises(custard.CustardError, match="did you mean 'polar'"):
        RobotNav(observation="polr")
    with pytest.raises(custard.CustardError, match="unknown hole"):
        RobotNav(hole="moving")
