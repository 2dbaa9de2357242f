"""A Python file without dependencies that defines `act(obs)`; for a tree with a history also `reset()`."""

from __future__ import annotations

from collections.abc import Callable

from custard.tree.export.formula import (
    Language,
    has_wrap,
    leaf_expression,
    raw_features_read,
    sum_expression,
    sum_words,
)
from custard.tree.export.memory import python_memory
from custard.tree.export.names import comment, heading, identifiers, rows
from custard.tree.export.walk import MAX_NESTED_DEPTH, nested
from custard.tree.memory import memory_of
from custard.tree.tree import Tree

__all__ = ["to_python"]

HELPERS = ("_wrap", "_clip", "floor", "isfinite", "abs", "float", "features", "actions", "x")
WRAP = """\
def _wrap(angle):
    turns = (angle + 3.141592653589793) / 6.283185307179586
    return angle - 6.283185307179586 * (float(floor(turns)) if isfinite(turns) else turns)
"""
CLIP = """\
def _clip(value, low, high):
    return low if value < low else high if value > high else value
"""


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
    tree = tree.keep_used_sums()
    memory, names = memory_of(tree), tree.features.raw.names
    past = [] if memory is None else [f"PAST = {names[memory.n :]!a}"]
    lines = [
        f'"""{heading(tree, remembers=True)}',
        "",
        "act(obs) takes the features in the order of FEATURES and returns the action. NaN goes right everywhere.",
        *(["It remembers those in PAST by itself: call reset() before each episode."] if past else []),
        '"""',
        "",
        f"FEATURES = {names[: len(names) if memory is None else memory.n]!a}",
        *past,
        f"ACTIONS = {tree.actions.names!a}",
        "",
        "",
    ]
    if has_wrap(tree):
        lines += ["from math import floor, isfinite", "", "", *WRAP.splitlines(), "", ""]
    if tree.gains is not None:
        lines += [*CLIP.splitlines(), "", ""]
    body = _nested_ifs(tree) if tree.depth <= MAX_NESTED_DEPTH else _table_and_loop(tree)
    if memory is not None:
        body = ["def decide(obs):" if line == "def act(obs):" else line for line in body]
        body += ["", "", *python_memory(tree, memory, lambda value: repr(value).replace("inf", "1e999"))]
    return "\n".join(lines + body) + "\n"


def _nested_ifs(tree: Tree) -> list[str]:
    """Return `act` as nested ifs."""
    n_raw = tree.features.n_raw
    used = raw_features_read(tree)
    local = dict(zip(used, identifiers((tree.features.names[c] for c in used), taken=HELPERS), strict=True))
    sums, language = sum_words(tree, taken=(*local.values(), *HELPERS)), _language(lambda c: local[c])
    lines = ["def act(obs):"] + [f"    {local[c]} = float(obs[{c}])" for c in used]
    lines += [f"    {word} = {sum_expression(tree.features.sum_of(c), language)}" for c, word in sums.items()]
    local |= sums
    assert n_raw + len(sums) == tree.features.n
    for what, node, depth in nested(tree):
        pad = "    " * (depth + 1)
        if what == "if":
            lines.append(f"{pad}if {local[int(tree.feature[node])]} <= {float(tree.threshold[node])!r}:")
        elif what == "else":
            lines.append(f"{pad}else:")
        elif what == "leaf":
            lines.append(
                f"{pad}return {_action(tree, node, language)}  # {comment(tree.leaf_text(node).replace('*', '·'))}"
            )
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
    language = _language(lambda c: f"x[{c}]")
    sums = [sum_expression(total, language) for total in tree.features.derived]
    read = "x[FEATURE[node]]" if tree.is_linear else "float(obs[FEATURE[node]])"
    lines = []
    for name, values in columns.items():
        lines += [f"{name} = (", rows(values), ")"]
    return [
        *lines, "", "",
        "def act(obs):",
        "    node = 0",
        *([f"    x = [float(obs[c]) for c in range({tree.features.n_raw})]"] if tree.is_linear else []),
        *(f"    x.append({text})" for text in sums),
        "    while FEATURE[node] >= 0:",
        f"        node = LEFT[node] if {read} <= THRESHOLD[node] else RIGHT[node]",
        *_linear_leaves(tree, language),
        "    return VALUE[node]",
    ]  # fmt: skip


def _linear_leaves(tree: Tree, language: Language) -> list[str]:
    """Return lines that answer at leaves whose action is computed."""
    if tree.gains is None:
        return []
    leaves = [int(node) for node in tree.leaves() if tree.gains[node].any()]
    return [line for k in leaves for line in (f"    if node == {k}:", f"        return {_action(tree, k, language)}")]


def _language(feature: Callable[[int], str]) -> Language:
    """Return how Python writes sums."""
    return Language(lambda value: repr(value).replace("inf", "1e999"), feature, "abs", "_wrap", "_clip")


def _action(tree: Tree, node: int, language: Language) -> str:
    """Return a leaf's action as an expression."""
    if tree.gains is None or not tree.gains[node].any():
        return _action_literal(tree, node)
    return f"({''.join(f'{leaf_expression(tree, node, k, language)}, ' for k in range(tree.actions.size)).rstrip()})"


def _action_literal(tree: Tree, node: int) -> str:
    """Return an action as a literal; Python has none for infinity, but an overflowing one reads as it."""
    text = repr(tree.value[node].tolist() if tree.actions.discrete else tuple(tree.value[node].tolist()))
    return text.replace("inf", "1e999")
