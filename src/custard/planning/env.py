"""A finite MDP as a Gymnasium environment, so that every method and every check runs on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register, registry

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP

__all__ = ["FiniteEnv"]


class FiniteEnv(gym.Env):
    """Acts out a `FiniteMDP`; observations are feature vectors, rewards the expected ones of (state, action).

    `custard.planning.env:FiniteMDP-v0` with the argument `path` makes one from a file.

    >>> from custard.envs.prereq_world import PrereqWorld
    >>> env = FiniteEnv(PrereqWorld(m=3).mdp())
    >>> observation, _ = env.reset(seed=0)
    >>> observation.tolist(), int(env.action_space.n)
    ([0.0, 0.0, 0.0], 3)
    """

    def __init__(self, mdp: FiniteMDP | None = None, path: str | Path | None = None) -> None:
        if (mdp is None) == (path is None):
            raise CustardError("FiniteEnv needs a FiniteMDP or the path of a file that holds one")
        if mdp is None:
            from custard.planning.store import load

            mdp = load(Path(str(path)))
        self.model = mdp
        self.feature_names, self.feature_kinds = mdp.features.names, mdp.features.kinds
        self.action_names = mdp.actions.names
        self.observation_space = spaces.Box(mdp.features.low, mdp.features.high, dtype=np.float64)
        self.action_space = spaces.Discrete(mdp.actions.n, start=mdp.actions.start)
        self.state, self.elapsed = -1, 0

    def mdp(self) -> FiniteMDP:
        """Return the exact model."""
        return self.model

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Draw a start state."""
        super().reset(seed=seed)
        self.state, self.elapsed = int(self.np_random.choice(self.model.n_states, p=self.model.start)), 0
        return self.model.x[self.state].copy(), {"state": self.state}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take an action; the episode terminates on entering a terminal state and is truncated at the horizon."""
        if self.state < 0:
            raise CustardError("call reset() before step()")
        number = int(action) - self.model.actions.start
        if not 0 <= number < self.model.actions.n:
            raise CustardError(f"action {action} is outside {self.action_space}")
        reward = float(self.model.rewards[self.state, number])
        matrix = self.model.transitions[number]
        row = slice(matrix.indptr[self.state], matrix.indptr[self.state + 1])
        draw = self.np_random.random() * matrix.data[row].sum()
        place = int(np.searchsorted(np.cumsum(matrix.data[row]), draw, side="right"))
        self.state = int(matrix.indices[row][min(place, row.stop - row.start - 1)])
        self.elapsed += 1
        terminated = bool(self.model.terminal[self.state])
        truncated = not terminated and self.model.horizon is not None and self.elapsed >= self.model.horizon
        return self.model.x[self.state].copy(), reward, terminated, truncated, {"state": self.state}


if "FiniteMDP-v0" not in registry:
    register(id="FiniteMDP-v0", entry_point="custard.planning.env:FiniteEnv")
