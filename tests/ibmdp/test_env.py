import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings

import custard
from custard import CustardError
from custard.ibmdp.splits import Rules, fractions, project, separable, separates
from tests.strategies import random_features, seeds

TIGHT = dict(low=[-2, -2, -0.14, -1.4], high=[2, 2, 0.14, 1.4])


def cartpole(**kwargs):
    return custard.IBMDP(gym.make("CartPole-v1"), **{"splits": 3, **TIGHT, **kwargs})


def test_the_actions_really_exist():
    env = cartpole()
    assert env.action_space.n == 2 + 3 * 4
    assert env.observation_space.shape == (12,)
    assert cartpole(observation="bounds").observation_space.shape == (8,)
    assert custard.IBMDP(gym.make("custard/PrereqWorld-v0", m=7), splits=1).action_space.n == 14


def test_one_traversal_by_hand():
    env = cartpole(zeta=-0.5, gamma_b=0.9, gamma_w=0.8)
    observation, info = env.reset(seed=0)
    assert observation[4:].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert info["action_mask"].all()
    x = env.x.copy()
    env.x[0] = 0.7  # cart position 0.7 in [-2, 2]
    observation, reward, terminated, truncated, info = env.step(2 + 0 * 3 + 1)  # v = 1/2: is it <= 0?
    assert (reward, terminated, truncated, info["discount"], info["depth"]) == (-0.5, False, False, 0.8, 1)
    assert env.lower[0] == 0.0
    assert observation[4] == 0.5
    observation, *_ = env.step(2 + 0 * 3 + 2)  # v = 3/4 of [0, 2]: is it <= 1.5?
    assert env.upper[0] == 1.5
    assert observation[8] == np.float32(0.875)
    env.x[:] = x
    observation, reward, terminated, truncated, info = env.step(1)
    assert (reward, info["discount"], info["depth"]) == (1.0, 0.9, 0)
    assert observation[4:].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_base_environment_is_untouched_by_questions():
    env, base = cartpole(), gym.make("CartPole-v1")
    env.reset(seed=4)
    base.reset(seed=4)
    rng = np.random.default_rng(0)
    for _ in range(300):
        action = int(rng.integers(14))
        _, reward, terminated, truncated, _ = env.step(action)
        if action < 2:
            observation, expected, *ended, _ = base.step(action)
            np.testing.assert_array_equal(env.x, observation.astype(float))
            assert (reward, terminated, truncated) == (expected, *ended)
            if any(ended):
                env.reset(seed=9)
                base.reset(seed=9)


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_bounds_contain_the_state(seed):
    rng = np.random.default_rng(seed)
    features = random_features(rng, int(rng.integers(1, 5)))
    parameterised = bool(seed % 2)
    env = custard.IBMDP(
        Random(features, seed), splits="parameterised" if parameterised else int(rng.integers(1, 5)),
        low=features.low, high=features.high, mask_useless=bool(seed % 3),
    )  # fmt: skip
    env.reset(seed=seed)
    env.action_space.seed(seed)
    for _ in range(40):
        env.step(env.action_space.sample())
        inside = (env.lower <= env.x) & (env.x <= env.upper)
        # Nothing is known on a side that was never cut: values outside the declared bounds stay there.
        below = (env.x < features.low) & (env.lower == features.low)
        above = (env.x > features.high) & (env.upper == features.high)
        assert (inside | below | above).all()
        strict = env.lower > features.low
        assert (env.x[strict] > env.lower[strict]).all()


class Random(gym.Env):
    """Random states, some of them outside the declared bounds."""

    def __init__(self, features, seed, dtype=np.float64):
        self.features, self.dtype = features, dtype
        self.feature_names, self.feature_kinds = features.names, features.kinds
        self.observation_space = spaces.Box(-np.inf, np.inf, (features.n,), dtype=dtype)
        self.action_space = spaces.Discrete(3)
        self.rng = np.random.default_rng(seed)

    def draw(self):
        f = self.features
        span = f.high - f.low
        x = self.rng.uniform(f.low - 0.2 * span, f.high + 0.2 * span)
        corners = self.rng.integers(3, size=f.n)
        x = np.where(corners == 0, np.where(self.rng.random(f.n) < 0.5, f.low, f.high), x)
        grid = f.low + span * self.rng.integers(0, 9, size=f.n) / 8  # values that thresholds hit exactly
        x = np.where(corners == 1, grid, x)
        return np.where(f.integer, np.clip(np.round(x), f.low, f.high), x).astype(self.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.draw(), {}

    def step(self, action):
        return self.draw(), float(self.rng.normal()), bool(self.rng.random() < 0.02), False, {}


def test_values_outside_the_declared_bounds_compare_correctly():
    env = cartpole(splits=1)
    env.reset(seed=0)
    env.x[0] = 5.0  # beyond the declared 2
    observation, *_ = env.step(2)
    assert (env.lower[0], env.upper[0]) == (0.0, 2.0)
    assert observation[0] <= 1.0
    assert env.observation_space.contains(observation)


def test_a_depth_limit_is_a_mask():
    env = cartpole(max_depth=2)
    env.reset(seed=0)
    for depth in range(2):
        assert env.action_masks()[2:].any()
        _, _, _, _, info = env.step(2 + 3 * depth)
        assert info["depth"] == depth + 1
    assert info["action_mask"].tolist() == [True] * 2 + [False] * 12
    before = env.lower.copy(), env.upper.copy()
    _, reward, terminated, truncated, info = env.step(5)  # not afforded: changes nothing, costs zeta
    assert (reward, terminated, truncated, info["depth"]) == (-0.01, False, False, 2)
    np.testing.assert_array_equal(before, (env.lower, env.upper))
    assert cartpole(max_depth=0).reset(seed=0)[1]["action_mask"].tolist() == [True] * 2 + [False] * 12


def test_decided_features_are_masked_unless_told_otherwise():
    for useless, left in ((True, False), (False, True)):
        env = custard.IBMDP(gym.make("custard/PrereqWorld-v0", m=3), splits=1, mask_useless=useless)
        env.reset(seed=0)
        env.step(3)
        assert bool(env.action_masks()[3]) is left
        assert env.action_masks()[4]


@settings(max_examples=500, deadline=None)
@given(seeds)
def test_the_mask_is_exactly_whether_a_value_lies_on_each_side(seed):
    rng = np.random.default_rng(seed)
    low = float(rng.integers(-4, 4)) + (0.5 if seed % 5 == 0 else 0.0)
    high = low + float(rng.integers(0, 7))
    lower = max(low, float(rng.uniform(low - 1, high)))
    upper = float(rng.uniform(lower, high))
    v = float(rng.uniform())
    t = project(lower, upper, v)
    values = [k for k in range(-6, 14) if low <= k <= high and (k > lower or lower == low) and k <= upper]
    expected = any(k <= t for k in values) and any(k > t for k in values)
    assert bool(separates(True, low, lower, upper, t)) == expected
    assert bool(separable(True, low, lower, upper)) == (len(values) > 1)
    assert bool(separates(False, low, lower, upper, t)) == (lower < t < upper)


def test_a_policy_that_asks_for_ever_is_truncated():
    env = cartpole(max_queries=7)
    env.reset(seed=0)
    for step in range(7):
        _, _, terminated, truncated, info = env.step(13)
        assert not terminated
        assert truncated == (step == 6)
    assert info["traversal_limit"]


def test_parameterised_form():
    env = custard.IBMDP(gym.make("Pendulum-v1"), splits="parameterised")
    env.reset(seed=0)
    assert env.action_space["choice"].n == 1 + 3
    env.x[2] = 1.0
    v = np.array([0.25], dtype=np.float32)
    _, reward, *_ = env.step({"choice": 1 + 2, "v": v, "base": np.zeros(1)})
    assert (reward, env.lower[2], env.upper[2]) == (-0.01, -4.0, 8.0)
    _, reward, *_, info = env.step({"choice": 0, "v": v, "base": np.array([2.0])})
    assert info["discount"] == env.rules.gamma_b
    assert reward < 0
    discrete = cartpole(splits="parameterised")
    discrete.reset(seed=0)
    assert discrete.action_space["choice"].n == 2 + 4
    assert discrete.step({"choice": 1, "v": v})[1] == 1.0


def test_observations_are_fresh():
    env = cartpole()
    first, _ = env.reset(seed=0)
    kept = first.copy()
    env.step(3)
    np.testing.assert_array_equal(first, kept)
    mask = env.action_masks()
    mask[:] = False
    assert env.action_masks().any()


def test_spec_can_make_it_again():
    env = gym.make(cartpole(max_depth=2).spec)
    assert env.action_space.n == 14


@pytest.mark.parametrize("kwargs", [{}, {"observation": "bounds"}, {"max_depth": 2}])
def test_gymnasium_checker(kwargs):
    check_env(cartpole(**kwargs), skip_render_check=True)


def test_gymnasium_checker_on_the_parameterised_form():
    check_env(custard.IBMDP(gym.make("Pendulum-v1"), splits="parameterised"), skip_render_check=True)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"splits": 0}, "splits"), ({"splits": 1.5}, "splits"), ({"splits": "many"}, "splits"),
        ({"splits": True}, "splits"),
        ({"max_depth": -1}, "max_depth"), ({"gamma_b": 1.5}, "gamma_b"), ({"zeta": 0.1}, "zeta"),
        ({"zeta": float("nan")}, "zeta"), ({"observation": "all"}, "observation"), ({"bounds": "guess"}, "bounds"),
        ({"max_queries": 0}, "max_queries"),
    ],
)  # fmt: skip
def test_bad_settings(kwargs, message):
    with pytest.raises(CustardError, match=message):
        cartpole(**kwargs)


def test_vector_actions_need_the_parameterised_form():
    with pytest.raises(CustardError, match="parameterised"):
        custard.IBMDP(gym.make("Pendulum-v1"), splits=3)


@pytest.mark.parametrize("action", [-1, 14, 99])
def test_actions_outside_the_space(action):
    env = cartpole()
    with pytest.raises(CustardError, match="reset"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(CustardError, match="outside"):
        env.step(action)


def test_nan_observations_are_refused():
    class Broken(gym.Env):
        observation_space = spaces.Box(-1, 1, (2,))
        action_space = spaces.Discrete(2)
        feature_names = ("a", "b")

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, dtype=np.float32), {}

        def step(self, action):
            return np.array([0, np.nan], dtype=np.float32), 0.0, False, False, {}

    env = custard.IBMDP(Broken())
    env.reset()
    with pytest.raises(CustardError, match="NaN for feature 'b'"):
        env.step(0)


def test_fractions_and_numbering():
    assert fractions(10).tolist() == [j / 11 for j in range(1, 11)]
    env = cartpole()
    rules: Rules = env.rules
    assert [tuple(int(k) for k in rules.split(number)) for number in (2, 4, 5, 13)] == [(0, 0), (0, 2), (1, 0), (3, 2)]
