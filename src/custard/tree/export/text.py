"""Indented text with thresholds in full."""

from __future__ import annotations

from custard.tree import linear
from custard.tree.export.walk import nested
from custard.tree.text import one_line
from custard.tree.tree import Tree

__all__ = ["to_text"]


def to_text(tree: Tree) -> str:
    """Return the tree as `custard show` prints it, but with every digit of each threshold and nothing cut.

    >>> from custard import Actions, Features, Tree
    >>> print(to_text(Tree.stump(0, 1 / 3, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b")))))
    angle ≤ 0.3333333333333333?
    ├─ yes: a
    └─ no:  b
    <BLANKLINE>
    """
    lines: list[str] = []
    lead: list[str] = []  # what each level above puts before a line
    answer = ""
    for what, node, depth in nested(tree):
        if what == "else":
            lead[depth], answer = "└─ ", "no:  "
            continue
        if what == "end":
            lead.pop()
            continue
        before = "".join("│  " if part == "├─ " else "   " for part in lead[:-1]) + "".join(lead[-1:])
        if what == "leaf":
            lines.append(
                f"{before}{answer}{one_line(linear.leaf_text(tree, node, repr if tree.gains is not None else None))}"
            )
            continue
        question = f"{one_line(tree.features.names[tree.feature[node]])} ≤ {float(tree.threshold[node])!r}?"
        lines.append(f"{before}{answer}{question}")
        lead.append("├─ ")
        answer = "yes: "
    return "\n".join([*lines, *(one_line(line) for line in tree.definitions(repr))]) + "\n"
