"""The order in which a tree is written as nested conditions."""

from __future__ import annotations

from collections.abc import Iterator

from custard.tree.tree import LEAF, Tree

__all__ = ["MAX_NESTED_DEPTH", "nested", "order"]

#: Trees deeper than this are written as tables and a loop: Python allows 100 levels of indentation, C99 127 of blocks.
MAX_NESTED_DEPTH = 60


def nested(tree: Tree) -> Iterator[tuple[str, int, int]]:
    """Yield ("if", node, depth), what is left, ("else", …), what is right, ("end", …); or ("leaf", node, depth)."""
    stack = [("visit", 0, 0)]
    while stack:
        what, node, depth = stack.pop()
        if what != "visit":
            yield what, node, depth
        elif tree.feature[node] == LEAF:
            yield "leaf", node, depth
        else:
            yield "if", node, depth
            stack.append(("end", node, depth))
            stack.append(("visit", int(tree.children_right[node]), depth + 1))
            stack.append(("else", node, depth))
            stack.append(("visit", int(tree.children_left[node]), depth + 1))


def order(tree: Tree) -> list[int]:
    """Return the features that the tree asks about, in their own order."""
    return sorted({int(c) for c in tree.feature if c != LEAF})
