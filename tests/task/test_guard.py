"""Environments that go wrong: one line that says what and where, whoever steps them."""

import copy

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.errors import CustardError
from custard.task.source import source


class Broken(gym.Env):
    """Twenty steps, of which the seventh goes wrong in one way."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def __init__(self, **wrong):
        self.wrong = wrong

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        if "start" in self.wrong:
            raise RuntimeError("no\nkey")
        return self.see(), {}

    def see(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.t += 1
        wrong = self.wrong if self.t == 7 else {}
        if "step" in wrong:
            raise RuntimeError("out of\ncoal")
        if "short" in wrong:
            return self.see(), 1.0, False, {}
        return wrong.get("see", self.see()), wrong.get("reward", 1.0), self.t == 20, False, {}


WRONG = [
    ({"start": True}, "environment 'Broken' raised RuntimeError on reset: no key"),
    ({"step": True}, "environment 'Broken' raised RuntimeError at step 7: out of coal"),
    ({"short": True}, "environment 'Broken' raised ValueError at step 7: not enough values"),
    ({"reward": np.nan}, "environment 'Broken' gave the reward nan at step 7"),
    ({"reward": np.float32(-np.inf)}, "environment 'Broken' gave the reward -inf at step 7"),
    ({"reward": np.array([1.0, 2.0])}, "environment 'Broken' raised TypeError at step 7"),
    ({"see": np.array([0.0, np.nan])}, "the environment gave NaN for feature 'obs_1': a tree cannot compare it"),
    ({"see": np.zeros(3)}, "the environment gave 3 features where 2 were declared"),
]


@pytest.mark.parametrize("method", ["tpi", "mfec", "viper-dqn", "ppo"])
@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_learning_says_what_went_wrong(method, wrong, message):
    with pytest.raises(CustardError, match=message):
        custard.learn(Broken, method, env_kwargs=wrong, budget=2000)


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_judging_says_what_went_wrong(wrong, message):
    base = custard.describe(Broken())
    with pytest.raises(CustardError, match=message):
        custard.evaluate(custard.Tree.leaf(0, base.features, base.actions), Broken(**wrong), episodes=3)


def test_features_that_fail_are_named():
    with pytest.raises(CustardError, match="features= failed on an observation: division by zero"):
        custard.learn(Broken, budget=100, features=lambda observation: [1 / 0])


def test_rewards_are_plain_numbers_and_copies_go_their_own_way():
    env = source(Broken, {"reward": np.float32(0.5)}).make()
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    rewards = [env.step(1)[1] for _ in range(7)]
    assert rewards == [1.0] * 6 + [0.5]
    assert all(type(reward) is float for reward in rewards)
    assert twin.steps == 0
