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
        if "exit" in wrong:
            raise SystemExit(wrong["exit"])
        end, cut = wrong.get("end", self.t == 20), wrong.get("cut", False)
        return wrong.get("see", self.see()), wrong.get("reward", 1.0), end, cut, wrong.get("info", {})


WRONG = [
    ({"start": True}, "environment 'Broken' raised RuntimeError on reset: no key"),
    ({"step": True}, "environment 'Broken' raised RuntimeError at step 7: out of coal"),
    ({"short": True}, "environment 'Broken' raised ValueError at step 7: not enough values"),
    ({"reward": np.nan}, "environment 'Broken' gave the reward nan at step 7"),
    ({"reward": np.float32(-np.inf)}, "environment 'Broken' gave the reward -inf at step 7"),
    ({"reward": np.array([1.0, 2.0])}, "environment 'Broken' raised TypeError at step 7"),
    ({"see": np.array([0.0, np.nan])}, "the environment gave NaN for feature 'obs_1': a tree cannot compare it"),
    (
        {"see": np.zeros(3)},
        r"gave an observation that does not fit its space .* its shape is \(3,\), not \(2,\) at step 7",
    ),
    ({"see": np.zeros((1, 2))}, r"its shape is \(1, 2\), not \(2,\) at step 7"),
    ({"see": ["a", "b"]}, r"list \['a', 'b'\] is no array of numbers at step 7"),
    ({"see": None}, "NoneType None is no array of numbers at step 7"),
    ({"reward": "1.5"}, "environment 'Broken' gave the text '1.5' as reward at step 7"),
    ({"reward": 1.7e308}, r"gave the reward 1.7e\+308 at step 7: rewards beyond .* are too large to add"),
    ({"end": "no"}, "gave terminated = str no at step 7: it must be True or False"),
    ({"end": np.array([True, False])}, "gave terminated = ndarray .* at step 7: it must be True or False"),
    ({"cut": None}, "gave truncated = NoneType None at step 7"),
    ({"info": None}, "must return a dictionary as the last part of a step, not NoneType"),
    ({"exit": 0}, "environment 'Broken' raised SystemExit at step 7: 0"),
]


@pytest.mark.parametrize("method", ["tpi", "mfec", "viper-dqn", "ppo"])
@pytest.mark.parametrize(("wrong", "message"), WRONG[:8])
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


class Elsewhere(Broken):
    """Observations of other spaces; `see` is what the seventh step gives."""

    def __init__(self, space, start, **wrong):
        super().__init__(**wrong)
        self.observation_space, self.start = space, start

    def see(self):
        return self.start


@pytest.mark.parametrize(
    ("space", "start", "wrong", "message"),
    [
        (gym.spaces.Discrete(3), 2, 7, "7 is not one of 0…2 at step 7"),
        (gym.spaces.Discrete(3), 2, 1.5, "1.5 is not one of 0…2 at step 7"),
        (gym.spaces.Discrete(3, start=-1), 1, 2, "2 is not one of -1…1 at step 7"),
        (
            gym.spaces.Dict(a=gym.spaces.Discrete(2), b=gym.spaces.Discrete(2)),
            {"a": 0, "b": 1},
            {"a": 0},
            "it lacks 'b'",
        ),
        (gym.spaces.Dict(a=gym.spaces.Box(0, 1, (2,))), {"a": np.zeros(2)}, {"a": np.zeros(3)}, r"\(part 'a'\)"),
        (gym.spaces.Tuple([gym.spaces.Discrete(2)] * 2), (0, 1), (0,), "2 parts are needed"),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([1, 3]), "3 is not one of 0…2"),
        (gym.spaces.MultiBinary(2), np.array([1, 0]), np.array([1, 2]), "2 is not one of 0…1"),
    ],
)
def test_observations_outside_their_space_are_named(space, start, wrong, message):
    env = Elsewhere(space, start, see=wrong)
    base = custard.describe(env)
    tree = custard.Tree.leaf(0, base.features, base.actions)
    assert custard.evaluate(tree, Elsewhere(space, start), episodes=1).mean == 20.0
    with pytest.raises(CustardError, match=message):
        custard.evaluate(tree, env, episodes=1)


def test_rewards_that_can_be_added_have_a_finite_spread():
    env = Broken(reward=1e100)
    base = custard.describe(env)
    result = custard.evaluate(custard.Tree.leaf(0, base.features, base.actions), env, episodes=3)
    assert "inf" not in str(result)


def test_an_array_that_the_environment_changes_later_is_copied():
    class Reused(Broken):
        observation_space = gym.spaces.Box(-1, 1, (2,), dtype=np.float64)
        seen = np.zeros(2)

        def see(self):
            self.seen += 0.01
            return self.seen

    env = Reused()
    base = custard.describe(env)
    first = base.observe(env.reset(seed=0)[0])
    before = first.copy()
    env.step(0)
    np.testing.assert_array_equal(first, before)
