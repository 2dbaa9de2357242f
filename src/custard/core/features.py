"""What a base state is: a vector of named features, each real, integer or binary, each with bounds.

The paper asks for "a factored state representation, where each state feature has upper and lower bounds".
`Features` is that description as plain data. How an observation of a Gymnasium space becomes the vector is in
`custard.core.spaces`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from custard.core.errors import CustardError, one_of

__all__ = ["BINARY", "INTEGER", "REAL", "Features"]

REAL, INTEGER, BINARY = "real", "integer", "binary"
KINDS = (REAL, INTEGER, BINARY)

#: Bounds at least this large are as good as none: some spaces write float32's largest number for "unbounded".
UNBOUNDED_FROM = 1e30


@dataclass(frozen=True, eq=False)
class Features:
    """Names, kinds and bounds of the n features of a base state, in the environment's own units.

    >>> Features(names=("speed", "door_open"), low=[-1, 0], high=[1, 1], kinds=("real", "binary")).n
    2
    """

    names: tuple[str, ...]
    low: np.ndarray  # [n] float64
    high: np.ndarray  # [n] float64
    kinds: tuple[str, ...] = ()  # "real", "integer" or "binary"; all real if left empty
    origin: dict[str, Any] = field(default_factory=dict)  # where the bounds came from, kept with the tree

    def __post_init__(self) -> None:
        names = tuple(str(name) for name in self.names)
        kinds = tuple(self.kinds) or (REAL,) * len(names)
        low, high = (np.array(bound, dtype=np.float64).reshape(-1) for bound in (self.low, self.high))
        if not len(names) == len(kinds) == len(low) == len(high):
            raise CustardError(
                f"features disagree in number: {len(names)} names, {len(kinds)} kinds, {len(low)} low, {len(high)} high"
            )
        if len(names) == 0:
            raise CustardError("a base state needs at least one feature")
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise CustardError(f"feature names must differ: {', '.join(map(repr, twice))} appears more than once")
        for kind in kinds:
            if kind not in KINDS:
                raise CustardError(f"unknown feature kind {kind!r}: choose one of {', '.join(KINDS)}")
        if np.isnan(low).any() or np.isnan(high).any() or (low > high).any():
            i = int(np.flatnonzero(~(low <= high))[0])
            raise CustardError(f"feature {names[i]!r} has bounds [{low[i]}, {high[i]}]: low must not exceed high")
        low.setflags(write=False)
        high.setflags(write=False)
        for name, value in (("names", names), ("kinds", kinds), ("low", low), ("high", high)):
            object.__setattr__(self, name, value)

    @property
    def n(self) -> int:
        """The number of features."""
        return len(self.names)

    @cached_property
    def integer(self) -> np.ndarray:
        """Which features take whole numbers only, [n] bool."""
        return np.array([kind != REAL for kind in self.kinds])

    @property
    def unbounded(self) -> np.ndarray:
        """Which features lack a usable bound on some side, [n] bool."""
        return (self.low <= -UNBOUNDED_FROM) | (self.high >= UNBOUNDED_FROM)

    def with_bounds(self, low: Any = None, high: Any = None) -> Features:
        """Return the same features with other bounds: a scalar, one value per feature, or a mapping from names.

        >>> Features(("a", "b"), [0, 0], [1, 1]).with_bounds(high={"b": 5}).high
        array([1., 5.])
        """
        if low is None and high is None:
            return self
        origin = {**self.origin, "bounds": "given"}
        return replace(self, low=self._filled_bound("low", low), high=self._filled_bound("high", high), origin=origin)

    def require_bounded(self) -> None:
        """Raise unless every feature has finite bounds."""
        missing = np.flatnonzero(self.unbounded)
        if len(missing):
            i = int(missing[0])
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise CustardError(
                f"IBMDP needs finite bounds: feature {self.names[i]!r}{more} is [{self.low[i]:g}, {self.high[i]:g}]. "
                'Pass low=/high=, or bounds="estimate".'
            )

    def index(self, name: str) -> int:
        """Return the position of the feature called name."""
        if name not in self.names:
            raise CustardError(one_of("feature", name, self.names))
        return self.names.index(name)

    def same_as(self, other: Features) -> bool:
        """Return whether both describe the same features with the same bounds."""
        return (
            self.names == other.names
            and self.kinds == other.kinds
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Return a list of plain dictionaries; an infinite bound is written as null."""
        rows = zip(self.names, self.kinds, self.low.tolist(), self.high.tolist(), strict=True)
        return [
            {"name": n, "kind": k, "low": lo if np.isfinite(lo) else None, "high": hi if np.isfinite(hi) else None}
            for n, k, lo, hi in rows
        ]

    @classmethod
    def from_json(cls, rows: Sequence[Mapping[str, Any]], origin: Mapping[str, Any] | None = None) -> Features:
        """Return the features that `to_json` wrote."""
        try:
            return cls(
                names=tuple(row["name"] for row in rows),
                kinds=tuple(row["kind"] for row in rows),
                low=np.array([-np.inf if row["low"] is None else float(row["low"]) for row in rows]),
                high=np.array([np.inf if row["high"] is None else float(row["high"]) for row in rows]),
                origin=dict(origin or {}),
            )
        except CustardError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise CustardError(f"features must be a list of objects with name, kind, low and high ({error})") from None

    def _filled_bound(self, side: str, given: Any) -> np.ndarray:
        """Return the bounds of one side, [n], with those that are given in place of the present ones."""
        present = self.low if side == "low" else self.high
        if given is None:
            return present
        if isinstance(given, Mapping):
            filled = present.copy()
            for name, value in given.items():
                filled[self.index(name)] = value
            return filled
        try:
            values = np.asarray(given, dtype=np.float64)
            return np.broadcast_to(values.reshape(-1) if values.ndim else values, (self.n,)).copy()
        except (ValueError, TypeError):
            raise CustardError(
                f"{side}= must be one number or {self.n} numbers (one for each of {', '.join(self.names[:6])}"
                f"{', …' if self.n > 6 else ''}), got {given!r}"
            ) from None
