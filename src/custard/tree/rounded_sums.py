"""Sums and linear leaves for Z3: what a tree computes in float64 as reals that lie within a bound of the exact sum.

A sum of m terms, each product and each addition rounded, differs from the exact one by at most gamma(m) times the sum
of the terms' sizes, with gamma(m) = m u / (1 - m u) and u = 2^-53 (Higham, Accuracy and Stability of Numerical
Algorithms, chapters 3 and 4), and by 2^-1074 per product that underflows. Whatever is proved for every real within
that bound is proved for what the tree computes. Observations whose terms add up to more than MAX_SUM_SIZE in size,
near the largest float64, are left out: such a sum might overflow.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from custard.core.sums import Sum
from custard.tree.linear import leaf_terms

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["leaf_components", "sum_variables"]

MAX_FLOAT64 = Fraction(sys.float_info.max)
UNIT_ROUNDOFF = Fraction(1, 2**53)
UNDERFLOW = Fraction(1, 2**1074)


Limits = tuple[np.ndarray, np.ndarray]  # [n_raw] each: the least and the greatest observation, finite numbers


def sum_variables(z3: Any, tree: Tree, raw: list[Any], limits: Limits, name: str = "s") -> tuple[list[Any], list[Any]]:
    """Return Z3's variable of every feature, derived ones included, and the conditions on those.

    z3      the module
    tree    whose features they are
    raw     Z3's variables of the observation's own features
    limits  between which those lie
    name    of the new variables: another for another tree
    """
    features = tree.features
    reals, conditions = list(raw), []
    for k, total in enumerate(features.derived):
        computed = z3.Real(f"{name}{features.n_raw + k}")
        reals.append(computed)
        if total.is_linear:
            terms = [(i, weight) for i, weight in total.terms if isinstance(i, int)]
            conditions += _near_exact(z3, computed, total.constant, terms, raw, limits)
        else:  # all that is known of products and the like: their bounds
            conditions += _within_interval(z3, computed, total, limits)
    return reals, conditions


def leaf_components(
    z3: Any, tree: Tree, leaf: int, raw: list[Any], limits: Limits, name: str = "a"
) -> tuple[list[Any], list[Any]]:
    """Return the components of a leaf's action as Z3's expressions, and the conditions on their variables.

    z3      the module
    tree    with the leaf
    leaf    its number
    raw     Z3's variables of the observation's own features
    limits  between which those lie
    name    of the new variables
    """
    if tree.actions.discrete:
        return [], []
    components, conditions = [], []
    for k, value in enumerate(tree.value[leaf].tolist()):
        terms = leaf_terms(tree, leaf, k)
        if not terms:
            components.append(_rational(z3, value))
            continue
        assert tree.actions.low is not None
        assert tree.actions.high is not None
        computed = z3.Real(f"{name}{leaf}_{k}")
        conditions += _near_exact(z3, computed, value, terms, raw, limits)
        clipped = computed
        low, high = float(tree.actions.low[k]), float(tree.actions.high[k])
        if high < float("inf"):
            clipped = z3.If(clipped > _rational(z3, high), _rational(z3, high), clipped)
        if low > -float("inf"):
            clipped = z3.If(computed < _rational(z3, low), _rational(z3, low), clipped)
        components.append(clipped)
    return components, conditions


def _near_exact(
    z3: Any, computed: Any, constant: float, terms: Sequence[tuple[int, float]], raw: list[Any], limits: Limits
) -> list[Any]:
    """Return the conditions that a variable lies within the rounding error of constant + weights · features.

    z3        the module
    computed  the variable
    constant  of the sum
    terms     (feature, weight) of the sum
    raw       Z3's variables of the observation's own features
    limits    between which those lie
    """
    count = len(terms) + 1
    gamma = count * UNIT_ROUNDOFF / (1 - count * UNIT_ROUNDOFF)
    products = [_rational(z3, weight) * raw[i] for i, weight in terms]
    exact = z3.Sum(_rational(z3, constant), *products)
    size = z3.Sum(_rational(z3, abs(constant)), *(z3.If(product >= 0, product, -product) for product in products))
    error = _fraction(z3, gamma) * size + _fraction(z3, len(terms) * UNDERFLOW)
    near = [computed <= exact + error, computed >= exact - error]
    largest = [Fraction(weight) * max(abs(Fraction(float(end[i]))) for end in limits) for i, weight in terms]
    overflow = MAX_FLOAT64 * (1 - gamma)  # rounding included, smaller terms do not add up to more than MAX_FLOAT64
    if abs(Fraction(constant)) + sum(abs(each) for each in largest) < overflow:
        return near
    most, least = _fraction(z3, MAX_FLOAT64), _fraction(z3, -MAX_FLOAT64)
    up = z3.Sum(_rational(z3, max(constant, 0.0)), *(z3.If(product > 0, product, 0) for product in products))
    down = z3.Sum(_rational(z3, min(constant, 0.0)), *(z3.If(product < 0, product, 0) for product in products))
    return [
        z3.Or(
            z3.And(*near, computed <= most, computed >= least),
            z3.And(up >= _fraction(z3, overflow), computed > most),
            z3.And(down <= _fraction(z3, -overflow), computed < least),
        )
    ]


def _within_interval(z3: Any, computed: Any, total: Sum, limits: Limits) -> list[Any]:
    """Return the conditions that a variable lies within a derived feature's bounds; none where a part may overflow."""
    parts = list(total.parts())
    with np.errstate(over="ignore", invalid="ignore"):
        intervals = [total.interval(*limits), *(part.interval(*limits) for part in parts)]
        intervals += [argument.interval(*limits) for part in parts for argument in part.arguments]
    if not all(math.isfinite(end) for interval in intervals for end in interval):
        return []
    least, most = intervals[0]
    return [computed >= _rational(z3, least), computed <= _rational(z3, most)]


def _rational(z3: Any, value: float) -> Any:
    """Return a float as Z3's rational number."""
    return _fraction(z3, Fraction(value))


def _fraction(z3: Any, value: Fraction) -> Any:
    return z3.Q(value.numerator, value.denominator)
