"""Sums and linear leaves as expressions of a programming language, in the documented order of summation.

All languages here evaluate a chain of additions from the left to the right, which is that order. Weights of 1 and -1
are left out and negative ones subtracted: neither changes a bit of the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from custard.core.sums import Sum
from custard.tree.export.names import identifiers
from custard.tree.linear import leaf_terms

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = [
    "Language",
    "has_wrap",
    "is_nonlinear",
    "leaf_expression",
    "raw_features_read",
    "sum_expression",
    "sum_words",
]


@dataclass(frozen=True)
class Language:
    """How a language writes what sums are made of."""

    literal: Callable[[float], str]  # a float64
    feature: Callable[[int], str]  # a feature of the observation, as float64
    absolute: str = "fabs"  # the function for an absolute value
    wrap: str = "custard_wrap"  # the function that brings an angle within half a turn
    clip: str = "custard_clip"  # the function of a value, a lower and an upper bound


def sum_expression(total: Sum, language: Language) -> str:
    """Return a sum as an expression."""
    pieces = [] if total.constant == 0.0 and total.terms else [(False, language.literal(total.constant))]
    for atom, weight in total.terms:
        pieces.append((weight < 0.0, _product(abs(weight), _atom(atom, language), language)))
    return _chain(pieces)


def leaf_expression(tree: Tree, node: int, component: int, language: Language) -> str:
    """Return one component of a leaf's action as an expression: a number, or what is clipped to the action's bounds."""
    value, terms = float(tree.value[node, component]), leaf_terms(tree, node, component)
    if not terms:
        return language.literal(value)
    assert tree.actions.low is not None
    assert tree.actions.high is not None
    pieces = [(False, language.literal(value))]
    pieces += [(gain < 0.0, _product(abs(gain), language.feature(i), language)) for i, gain in terms]
    low, high = (language.literal(float(side[component])) for side in (tree.actions.low, tree.actions.high))
    return f"{language.clip}({_chain(pieces)}, {low}, {high})"


def sum_words(tree: Tree, prefix: str = "", taken: Iterable[str] = (), *, upper: bool = False) -> dict[int, str]:
    """Return an identifier for each derived feature: its name where that is one word, else sum_1, sum_2, …"""
    n_raw = tree.features.n_raw
    names = tree.features.names[n_raw:]
    plain = [
        name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"sum_{k}" for k, name in enumerate(names, start=1)
    ]
    words = identifiers((name.upper() if upper else name for name in plain), prefix, taken)
    return {n_raw + k: word for k, word in enumerate(words)}


def raw_features_read(tree: Tree) -> list[int]:
    """Return the features of the observation that tests, sums and linear leaves read, ascending."""
    read = {i for c in tree.feature.tolist() if c >= 0 for i in tree.features.sum_of(c).raw_features()}
    if tree.gains is not None:
        read |= {int(i) for i in np.flatnonzero(tree.gains.any(axis=(0, 1)))}
    return sorted(read)


def is_nonlinear(tree: Tree) -> bool:
    """Return whether a derived feature is more than a weighted sum."""
    return not tree.features.is_linear


def has_wrap(tree: Tree) -> bool:
    """Return whether a derived feature brings an angle within half a turn."""
    return any(part.operation == "wrap" for total in tree.features.derived for part in total.parts())


def _atom(atom: object, language: Language) -> str:
    """Return a term without its weight."""
    if isinstance(atom, int):
        return language.feature(atom)
    inner = [sum_expression(argument, language) for argument in atom.arguments]  # type: ignore[attr-defined]
    operation = atom.operation  # type: ignore[attr-defined]
    if operation == "product":
        return f"(({inner[0]}) * ({inner[1]}))"
    return f"{language.absolute if operation == 'abs' else language.wrap}({inner[0]})"


def _product(weight: float, what: str, language: Language) -> str:
    """Return a product; a weight of 1 is left out."""
    return what if weight == 1.0 else f"{language.literal(weight)} * {what}"


def _chain(pieces: Sequence[tuple[bool, str]]) -> str:
    """Return signed terms, added from the left to the right."""
    (negative, first), *rest = pieces
    return ("-" if negative else "") + first + "".join(f" {'-' if sign else '+'} {piece}" for sign, piece in rest)
