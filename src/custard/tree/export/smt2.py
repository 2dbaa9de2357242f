"""SMT-LIB 2: the tree as a function of reals, thresholds as exact fractions, for Z3, cvc5 and others.

Real arithmetic has neither NaN nor infinities: the function is the tree on finite numbers, of any precision. A sum of
reals is not the sum that the tree computes, though: a tree with sums or linear leaves is written as a function of
Float64 (SMT-LIB's theory FloatingPoint), whose products and additions round as the tree's do, NaN and infinities
included.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from custard.core.errors import CustardError
from custard.core.sums import FULL_TURN, HALF_TURN, Part, Sum
from custard.tree.export.names import heading, rational
from custard.tree.export.walk import nested
from custard.tree.linear import leaf_terms
from custard.tree.tree import Tree

__all__ = ["real", "symbols", "to_smt2"]


def to_smt2(tree: Tree) -> str:
    """Return the tree as SMT-LIB: a constant per feature, `custard_act` of them, and `action` (`action_0`, …).

    >>> from custard import Actions, Features, Tree
    >>> print(to_smt2(Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b")))))
    ; A decision tree of depth 1 with 2 leaves, written by custard. Actions: 0 |a|, 1 |b|
    (set-logic ALL)
    (declare-const |angle| Real)
    (define-fun custard_act ((|angle| Real)) Int
      (ite (<= |angle| (/ 1 2))
        0
        1))
    (define-fun action () Int (custard_act |angle|))
    (check-sat)
    <BLANKLINE>
    """
    tree = tree.keep_used_sums()
    if tree.is_linear:
        return _floating_point(tree)
    if not np.isfinite(tree.value).all():
        raise CustardError("smt2 holds finite numbers only, but a leaf of this tree holds an infinite action")
    names = symbols(tree.features.raw.names)
    first = tree.actions.start
    said = ", ".join(
        f"{first + i} {word}" if tree.actions.discrete else f"action_{i} {word}"
        for i, word in enumerate(symbols(tree.actions.names))
    )

    def test(node: int) -> str:
        return f"(<= {names[tree.feature[node]]} {real(float(tree.threshold[node]))})"

    return _script(tree, f"{heading(tree)} Actions: {said}", "Real", test, lambda node, k: _real_leaf(tree, node, k))


def _script(tree: Tree, comment: str, number: str, test: Callable[[int], str], leaf: Callable[[int, int], str]) -> str:
    """Return declarations and the tree's functions, one per component of the action.

    number  the sort of features and of real-valued actions
    test    what an inner node asks
    leaf    what a leaf is, given which component
    """
    names = symbols(tree.features.raw.names)
    lines = [f"; {comment}", "(set-logic ALL)", *(f"(declare-const {name} {number})" for name in names)]
    arguments = " ".join(f"({name} {number})" for name in names)
    sort = number if tree.actions.kind == "box" else "Int"
    for k, suffix in enumerate([""] if tree.actions.discrete else [f"_{k}" for k in range(tree.actions.size)]):
        lines.append(f"(define-fun custard_act{suffix} ({arguments}) {sort}")
        for what, node, depth in nested(tree):
            pad = "  " * (min(depth, 40) + 1)
            if what == "if":
                lines.append(f"{pad}(ite {test(node)}")
            elif what == "end":
                lines[-1] += ")"
            elif what == "leaf":
                lines.append(pad + leaf(node, k))
        lines[-1] += ")"
        lines.append(f"(define-fun action{suffix} () {sort} (custard_act{suffix} {' '.join(names)}))")
    return "\n".join([*lines, "(check-sat)"]) + "\n"


RESERVED_SYMBOLS = frozenset({
    "action", "custard_act", "", "_", "!", "as", "let", "par", "match", "exists", "forall", "lambda", "and", "or",
    "not", "xor", "ite", "if", "true", "false", "distinct", "abs", "div", "mod", "rem", "is_int", "to_int", "to_real",
    "Int", "Real", "Bool", "Array", "select", "store", "=", "=>", "<", "<=", ">", ">=", "+", "-", "*", "/", "^",
})  # fmt: skip


def symbols(names: tuple[str, ...]) -> list[str]:
    """Return quoted symbols, distinct: `|` and `\\` cannot stand in one, and must not be invisible either."""
    used = set(RESERVED_SYMBOLS)
    result = []
    for name in names:
        stem = "".join(c if c.isprintable() and c.isascii() and c not in "|\\" else "_" for c in name)
        word, count = stem, 1
        while word in used or word.startswith(("action_", "custard_act_")):
            count += 1
            word = f"x_{stem}_{count}"
        used.add(word)
        result.append(f"|{word}|")
    return result


def real(value: float) -> str:
    """Return an exact real literal.

    >>> real(-0.25), real(3.0)
    ('(- (/ 1 4))', '3.0')
    """
    top, bottom = rational(abs(value))
    text = f"{top}.0" if bottom == 1 else f"(/ {top} {bottom})"
    return f"(- {text})" if value < 0 else text


def _real_leaf(tree: Tree, node: int, component: int) -> str:
    """Return a leaf's action, or one component of it."""
    value = tree.value[node] if tree.actions.discrete else tree.value[node][component]
    return real(float(value)) if tree.actions.kind == "box" else _whole(int(value))


def _whole(value: int) -> str:
    """Return a whole number as a literal."""
    return str(value) if value >= 0 else f"(- {-value})"


def _floating_point(tree: Tree) -> str:
    """Return a tree with sums or linear leaves as a function of Float64; arithmetic rounds to nearest even (RNE)."""
    names = symbols(tree.features.raw.names)
    sums = [_float_sum(total, names) for total in tree.features.derived]
    asked = [*names, *sums]

    def test(node: int) -> str:
        return f"(fp.leq {asked[tree.feature[node]]} {_float(float(tree.threshold[node]))})"

    return _script(tree, heading(tree), "Float64", test, lambda node, k: _float_leaf(tree, node, k, names))


def _float(value: float) -> str:
    """Return a float64 by its bits: sign, exponent, significand."""
    bits = f"{struct.unpack('>Q', struct.pack('>d', value))[0]:064b}"
    return f"(fp #b{bits[0]} #b{bits[1:12]} #b{bits[12:]})"


def _float_sum(total: Sum, names: list[str]) -> str:
    """Return a sum in the documented order."""
    text = None if total.constant == 0.0 else _float(total.constant)
    for atom, weight in total.terms:
        inner = names[atom] if isinstance(atom, int) else _float_part(atom, names)
        product = f"(fp.mul RNE {_float(weight)} {inner})"
        text = product if text is None else f"(fp.add RNE {text} {product})"
    return text or _float(0.0)


def _float_part(part: Part, names: list[str]) -> str:
    """Return a part of a sum that is not linear."""
    inner = [_float_sum(argument, names) for argument in part.arguments]
    if part.operation == "product":
        return f"(fp.mul RNE {inner[0]} {inner[1]})"
    if part.operation == "abs":
        return f"(fp.abs {inner[0]})"
    turns = f"(fp.div RNE (fp.add RNE {inner[0]} {_float(HALF_TURN)}) {_float(FULL_TURN)})"
    return f"(fp.sub RNE {inner[0]} (fp.mul RNE {_float(FULL_TURN)} (fp.roundToIntegral RTN {turns})))"


def _float_leaf(tree: Tree, node: int, component: int, names: list[str]) -> str:
    """Return a leaf's action, or one component of it."""
    if tree.actions.kind != "box":
        return _whole(int(tree.value[node] if tree.actions.discrete else tree.value[node][component]))
    text, terms = _float(float(tree.value[node, component])), leaf_terms(tree, node, component)
    for i, gain in terms:
        text = f"(fp.add RNE {text} (fp.mul RNE {_float(gain)} {names[i]}))"
    if not terms:
        return text
    assert tree.actions.low is not None
    assert tree.actions.high is not None
    low, high = (_float(float(side[component])) for side in (tree.actions.low, tree.actions.high))
    return f"(let ((v {text})) (ite (fp.lt v {low}) {low} (ite (fp.gt v {high}) {high} v)))"
