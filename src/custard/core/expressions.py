"""The language of derived features: `tilt = angle + 0.5*angular_velocity`, parsed here and never run as code.

    feature     = [ name "=" ] sum
    sum         = product { ("+" | "-") product }
    product     = signed { ("*" | "/") signed }              what stands after / must be a number
    signed      = ("-" | "+") signed | primary
    primary     = number | name | "abs" "(" sum ")" | "wrap" "(" sum ")" | "(" sum ")"
    name        = letters, digits and _, then perhaps a step back such as [-1]; or anything between backquotes

A name stands for a feature of the observation or for a derived feature before this one. `wrap` brings an angle in
radians, such as the difference of two, within half a turn of zero. Text can reach nothing but these rules: there are no
attributes, no calls of anything else, no imports.

What is linear becomes one weighted sum: like terms are collected in exact arithmetic and each weight is rounded once.
Products of features, absolute values and wrapped angles are kept as parts of the sum (`custard.core.sums`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NoReturn

from custard.core.errors import CustardError
from custard.core.features import Features
from custard.core.sums import Part, Sum
from custard.core.tokens import tokenize

__all__ = ["with_expressions"]

MAX_TEXT_LENGTH = 5000  # characters of one feature
MAX_NESTING = 40  # of parentheses and signs
MAX_NUMBER_BITS = 4096  # of a collected weight; a float64 has 1,074 at most
FUNCTIONS = ("abs", "wrap")
TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<quoted>`[^`\n]*`)"
    r"|(?P<name>[^\W\d]\w*(?:\[-[0-9]+\])?)|(?P<sign>[=+\-*/()−·]))"
)
ASCII_SIGNS = {"−": "-", "·": "*"}

#: A sum while it is parsed: a weight for each feature or part, and the constant under the key None.
Collected = dict[int | Part | None, Fraction]


def with_expressions(features: Features, texts: str | Sequence[str]) -> Features:
    """Return features with those that expressions define after them. A mistake is a CustardError of one line.

    >>> pole = Features(("angle", "rate"), [-1, -2], [1, 2])
    >>> more = with_expressions(pole, ["tilt = angle + 0.5*rate", "far = abs(tilt) * 2 - 1"])
    >>> more.names[2:], more.extend([1.0, -4.0]).tolist()
    (('tilt', 'far'), [1.0, -4.0, -1.0, 1.0])
    >>> with_expressions(pole, "tilt = angel + rate")
    Traceback (most recent call last):
    custard.core.errors.CustardError: feature 'tilt', column 8: unknown name 'angel' (did you mean 'angle'?)
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    split = [_name_and_body(text) for text in texts]
    names = [name for name, _, _ in split]
    for k, (name, body, offset) in enumerate(split):
        if name in features.names:
            raise CustardError(f"feature {name!r} is defined, but there is one of that name already")
        later = [other for other in names[k + 1 :] if other is not None]
        parsed = _Parser(body, offset, name, features, later).whole()
        features = features.with_sums([_sum_of(parsed, name or body.strip())], None if name is None else [name])
    return features


def _name_and_body(text: str) -> tuple[str | None, str, int]:
    """Return the name that a definition gives, the expression, and the column where it begins."""
    if not isinstance(text, str):
        raise CustardError(f"a feature is defined by text such as 'tilt = angle + 0.5*rate', not by {text!r}")
    if len(text) > MAX_TEXT_LENGTH:
        raise CustardError(f"a feature's definition has at most {MAX_TEXT_LENGTH} characters, this one {len(text)}")
    match = re.match(r"\s*(?:`(?P<quoted>[^`\n]+)`|(?P<name>[^\W\d]\w*))\s*=", text)
    if match is None:
        return None, text, 0
    name = match["quoted"] or match["name"]
    if name in FUNCTIONS:
        raise CustardError(f"a feature cannot be called {name!r}: that is a function")
    return name, text[match.end() :], match.end()


def _sum_of(collected: Collected, what: str) -> Sum:
    """Return what was collected as a sum, each weight rounded once."""
    rounded: list[tuple[int | Part | None, float]] = []
    for atom, weight in collected.items():
        try:
            rounded.append((atom, float(weight)))
        except OverflowError:
            raise CustardError(f"feature {what!r}: a weight is too large a number") from None
    raw = sorted((atom, weight) for atom, weight in rounded if isinstance(atom, int) and weight != 0.0)
    parts = [(atom, weight) for atom, weight in rounded if isinstance(atom, Part) and weight != 0.0]
    if not raw and not parts:
        raise CustardError(f"feature {what!r} is the same number for every observation")
    constant = next((weight for atom, weight in rounded if atom is None), 0.0)
    return Sum((*raw, *parts), constant)


class _Parser:
    """Recursive descent over the tokens of one expression, a method for each rule of the grammar."""

    def __init__(self, text: str, offset: int, name: str | None, features: Features, later: Sequence[str]) -> None:
        """Read the tokens.

        text      the expression
        offset    the column at which it begins
        name      of the feature it defines, None without one
        features  those that it may use
        later     names of features that are defined after it
        """
        self.text, self.offset, self.name, self.features, self.later = text, offset, name, features, later
        self.tokens = tokenize(text, TOKEN, ASCII_SIGNS, self.fail)
        self.at = self.nesting = 0

    def fail(self, what: str, column: int) -> NoReturn:
        """Raise an error that says what is wrong at a column."""
        subject = f"feature {self.name!r}" if self.name is not None else f"feature {self.text.strip()[:60]!r}"
        raise CustardError(f"{subject}, column {self.offset + column + 1}: {what}")

    def next(self, *accepted: str) -> str | None:
        """Return the next token if it is one of these signs, which it then passes."""
        kind, word, _ = self.tokens[self.at]
        if kind != "sign" or word not in accepted:
            return None
        self.at += 1
        return word

    def deeper(self) -> None:
        """Count one level of nesting."""
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.fail("parentheses or signs nest too deeply", self.tokens[self.at][2])

    def whole(self) -> Collected:
        """Parse all of the text."""
        if self.tokens[0][0] == "end":
            self.fail("nothing to compute", 0)
        result = self.sum()
        kind, word, column = self.tokens[self.at]
        if kind != "end":
            self.fail(f"unexpected {word!r}", column)
        return result

    def sum(self) -> Collected:
        """Parse the rule `sum`."""
        total = dict(self.product())
        while sign := self.next("+", "-"):
            for atom, weight in self.product().items():
                total[atom] = total.get(atom, Fraction(0)) + (weight if sign == "+" else -weight)
        return {atom: weight for atom, weight in total.items() if weight != 0}

    def product(self) -> Collected:
        """Parse the rule `product`."""
        left = self.signed()
        while sign := self.next("*", "/"):
            column = self.tokens[self.at][2]
            right = self.signed()
            a, b = _constant(left), _constant(right)
            if sign == "/":
                if b is None:
                    self.fail("only a number can divide", column)
                if b == 0:
                    self.fail("division by zero", column)
                left = {atom: weight / b for atom, weight in left.items()}
            elif a is not None or b is not None:
                factor, of = (a, right) if a is not None else (b, left)
                assert factor is not None
                left = {atom: weight * factor for atom, weight in of.items() if factor != 0}
            else:
                left = {self.part("product", (left, right), column): Fraction(1)}
            if any(max(w.numerator.bit_length(), w.denominator.bit_length()) > MAX_NUMBER_BITS for w in left.values()):
                self.fail("too large or too small a number comes out", column)
        return left

    def signed(self) -> Collected:
        """Parse the rule `signed`."""
        sign = self.next("-", "+")
        if sign is None:
            return self.primary()
        self.deeper()
        inner = self.signed()
        self.nesting -= 1
        return inner if sign == "+" else {atom: -weight for atom, weight in inner.items()}

    def primary(self) -> Collected:
        """Parse the rule `primary`."""
        kind, word, column = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            value = float(word)
            if value == float("inf"):
                self.fail(f"{word[:40]} is too large a number", column)
            return {None: Fraction(value)} if value else {}
        if self.next("("):
            return self.closed(column)
        if kind == "name" and word in FUNCTIONS:
            self.at += 1
            if not self.next("("):
                self.fail(f"{word} needs parentheses", column)
            return {self.part(word, (self.closed(column),), column): Fraction(1)}
        if kind in ("name", "quoted"):
            self.at += 1
            return self.named(word.strip("`"), column)
        return self.fail("unexpected end" if kind == "end" else f"unexpected {word!r}", column)

    def closed(self, column: int) -> Collected:
        """Parse what stands before a closing parenthesis."""
        self.deeper()
        inner = self.sum()
        self.nesting -= 1
        return inner if self.next(")") else self.fail("this parenthesis is not closed", column)

    def part(self, operation: str, arguments: Sequence[Collected], column: int) -> Part:
        """Return a part that is not linear, of what was parsed."""
        try:
            return Part(operation, tuple(_sum_of(argument, self.name or self.text.strip()) for argument in arguments))
        except CustardError as error:
            return self.fail(str(error).partition(": ")[2] or str(error), column)

    def named(self, name: str, column: int) -> Collected:
        """Return the feature of a name; of a derived one what it is."""
        if name in self.features.names:
            total = self.features.sum_of(self.features.names.index(name))
            found: Collected = {atom: Fraction(weight) for atom, weight in total.terms}
            return {**found, None: Fraction(total.constant)} if total.constant != 0.0 else found
        if name == self.name:
            self.fail("it is computed from itself", column)
        if name in self.later:
            self.fail(f"{name!r} is defined after it, and a feature may use earlier ones only", column)
        known = self.features.names
        near = difflib.get_close_matches(name, known, n=1)
        listed = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
        hint = f" (did you mean {near[0]!r}?)" if near else f": there are {listed}"
        return self.fail(f"unknown name {name!r}{hint}", column)


def _constant(collected: Collected) -> Fraction | None:
    """Return the number that was collected, if it is one."""
    return collected.get(None, Fraction(0)) if all(atom is None for atom in collected) else None
