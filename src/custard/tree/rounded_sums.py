"""Sums and linear leaves for Z3: what a tree computes in float64 as reals that lie within a bound of the exact sum.

A sum of m terms, each product and each addition rounded, differs from the exact one by at most gamma(m) times the sum
of the terms' sizes, with gamma(m) = m u / (1 - m u) and u = 2^-53 (Higham, Accuracy and Stability of Numerical
Algorithms, chapters 3 and 4), and by 2^-1074 per product that underflows. Whatever is proved for every real within
that bound is proved for what the tree computes. Observations whose terms add up to more than MAX_SUM_SIZE in size,
near the largest float64, are left out: such a sum might overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from custard.core.sums import Sum
from custard.tree.linear import leaf_terms

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["leaf_components", "sum_variables"]

MAX_SUM_SIZE = Fraction(2) ** 1023
UNIT_ROUNDOFF = Fraction(1, 2**53)
UNDERFLOW = Fraction(1, 2**1074)


def sum_variables(z3: Any, tree: Tree, raw: list[Any], name: str = "s") -> tuple[list[Any], list[Any]]:
    """Return Z3's variable of every feature, derived ones included, and the conditions on those.

    z3    the module
    tree  whose features they are
    raw   Z3's variables of the observation's own features
    name  of the new variables: another for another tree
    """
    features = tree.features
    reals, conditions = list(raw), []
    for k, total in enumerate(features.derived):
        computed = z3.Real(f"{name}{features.n_raw + k}")
        reals.append(computed)
        if total.is_linear:
            terms = [(i, weight) for i, weight in total.terms if isinstance(i, int)]
            conditions += _near_exact(z3, computed, total.constant, terms, raw)
        else:  # all that is known of products and the like: their bounds
            conditions += _within_interval(z3, computed, total, tree)
    return reals, conditions


def leaf_components(z3: Any, tree: Tree, leaf: int, raw: list[Any], name: str = "a") -> tuple[list[Any], list[Any]]:
    """Return the components of a leaf's action as Z3's expressions, and the conditions on their variables.

    z3    the module
    tree  with the leaf
    leaf  its number
    raw   Z3's variables of the observation's own features
    name  of the new variables
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
        conditions += _near_exact(z3, computed, value, terms, raw)
        clipped = computed
        low, high = float(tree.actions.low[k]), float(tree.actions.high[k])
        if high < float("inf"):
            clipped = z3.If(clipped > _rational(z3, high), _rational(z3, high), clipped)
        if low > -float("inf"):
            clipped = z3.If(computed < _rational(z3, low), _rational(z3, low), clipped)
        components.append(clipped)
    return components, conditions


def _near_exact(
    z3: Any, computed: Any, constant: float, terms: Sequence[tuple[int, float]], raw: list[Any]
) -> list[Any]:
    """Return the conditions that a variable lies within the rounding error of constant + weights · features."""
    count = len(terms) + 1
    gamma = count * UNIT_ROUNDOFF / (1 - count * UNIT_ROUNDOFF)
    products = [_rational(z3, weight) * raw[i] for i, weight in terms]
    exact = z3.Sum(_rational(z3, constant), *products)
    size = z3.Sum(_rational(z3, abs(constant)), *(z3.If(product >= 0, product, -product) for product in products))
    error = _fraction(z3, gamma) * size + _fraction(z3, len(terms) * UNDERFLOW)
    return [computed <= exact + error, computed >= exact - error, size <= _fraction(z3, MAX_SUM_SIZE)]


def _within_interval(z3: Any, computed: Any, total: Sum, tree: Tree) -> list[Any]:
    """Return the conditions that a variable lies within a derived feature's bounds."""
    least, most = total.interval(tree.features.raw.low, tree.features.raw.high)
    conditions = [computed >= _rational(z3, least)] if least > -float("inf") else []
    return [*conditions, computed <= _rational(z3, most)] if most < float("inf") else conditions


def _rational(z3: Any, value: float) -> Any:
    """Return a float as Z3's rational number."""
    return _fraction(z3, Fraction(value))


def _fraction(z3: Any, value: Fraction) -> Any:
    return z3.Q(value.numerator, value.denominator)
