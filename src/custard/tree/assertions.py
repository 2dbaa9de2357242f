"""The language of `custard verify --assert`: conditions on features and on the action, parsed without `eval`.

    assertion   = either [ "->" assertion ]                     implication, from the right
    either      = both { "or" both }
    both        = negated { "and" negated }
    negated     = "not" negated | compared
    compared    = sum { ("<" | "<=" | ">" | ">=" | "==" | "!=") sum }     chains as in 0 < x <= 1
    sum         = product { ("+" | "-") product }
    product     = signed { ("*" | "/") signed }                 one side of * and the right of / must be a number
    signed      = "-" signed | primary
    primary     = number | "true" | "false" | name | "abs" "(" assertion ")" | "(" assertion ")"
    name        = letters, digits and _, then perhaps a step back such as [-1]; or anything between backquotes

A feature's name stands for its value. An action's name is true where the tree takes it (`action.NAME` where a feature
has the same name); of a vector action `action.NAME` is a component's value. ≤, ≥, ≠, = and → are accepted too. A number
is the float64 nearest to what is written, as in the tree.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features
from custard.core.tokens import tokenize

__all__ = ["Term", "holds", "parse"]


@dataclass(frozen=True)
class Term:
    """A node of a parsed assertion: `kind` with its parts.

    Numbers: "number" (value), "feature" (index), "component" (index), "add", "scale" (value × part), "abs".
    Truths: "true", "false", "takes" (index of an action), "not", "and", "or", "<", "<=", "==".
    """

    kind: str
    parts: tuple[Term, ...] = ()
    value: Fraction = Fraction(0)
    index: int = 0
    implies: bool = False  # an "or" that was written as premise -> conclusion: its parts are (not premise, conclusion)

    @property
    def truth(self) -> bool:
        """Whether this is a condition rather than a number."""
        return self.kind in ("true", "false", "takes", "not", "and", "or", "<", "<=", "==")


NAME_PATTERN = r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[-[0-9]+\])?"
TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<quoted>(?:action\.)?`[^`]*`)"
    rf"|(?P<name>{NAME_PATTERN})|(?P<sign>->|→|<=|>=|==|!=|[<>=≤≥≠()+\-*/−]))"
)
ASCII_SIGNS = {"→": "->", "≤": "<=", "≥": ">=", "≠": "!=", "=": "==", "−": "-"}
MAX_CONSTANT_BITS = 4096  # bits of a constant; a float64 has 1,074 at most, and Python's text for Z3 ends at 14,000
RESERVED_WORDS = ("and", "or", "not", "true", "false", "abs")


def parse(text: str, features: Features, actions: Actions) -> Term:
    """Return an assertion as a term. A mistake is a CustardError that says where.

    >>> features, actions = Features(("angle",), [-1], [1]), Actions("discrete", ("left", "right"))
    >>> parse("angle > 0.1 -> right", features, actions).kind
    'or'
    >>> parse("angel > 1", features, actions)
    Traceback (most recent call last):
    custard.core.errors.CustardError: assertion, column 1: unknown name 'angel' (did you mean 'angle'?) in 'angel > 1'
    """
    return _Parser(text, features, actions).whole()


def holds(term: Term, x: Sequence[float], takes: int | None, components: Sequence[float] = ()) -> bool:
    """Return whether an assertion is true of numbers and an action, in exact arithmetic.

    Raises ValueError where it names what is NaN.
    """
    return bool(_evaluate(term, x, takes, components))


def _evaluate(term: Term, x: Sequence[float], takes: int | None, components: Sequence[float]) -> Any:
    """Return what a term is of numbers and an action: a Fraction or a bool."""
    parts = [_evaluate(part, x, takes, components) for part in term.parts]
    answers: dict[str, Callable[[], Any]] = {
        "number": lambda: term.value, "feature": lambda: _number(x[term.index]),
        "component": lambda: _number(components[term.index]),
        "add": lambda: sum(parts, Fraction(0)), "scale": lambda: term.value * parts[0], "abs": lambda: abs(parts[0]),
        "true": lambda: True, "false": lambda: False, "takes": lambda: takes == term.index,
        "not": lambda: not parts[0], "and": lambda: all(parts), "or": lambda: any(parts),
        "<": lambda: parts[0] < parts[1], "<=": lambda: parts[0] <= parts[1], "==": lambda: parts[0] == parts[1],
    }  # fmt: skip
    return answers[term.kind]()


def _number(value: float) -> Any:
    """Return a number exactly; infinity is itself."""
    return value if math.isinf(value) else Fraction(value)


class _Parser:
    """Recursive descent over the tokens of one assertion: a method for each rule of the grammar, and a few helpers."""

    def __init__(self, text: str, features: Features, actions: Actions) -> None:
        self.text, self.features, self.actions = text, features, actions
        self.tokens = tokenize(text, TOKEN, ASCII_SIGNS, self.fail)
        self.at = 0
        self.deep = 0

    def fail(self, what: str, column: int) -> NoReturn:
        """Raise an error that says what is wrong at a column."""
        name = self.unquoted(column)
        hint = f" (names with other signs need backquotes: `{name}`)" if name else ""
        raise CustardError(f"assertion, column {column + 1}: {what}{hint} in {self.text!r}")

    def next(self, *accepted: str) -> str | None:
        """Return the next token if it is one of these signs or words, which it then passes."""
        kind, word, _ = self.tokens[self.at]
        if kind not in ("sign", "name") or word not in accepted:
            return None
        self.at += 1
        return word

    def whole(self) -> Term:
        """Parse all of the text."""
        if self.tokens[0][0] == "end":
            self.fail("nothing to check", 0)
        term = self.truth(self.implication, "the assertion")
        kind, word, column = self.tokens[self.at]
        if kind != "end":
            self.fail(f"unexpected {word!r}", column)
        return term

    def truth(self, rule: Callable[[], Term], what: str) -> Term:
        """Parse by a rule what must be a condition."""
        column = self.tokens[self.at][2]
        term = rule()
        return term if term.truth else self.fail(f"{what} must be a condition, not a number", column)

    def numeric(self, rule: Callable[[], Term]) -> Term:
        """Parse by a rule what must be a number."""
        column = self.tokens[self.at][2]
        term = rule()
        return term if not term.truth else self.fail("expected a number, found a condition or an action", column)

    def implication(self) -> Term:
        """Parse the rule `assertion`."""
        self.deep += 1
        if self.deep > 50:
            self.fail("parentheses nest too deeply", self.tokens[self.at][2])
        column = self.tokens[self.at][2]
        left = self.either()
        if self.next("->"):
            if not left.truth:
                self.fail("what stands before -> must be a condition, not a number", column)
            right = self.truth(self.implication, "what follows ->")
            left = Term("or", (Term("not", (left,)), right), implies=True)
        self.deep -= 1
        return left

    def joined(self, word: str, rule: Callable[[], Term]) -> Term:
        """Parse conditions joined by a word."""
        column = self.tokens[self.at][2]
        first = rule()
        parts = [first]
        while self.next(word):
            if not first.truth:
                self.fail(f"{word!r} joins conditions, not numbers", column)
            parts.append(self.truth(rule, f"what follows {word!r}"))
        return parts[0] if len(parts) == 1 else Term(word, tuple(parts))

    def either(self) -> Term:
        """Parse the rule `either`."""
        return self.joined("or", self.both)

    def both(self) -> Term:
        """Parse the rule `both`."""
        return self.joined("and", self.negated)

    def negated(self) -> Term:
        """Parse the rule `negated`."""
        if self.next("not"):
            self.deep += 1
            if self.deep > 50:
                self.fail("'not' is repeated too often", self.tokens[self.at][2])
            term = Term("not", (self.truth(self.negated, "what follows 'not'"),))
            self.deep -= 1
            return term
        return self.compared()

    def compared(self) -> Term:
        """Parse the rule `compared`."""
        column = self.tokens[self.at][2]
        left = self.sum()
        found = []
        while sign := self.next("<", "<=", ">", ">=", "==", "!="):
            if left.truth:
                self.fail("only numbers can be compared", column)
            right = self.numeric(self.sum)
            a, b = (right, left) if sign in (">", ">=") else (left, right)
            term = Term({">": "<", ">=": "<=", "!=": "=="}.get(sign, sign), (a, b))
            found.append(Term("not", (term,)) if sign == "!=" else term)
            left = right
        return left if not found else found[0] if len(found) == 1 else Term("and", tuple(found))

    def sum(self) -> Term:
        """Parse the rule `sum`."""
        column = self.tokens[self.at][2]
        first = self.product()
        parts = [first]
        while sign := self.next("+", "-"):
            if first.truth:
                self.fail("only numbers can be added", column)
            right = self.numeric(self.product)
            parts.append(right if sign == "+" else scaled(right, Fraction(-1)))
        return first if len(parts) == 1 else Term("add", tuple(parts))

    def product(self) -> Term:
        """Parse the rule `product`."""
        column = self.tokens[self.at][2]
        term = self.signed()
        while sign := self.next("*", "/"):
            where = self.tokens[self.at][2]
            right = self.numeric(self.signed)
            if term.truth:
                self.fail("only numbers can be multiplied", column)
            a, b = constant(term), constant(right)
            if b is None and (a is None or sign == "/"):
                self.fail("arithmetic must be linear: multiply by a number and divide by a number only", where)
            if sign == "/" and b == 0:
                self.fail("division by zero", where)
            if b is not None:
                term = scaled(term, 1 / b if sign == "/" else b)
            else:
                assert a is not None
                term = scaled(right, a)
            if max(term.value.numerator.bit_length(), term.value.denominator.bit_length()) > MAX_CONSTANT_BITS:
                self.fail("too large or too small a number comes out", where)
        return term

    def signed(self) -> Term:
        """Parse the rule `signed`."""
        signs = 0
        while self.next("-"):
            signs += 1
        return scaled(self.numeric(self.primary), Fraction((-1) ** signs)) if signs else self.primary()

    def primary(self) -> Term:
        """Parse the rule `primary`."""
        kind, word, column = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            if float(word) == float("inf"):
                self.fail(f"{word} is too large a number", column)
            return Term("number", value=Fraction(float(word)))
        if self.next("true", "false"):
            return Term(word)
        if self.next("("):
            return self.closed(column)
        if self.next("abs"):
            if not self.next("("):
                self.fail("abs needs parentheses", column)
            inner = self.closed(column)
            return Term("abs", (inner,)) if not inner.truth else self.fail("abs takes a number", column)
        if kind in ("name", "quoted") and word not in RESERVED_WORDS:
            self.at += 1
            return self.named(word, column)
        return self.fail("unexpected end" if kind == "end" else f"unexpected {word!r}", column)

    def closed(self, column: int) -> Term:
        """Parse what stands before a closing parenthesis."""
        term = self.implication()
        return term if self.next(")") else self.fail("this parenthesis is not closed", column)

    def named(self, word: str, column: int) -> Term:
        """Return the term of a name."""
        name = word.replace("`", "")
        of_action = word.startswith("action.") and (name not in self.features.names)
        if of_action:
            name = name.removeprefix("action.")
        elif name in self.features.names:
            return Term("feature", index=self.features.names.index(name))
        if name in self.actions.names and (self.actions.discrete or of_action):
            found = [index for index, action in enumerate(self.actions.names) if action == name]
            if len(found) > 1 and not self.actions.discrete:
                self.fail(f"{name!r} is the name of {len(found)} components of the action", column)
            terms = tuple(Term("takes" if self.actions.discrete else "component", index=index) for index in found)
            return terms[0] if len(terms) == 1 else Term("or", terms)  # any of the actions of that name
        if self.unquoted(column):
            return self.fail(f"unknown name {name!r}", column)
        prefix = "" if self.actions.discrete else "action."
        known = [*self.features.names, *(prefix + action for action in self.actions.names if action)]
        near = difflib.get_close_matches(word, known, n=1)
        hint = f": there are {', '.join(known[:12])}"
        if near:
            hint = f" (did you mean {f'`{near[0]}`, in backquotes' if _needs_quotes(near[0]) else repr(near[0])}?)"
        return self.fail(f"unknown name {name!r}{hint}", column)

    def unquoted(self, column: int) -> str | None:
        """Return a name with other signs than letters, digits and _ that stands at a column without its backquotes."""
        names = {name for name in (*self.features.names, *self.actions.names) if name and _needs_quotes(name)}
        for name in sorted(names, key=len, reverse=True):
            at = self.text.find(name, max(0, column - len(name) + 1), column + len(name))
            if at >= 0 and self.text[at - 1 : at] != "`":
                return name
        return None


def _needs_quotes(name: str) -> bool:
    """Return whether a name must stand in backquotes."""
    return name in RESERVED_WORDS or re.fullmatch(NAME_PATTERN, name) is None


def scaled(term: Term, by: Fraction) -> Term:
    """Return a number times a constant. What is scaled already is not nested: a chain of products may be long."""
    if term.kind == "number":
        return Term("number", value=term.value * by)
    return Term("scale", term.parts, term.value * by) if term.kind == "scale" else Term("scale", (term,), by)


def constant(term: Term) -> Fraction | None:
    """Return the value of a term without names, None for others."""
    parts = [constant(part) for part in term.parts]
    known = [part for part in parts if part is not None]
    if term.kind == "number":
        return term.value
    if len(known) < len(parts) or term.kind not in ("add", "scale", "abs"):
        return None
    return (
        sum(known, Fraction(0))
        if term.kind == "add"
        else term.value * known[0]
        if term.kind == "scale"
        else abs(known[0])
    )
