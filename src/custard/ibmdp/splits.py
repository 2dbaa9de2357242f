"""The information-gathering actions <c, v>: their numbering, their projection onto the bounds, and their masks.

The functions here are the only place where a threshold is computed, an answer narrows bounds or a value is normalised.
They use nothing but arithmetic and NumPy's elementwise functions, so the same source serves single numbers, whole
arrays and, compiled by numba, the loops of `custard.ibmdp.kernels`: equal inputs give equal bits everywhere. Whether a
split is useful is judged here for arrays, and there for single numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features

__all__ = ["PARAMETERISED", "Rules", "fractions", "narrowed", "normalise", "project", "separable", "separates"]

#: The value of `splits` that asks for continuous v (a parameterised action space) instead of p values per feature.
PARAMETERISED = "parameterised"


def project(lower: Any, upper: Any, v: Any) -> Any:
    """Return v_p <- v * (c^h - c^l) + c^l, the threshold that v in [0, 1] stands for between the current bounds.

    >>> project(-2.0, 2.0, 0.25)
    -1.0
    """
    return v * (upper - lower) + lower


def narrowed(lower: Any, upper: Any, v_p: Any, yes: Any) -> Any:
    """Return a feature's bounds after the question whether it is at most v_p.

    >>> narrowed(-2.0, 2.0, -1.0, True), narrowed(-2.0, 2.0, -1.0, False)
    ((-2.0, -1.0), (-1.0, 2.0))
    """
    return (lower, min(upper, v_p)) if yes else (max(lower, v_p), upper)


def fractions(p: int) -> np.ndarray:
    """Return the discrete v: 1/(p+1), ..., p/(p+1).

    >>> fractions(3).tolist()
    [0.25, 0.5, 0.75]
    """
    return np.arange(1, p + 1) / (p + 1)


def normalise(x: Any, low: Any, width: Any) -> Any:
    """Return a feature or bound in [0, 1], as the paper's observation holds it; values outside are clipped."""
    return np.minimum(np.maximum((x - low) / width, 0.0), 1.0)


def smallest(low: Any, lower: Any) -> Any:
    """Return the least whole number a feature can have: from its lowest bound on, above a bound won by asking."""
    return np.maximum(np.ceil(low), np.floor(lower) + (lower > low))


def separates(integer: Any, low: Any, lower: Any, upper: Any, threshold: Any) -> Any:
    """Return whether some value between the current bounds lies on each side of a threshold.

    `low` is the feature's bound at the root: a state may equal it, whereas it exceeds a lower bound won by asking.

    >>> bool(separates(True, 0.0, 0.0, 0.5, 0.25))  # a binary feature known to be 0
    False
    """
    whole = np.logical_and(np.floor(threshold) >= smallest(low, lower), np.floor(threshold) + 1 <= np.floor(upper))
    real = np.logical_and(lower < threshold, threshold < upper)
    return np.logical_or(np.logical_and(integer, whole), np.logical_and(np.logical_not(integer), real))


def separable(integer: Any, low: Any, lower: Any, upper: Any) -> Any:
    """Return whether any threshold could separate a feature's remaining values (the parameterised form's mask)."""
    whole = smallest(low, lower) + 1 <= np.floor(upper)
    real = lower < upper
    return np.logical_or(np.logical_and(integer, whole), np.logical_and(np.logical_not(integer), real))


@dataclass(frozen=True, eq=False)
class Rules:
    """All of an IBMDP that does not involve stepping its base environment.

    Action numbers: base actions first, then splits, feature-major: `n_base + c * splits + j` with
    `v = (j + 1) / (splits + 1)`; in the parameterised form `n_base + c`, and v comes with the action.
    """

    features: Features
    actions: Actions
    splits: int | str = 1
    zeta: float = -0.01
    gamma_b: float = 0.99
    gamma_w: float = 1.0
    max_depth: int | None = None
    mask_useless: bool = True
    max_queries: int | None = None

    def __post_init__(self) -> None:
        self.features.require_bounded()
        if isinstance(self.splits, bool) or (
            self.splits != PARAMETERISED and not (isinstance(self.splits, (int, np.integer)) and self.splits >= 1)
        ):
            raise CustardError(f'splits={self.splits!r} must be a whole number of at least 1, or "{PARAMETERISED}"')
        if not self.parameterised and not self.actions.discrete:
            raise CustardError(
                f"an IBMDP with {self.splits} discrete splits needs discrete base actions, but these are "
                f'{self.actions.kind} actions. Pass splits="{PARAMETERISED}".'
            )
        for name, least in (("max_depth", 0), ("max_queries", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or int(value) != value or value < least):
                raise CustardError(f"{name}={value!r} must be a whole number of at least {least}, or None")
        for name in ("gamma_b", "gamma_w"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise CustardError(f"{name}={getattr(self, name)!r} must lie in [0, 1]")
        if not np.isfinite(self.zeta) or self.zeta > 0:
            raise CustardError(f"zeta={self.zeta!r} must be zero or a negative number: it is the price of a question")
        if self.max_queries is None:
            object.__setattr__(self, "max_queries", max(1000, 2 * (self.max_depth or 0)))

    @property
    def parameterised(self) -> bool:
        """Whether v is continuous and part of the action."""
        return self.splits == PARAMETERISED

    @property
    def n_base(self) -> int:
        """The number of base actions (one, if the base action is a vector)."""
        return self.actions.n

    @property
    def per_feature(self) -> int:
        """How many action numbers each feature has."""
        return 1 if self.parameterised else int(self.splits)

    @property
    def n_actions(self) -> int:
        """The number of action numbers |A_w|."""
        return self.n_base + self.features.n * self.per_feature

    @property
    def depth_limit(self) -> int:
        """The depth limit as a number: the largest there is if there is none."""
        return np.iinfo(np.int32).max if self.max_depth is None else int(self.max_depth)

    @cached_property
    def width(self) -> np.ndarray:
        """What `normalise` divides by, [n]: the bounds' width, or one where they coincide."""
        span = self.features.high - self.features.low
        return np.where(span > 0, span, 1.0)

    @cached_property
    def fractions(self) -> np.ndarray:
        """The discrete v of each of a feature's actions; in the parameterised form v is not fixed (NaN)."""
        return np.array([np.nan]) if self.parameterised else fractions(int(self.splits))

    def root(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds before any question: fresh copies of low and high."""
        return self.features.low.copy(), self.features.high.copy()

    def normalised(self, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        """Return bounds [..., n] and [..., n] as the observation holds them, [..., 2n] float32."""
        low, width = self.features.low, self.width
        pair = [normalise(lower, low, width), normalise(upper, low, width)]
        return np.concatenate(pair, axis=-1).astype(np.float32)

    def mask(self, lower: np.ndarray, upper: np.ndarray, depth: Any) -> np.ndarray:
        """Return the affordances at bounds [..., n] and the number of questions asked so far: [..., n_actions] bool."""
        f = self.features
        if not self.mask_useless:
            useful = np.ones((*lower.shape, self.per_feature), dtype=bool)
        elif self.parameterised:
            useful = separable(f.integer, f.low, lower, upper)[..., None]
        else:
            integer, low, lower, upper = (a[..., None] for a in (f.integer, f.low, lower, upper))
            useful = separates(integer, low, lower, upper, project(lower, upper, self.fractions))
        useful = useful & (np.asarray(depth) < self.depth_limit)[..., None, None]
        splits = useful.reshape(*useful.shape[:-2], -1)
        return np.concatenate([np.ones((*splits.shape[:-1], self.n_base), dtype=bool), splits], axis=-1)

    def split(self, number: Any) -> tuple[Any, Any]:
        """Return the feature c and the index j of an information-gathering action number."""
        return np.divmod(number - self.n_base, self.per_feature)

    def thresholds(self, lower: np.ndarray, upper: np.ndarray, numbers: np.ndarray, v: Any) -> tuple[Any, np.ndarray]:
        """Return features c and thresholds v_p of questions at bounds [B, n]; v counts in the parameterised form."""
        c, j = self.split(numbers)
        rows = np.arange(len(numbers))
        return c, project(lower[rows, c], upper[rows, c], v if self.parameterised else self.fractions[j])
