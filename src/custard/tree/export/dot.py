"""Graphviz source."""

from __future__ import annotations

from custard.tree.tree import LEAF, Tree

__all__ = ["to_dot"]

ACTION_COLOURS = (
    "#4e79a7",
    "#f28e2b",
    "#59a14f",
    "#e15759",
    "#b07aa1",
    "#76b7b2",
    "#edc948",
    "#9c755f",
    "#ff9da7",
    "#bab0ac",
)


def to_dot(tree: Tree) -> str:
    """Return the tree for Graphviz: left edges are answers "yes". Thresholds are written in full.

    >>> from custard import Actions, Features, Tree
    >>> print(to_dot(Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b")))))
    digraph custard {
        node [shape=box, style="rounded,filled", fillcolor="#ffffff", fontname="Helvetica"];
        edge [fontname="Helvetica"];
        0 [label="angle ≤ 0.5"];
        0 -> 1 [label="yes"];
        0 -> 2 [label="no"];
        1 [label="a", fillcolor="#4e79a733"];
        2 [label="b", fillcolor="#f28e2b33"];
    }
    <BLANKLINE>
    """
    lines = [
        "digraph custard {",
        '    node [shape=box, style="rounded,filled", fillcolor="#ffffff", fontname="Helvetica"];',
        '    edge [fontname="Helvetica"];',
    ]
    for node in range(tree.n_nodes):
        if tree.feature[node] == LEAF:
            colour = f', fillcolor="{ACTION_COLOURS[_colour_number(tree, node) % len(ACTION_COLOURS)]}33"'
            lines.append(f"    {node} [label={quoted(tree.leaf_text(node))}{colour}];")
            continue
        question = f"{tree.features.names[tree.feature[node]]} ≤ {float(tree.threshold[node])!r}"
        lines.append(f"    {node} [label={quoted(question)}];")
        lines.append(f'    {node} -> {tree.children_left[node]} [label="yes"];')
        lines.append(f'    {node} -> {tree.children_right[node]} [label="no"];')
    return "\n".join([*lines, "}"]) + "\n"


def quoted(text: str) -> str:
    """Return a string as DOT reads it; backslashes would otherwise be escapes such as `\\N`, the node's name."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _colour_number(tree: Tree, node: int) -> int:
    """Return the number of a leaf's colour."""
    return int(tree.value[node]) - tree.actions.start if tree.actions.discrete else 0
