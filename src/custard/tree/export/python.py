"""A Python file without dependencies that defines `act(obs)`."""

from __future__ import annotations

from custard.tree.export.names import comment, heading, identifiers, rows
from custard.tree.export.walk import MAX_NESTED_DEPTH, nested, order
from custard.tree.tree import Tree

__all__ = ["to_python"]


def to_python(tree: Tree) -> str:
    """Return the tree as Python source: `act(obs)` takes any sequence of numbers and returns the action.

    Each value is made a Python float first, so that a NumPy float32 is widened instead of the threshold narrowed. NaN
    goes right, as in the tree.

    >>> from custard import Actions, Features, Tree
    >>> source = to_python(Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b"))))
    >>> print(source[source.index("def") :])
    def act(obs):
        angle = float(obs[0])
        if angle <= 0.5:
            return 0  # a
        else:
            return 1  # b
    <BLANKLINE>
    """
    title = heading(tree)
    lines = [
        f'"""{title}',
        "",
        "act(obs) takes the features in the order of FEATURES and returns the action. NaN goes right everywhere.",
        '"""',
        "",
        f"FEATURES = {tree.features.names!a}",
        f"ACTIONS = {tree.actions.names!a}",
        "",
        "",
    ]
    return "\n".join(lines + (_nested_ifs(tree) if tree.depth <= MAX_NESTED_DEPTH else _table_and_loop(tree))) + "\n"


def _nested_ifs(tree: Tree) -> list[str]:
    """Return `act` as nested ifs."""
    used = order(tree)
    local = dict(zip(used, identifiers(tree.features.names[c] for c in used), strict=True))
    lines = ["def act(obs):"] + [f"    {local[c]} = float(obs[{c}])" for c in used]
    for what, node, depth in nested(tree):
        pad = "    " * (depth + 1)
        if what == "if":
            lines.append(f"{pad}if {local[int(tree.feature[node])]} <= {float(tree.threshold[node])!r}:")
        elif what == "else":
            lines.append(f"{pad}else:")
        elif what == "leaf":
            lines.append(f"{pad}return {_action_literal(tree, node)}  # {comment(tree.actions.name(tree.value[node]))}")
    return lines


def _table_and_loop(tree: Tree) -> list[str]:
    """Return `act` as a loop over tables, for trees too deep to nest."""
    columns = {
        "FEATURE": [str(v) for v in tree.feature.tolist()],
        "THRESHOLD": [repr(v) for v in tree.threshold.tolist()],
        "LEFT": [str(v) for v in tree.children_left.tolist()],
        "RIGHT": [str(v) for v in tree.children_right.tolist()],
        "VALUE": [_action_literal(tree, node) for node in range(tree.n_nodes)],
    }
    lines = []
    for name, values in columns.items():
        lines += [f"{name} = (", rows(values), ")"]
    return [
        *lines, "", "",
        "def act(obs):",
        "    node = 0",
        "    while FEATURE[node] >= 0:",
        "        node = LEFT[node] if float(obs[FEATURE[node]]) <= THRESHOLD[node] else RIGHT[node]",
        "    return VALUE[node]",
    ]  # fmt: skip


def _action_literal(tree: Tree, node: int) -> str:
    """Return an action as a literal; Python has none for infinity, but an overflowing one reads as it."""
    text = repr(tree.value[node].tolist() if tree.actions.discrete else tuple(tree.value[node].tolist()))
    return text.replace("inf", "1e999")
