"""Budgets: no method exceeds the environment steps it was given by more than one episode, and it counts them all."""

import gymnasium as gym
import numpy as np
import pytest

import custard

LONGEST = 60  # steps of an episode


class Counting(gym.Env):
    """A walk on a line that counts, for all instances, how often it is stepped."""

    observation_space, action_space = gym.spaces.Box(-4, 4, (2,)), gym.spaces.Discrete(2)
    taken = 0

    def __init__(self, ends=True):
        self.ends = ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = self.np_random.uniform(-1, 1, 2), 0
        return self.at.astype(np.float32), {}

    def step(self, action):
        Counting.taken += 1
        self.t += 1
        self.at = np.array([self.at[0] + 0.2 * (2 * action - 1), self.np_random.uniform(-1, 1)]).clip(-4, 4)
        over = self.ends and abs(self.at[0]) > 2
        return self.at.astype(np.float32), 1.0, bool(over), self.ends and self.t >= LONGEST, {}


def learn(method, budget, **given):
    if method not in ("mfec", "viper-bi"):
        pytest.importorskip("jax", reason='needs the extra "neural"')
    Counting.taken = 0
    return custard.learn(given.pop("env", Counting), method, budget=budget, **given)


@pytest.mark.parametrize(
    ("method", "budget", "settings"),
    [
        ("mfec", 300, {}), ("mfec", 2000, {}), ("mfec", 300, {"preset": "paper"}), ("mfec", 2000, {"preset": "paper"}),
        ("dqn", 300, {}), ("ppo", 300, {}), ("viper-dqn", 2000, {"iterations": 4, "expert_settings": {"hidden": 8}}),
    ],
)  # fmt: skip
def test_a_budget_is_kept_where_python_steps(method, budget, settings):
    run = learn(method, budget, **settings)
    assert run.steps == Counting.taken
    assert run.steps <= budget + LONGEST


@pytest.mark.parametrize("settings", [{}, {"preset": "paper"}])
def test_a_budget_is_kept_where_nothing_ends_an_episode(settings):
    run = learn("mfec", 2000, env_kwargs={"ends": False}, **settings)
    assert run.steps == Counting.taken
    assert run.steps <= 2000 + 100


@pytest.mark.parametrize("budget", [500, 3000])
@pytest.mark.parametrize(("method", "settings"), [("mfec", {}), ("viper-bi", {"iterations": 3})])
def test_a_budget_is_kept_in_compiled_environments(method, settings, budget):
    assert learn(method, budget, env="CartPole-v1", **settings).steps <= budget + 500
