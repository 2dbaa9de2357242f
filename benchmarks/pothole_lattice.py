"""The best returns on PotholeWorld of trees whose questions are those of an IBMDP with p thresholds a node.

    python benchmarks/pothole_lattice.py

Exact up to the grid of positions (0.01), by dynamic programming over all bounds that questions can lead to.
"""

from __future__ import annotations

from functools import cache

import gymnasium as gym
import numpy as np

import custard  # noqa: F401 - registers the environments
from custard.planning.pothole import expected_rewards, position_visits

STEP, LENGTH = 0.01, 50.0


def best(p: int, depth: int) -> float:
    """The most that a tree of at most this depth returns."""
    visits = position_visits(LENGTH, STEP)
    env = gym.make("custard/PotholeWorld-v0").unwrapped
    rewards = expected_rewards(env, np.arange(len(visits)) * STEP) * visits[:, None]
    before = np.vstack([np.zeros(rewards.shape[1]), np.cumsum(rewards, axis=0)])

    @cache
    def below(lower: float, upper: float, questions: int) -> float:
        first, last = (0 if lower == 0 else cell(lower)), (len(visits) if upper >= LENGTH else cell(upper))
        value = float((before[last] - before[first]).max())
        if questions == 0 or last - first < 2:
            return value
        for j in range(1, p + 1):
            v = lower + (upper - lower) * j / (p + 1)
            value = max(value, below(lower, v, questions - 1) + below(v, upper, questions - 1))
        return value

    return below(0.0, LENGTH, depth)


def cell(position: float) -> int:
    """The first grid position beyond this one."""
    return int(np.floor(position / STEP + 1e-9)) + 1


if __name__ == "__main__":
    for p, depths in ((31, range(1, 5)), (7, range(1, 7))):
        print(f"p = {p}: " + ", ".join(f"depth {depth} {best(p, depth):.2f}" for depth in depths))
