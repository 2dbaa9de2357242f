"""Derived features: weighted sums of the features of an observation, and parts of sums that are not linear.

A sum is computed in float64 in one documented order, and every export keeps it: the constant first if it is not zero,
then one product `weight * feature` after the other, features in ascending order, then the parts that are not linear in
the order in which they were written. Every product is rounded before it is added: there is no fused multiply-add. As
rounding is monotone, evaluating the same order at the corners of a box bounds the computed value, not just the exact
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from custard.core.errors import CustardError

__all__ = ["FULL_TURN", "HALF_TURN", "OPERATIONS", "Part", "Sum", "linear_sum"]

HALF_TURN, FULL_TURN = math.pi, 2.0 * math.pi  # as float64
WRAP_MARGIN = 1e-6  # by which rounding may carry a wrapped angle of less than a billion beyond half a turn
MAX_PART_DEPTH = 50  # of parts inside parts
MAX_PARTS = 200  # of one derived feature, each counted as often as it is computed

#: What a part may compute, and of how many sums: their product, an absolute value, an angle within half a turn.
OPERATIONS = {"product": 2, "abs": 1, "wrap": 1}


@dataclass(frozen=True)
class Part:
    """A part of a sum that is not linear: an operation on other sums."""

    operation: str  # one of OPERATIONS
    arguments: tuple[Sum, ...]

    def __post_init__(self) -> None:
        count = OPERATIONS.get(self.operation) if isinstance(self.operation, str) else None
        if count is None or len(self.arguments) != count:
            raise CustardError(f"a feature cannot be computed by {self.operation!r} of {len(self.arguments)} sums")
        if self.depth > MAX_PART_DEPTH or self.n_parts > MAX_PARTS:
            raise CustardError(
                f"a feature may hold at most {MAX_PARTS} products, absolute values and angles, {MAX_PART_DEPTH} inside "
                "each other"
            )

    @cached_property
    def depth(self) -> int:
        """How many parts are inside each other."""
        return 1 + max(argument.depth for argument in self.arguments)

    @cached_property
    def n_parts(self) -> int:
        """The number of parts, this one and those inside it."""
        return 1 + sum(argument.n_parts for argument in self.arguments)

    def value(self, item: Callable[[int], float]) -> float:
        """Return the part's value; `item(i)` is feature i as a Python float."""
        values = [argument.value(item) for argument in self.arguments]
        if self.operation == "product":
            return values[0] * values[1]
        if self.operation == "abs":
            return abs(values[0])
        turns = (values[0] + HALF_TURN) / FULL_TURN
        return values[0] - FULL_TURN * (float(math.floor(turns)) if math.isfinite(turns) else turns)

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return the part's values for observations [..., n_raw] of float64."""
        values = [argument.values(x) for argument in self.arguments]
        if self.operation == "product":
            return values[0] * values[1]
        if self.operation == "abs":
            return np.abs(values[0])
        return values[0] - FULL_TURN * np.floor((values[0] + HALF_TURN) / FULL_TURN)

    def interval(self, low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
        """Return bounds of the part's values where the features lie within `low` and `high`."""
        ends = [argument.interval(low, high) for argument in self.arguments]
        if self.operation == "product":
            corners = [_times(a, b) for a in ends[0] for b in ends[1]]
            return min(corners), max(corners)
        least, most = ends[0]
        if self.operation == "abs":
            return (0.0 if least <= 0.0 <= most else min(abs(least), abs(most))), max(abs(least), abs(most))
        if least >= -HALF_TURN and most < HALF_TURN:
            return least, most
        return -HALF_TURN - WRAP_MARGIN, HALF_TURN + WRAP_MARGIN

    def text(self, names: Sequence[str], number: Callable[[float], str]) -> str:
        """Return the part as it is written in the expression language."""
        inner = [argument.text(names, number) for argument in self.arguments]
        if self.operation == "product":
            factors = (
                t if len(a.terms) + (a.constant != 0.0) == 1 and not t.startswith("-") else f"({t})"
                for t, a in zip(inner, self.arguments, strict=True)
            )
            return "*".join(factors)
        return f"{self.operation}({inner[0]})"


@dataclass(frozen=True)
class Sum:
    """A weighted sum: (feature or part, weight) for each term, and a constant.

    >>> tilt = Sum(((0, 0.25), (2, -1.0)))
    >>> tilt.text(("x", "y", "angle")), tilt.values(np.array([[4.0, 0.0, 3.0]])).tolist()
    ('0.25*x - angle', [-2.0])
    """

    terms: tuple[tuple[int | Part, float], ...]  # features in ascending order, each once, then parts
    constant: float = 0.0

    def __post_init__(self) -> None:
        before = -1
        for atom, weight in self.terms:
            if not math.isfinite(weight) or weight == 0.0:
                raise CustardError(f"a weight of a sum must be a finite number other than zero, got {weight!r}")
            if isinstance(atom, int):
                if atom <= before:
                    raise CustardError("a sum names its features in ascending order, each once, before other parts")
                before = atom
            else:
                before = 2**62
        if self.n_parts > MAX_PARTS:
            raise CustardError(f"a feature may hold at most {MAX_PARTS} products, absolute values and angles")
        if not math.isfinite(self.constant):
            raise CustardError(f"a constant of a sum must be a finite number, got {self.constant!r}")

    @property
    def is_linear(self) -> bool:
        """Whether every term is a feature of the observation."""
        return all(isinstance(atom, int) for atom, _ in self.terms)

    @cached_property
    def n_parts(self) -> int:
        """The number of parts that are not linear, those inside others included."""
        return sum(atom.n_parts for atom, _ in self.terms if isinstance(atom, Part))

    @cached_property
    def depth(self) -> int:
        """How many parts are inside each other."""
        return max((0 if isinstance(atom, int) else atom.depth for atom, _ in self.terms), default=0)

    @property
    def n_coefficients(self) -> int:
        """The number of weights, those inside parts included, and of constants."""
        inside = (sum(a.n_coefficients for a in atom.arguments) for atom, _ in self.terms if isinstance(atom, Part))
        return len(self.terms) + (self.constant != 0.0) + sum(inside)

    def raw_features(self) -> set[int]:
        """Return the features of the observation that the sum reads."""
        found: set[int] = set()
        for atom, _ in self.terms:
            found |= {atom} if isinstance(atom, int) else {i for a in atom.arguments for i in a.raw_features()}
        return found

    def parts(self) -> Iterator[Part]:
        """Yield every part, inner ones before those that use them."""
        for atom, _ in self.terms:
            if isinstance(atom, Part):
                for argument in atom.arguments:
                    yield from argument.parts()
                yield atom

    def value(self, item: Callable[[int], float]) -> float:
        """Return the sum's value; `item(i)` is feature i as a Python float."""
        total, empty = self.constant, self.constant == 0.0
        for atom, weight in self.terms:
            product = weight * (item(atom) if isinstance(atom, int) else atom.value(item))
            total, empty = product if empty else total + product, False
        return total

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return the sum's values for observations, [..., n_raw] float64 -> [...]."""
        total = None if self.constant == 0.0 else np.full(x.shape[:-1], self.constant)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are ordinary values here
            for atom, weight in self.terms:
                product = weight * (x[..., atom] if isinstance(atom, int) else atom.values(x))
                total = product if total is None else total + product
        return np.zeros(x.shape[:-1]) if total is None else total

    def interval(self, low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
        """Return bounds of the sum's values where the features lie within `low` and `high`."""
        ends = [[self.constant], [self.constant]] if self.constant != 0.0 else [[], []]
        for atom, weight in self.terms:
            inner = (float(low[atom]), float(high[atom])) if isinstance(atom, int) else atom.interval(low, high)
            products = sorted(_times(weight, end) for end in inner)
            ends[0].append(products[0])
            ends[1].append(products[1])
        least, most = (sum(side[1:], side[0]) if side else 0.0 for side in ends)
        return -math.inf if math.isnan(least) else least, math.inf if math.isnan(most) else most

    def text(self, names: Sequence[str], number: Callable[[float], str] | None = None) -> str:
        """Return the sum for people, as the expression language writes it; weights of 1 are left out."""
        number = number or (lambda value: f"{value:.6g}")
        pieces = []
        for atom, weight in self.terms:
            what = names[atom] if isinstance(atom, int) else atom.text(names, number)
            pieces.append(("-" if weight < 0 else "+", what if abs(weight) == 1.0 else f"{number(abs(weight))}*{what}"))
        if self.constant != 0.0 or not pieces:
            pieces.append(("-" if self.constant < 0 else "+", number(abs(self.constant))))
        (sign, first), *rest = pieces
        return ("-" if sign == "-" else "") + first + "".join(f" {sign} {piece}" for sign, piece in rest)

    def to_json(self) -> dict[str, Any]:
        """Return the sum as plain data."""
        terms = [
            [
                atom
                if isinstance(atom, int)
                else {"operation": atom.operation, "arguments": [argument.to_json() for argument in atom.arguments]},
                weight,
            ]
            for atom, weight in self.terms
        ]
        return {"terms": terms, "constant": self.constant}

    @classmethod
    def from_json(cls, data: Any, _depth: int = 0) -> Sum:
        """Return the sum that `to_json` wrote."""
        if _depth > MAX_PART_DEPTH:
            raise CustardError(f"a feature may nest at most {MAX_PART_DEPTH} products, absolute values and angles")
        try:
            terms: list[tuple[int | Part, float]] = []
            for atom, weight in data["terms"]:
                if isinstance(weight, (bool, str)):
                    raise TypeError(f"a weight is {weight!r}")
                if isinstance(atom, Mapping):
                    inner = tuple(cls.from_json(argument, _depth + 1) for argument in atom["arguments"])
                    terms.append((Part(atom["operation"], inner), float(weight)))
                elif type(atom) is int and atom >= 0:
                    terms.append((atom, float(weight)))
                else:
                    raise TypeError(f"a term's feature is {atom!r}")
            constant = data.get("constant", 0.0)
            if isinstance(constant, (bool, str)):
                raise TypeError(f"a constant is {constant!r}")
            return cls(tuple(terms), float(constant))
        except CustardError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise CustardError(f"a sum must be an object with terms [feature, weight] ({error})") from None


def linear_sum(weights: Mapping[int, float] | np.ndarray | Sequence[float] | Sum, n_raw: int) -> Sum:
    """Return a sum from weights by feature, or from one weight per feature; weights of zero are left out.

    >>> linear_sum({2: -1.0, 0: 0.5}, 3) == linear_sum([0.5, 0.0, -1.0], 3)
    True
    """
    if isinstance(weights, Sum):
        found = weights
    else:
        try:
            if not isinstance(weights, Mapping):
                array = np.asarray(weights, dtype=np.float64)
                if array.shape != (n_raw,):
                    raise CustardError(
                        f"a sum over {n_raw} features needs {n_raw} weights or a mapping, got shape {array.shape}"
                    )
                weights = dict(enumerate(array.tolist()))
            pairs = sorted((int(i), float(weight)) for i, weight in weights.items())
        except (TypeError, ValueError) as error:
            if isinstance(error, CustardError):
                raise
            raise CustardError(f"a sum's weights must be numbers by feature index ({error})") from None
        found = Sum(tuple((i, weight) for i, weight in pairs if weight != 0.0))
    if not found.terms:
        raise CustardError("a sum needs at least one weight other than zero")
    outside = [i for i in found.raw_features() if not 0 <= i < n_raw]
    if outside:
        raise CustardError(f"a sum weighs feature {outside[0]}, but the observation has {n_raw} features")
    return found


def _times(a: float, b: float) -> float:
    """Return a product of bounds: nothing times unbounded is nothing."""
    return 0.0 if a == 0.0 or b == 0.0 else a * b
