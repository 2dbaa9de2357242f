"""Small training runs whose trees are pinned: every method and preset, on compiled and on Python-stepped environments.

`python benchmarks/golden_trees.py` stores and compares all of them on one machine. Those whose arithmetic is the same
on every processor are committed under `tests/golden/trees/`, and `tests/test_golden.py` compares them in the suite.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import custard

TREES = Path(__file__).parent / "trees"


class Push(gym.Env):
    """Push a point to the origin of a line; the second feature is noise. Stepped from Python."""

    observation_space = gym.spaces.Box(-4, 4, (2,))
    action_space: gym.Space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at, self.elapsed = self.np_random.uniform(-1, 1, 2), 0
        return self.at.astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        push = float(np.asarray(action).reshape(-1)[0]) - self.middle
        self.at = np.array([self.at[0] + 0.3 * push, self.np_random.uniform(-1, 1)]).clip(-4, 4)
        self.elapsed += 1
        return self.at.astype(np.float32), -abs(float(self.at[0])), False, self.elapsed == 20, {}

    middle = 1.0


class PushVector(Push):
    """The same with a real vector of one component as its action."""

    action_space = gym.spaces.Box(-1.0, 1.0, (1,))
    middle = 0.0


@dataclass(frozen=True)
class Case:
    """One training run."""

    method: str
    preset: str
    env: str
    seed: int
    budget: int | None
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    max_depth: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A file name."""
        return f"{self.method}_{self.preset}_{self.env.split('/')[-1]}_{self.seed}"

    def run(self) -> dict[str, Any]:
        """The tree's arrays, the steps taken and the value, as JSON holds them."""
        env = {"Push": Push, "PushVector": PushVector}.get(self.env, self.env)
        run = custard.learn(
            env, self.method, preset=self.preset, seed=self.seed, budget=self.budget, max_depth=self.max_depth,
            env_kwargs=self.env_kwargs, **self.settings,
        )  # fmt: skip
        names = ("feature", "threshold", "children_left", "children_right", "value")
        result = {name: getattr(run.tree, name).tolist() for name in names}
        if self.method == "moet":
            result["sums"] = [entry.to_json() for entry in run.tree.features.derived]
        if run.tree.gains is not None and self.method == "icct":
            result["gains"] = run.tree.gains.tolist()
        if run.final is not None:
            result |= {f"final_{name}": getattr(run.final, name).tolist() for name in names}
        return {**result, "steps": run.steps, "return": run.value, "message": run.message}


ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"max_depth": 2},
    "custard/PrereqWorld-v0": {"env_kwargs": {"m": 5}},
    "custard/PotholeWorld-v0": {"max_depth": 5},
    "Push": {"max_depth": 2},
    "PushVector": {"max_depth": 2},
    "FrozenLake-v1": {"max_depth": 4},
    "custard/RobotNav-v0": {},
}

#: method, preset -> environment ("" for all) -> budget and settings
RUNS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("tpi", "tuned"): {"": {"budget": 400_000}, "Push": {"budget": 60_000}, "PushVector": {"budget": 20_000},
                       "FrozenLake-v1": {"budget": 50_000}},
    ("mfec", "tuned"): {"": {"budget": 200_000}, "Push": {"budget": 20_000}, "FrozenLake-v1": {"budget": 30_000}},
    ("mfec", "paper"): {"": {"budget": 30_000}, "Push": {"budget": 5_000}},
    ("dqn", "tuned"): {"": {"budget": 60_000}, "Push": {"budget": 12_000}},
    ("dqn", "paper"): {"": {"budget": 12_000, "warmup": 1000}, "Push": {"budget": 4_000, "warmup": 1000}},
    ("ppo", "tuned"): {"": {"budget": 40_000}, "Push": {"budget": 10_000}, "PushVector": {"budget": 10_000}},
    ("ppo", "paper"): {"": {"budget": 30_000}, "Push": {"budget": 8_000}},
    ("viper-dqn", "tuned"): {"": {"budget": 60_000}, "Push": {"budget": 12_000}},
    ("viper-dqn", "paper"): {"": {"budget": 30_000}, "Push": {"budget": 8_000}},
    ("viper-bi", "tuned"): {"": {"budget": 100_000, "iterations": 10}},
    ("viper-bi", "paper"): {"": {"budget": 100_000, "iterations": 10}},
    ("random", "tuned"): {"": {"budget": 20_000}, "Push": {"budget": 4_000}},
    ("cqi", "tuned"): {"": {"budget": 40_000}, "Push": {"budget": 8_000, "min_split_gain_decay": 0.99}},
    ("cqi", "paper"): {"": {"budget": 40_000}, "Push": {"budget": 8_000}},
    ("pyeatt", "tuned"): {"": {"budget": 40_000}, "Push": {"budget": 8_000}},
    ("pyeatt", "paper"): {"": {"budget": 40_000}, "Push": {"budget": 8_000}},
    ("cutree", "tuned"): {"": {"budget": 20_000}, "Push": {"budget": 6_000}},
    ("utree", "tuned"): {"": {"budget": 20_000}, "Push": {"budget": 6_000},
                         "CartPole-v1": {"p": 0.01, "fringe": 1, "epsilon_steps": 10_000}},
    # The last bits of the next three depend on the processor: NumPy's exponential and matrix products, and networks.
    ("moet", "tuned"): {"": {"budget": 30_000, "expert": "bi", "epochs": 10, "iterations": 4}},
    ("ddt", "tuned"): {"": {"budget": 12_000, "num_steps": 1000}, "Push": {"budget": 4_000, "num_steps": 500}},
    ("icct", "tuned"): {"": {"budget": 2_000, "updates_per_step": 0.25, "hidden": 16, "batch": 64}},
    ("plan", "tuned"): {"": {}},
    ("plan", "paper"): {"": {}},
}  # fmt: skip
ONLY_FOR = {"PushVector": (("tpi", "tuned"), ("ppo", "tuned"), ("icct", "tuned")),
            "FrozenLake-v1": (("tpi", "tuned"), ("mfec", "tuned")),
            "custard/RobotNav-v0": (("cqi", "tuned"),)}  # fmt: skip
NEEDS_MODEL = {"viper-bi": ("CartPole-v1", "custard/PrereqWorld-v0", "custard/PotholeWorld-v0"),
               "moet": ("CartPole-v1", "custard/PrereqWorld-v0", "custard/PotholeWorld-v0"),
               "plan": ("custard/PrereqWorld-v0", "custard/PotholeWorld-v0"), "icct": ("PushVector",)}  # fmt: skip


def cases() -> list[Case]:
    """Every run, two seeds each."""
    found = []
    for (method, preset), by_env in RUNS.items():
        for env, common in ENVIRONMENTS.items():
            if (method, preset) not in ONLY_FOR.get(env, ((method, preset),)):
                continue
            if method in NEEDS_MODEL and env not in NEEDS_MODEL[method]:
                continue
            how = {**by_env[""], **by_env.get(env, {})}
            budget = how.pop("budget", None)
            found += [Case(method, preset, env, seed, budget, **common, settings=how) for seed in (0, 1)]
    return found


def as_text(result: dict[str, Any]) -> str:
    """One array a line; floats are written so that they come back bit for bit."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items())
    return "{\n" + lines + "\n}\n"
