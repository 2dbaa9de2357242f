"""The last transitions, in rings of NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["Replay"]


class Replay:
    """Columns of equal length, filled from the start again when they are full.

    >>> ring = Replay(3, {"x": np.zeros(2), "reward": np.zeros(())})
    >>> ring.add({"x": np.ones((4, 2)), "reward": np.arange(4.0)})
    >>> ring.full, ring.columns["reward"].tolist()
    (3, [3.0, 1.0, 2.0])
    """

    def __init__(self, size: int, row: Mapping[str, np.ndarray]) -> None:
        """Room for `size` rows, each like `row`."""
        self.size, self.full, self.at = size, 0, 0
        self.columns = {name: np.zeros((size, *value.shape), value.dtype) for name, value in row.items()}

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Remember rows, the oldest forgotten first."""
        count = len(next(iter(rows.values())))
        index = (self.at + np.arange(count)) % self.size
        for name, column in self.columns.items():
            column[index[-self.size :]] = rows[name][-self.size :]
        self.at, self.full = int((self.at + count) % self.size), min(self.size, self.full + count)

    def sample(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        """Rows drawn with replacement."""
        index = rng.integers(self.full, size=count)
        return {name: column.take(index, axis=0) for name, column in self.columns.items()}

    def state(self, name: str) -> dict[str, np.ndarray]:
        """A copy of everything as arrays whose names begin with `name`."""
        data = {f"{name}.{key}": column[: self.full].copy() for key, column in self.columns.items()}
        return {**data, f"{name}.at": np.array([self.at, self.full])}

    def restore(self, name: str, data: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        self.at, self.full = (int(value) for value in data[f"{name}.at"])
        for key, column in self.columns.items():
            column[: self.full] = data[f"{name}.{key}"]
