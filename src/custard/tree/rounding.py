"""float32 beside float64, without changing a decision."""

from __future__ import annotations

import numpy as np

__all__ = ["round_down"]


def round_down(threshold: np.ndarray) -> np.ndarray:
    """The largest float32 that does not exceed each threshold: x <= t and x <= round_down(t) agree for float32 x.

    >>> float(round_down(np.array([0.1]))[0]) <= 0.1, float(np.float32(0.1)) <= 0.1
    (True, False)
    """
    with np.errstate(over="ignore"):
        near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near).astype(np.float32)
