"""Replay memory: the most recent transitions, in ring buffers of NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

__all__ = ["Replay", "Transitions", "make_transitions"]


class Transitions(NamedTuple):
    """Steps of base environments, one row per step."""

    x: np.ndarray  # [T, n] features before the step
    action: np.ndarray  # [T] int64, numbered from 0
    reward: np.ndarray  # [T]
    after: np.ndarray  # [T, n] features after the step, before any reset
    ended: np.ndarray  # [T] bool: nothing follows


def make_transitions(steps: int, n: int) -> Transitions:
    """Allocate transitions of `n` features."""
    x, after = np.zeros((steps, n)), np.zeros((steps, n))
    return Transitions(x, np.zeros(steps, np.int64), np.zeros(steps), after, np.zeros(steps, dtype=np.bool_))


class Replay:
    """Columns of equal length, filled from the start again when they are full.

    >>> ring = Replay(3, {"x": np.zeros(2), "reward": np.zeros(())})
    >>> ring.add({"x": np.ones((4, 2)), "reward": np.arange(4.0)})
    >>> ring.filled, ring.columns["reward"].tolist()
    (3, [3.0, 1.0, 2.0])
    """

    def __init__(self, size: int, row: Mapping[str, np.ndarray]) -> None:
        """Allocate `size` rows, each with the shapes and types of `row`."""
        self.size, self.filled, self.next_row = size, 0, 0
        self.columns = {name: np.zeros((size, *value.shape), value.dtype) for name, value in row.items()}

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Store rows in place of the oldest."""
        count = len(next(iter(rows.values())))
        index = (self.next_row + np.arange(count)) % self.size
        for name, column in self.columns.items():
            column[index[-self.size :]] = rows[name][-self.size :]
        self.next_row, self.filled = int((self.next_row + count) % self.size), min(self.size, self.filled + count)

    def sample(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        """Return `count` rows drawn with replacement."""
        index = rng.integers(self.filled, size=count)
        return {name: column.take(index, axis=0) for name, column in self.columns.items()}

    def state(self, name: str) -> dict[str, np.ndarray]:
        """Return a copy of everything, as arrays whose names begin with `name`."""
        data = {f"{name}.{key}": column[: self.filled].copy() for key, column in self.columns.items()}
        return {**data, f"{name}.at": np.array([self.next_row, self.filled])}

    def restore(self, name: str, data: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        self.next_row, self.filled = (int(value) for value in data[f"{name}.at"])
        for key, column in self.columns.items():
            column[: self.filled] = data[f"{name}.{key}"]
