"""What a leaf can hold: the base environment's actions, with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from custard.core.errors import CustardError

__all__ = ["Actions"]


@dataclass(frozen=True, eq=False)
class Actions:
    """The base actions A_b, in the environment's own values.

    `kind` is "discrete" (one whole number from `start` on; `names` has one entry per action), "multi" (a vector of
    whole numbers) or "box" (a vector of reals); for vectors `names` has one entry per component, and `low` and `high`
    bound each component.

    >>> Actions("discrete", ("left", "right")).name(1)
    'right'
    """

    kind: str
    names: tuple[str, ...]
    start: int = 0
    low: np.ndarray | None = None  # [k] float64, vectors only
    high: np.ndarray | None = None  # [k] float64, vectors only

    def __post_init__(self) -> None:
        if self.kind not in ("discrete", "multi", "box"):
            raise CustardError(f"unknown kind of action {self.kind!r}: choose discrete, multi or box")
        object.__setattr__(self, "names", tuple(str(name) for name in self.names))
        if len(self.names) == 0:
            raise CustardError("an environment needs at least one action")
        if not isinstance(self.start, Integral):
            raise CustardError(f"actions must be numbered from a whole number on, not {self.start!r}")
        object.__setattr__(self, "start", int(self.start))
        for side in ("low", "high"):
            bound = getattr(self, side)
            if (bound is None) != (self.kind == "discrete"):
                raise CustardError(f"actions of kind {self.kind!r} {'have no' if bound is not None else 'need'} {side}")
            if bound is not None:
                array = np.array(bound, dtype=np.float64).reshape(-1)
                if len(array) != len(self.names):
                    raise CustardError(f"{len(self.names)} action components need {len(self.names)} {side} bounds")
                array.setflags(write=False)
                object.__setattr__(self, side, array)
        if self.low is not None and self.high is not None and not (self.low <= self.high).all():
            i = int(np.flatnonzero(~(self.low <= self.high))[0])
            raise CustardError(
                f"action component {self.names[i]!r} has bounds [{self.low[i]}, {self.high[i]}]: "
                "low must not exceed high"
            )

    @property
    def discrete(self) -> bool:
        """Whether an action is a single whole number."""
        return self.kind == "discrete"

    @property
    def n(self) -> int:
        """How many entries a policy chooses among: each discrete action, or the one vector-valued action."""
        return len(self.names) if self.discrete else 1

    @property
    def size(self) -> int:
        """The number of components of an action."""
        return 1 if self.discrete else len(self.names)

    def name(self, action: Any) -> str:
        """Return a readable form of one action.

        >>> Actions("box", ("torque",), low=[-2], high=[2]).name([0.5])
        'torque=0.5'
        """
        if self.discrete:
            return self.names[int(action) - self.start]
        values = np.asarray(action, dtype=np.float64).reshape(-1).tolist()
        return ", ".join(f"{name}={value:.6g}" for name, value in zip(self.names, values, strict=True))

    def same_as(self, other: Actions) -> bool:
        """Return whether both describe the same actions."""
        return self.to_json() == other.to_json()

    def to_json(self) -> dict[str, Any]:
        """Return the actions as a plain dictionary."""
        data: dict[str, Any] = {"kind": self.kind, "names": list(self.names)}
        if self.discrete:
            return {**data, "start": self.start}
        for side, bound in (("low", self.low), ("high", self.high)):
            assert bound is not None
            data[side] = [v if np.isfinite(v) else None for v in bound.tolist()]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Actions:
        """Return the actions that `to_json` wrote."""
        try:
            if data["kind"] == "discrete":
                start = data.get("start", 0)
                return cls("discrete", tuple(data["names"]), start=int(start) if int(start) == start else start)
            low = [-np.inf if v is None else float(v) for v in data["low"]]
            high = [np.inf if v is None else float(v) for v in data["high"]]
            return cls(data["kind"], tuple(data["names"]), low=np.array(low), high=np.array(high))
        except CustardError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise CustardError(f"actions must be an object with kind, names and bounds ({error})") from None


def numbered(prefix: str, count: int, start: int = 0) -> tuple[str, ...]:
    """Return numbered names for what has none.

    >>> numbered("action", 2)
    ('action_0', 'action_1')
    """
    return tuple(f"{prefix}_{i}" for i in range(start, start + count))


def named(names: Sequence[str] | None, count: int, prefix: str, start: int = 0) -> tuple[str, ...]:
    """Return the given names if there are as many as needed, numbered ones otherwise."""
    return tuple(names) if names is not None and len(names) == count else numbered(prefix, count, start)
