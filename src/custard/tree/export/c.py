"""A C99 file that defines `int custard_act(const double *obs)`: no allocation, no library, no state.

For vector actions it is `void custard_act(const double *obs, double *action)` (`long long *action` for whole numbers).
A second function, `custard_act_f`, takes float observations and compares in float only, which small processors do in
hardware; its thresholds are rounded down, so that it decides exactly as widening each value to double would. Compiling
with -ffast-math (or -ffinite-math-only) gives up the promise for NaN and infinities.
"""

from __future__ import annotations

import numpy as np

from custard.core.errors import CustardError
from custard.tree.export.names import comment, heading, identifiers, rows
from custard.tree.export.text import to_text
from custard.tree.export.walk import nested, order
from custard.tree.rounding import round_down
from custard.tree.tree import LEAF, Tree

__all__ = ["to_c"]

MAX_READABLE_DEPTH = 3  # of trees written as nested ifs; deeper ones are tables and a loop, the tree a comment
MAX_COUNTED_DEPTH = 16  # of trees walked with a fixed number of steps; deeper ones until a leaf is met
FLOAT_TYPES = ("double", "float")


def to_c(tree: Tree) -> str:
    """Return the tree as C source.

    >>> from custard import Actions, Features, Tree
    >>> source = to_c(Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b"))))
    >>> print(source[source.index("int custard_act(") : source.index("int custard_act_f(")].strip())
    int custard_act(const double *obs)
    {
        if (obs[CUSTARD_ANGLE] <= 0x1.0000000000000p-1 /* 0.5 */) {
            return CUSTARD_DO_A;
        } else {
            return CUSTARD_DO_B;
        }
    }
    """
    first, last = tree.actions.start, tree.actions.start + tree.actions.n - 1
    if tree.actions.discrete and not -(2**31) <= first <= last < 2**31:
        raise CustardError(f"C's custard_act returns an int, which does not hold actions numbered {first}…{last}")
    used = order(tree)
    constants = dict(zip(used, identifiers((tree.features.names[c].upper() for c in used), "CUSTARD_"), strict=True))
    lines = [
        f"/* {heading(tree)}",
        f" * It takes {tree.features.n} features, in this order:",
        *(f" *   obs[{i}]  {comment(name)}" for i, name in enumerate(tree.features.names)),
        " * NaN goes right (the else branch) at every question. */",
        "",
    ]
    if constants:
        lines += ["enum {", rows([f"{word} = {c}" for c, word in constants.items()]).rstrip(","), "};", ""]
    if tree.actions.discrete:
        taken = [*constants.values()]
        words = identifiers((name.upper() for name in tree.actions.names), "CUSTARD_DO_", taken)
        values = [f"{word} = {tree.actions.start + i}" for i, word in enumerate(words)]
        lines += ["enum custard_action {", rows(values).rstrip(","), "};", ""]
        answers = {int(node): f"return {words[tree.value[node] - tree.actions.start]};" for node in tree.leaves()}
        heads = [f"int custard_act{end}(const {kind} *obs)" for end, kind in (("", "double"), ("_f", "float"))]
    else:
        kind = "double" if tree.actions.kind == "box" else "long long"
        lines += [f"/* action[{i}] is {comment(name)} */" for i, name in enumerate(tree.actions.names)] + [""]
        answers = {
            int(node): " ".join(f"action[{i}] = {_action_literal(v)};" for i, v in enumerate(tree.value[node].tolist()))
            for node in tree.leaves()
        }
        heads = [
            f"void custard_act{end}(const {x} *obs, {kind} *action)" for end, x in (("", "double"), ("_f", "float"))
        ]
    write = _nested_ifs if tree.depth <= MAX_READABLE_DEPTH else _table_and_loop
    return "\n".join(lines + write(tree, heads, constants, answers)) + "\n"


def _nested_ifs(tree: Tree, heads: list[str], constants: dict[int, str], answers: dict[int, str]) -> list[str]:
    """Return both functions as nested ifs."""
    lines = []
    for head, threshold, kind in zip(heads, (tree.threshold, round_down(tree.threshold)), FLOAT_TYPES, strict=True):
        lines += [head, "{"]
        if tree.n_nodes == 1:
            lines.append("    (void)obs;")
        for what, node, depth in nested(tree):
            pad = "    " * (depth + 1)
            if what == "if":
                shown = f"{_float_literal(threshold[node], kind)} /* {float(tree.threshold[node])!r} */"
                lines.append(f"{pad}if (obs[{constants[int(tree.feature[node])]}] <= {shown}) {{")
            elif what == "else":
                lines.append(f"{pad}}} else {{")
            elif what == "end":
                lines.append(f"{pad}}}")
            else:
                lines.append(pad + answers[node])
        lines += ["}", ""]
    return lines[:-1]


def _table_and_loop(tree: Tree, heads: list[str], constants: dict[int, str], answers: dict[int, str]) -> list[str]:
    """Return arrays and a loop without a branch that depends on the data. Leaves lead to themselves.

    Where the observations cannot be foreseen, a mispredicted branch costs more than walking all of a short tree.
    """
    leaf, itself = tree.feature == LEAF, np.arange(tree.n_nodes)
    children = np.stack(
        [np.where(leaf, itself, tree.children_left), np.where(leaf, itself, tree.children_right)], axis=1
    )
    columns = {
        f"{_smallest_type(tree.features.n)} custard_feature[]": [str(max(c, 0)) for c in tree.feature.tolist()],
        f"{_smallest_type(tree.n_nodes)} custard_child[]": [str(v) for v in children.reshape(-1).tolist()],
        "double custard_threshold[]": [_float_literal(v, "double") for v in tree.threshold],
        "float custard_threshold_f[]": [_float_literal(v, "float") for v in round_down(tree.threshold)],
    }
    if tree.actions.discrete:
        kind = _smallest_type(int(tree.value.max()) + 1) if tree.actions.start >= 0 else "int"
        columns[f"{kind} custard_value[]"] = [str(v) for v in tree.value.tolist()]
    else:
        kind = "double" if tree.actions.kind == "box" else "long long"
        columns[f"{kind} custard_value[]"] = [_action_literal(v) for row in tree.value.tolist() for v in row]
    lines = []
    if tree.n_nodes <= 1000:
        lines += ["/*", *(comment(line) for line in to_text(tree).splitlines()), "*/", ""]
    for name, values in columns.items():
        lines += [f"static const {name} = {{", rows(values).rstrip(","), "};", ""]
    size = tree.actions.size
    for head, end in zip(heads, ("", "_f"), strict=True):
        step = f"node = custard_child[2 * node + !(obs[custard_feature[node]] <= custard_threshold{end}[node])];"
        loop = (
            [f"    for (int k = 0; k < {tree.depth}; k++) {{", f"        {step}", "    }"]
            if tree.depth <= MAX_COUNTED_DEPTH
            else ["    while (custard_child[2 * node] != node) {", f"        {step}", "    }"]
        )
        last = (
            ["    return custard_value[node];"]
            if tree.actions.discrete
            else [
                f"    for (int k = 0; k < {size}; k++) {{",
                f"        action[k] = custard_value[{size} * node + k];",
                "    }",
            ]
        )
        lines += [head, "{", "    unsigned long node = 0;", *loop, *last, "}", ""]
    return lines[:-1]


def _smallest_type(count: int) -> str:
    """Return the smallest type that C99 promises to hold 0…count-1."""
    return next(
        (kind for kind, most in (("unsigned char", 256), ("unsigned short", 65536)) if count <= most), "unsigned long"
    )


def _float_literal(value: float, kind: str) -> str:
    """Return a hexadecimal literal: C99 promises its exact value, which it does not for decimal ones."""
    if np.isinf(value):  # below float's range: no float is at most this, except minus infinity
        return "-1.0f / 0.0f" if value < 0 else "1.0f / 0.0f"
    mantissa = float(value).hex()
    return f"{mantissa}f" if kind == "float" else mantissa


def _action_literal(value: float | int) -> str:
    """Return an action, or a component of one, as a literal."""
    if value == -(2**63) and isinstance(value, int):
        return "(-9223372036854775807LL - 1)"  # C reads a sign and a number, and that number is too large
    return f"{value}LL" if isinstance(value, int) else _float_literal(value, "double")
