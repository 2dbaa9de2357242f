"""Probe an environment: one episode of random actions shows how episodes end and how large rewards are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Discrete

from custard.task.episodes import action_mask

__all__ = ["MAX_PROBE_STEPS", "Probe", "probe_environment", "reward_scale_of"]

MAX_PROBE_STEPS = 1000
MAX_UNSCALED_MEAN_REWARD = 10.0  # mean reward sizes from the inverse of this up to this are left as they are


class Probe(NamedTuple):
    """What one random episode shows."""

    steps: int
    ended: bool  # terminated or truncated within `MAX_PROBE_STEPS`
    terminated: bool
    reward_scale: float  # see `reward_scale_of`


def probe_environment(env: Any, seed: int, max_steps: int = MAX_PROBE_STEPS) -> Probe:
    """Run one episode of random actions, at most `max_steps` of it.

    >>> import gymnasium as gym
    >>> probe_environment(gym.make("CartPole-v1"), 0)
    Probe(steps=18, ended=True, terminated=True, reward_scale=1.0)
    """
    env.action_space.seed(seed)
    _, info = env.reset(seed=seed)
    rewards: list[float] = []
    terminated = truncated = False
    while len(rewards) < max_steps and not (terminated or truncated):
        _, reward, terminated, truncated, info = env.step(_random_action(env, info))
        rewards.append(float(reward))
    return Probe(len(rewards), bool(terminated or truncated), bool(terminated), reward_scale_of(np.array(rewards)))


def _random_action(env: Any, info: dict[str, Any]) -> Any:
    """Draw one of the actions that the environment allows now."""
    mask = action_mask(env, info) if isinstance(env.action_space, Discrete) else None
    if mask is None or not np.any(mask):
        return env.action_space.sample()
    return env.action_space.sample(np.asarray(mask, dtype=np.int8))


def reward_scale_of(rewards: np.ndarray) -> float:
    """Return what to divide rewards [N] by: the mean size of those that are not zero, or 1 if it is near 1.

    >>> reward_scale_of(np.array([0.0, 0.0, -5.0])), reward_scale_of(np.array([0.0, 2e6, 4e6]))
    (1.0, 3000000.0)
    """
    sizes = np.abs(rewards[rewards != 0.0]).astype(np.float64)
    mean = float(sizes.mean()) if len(sizes) else 1.0
    return 1.0 if 1 / MAX_UNSCALED_MEAN_REWARD <= mean <= MAX_UNSCALED_MEAN_REWARD else mean
