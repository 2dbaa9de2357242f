"""Backward induction where a state is a few real numbers: values on a grid of states, interpolated in between.

For compiled environments whose features are their state and whose steps leave nothing to chance. Unlike a `FiniteMDP`
this is no exact model and proves nothing; it makes a good expert (`custard.experts.backward_induction`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from custard.envs import cartpole, classic
from custard.envs.native import CARTPOLE, MOUNTAIN_CAR
from custard.task.source import Source

__all__ = ["STATE_BOXES", "Grid", "corners", "make_grid", "q_function"]

MAX_GRID_POINTS = 200_000
MAX_POINTS_PER_FEATURE = 401  # points along one feature, at most
DEFAULT_HORIZON = 1000  # steps looked ahead where the environment has no time limit

#: Where states lie: the least of each feature, and the most. A state outside is worth what the nearest inside is.
STATE_BOXES = {
    CARTPOLE: np.outer([-1, 1], [cartpole.X_LIMIT, 3.0, cartpole.ANGLE_LIMIT, 3.5]),
    MOUNTAIN_CAR: np.array(
        [[classic.CAR_LEFT_END, -classic.CAR_MAX_SPEED], [classic.CAR_RIGHT_END, classic.CAR_MAX_SPEED]]
    ),
}


class Grid(NamedTuple):
    """Evenly spaced points: those along feature c are low[c] + k * step[c], k = 0 … size - 1."""

    low: np.ndarray  # [n]
    step: np.ndarray  # [n]
    size: int  # along every feature, odd, so that the middle is a point

    @property
    def points(self) -> np.ndarray:
        """All points, the last feature varying fastest, [size ** n, n]."""
        along = (low + step * np.arange(self.size) for low, step in zip(self.low, self.step, strict=True))
        return np.stack(np.meshgrid(*along, indexing="ij"), axis=-1).reshape(-1, len(self.low))


def make_grid(low: np.ndarray, high: np.ndarray, points: int = MAX_GRID_POINTS) -> Grid:
    """Return a grid of at most `points` points between two corners.

    >>> make_grid(np.zeros(2), np.ones(2), 30).size
    5
    """
    count = min(int(points ** (1.0 / len(low)) + 1e-9), MAX_POINTS_PER_FEATURE)
    count -= 1 - count % 2
    return Grid(low, (high - low) / (count - 1), count)


def corners(grid: Grid, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the points around each state [B, 2 ** n], and their shares in it, which add up to one.

    >>> index, share = corners(Grid(np.zeros(1), np.ones(1), 3), np.array([[1.25], [9.0]]))
    >>> index.tolist(), share.tolist()
    ([[1, 2], [1, 2]], [[0.75, 0.25], [0.0, 1.0]])
    """
    place = np.clip((x - grid.low) / grid.step, 0.0, grid.size - 1.0)
    cell = np.minimum(place.astype(np.int64), grid.size - 2)
    share_up = place - cell
    index, share = [], []
    for up in product((0, 1), repeat=x.shape[1]):
        index.append(np.ravel_multi_index(tuple((cell + up).T), (grid.size,) * x.shape[1]))
        share.append(np.where(up, share_up, 1.0 - share_up).prod(axis=1))
    return np.stack(index, axis=1), np.stack(share, axis=1)


def q_function(source: Source) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return Q(x, a) = r + V(x') for states [B, n]; None if the environment is not of the kind this is for.

    V(s) = max_a r + V(s') at the grid's points, from the time limit backwards; where an episode ends nothing follows.
    """
    env: Any = source.make_compiled and source.make_compiled(1)
    if env is None or getattr(env, "world", None) not in STATE_BOXES:
        return None
    grid, n_actions = make_grid(*STATE_BOXES[env.world]), int(env.single_action_space.n)

    def ahead(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each action and state the reward, the points around what follows, and their shares."""
        many: Any = source.make_vec(len(x))
        many.rng = np.zeros((len(x), 4), np.uint64)  # never drawn from
        parts = []
        for action in range(n_actions):
            many.state[...] = x
            many.step_some(many.everyone, np.full(len(x), action))
            index, share = corners(grid, many.state)
            parts.append((many.reward.copy(), index, share * ~many.terminated[:, None]))
        reward, index, share = (np.stack(part) for part in zip(*parts, strict=True))
        return reward, index, share

    reward, index, share = ahead(grid.points)
    states, around = grid.size ** len(grid.low), index.shape[-1]
    rows = np.arange(0, index.size + 1, around)
    follows = sparse.csr_array((share.ravel(), index.ravel(), rows), shape=(len(rows) - 1, states))
    value = np.zeros(states)
    for _ in range(source.time_limit or DEFAULT_HORIZON):
        value = (reward + (follows @ value).reshape(n_actions, -1)).max(axis=0)

    def q(x: np.ndarray) -> np.ndarray:
        reward, index, share = ahead(x)
        return (reward + (value[index] * share).sum(axis=-1)).T

    return q
