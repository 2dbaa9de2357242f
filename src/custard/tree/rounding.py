"""Which floats lie on which side of a bound: float32 beside float64, whole numbers beside all."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["first_above", "last_within", "round_down"]


def round_down(threshold: np.ndarray) -> np.ndarray:
    """Return the largest float32 at most each threshold: x <= t and x <= round_down(t) agree for float32 x.

    >>> float(round_down(np.array([0.1]))[0]) <= 0.1, float(np.float32(0.1)) <= 0.1
    (True, False)
    """
    with np.errstate(over="ignore", under="ignore"):
        near = threshold.astype(np.float32)
        return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near).astype(np.float32)


def first_above(bound: Any, whole: Any) -> np.ndarray:
    """Return the least float64 that exceeds each bound; the least whole one where `whole` says so.

    >>> first_above([0.3, 0.3], [True, False]).tolist()
    [1.0, 0.30000000000000004]
    """
    with np.errstate(over="ignore"):  # above the greatest number is infinity
        after = np.nextafter(bound, np.inf)
    # From 2**52 on all floats are whole, and adding one may change nothing.
    return np.where(whole, np.maximum(np.floor(bound) + 1, after), after)


def last_within(bound: Any, whole: Any) -> np.ndarray:
    """Return the greatest float64 that does not exceed each bound; the greatest whole one where `whole` says so.

    >>> last_within([0.3, 0.3], [True, False]).tolist()
    [0.0, 0.3]
    """
    return np.where(whole, np.floor(bound), bound)
