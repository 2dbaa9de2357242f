"""Print, for every method and some environments, the environment steps that a run took beside its budget.

    python benchmarks/run_budgets.py [METHOD or METHOD/PRESET …]

"said" is what the run reports, "taken" what the environments that Python steps counted themselves. The presets `paper`
of dqn and ppo count steps of the IBMDP in their budgets. No run may exceed its budget by more than one episode.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import gymnasium as gym
import numpy as np

import custard

METHODS = ("mfec", "mfec/paper", "viper-dqn", "dqn", "ppo", "dqn/paper", "ppo/paper")
BUDGETS = (500, 3000, 30_000)


class Counting(gym.Wrapper):
    """Counts the steps of all its instances."""

    taken = 0

    def step(self, action):
        Counting.taken += 1
        return self.env.step(action)


class Endless(gym.Env):
    """Noise without an end: the second action earns."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action), False, False, {}


def counted(make: Callable[[], gym.Env]) -> Callable[[], gym.Env]:
    return lambda: Counting(make())


ENVIRONMENTS = {
    "CartPole-v1 (Python)": (counted(lambda: gym.make("CartPole-v1")), {}),
    "FrozenLake-v1": (counted(lambda: gym.make("FrozenLake-v1")), {}),
    "without an end": (counted(Endless), {}),
    "CartPole-v1": ("CartPole-v1", {}),
    "PrereqWorld m=6": ("custard/PrereqWorld-v0", {"m": 6}),
}


def main(methods: list[str]) -> None:
    warnings.simplefilter("ignore")
    for chosen in methods or METHODS:
        method, _, preset = chosen.partition("/")
        for name, (env, kwargs) in ENVIRONMENTS.items():
            for budget in BUDGETS:
                Counting.taken, begun = 0, time.perf_counter()
                run = custard.learn(env, method, budget=budget, preset=preset or None, env_kwargs=kwargs or None)
                taken = Counting.taken or "-"
                print(f"{chosen:12} {name:22} budget {budget:6} said {run.steps:6} taken {taken:>6} "
                      f"×{run.steps / budget:.2f}  {time.perf_counter() - begun:.1f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
