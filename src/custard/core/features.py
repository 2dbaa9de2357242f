"""What a base state is: a vector of named features, each real, integer or binary, each with bounds.

The paper asks for "a factored state representation, where each state feature has upper and lower bounds".
`Features` is that description as plain data. How an observation of a Gymnasium space becomes the vector is in
`custard.core.spaces`. Derived features (`custard.core.sums`) come after the observation's own, called raw here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from custard.core.errors import CustardError, one_of
from custard.core.sums import Sum, linear_sum

__all__ = ["BINARY", "INTEGER", "REAL", "Features", "is_expressions"]

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
    derived: tuple[Sum, ...] = ()  # how the last features are computed from those before them, the raw ones

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
        derived = tuple(linear_sum(entry, len(names) - len(self.derived)) for entry in self.derived)
        if len(derived) >= len(names):
            raise CustardError("derived features need features of the observation to be computed from")
        object.__setattr__(self, "derived", derived)
        low.setflags(write=False)
        high.setflags(write=False)
        for name, value in (("names", names), ("kinds", kinds), ("low", low), ("high", high)):
            object.__setattr__(self, name, value)

    @property
    def n(self) -> int:
        """The number of features, derived ones included."""
        return len(self.names)

    @property
    def n_raw(self) -> int:
        """The number of features of the observation itself."""
        return len(self.names) - len(self.derived)

    @cached_property
    def raw(self) -> Features:
        """The features of the observation itself."""
        return self.select_derived(())

    @property
    def is_linear(self) -> bool:
        """Whether every derived feature is a weighted sum of raw ones."""
        return all(entry.is_linear for entry in self.derived)

    def sum_of(self, c: int) -> Sum:
        """Return feature c as a sum; a raw one is once itself."""
        return self.derived[c - self.n_raw] if c >= self.n_raw else Sum(((int(c), 1.0),))

    def with_sums(
        self, weights: Sequence[Mapping[int, float] | np.ndarray | Sum], names: Sequence[str] | None = None
    ) -> Features:
        """Return the features with weighted sums of the raw ones after them.

        Each entry of `weights` maps the index of a raw feature to its weight, or holds one weight per raw feature.
        Bounds follow from the raw features' by interval arithmetic. Without `names` a sum is called what it is.

        >>> lander = Features(("x", "vx"), [-1, -2], [1, 2]).with_sums([{0: 0.25, 1: -0.5}])
        >>> lander.names, lander.low.tolist(), lander.extend([[4.0, 1.0]]).tolist()
        (('x', 'vx', '0.25*x - 0.5*vx'), [-1.0, -2.0, -1.25], [[4.0, 1.0, 0.5]])
        """
        sums = [linear_sum(entry, self.n_raw) for entry in weights]
        if names is not None and len(names) != len(sums):
            raise CustardError(f"{len(sums)} sums need as many names, got {len(names)}")
        called = list(self.names)
        for k, entry in enumerate(sums):
            called.append(str(names[k]) if names is not None else _sum_name(entry, self.names[: self.n_raw], called))
        open_low = np.where(self.low <= -UNBOUNDED_FROM, -np.inf, self.low)
        open_high = np.where(self.high >= UNBOUNDED_FROM, np.inf, self.high)
        bounds = np.array([entry.interval(open_low, open_high) for entry in sums]).reshape(-1, 2)
        return replace(
            self,
            names=tuple(called),
            low=np.concatenate([self.low, bounds[:, 0]]),
            high=np.concatenate([self.high, bounds[:, 1]]),
            kinds=self.kinds + tuple(_sum_kind(entry, self.kinds) for entry in sums),
            derived=self.derived + tuple(sums),
        )

    def select_derived(self, kept: Sequence[int]) -> Features:
        """Return the raw features and, of the derived ones, those with these indices (n_raw … n - 1)."""
        if len(kept) == len(self.derived) and list(kept) == list(range(self.n_raw, self.n)):
            return self
        order = [*range(self.n_raw), *(int(c) for c in kept)]
        return replace(
            self,
            names=tuple(self.names[c] for c in order),
            low=self.low[order],
            high=self.high[order],
            kinds=tuple(self.kinds[c] for c in order),
            derived=tuple(self.derived[c - self.n_raw] for c in order[self.n_raw :]),
        )

    def extend(self, x: Any) -> np.ndarray:
        """Return observations with their derived features, [..., n_raw] -> [..., n] float64.

        Vectors that are extended already are computed anew from their raw part.
        """
        x = np.asarray(x, dtype=np.float64)
        if not self.derived:
            return x
        if x.ndim == 0 or x.shape[-1] not in (self.n_raw, self.n):
            raise CustardError(f"an observation has {self.n_raw} features, got shape {x.shape}")
        full = np.empty((*x.shape[:-1], self.n))
        full[..., : self.n_raw] = x[..., : self.n_raw]
        for k, entry in enumerate(self.derived):
            full[..., self.n_raw + k] = entry.values(x)
        return full

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
        if not self.derived:
            filled = self._filled_bound("low", low), self._filled_bound("high", high)
            return replace(self, low=filled[0], high=filled[1], origin=origin)
        # Bounds of derived features follow from the raw ones' unless they are given by name or one for each feature.
        given = [self._for_raw(side) for side in (low, high)]
        again = self.raw.with_bounds(*given).with_sums(self.derived, self.names[self.n_raw :])
        filled = (
            again.low if given[0] is low else again._filled_bound("low", low),
            again.high if given[1] is high else again._filled_bound("high", high),
        )
        return replace(again, low=filled[0], high=filled[1], origin=origin)

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

    def require_finite(self, x: np.ndarray) -> np.ndarray:
        """Return observations [..., n]; raise if a value is infinite, since thresholds lie between values."""
        if not np.isfinite(x).all():
            name = self.names[int(np.argwhere(~np.isfinite(x))[0, -1])]
            raise CustardError(
                f"the environment gave an infinite value for feature {name!r}: clip it, so that it has a place"
            )
        return x

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
            and self.derived == other.derived
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Return a list of plain dictionaries; an infinite bound is written as null, a derived feature has a sum."""
        rows = zip(self.names, self.kinds, self.low.tolist(), self.high.tolist(), strict=True)
        written: list[dict[str, Any]] = [
            {"name": n, "kind": k, "low": lo if np.isfinite(lo) else None, "high": hi if np.isfinite(hi) else None}
            for n, k, lo, hi in rows
        ]
        for row, entry in zip(written[self.n_raw :], self.derived, strict=True):
            row["sum"] = entry.to_json()
        return written

    @classmethod
    def from_json(cls, rows: Sequence[Mapping[str, Any]], origin: Mapping[str, Any] | None = None) -> Features:
        """Return the features that `to_json` wrote."""
        try:
            first = next((i for i, row in enumerate(rows) if "sum" in row), len(rows))
            return cls(
                derived=tuple(Sum.from_json(row["sum"]) for row in rows[first:]),
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

    def _for_raw(self, given: Any) -> Any:
        """Return what of one side's given bounds concerns raw features."""
        if isinstance(given, Mapping):
            raw = {name: value for name, value in given.items() if self.index(name) < self.n_raw}
            return given if len(raw) == len(given) else raw
        return np.asarray(given)[: self.n_raw] if np.ndim(given) == 1 and len(given) == self.n else given

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


def is_expressions(features: object) -> bool:
    """Return whether `features=` is text to parse (`custard.core.expressions`): one expression, or several."""
    return isinstance(features, str) or (
        isinstance(features, (list, tuple)) and all(isinstance(text, str) for text in features)
    )


def _sum_name(entry: Sum, names: Sequence[str], taken: Sequence[str]) -> str:
    """Return what a sum is called when it has no name: what it is, with as many digits as tell it from the others."""
    texts = (entry.text(names, lambda value, d=digits: f"{value:.{d}g}") for digits in range(6, 18))  # type: ignore[misc]
    text = next((text for text in texts if text not in taken), None)
    numbered = (f"{entry.text(names)} ({k})" for k in range(2, len(taken) + 3))
    return text if text is not None else next(name for name in numbered if name not in taken)


def _sum_kind(entry: Sum, kinds: Sequence[str]) -> str:
    """Return the kind of a sum's values: whole numbers where the weights and what they weigh are."""
    parts = [argument for part in entry.parts() for argument in part.arguments]
    if any(part.operation == "wrap" for part in entry.parts()):
        return REAL
    sums = [entry, *parts]
    whole = all(
        each.constant.is_integer()
        and all(w.is_integer() and (not isinstance(atom, int) or kinds[atom] != REAL) for atom, w in each.terms)
        for each in sums
    )
    return INTEGER if whole else REAL
