"""A first look at an environment: one random episode, which tells how episodes end and how large rewards are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Look", "first_look", "unit_of"]

MOST = 1000  # steps of the episode
ORDINARY = 10.0  # rewards no larger than this, and no smaller than its inverse, are left as they are


class Look(NamedTuple):
    """What was seen."""

    steps: int
    ended: bool  # within `MOST` steps
    terminated: bool  # it ended by itself, not at a time limit
    unit: float  # the size of its rewards


def first_look(env: Any, seed: int) -> Look:
    """One episode of random actions.

    >>> import gymnasium as gym
    >>> first_look(gym.make("CartPole-v1"), 0)
    Look(steps=18, ended=True, terminated=True, unit=1.0)
    """
    env.action_space.seed(seed)
    env.reset(seed=seed)
    rewards: list[float] = []
    terminated = truncated = False
    while len(rewards) < MOST and not (terminated or truncated):
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        rewards.append(float(reward))
    return Look(len(rewards), bool(terminated or truncated), bool(terminated), unit_of(np.array(rewards)))


def unit_of(rewards: np.ndarray) -> float:
    """What to divide rewards by that are far from one: the mean size of those that are not zero.

    >>> unit_of(np.array([0.0, 0.0, -5.0])), unit_of(np.array([0.0, 2e6, 4e6]))
    (1.0, 3000000.0)
    """
    sizes = np.abs(rewards[rewards != 0.0]).astype(np.float64)
    mean = float(sizes.mean()) if len(sizes) else 1.0
    return 1.0 if 1 / ORDINARY <= mean <= ORDINARY else mean
