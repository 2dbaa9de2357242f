"""What one random episode shows: how long episodes may be, what is discounted, and rewards of any size."""

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.spaces import describe
from custard.task.problem import Problem
from custard.task.source import source


class Push(gym.Env):
    """Push a point back to the middle; the episode ends after so many steps, in one way or the other, or never."""

    observation_space, action_space = gym.spaces.Box(-4, 4, (2,)), gym.spaces.Discrete(3)

    def __init__(self, steps=20, terminates=False, scale=1.0):
        self.steps, self.terminates, self.scale = steps, terminates, scale

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = self.np_random.uniform(-1, 1, 2), 0
        return self.at.astype(np.float32), {}

    def step(self, action):
        self.at = np.array([self.at[0] + 0.3 * (float(action) - 1), self.np_random.uniform(-1, 1)]).clip(-4, 4)
        self.t += 1
        end = self.t == self.steps
        reward = -self.scale * abs(float(self.at[0]))
        return self.at.astype(np.float32), reward, end and self.terminates, end and not self.terminates, {}


def problem(**how):
    where = source(lambda: Push(**how))
    return Problem(where, describe(where.make_vec(1)))


@pytest.mark.parametrize(
    ("how", "episode_cap", "gamma_b", "probe_steps"),
    [
        ({"terminates": True}, 2000, 1.0, 20),
        ({}, 2000, 0.99, 20),
        ({"steps": 10**9}, 200, 0.99, 1000),
    ],
)
def test_what_a_random_episode_tells(how, episode_cap, gamma_b, probe_steps):
    task = problem(**how)
    assert (task.episode_cap(100_000), task.default_gamma_b, task.probe_steps) == (episode_cap, gamma_b, probe_steps)
    assert task.episode_cap(1000) == 100
    assert task.episode_cap(10**9) == 10_000


def test_where_a_limit_is_declared_or_steps_are_compiled_nothing_is_cut_before():
    limited = source("CartPole-v1", {"max_episode_steps": 30})  # arguments: not the compiled twin
    task = Problem(limited, describe(limited.make_vec(1)))
    assert (task.episode_cap(10), task.default_gamma_b) == (30, 0.99)
    compiled = source("custard/PotholeWorld-v0")
    task = Problem(compiled, describe(compiled.make_vec(1)))
    assert (task.episode_cap(1e6), task.default_gamma_b, task.probe_steps, task.reward_scale) == (10_000, 1.0, 0, 1.0)


def test_rewards_far_from_one_are_brought_near_it_to_learn_from():
    plain, large = problem(), problem(scale=1e6)
    assert plain.with_scaled_rewards is plain
    env, own = large.with_scaled_rewards.source.make(), large.source.make()
    env.reset(seed=3)
    own.reset(seed=3)
    rewards = np.array([[one.step(0)[1] for one in (env, own)] for _ in range(10)])
    np.testing.assert_allclose(rewards[:, 0] * large.reward_scale, rewards[:, 1])
    assert 0.1 < np.abs(rewards[:, 0]).mean() < 10.0


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("method", ["dqn", "ppo"])
def test_rewards_of_any_size_are_learned_from(method, scale):
    pytest.importorskip("jax", reason='needs the extra "neural"')
    run = custard.learn(lambda: Push(scale=scale), method, max_depth=2, budget=40_000)
    assert run.value > -7.0 * scale  # -10.6 by any single action, -1.7 by a good rule
    assert 2 <= run.tree.n_leaves <= 4
