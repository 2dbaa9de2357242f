"""SMT-LIB 2: the tree as a function of reals, thresholds as exact fractions, for Z3, cvc5 and others.

Real arithmetic has neither NaN nor infinities: the function is the tree on finite numbers, of any precision.
"""

from __future__ import annotations

import numpy as np

from custard.core.errors import CustardError
from custard.tree.export.names import heading, rational
from custard.tree.export.walk import nested
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
    if not np.isfinite(tree.value).all():
        raise CustardError("smt2 holds finite numbers only, but a leaf of this tree holds an infinite action")
    names = symbols(tree.features.names)
    functions = [("custard_act", "action")]
    if not tree.actions.discrete:
        functions = [(f"custard_act_{i}", f"action_{i}") for i in range(tree.actions.size)]
    first = tree.actions.start
    said = ", ".join(
        f"{first + i} {word}" if tree.actions.discrete else f"action_{i} {word}"
        for i, word in enumerate(symbols(tree.actions.names))
    )
    lines = [
        f"; {heading(tree)} Actions: {said}",
        "(set-logic ALL)",
        *(f"(declare-const {name} Real)" for name in names),
    ]
    arguments = " ".join(f"({name} Real)" for name in names)
    sort = "Real" if tree.actions.kind == "box" else "Int"
    for i, (function, result) in enumerate(functions):
        lines.append(f"(define-fun {function} ({arguments}) {sort}")
        lines += _nested_ites(tree, names, None if tree.actions.discrete else i)
        lines[-1] += ")"
        lines.append(f"(define-fun {result} () {sort} ({function} {' '.join(names)}))")
    return "\n".join([*lines, "(check-sat)"]) + "\n"


RESERVED_SYMBOLS = frozenset(
    {"action", "custard_act", "", "_", "!", "as", "let", "par", "match", "exists", "forall", "lambda", "and", "or"}
    | {
        "not",
        "xor",
        "ite",
        "if",
        "true",
        "false",
        "distinct",
        "abs",
        "div",
        "mod",
        "rem",
        "is_int",
        "to_int",
        "to_real",
    }
    | {
        "rem",
        "Int",
        "Real",
        "Bool",
        "Array",
        "select",
        "store",
        "=",
        "=>",
        "<",
        "<=",
        ">",
        ">=",
        "+",
        "-",
        "*",
        "/",
        "^",
    }
)


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


def _nested_ites(tree: Tree, names: list[str], component: int | None) -> list[str]:
    """Return the body of one function: nested ites down to actions, or to one component of them."""
    lines: list[str] = []
    for what, node, depth in nested(tree):
        pad = "  " * (min(depth, 40) + 1)
        if what == "if":
            lines.append(f"{pad}(ite (<= {names[tree.feature[node]]} {real(float(tree.threshold[node]))})")
        elif what == "end":
            lines[-1] += ")"
        elif what == "leaf":
            value = tree.value[node] if component is None else tree.value[node][component]
            if tree.actions.kind == "box":
                text = real(float(value))
            else:
                text = str(int(value)) if value >= 0 else f"(- {-int(value)})"
            lines.append(f"{pad}{text}")
    return lines
