"""The cheese maze (Chrisman 1992, McCallum 1996): cells look alike, so that only a policy with memory finds its way.

The agent sees which sides of its cell are walls, nothing else. 2 and 4 look alike, as do 6, 7 and 8, and 9 and 11; in 2
it must go east and in 4 west, in 7 south and in 6 and 8 north. The goal is 10.

    1 2 3 4 5
    6   7   8
    9  10  11
"""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np

import custard
from custard.core.mdp import FiniteMDP

__all__ = ["CheeseMaze", "best_without_memory"]

#: (row, column) of the cells 1 … 11.
CELLS = [(0, c) for c in range(5)] + [(1, c) for c in (0, 2, 4)] + [(2, c) for c in (0, 2, 4)]
GOAL = CELLS.index((2, 2))
MOVES = ((-1, 0), (1, 0), (0, 1), (0, -1))  # north, south, east, west
TIME_LIMIT = 30
STEP_REWARD, WALL_REWARD, GOAL_REWARD = -0.1, -1.0, 5.0  # McCallum's
STARTS = [cell for cell in range(len(CELLS)) if cell != GOAL]


def neighbour(cell: int, action: int) -> int:
    """Return the cell that a move leads to; the same one if there is a wall."""
    row, column = CELLS[cell]
    there = row + MOVES[action][0], column + MOVES[action][1]
    return CELLS.index(there) if there in CELLS else cell


def walls(cell: int) -> np.ndarray:
    """Return which sides of a cell are walls [4]: what the agent sees."""
    return np.array([float(neighbour(cell, action) == cell) for action in range(4)])


def reward(cell: int, action: int) -> float:
    """Return the reward of a move."""
    after = neighbour(cell, action)
    return GOAL_REWARD if after == GOAL else WALL_REWARD if after == cell else STEP_REWARD


class CheeseMaze(gym.Env):
    """Find the cheese from a random cell; the observation is the walls around the present cell."""

    observation_space, action_space = gym.spaces.MultiBinary(4), gym.spaces.Discrete(4)
    feature_names = ("wall_north", "wall_south", "wall_east", "wall_west")
    action_names = ("north", "south", "east", "west")
    cell = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start in any cell but the goal."""
        super().reset(seed=seed)
        self.cell = STARTS[int(self.np_random.integers(len(STARTS)))]
        return walls(self.cell).astype(np.int8), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move, or stay where a wall is."""
        gain = reward(self.cell, int(action))
        self.cell = neighbour(self.cell, int(action))
        return walls(self.cell).astype(np.int8), gain, self.cell == GOAL, False, {}

    def mdp(self) -> FiniteMDP:
        """Return the exact model; its features are what the agent sees, so its trees have no memory."""
        count = len(CELLS)
        base = custard.describe(self)
        entries = [
            (a, s, s if s == GOAL else neighbour(s, a), 1.0) for s, a in itertools.product(range(count), range(4))
        ]
        gains = np.array([[0.0 if s == GOAL else reward(s, a) for a in range(4)] for s in range(count)])
        start = np.array([float(s in STARTS) for s in range(count)]) / len(STARTS)
        return FiniteMDP.from_entries(
            np.array(entries), gains, terminal=np.arange(count) == GOAL, start=start, gamma=1.0,
            x=np.array([walls(s) for s in range(count)]), features=base.features, actions=base.actions,
        )  # fmt: skip


gym.register("CheeseMaze-v0", entry_point=CheeseMaze, max_episode_steps=TIME_LIMIT)


def best_without_memory() -> tuple[float, int]:
    """Return the best mean return, and the most starts from which the goal is reached, of all 4^6 memoryless policies.

    A tree over the walls gives each of the six things that can be seen one action, so it is one of these policies.
    """
    looks = [tuple(walls(cell)) for cell in range(len(CELLS))]
    kinds = sorted({looks[cell] for cell in STARTS})
    policies = np.array(list(itertools.product(range(4), repeat=len(kinds))))  # [4^6, 6]
    kind_of = np.array([kinds.index(look) if look in kinds else 0 for look in looks])
    after = np.array([[neighbour(cell, action) for action in range(4)] for cell in range(len(CELLS))])
    gains = np.array([[reward(cell, action) for action in range(4)] for cell in range(len(CELLS))])
    cell = np.repeat(np.array(STARTS)[None], len(policies), axis=0)  # [4^6, starts]
    returns = np.zeros(cell.shape)
    for _ in range(TIME_LIMIT):
        action = np.take_along_axis(policies, kind_of[cell], axis=1)
        returns += np.where(cell == GOAL, 0.0, gains[cell, action])
        cell = np.where(cell == GOAL, GOAL, after[cell, action])
    return float(returns.mean(axis=1).max()), int((cell == GOAL).sum(axis=1).max())
