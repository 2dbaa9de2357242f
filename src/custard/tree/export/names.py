"""Names from outside made safe for source code, and thresholds written so that every reader gets the same bits back."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from custard.core.errors import CustardError
from custard.tree.memory import history_of
from custard.tree.text import plural

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["comment", "heading", "identifiers", "missing_package", "rational"]

#: Words that the target languages keep for themselves.
RESERVED_WORDS = {word.lower() for word in keyword.kwlist}.union(
    *(words.split() for words in (
        "abstract alignas alignof asm auto become bool box case catch char const crate default delete do double dyn",
        "enum extern final float fn friend gen goto impl inline int int64_t let long loop macro main match mod move",
        "mut namespace new null nullptr operator override priv private protected pub public ref register",
        "restrict self short signed sizeof static static_assert struct super switch template this thread_local throw",
        "trait type typedef typename typeof union unsafe unsigned unsized use using virtual void volatile wchar_t",
        "where xor obs act node value feature threshold left right list tuple range len",
    ))
)  # fmt: skip


def heading(tree: Tree, remembers: bool = False) -> str:
    """Return the first line of a file that holds a tree; `remembers` says that the file keeps past steps by itself."""
    size = f"{tree.n_leaves} {plural('leaf', tree.n_leaves)}"
    if tree.is_linear:
        size += f" and {tree.n_coefficients} {plural('coefficient', tree.n_coefficients)}"
    said = f"A decision tree of depth {tree.depth} with {size}, written by custard."
    steps = history_of(tree)
    if steps and not remembers:
        said += f" It is to be given its last {steps} {plural('step', steps)} too, in the order of its features."
    return said


def identifiers(names: Iterable[str], prefix: str = "", taken: Iterable[str] = ()) -> list[str]:
    """Return a distinct identifier for each name, of ASCII letters, digits and _, valid in C, Rust and Python.

    >>> identifiers(["pole angle", "pole-angle", "2nd", "while", "größe", "", "*/ evil();"])
    ['pole_angle', 'pole_angle_2', 'x_2nd', 'x_while', 'gr_e', 'x', 'evil']
    """
    used = {name.lower() for name in taken}
    result = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:60]
        if not prefix and (not stem or stem[0].isdigit() or stem.lower() in RESERVED_WORDS):
            stem = f"x_{stem}" if stem else "x"
        word, count = f"{prefix}{stem or 'x'}", 1
        while word.lower() in used:
            count += 1
            word = f"{prefix}{stem or 'x'}_{count}"
        used.add(word.lower())
        result.append(word)
    return result


def comment(text: str) -> str:
    """Return text that can stand inside a comment of any of the languages: one line, nothing that ends or continues it.

    >>> comment('a */ #include "x"  ??/')
    'a __ _include _x_  ___'
    """
    return "".join(c if c.isalnum() or c in " _.,:+-=()[]<>≤|├└│─·" else "_" for c in text)


def rational(value: float) -> tuple[int, int]:
    """Return a float as the fraction it is."""
    return float(value).as_integer_ratio()


def missing_package(module: str, extra: str, what: str) -> CustardError:
    """Return the error for an optional package that is not installed."""
    return CustardError(f'{what} needs the package {module}: pip install "custard-rl[{extra}]"')


def rows(values: Sequence[str], indent: str = "    ", width: int = 110) -> str:
    """Return values separated by commas, wrapped into lines."""
    lines, line = [], indent
    for value in values:
        if len(line) + len(value) + 2 > width and line.strip():
            lines.append(line.rstrip())
            line = indent
        line += f"{value}, "
    return "\n".join([*lines, line.rstrip()])
