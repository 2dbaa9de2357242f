"""Observations as a tree takes them: a batch or one vector of numbers, or an error that says what is needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.features import Features

__all__ = ["checked_batch", "checked_vector", "is_vector", "shape_message"]


def is_vector(observations: Any) -> bool:
    """Return whether observations are one feature vector rather than a batch of them."""
    if hasattr(observations, "ndim"):
        return observations.ndim == 1
    return isinstance(observations, (list, tuple)) and len(observations) > 0 and np.ndim(observations[0]) == 0


def checked_batch(features: Features, observations: Any) -> np.ndarray:
    """Return observations as an array [B, n_raw] or [B, n] of numbers, or raise."""
    try:
        x = np.asarray(observations)
    except (TypeError, ValueError):
        n = features.n_raw
        raise CustardError(f"observations must be {n} numbers each, not of several lengths") from None
    if x.ndim != 2 or x.shape[1] not in (features.n_raw, features.n):
        raise CustardError(shape_message(features, x.shape))
    if x.dtype.kind not in "fiub":
        raise CustardError(f"observations must be numbers, got an array of {x.dtype}")
    return x


def checked_vector(features: Features, observation: Any) -> np.ndarray:
    """Return one observation as float64 [n_raw] or [n], or raise."""
    try:
        x = np.asarray(observation)
        if x.dtype.kind not in "fiubO":  # NumPy would read texts, and cut what is complex
            raise TypeError
        x = x.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise CustardError(
            f"an observation is numbers: this tree takes {features.n_raw} numbers ({', '.join(features.raw.names)}), "
            f"not a {type(observation).__name__}; of Dict and Tuple observations the entries, one after the other"
        ) from None
    if x.shape not in ((features.n_raw,), (features.n,)):
        raise CustardError(shape_message(features, x.shape))
    return x


def shape_message(features: Features, shape: tuple[int, ...]) -> str:
    """Return what to say of observations of a wrong shape."""
    n = features.n_raw
    past = ", past steps included," if any(name.endswith("[-1]") for name in features.raw.names) else ""
    return (
        f"this tree takes observations of {n} features{past} ([B, {n}] for predict, [{n}] for act), got shape {shape}"
    )
