"""A tree as indented text, for terminals and notebooks."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["bound_text", "draw_text", "max_formula_lines", "near", "number", "one_line", "plural", "wrapped"]


def number(value: float, keeps: Callable[[float], bool] | None = None) -> str:
    """Return a number for people: whole ones as they are, others with six significant digits. Exports write all.

    Rounding must not make a sentence false: where `keeps` says of the printed number that it does, there are as many
    digits as it takes.

    >>> number(0.1 + 0.2), number(-1e-9), number(3.0), number(1e9 + 1)
    ('0.3', '-1e-09', '3', '1000000001')
    >>> number(0.12345678, keeps=lambda shown: shown <= 0.12345678)
    '0.12345678'
    """
    if not math.isfinite(value) or (value == math.floor(value) and abs(value) < 1e15):
        return f"{value:.16g}"
    texts = (f"{value:.{digits}g}" for digits in range(6, 18))
    return next((text for text in texts if keeps is None or keeps(float(text))), repr(float(value)))


def near(tree: Tree, c: int, shown: float, value: float) -> bool:
    """Return whether a printed value of a feature is close to its value: far from zero six digits may tell nothing."""
    width = float(tree.features.high[c]) - float(tree.features.low[c])
    return not abs(shown - value) > 1e-4 * width


def bound_text(tree: Tree, c: int, bound: float, x: float = math.nan) -> str:
    """Return a threshold of a feature for people, which still parts what it parts in the tree.

    That is, the feature's other thresholds, whole numbers where it has only those, and the value `x` if there is one.
    """
    others = tree.threshold[tree.feature == c].tolist()
    if tree.features.integer[c] and math.isfinite(bound):
        others += [math.floor(bound), math.floor(bound) + 1]
    below = max((other for other in others if other < bound), default=-math.inf)
    above = min((other for other in others if other > bound), default=math.inf)

    def keeps(shown: float) -> bool:
        return below < shown < above and (x <= shown) == (x <= bound) and near(tree, c, shown, bound)

    return number(bound, keeps)


def one_line(name: str) -> str:
    """Return a name that stays on its line and cannot steer a terminal.

    >>> one_line("a\\nb")
    'a b'
    """
    return "".join(c if c.isprintable() else " " for c in name)


def max_formula_lines(n_leaves: int) -> int:
    """Return on how many lines a sum or a linear leaf may stand in a picture: small trees have room for all of it.

    >>> max_formula_lines(2), max_formula_lines(30)
    (24, 5)
    """
    return 24 if n_leaves <= 4 else 5


def wrapped(text: str, width: int, max_lines: int) -> list[str]:
    """Return a text in lines of about equal width, at most `width`; what does not fit is left out.

    >>> wrapped("2*angle + 0.5*speed - 3*position ≤ 1", 20, 3)
    ['2*angle + 0.5*speed', '- 3*position ≤ 1']
    >>> wrapped("2*angle + 0.5*speed - 3*position ≤ 1", 20, 1)
    ['2*angle + 0.5*speed…']
    """
    plain = one_line(text)
    plain = re.sub(r"([+−-]) ", "\\1\u00a0", plain).replace("≤ ", "≤\u00a0")  # signs stay with what they belong to
    count = max(1, -(-len(plain) // width))
    lines = textwrap.wrap(plain, max(width // 2, min(width, len(plain) // count + 6)), break_on_hyphens=False) or [""]
    lines = [line.replace("\u00a0", " ") for line in lines]
    return lines if len(lines) <= max_lines else [*lines[: max_lines - 1], lines[max_lines - 1][: width - 1] + "…"]


def plural(noun: str, count: int) -> str:
    """Return a noun beside a number.

    >>> plural("step", 1), plural("step", 2), plural("leaf", 0)
    ('step', 'steps', 'leaves')
    """
    return noun if count == 1 else {"leaf": "leaves"}.get(noun, f"{noun}s")


def draw_text(tree: Tree, max_lines: int = 1000) -> str:
    """Return the tree, one line per node, then what named sums are; beyond `max_lines` nodes it is cut and says so."""
    lines: list[str] = []
    stack = [(0, "", "", "")]  # node, the lead of its own line, the lead of its children's, its answer
    while stack:
        if len(lines) == max_lines:
            lines.append(f"… {tree.n_nodes - max_lines} more nodes")
            break
        node, lead, rest, answer = stack.pop()
        if tree.feature[node] < 0:
            lines.append(f"{lead}{answer}{one_line(tree.leaf_text(node))}")
            continue
        lines.append(f"{lead}{answer}{one_line(tree.question(node))}?")
        stack.append((int(tree.children_right[node]), f"{rest}└─ ", f"{rest}   ", "no:  "))
        stack.append((int(tree.children_left[node]), f"{rest}├─ ", f"{rest}│  ", "yes: "))
    return "\n".join([*lines, *(one_line(line) for line in tree.definitions())])
