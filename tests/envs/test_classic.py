"""The compiled twins of Gymnasium's classic control behave like the originals, bit for bit."""

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.spaces import describe
from custard.envs.native import twin
from custard.task.source import source


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Pendulum-v1"])
def test_twins_give_what_gymnasium_gives(name):
    single = gym.make(name)
    many = source(name).make_vec(4)
    rng = np.random.default_rng(0)
    for _ in range(4):
        seed = int(rng.integers(2**31))
        x, _ = many.reset(seed=seed)
        observation, _ = single.reset(seed=seed)
        np.testing.assert_array_equal(x[0], observation)
        over = False
        hold = single.action_space.sample()
        while not over:
            if rng.random() < 0.2:
                single.action_space.seed(int(rng.integers(2**31)))
                hold = single.action_space.sample()
            observation, reward, terminated, truncated, _ = single.step(hold)
            x, r, t, c, _ = many.step(np.repeat(np.asarray(hold)[None], 4, axis=0))
            np.testing.assert_array_equal(x[0], observation)
            assert (r[0], t[0], c[0]) == (reward, terminated, truncated)
            over = terminated or truncated


@pytest.mark.parametrize("name", ["MountainCar-v0", "Acrobot-v1", "Pendulum-v1"])
def test_twins_are_described_alike_and_judged_alike(name):
    own, twins = describe(gym.make(name)), describe(source(name).make_vec(2))
    assert own.features.same_as(twins.features)
    assert own.actions.same_as(twins.actions)
    left, right = (0, 2) if own.actions.discrete else ([-1.5], [0.7])
    tree = custard.Tree.stump(own.features.n - 1, 0.0, left, right, own.features, own.actions)
    ours = custard.evaluate(tree, name, episodes=5, seed=3)
    theirs = custard.evaluate(tree, lambda: gym.make(name), episodes=5, seed=3)
    np.testing.assert_array_equal(ours.returns, theirs.returns)
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)


def test_only_what_is_the_same_has_a_twin():
    assert twin("MountainCarContinuous-v0") is None
    assert source("MountainCar-v0", {"goal_velocity": 0.01}).make_compiled is None
