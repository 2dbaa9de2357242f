"""Tokens of the small languages that are parsed here and never run as code: derived features and assertions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

__all__ = ["Token", "tokenize"]

#: The kind (a group of the pattern, or "end"), the word, and the column where it begins.
Token = tuple[str, str, int]


def tokenize(
    text: str, pattern: re.Pattern[str], ascii_signs: Mapping[str, str], fail: Callable[[str, int], NoReturn]
) -> list[Token]:
    """Return the tokens of a text, with a last one of the kind "end".

    pattern      a named group for each kind of token, after white space
    ascii_signs  how signs that look like others are written in ASCII
    fail         raises an error, told what is wrong and at which column

    >>> tokenize("a −1", re.compile(r"\\s*(?:(?P<name>\\w+)|(?P<sign>[-−]))"), {"−": "-"}, print)
    [('name', 'a', 0), ('sign', '-', 2), ('name', '1', 3), ('end', '', 4)]
    """
    tokens: list[Token] = []
    at = 0
    while text[at:].strip():
        match = pattern.match(text, at)
        if match is None or match.lastgroup is None:
            column = at + len(text[at:]) - len(text[at:].lstrip())
            fail(f"unexpected {text[column]!r}", column)
        word = match[match.lastgroup]
        tokens.append((match.lastgroup, ascii_signs.get(word, word), match.start(match.lastgroup)))
        at = match.end()
    return [*tokens, ("end", "", len(text))]
