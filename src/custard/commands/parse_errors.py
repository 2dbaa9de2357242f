"""What the parser says about a mistake on the command line, as one line."""

from __future__ import annotations

import re

from custard.core.errors import one_of

__all__ = ["parse_error"]

_NO_TYPE = r"Error parsing ([^:]+): no type matching .*{}.*? could be instantiated from \[(.*?)\].*"
_PATTERNS = [
    (r"Missing value for argument '([^']+)'.*", r"\1 needs a value"),
    (r"Error parsing ([^:]+): invalid literal for int\(\) with base 10: (.+)", r"\1 takes a whole number, not \2"),
    (r"Error parsing ([^:]+): could not convert string to float: (.+)", r"\1 takes a number, not \2"),
    (_NO_TYPE.format(r"\[INT"), r"\1 takes whole numbers, not \2"),
    (_NO_TYPE.format("INT"), r"\1 takes a whole number, not \2"),
    (_NO_TYPE.format(r"\[FLOAT"), r"\1 takes numbers, not \2"),
    (_NO_TYPE.format("FLOAT"), r"\1 takes a number, not \2"),
    (r"Unrecognized options: (.+)", r"unexpected \1"),
    (r"Expected one of \{(.*)\}\.", r"give a command: \1 (`custard --help` says what each does)"),
    (r"Missing from custard \w+: (\S+).*", r"\1 is missing"),
]  # fmt: skip
_CHOICE = re.compile(r"invalid choice '(.*)' for argument '([^']+)'\. Expected one of \((.*?),?\)\.?")


def parse_error(said: str, command: str) -> str:
    """Return the parser's box of text as one line that ends in where the options are listed.

    >>> box = "╭─ Invalid choice ─╮\\n│ invalid choice 'lcal' for argument '--engine'.  │\\n"
    >>> box += "│ Expected one of ('local', 'ray'). │\\n│ ───── │\\n│ For full helptext, run … │\\n╰───╯\\n"
    >>> parse_error(box, "train")
    "train: unknown --engine 'lcal': choose one of local, ray (did you mean 'local'?) (`custard train --help`)"
    """
    parts: list[list[str]] = [[]]  # between rules: what is wrong, perhaps about the option, where to find help
    for line in said.splitlines():
        inner = line.strip().strip("│").strip()
        if inner and not set(inner) - {"─", "-"}:
            parts.append([])
        elif inner and inner[0] not in "╭╰":
            parts[-1].append(inner)
    has_title = "╭" not in said and len(parts) > 1  # where the output cannot draw boxes
    text = " ".join(parts[int(has_title)])
    if found := _CHOICE.fullmatch(text):
        given, option, choices = found.groups()
        text = one_of(option, given, re.findall(r"'([^']*)'", choices))
    for pattern, better in _PATTERNS:
        if (found := re.fullmatch(pattern, text)) is not None:
            text = found.expand(better)
            break
    return f"{command}: {text} (`custard {command} --help`)" if command else text
