"""PrereqWorld (paper, appendix A.2): produce the goal item, whose prerequisites have prerequisites of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from scipy import sparse

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import BINARY, Features
from custard.core.mdp import FiniteMDP
from custard.core.memory import require_memory
from custard.envs.picture import blank, rectangle

__all__ = ["PREREQUISITES", "PrereqWorld", "needs_matrix", "produce", "random_prerequisites"]

#: The paper's instance, m = 10. Smaller ones drop the highest-numbered items, also as prerequisites.
PREREQUISITES: dict[int, list[int]] = {
    0: [1, 2], 1: [5], 2: [4], 3: [6, 7], 4: [], 5: [7], 6: [7, 9], 7: [8], 8: [], 9: [],
}  # fmt: skip

GOAL_ITEM = 0
BYTES_PER_ACTION = 60  # of a state's action in the exact model


def produce(needs: Any, items: Any, action: int) -> bool:
    """Try to make one item in place: with all prerequisites present they are consumed, otherwise nothing happens."""
    m = len(items)
    for i in range(m):
        if needs[action, i] > 0 and items[i] == 0:
            return False
    for i in range(m):
        if needs[action, i] > 0:
            items[i] = 0
    items[action] = 1
    return True


def needs_matrix(m: int, prerequisites: Mapping[int, Sequence[int]] | None) -> np.ndarray:
    """Return needs[i, j] = 1 where item i requires item j, [m, m] float64."""
    table = PREREQUISITES if prerequisites is None else prerequisites
    if m < 1 or (prerequisites is None and m > len(PREREQUISITES)):
        raise CustardError(f"PrereqWorld: m={m} must lie in 1…{len(PREREQUISITES)}, or pass prerequisites=")
    needs = np.zeros((m, m))
    for item, required in table.items():
        for other in required:
            if not 0 <= int(item) < int(other):
                raise CustardError(f"PrereqWorld: item {item} requires {other}, but items may only require higher ones")
            if other < m and int(item) < m:
                needs[int(item), other] = 1.0
    return needs


def random_prerequisites(m: int, seed: int) -> dict[int, list[int]]:
    """Return a random instance: every item requires at most two of the higher-numbered ones, the goal at least one.

    >>> sorted(random_prerequisites(4, seed=0))
    [0, 1, 2, 3]
    """
    rng = np.random.default_rng(seed)
    table = {}
    for item in range(m):
        higher = np.arange(item + 1, m)
        count = min(len(higher), int(rng.integers(1 if item == GOAL_ITEM else 0, 3)))
        table[item] = sorted(rng.choice(higher, size=count, replace=False).tolist()) if count else []
    return table


class PrereqWorld(gym.Env):
    """m binary features (is item i present?), m actions (try to make item i), reward -1 until the goal item is made.

    `rho` is the probability that an attempt fails without effect; the paper uses 0. The start is empty.

    >>> env = PrereqWorld(m=4, render_mode="ansi")
    >>> _ = env.reset(seed=0)
    >>> [env.step(action)[1] for action in (1, 2, 0)]
    [-1.0, -1.0, 0.0]
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 2}

    def __init__(
        self,
        m: int = 10,
        rho: float = 0.0,
        prerequisites: Mapping[int, Sequence[int]] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if not 0.0 <= rho < 1.0:
            raise CustardError(f"PrereqWorld: rho={rho!r} must lie in [0, 1)")
        self.m, self.rho, self.needs = m, rho, needs_matrix(m, prerequisites)
        self.items = np.zeros(m, dtype=np.int8)
        self.observation_space = spaces.MultiBinary(m)
        self.action_space = spaces.Discrete(m)
        self.feature_names = tuple(f"has_{i}" for i in range(m))
        self.action_names = tuple(f"make_{i}" for i in range(m))
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start without items."""
        super().reset(seed=seed)
        self.items[:] = 0
        return self.items.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Try to make one item."""
        fails = self.rho > 0 and self.np_random.uniform(0.0, 1.0) < self.rho
        made = not fails and produce(self.needs, self.items, int(action))
        done = bool(made and action == GOAL_ITEM)
        return self.items.copy(), 0.0 if done else -1.0, done, False, {}

    def render(self) -> Any:
        """Return the items, as text or as a row of squares."""
        if self.render_mode == "ansi":
            return " ".join(f"{i}:{'#' if present else '.'}" for i, present in enumerate(self.items))
        if self.render_mode == "rgb_array":
            frame = blank(48, 48 * self.m)
            for i, present in enumerate(self.items):
                colour = (240, 170, 60) if i == GOAL_ITEM else (70, 110, 180)
                rectangle(frame, 48 * i + 6, 6, 36, 36, colour if present else (225, 225, 225))
            return frame
        return None

    def mdp(self, gamma: float = 1.0) -> FiniteMDP:
        """Return the exact model over all 2^m item sets; state k holds item i where bit i of k is set."""
        require_memory(
            2.0 ** min(self.m, 1000) * self.m * BYTES_PER_ACTION, f"the exact model of PrereqWorld with m={self.m}"
        )
        m, states = self.m, np.arange(2**self.m)
        items = (states[:, None] >> np.arange(m)) & 1
        terminal = items[:, GOAL_ITEM] == 1
        rewards = np.where(terminal[:, None], 0.0, np.full((len(states), m), -1.0))
        transitions = []
        for action in range(m):
            need = self.needs[action] > 0
            able = (items[:, need] == 1).all(axis=1) & ~terminal
            after = np.where(need, 0, items)
            after[:, action] = 1
            made = np.where(able, after @ (1 << np.arange(m)), states)
            rows = sparse.csr_array((np.full(len(states), 1.0 - self.rho), made, np.arange(len(states) + 1)))
            rows.resize((len(states), len(states)))
            stays = sparse.csr_array(sparse.diags_array(np.full(len(states), self.rho)))
            transitions.append(sparse.csr_array(rows + stays) if self.rho else rows)
            if action == GOAL_ITEM:
                rewards[able, action] = -self.rho
        return FiniteMDP(
            tuple(transitions),
            rewards,
            terminal=terminal,
            start=(states == 0).astype(float),
            gamma=gamma,
            x=items.astype(np.float64),
            features=Features(self.feature_names, np.zeros(m), np.ones(m), (BINARY,) * m),
            actions=Actions("discrete", self.action_names),
        )
