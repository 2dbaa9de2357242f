"""A C99 file that defines `int custard_act(const double *obs)`: no allocation, no library; no state without a history.

For vector actions it is `void custard_act(const double *obs, double *action)` (`long long *action` for whole numbers).
A second function, `custard_act_f`, takes float observations. Of a feature it compares in float only, which small
processors do in hardware; its thresholds are rounded down, so that it decides exactly as widening each value to double
would. Sums and linear leaves are computed in double in both. Compiling with -ffast-math (or -ffinite-math-only) gives
up the promise for NaN and infinities, and fused multiply-adds would change the last bits of sums: a file with sums
turns them off where the compiler listens, and says which option does it.

A tree with a history keeps its last steps in a `struct custard_memory`: `custard_reset()` begins an episode, and
`custard_act` takes the present observation only, once per step (`custard.tree.export.memory`).

There are two layouts. Nested ifs are fastest where one observation resembles the one before, as in a control loop:
branches are then foreseen. A table and a loop without branches is fastest on observations in random order.
"""

from __future__ import annotations

import numpy as np

from custard.core.errors import CustardError, one_of
from custard.tree.export.formula import (
    Language,
    has_wrap,
    is_nonlinear,
    leaf_expression,
    sum_expression,
    sum_words,
)
from custard.tree.export.memory import C_NAMES, c_memory
from custard.tree.export.names import comment, heading, identifiers, rows
from custard.tree.export.text import to_text
from custard.tree.export.walk import MAX_NESTED_DEPTH, nested, order
from custard.tree.memory import MemoryLayout, memory_of
from custard.tree.rounding import round_down
from custard.tree.text import number, plural
from custard.tree.tree import LEAF, Tree

__all__ = ["LAYOUTS", "to_c"]

LAYOUTS = ("auto", "nested", "table")
MAX_READABLE_DEPTH = 3  # of trees whose nested ifs say more than a comment would
MAX_COUNTED_DEPTH = 16  # of trees walked with a fixed number of steps; deeper ones until a leaf is met
FLOAT_TYPES = ("double", "float")

SUM_GUARD = """\
/* Sums are added in the order written, every product rounded to double first. Compile with -ffp-contract=off. */
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 1
#error "sums need arithmetic in exactly 64 bits: compile for SSE2 (-msse2 -mfpmath=sse)"
#endif
#if defined(__clang__) || !defined(__GNUC__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif
"""
CLIP = """\
static double custard_clip(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}
"""
WRAP = """\
static double custard_wrap(double angle)
{
    return angle - 0x1.921fb54442d18p+2 * floor((angle + 0x1.921fb54442d18p+1) / 0x1.921fb54442d18p+2);
}
"""


def to_c(tree: Tree, layout: str = "auto") -> str:
    """Return the tree as C source; `layout` is "nested" (ifs), "table" (a loop), or "auto": nested unless too deep.

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
    if layout not in LAYOUTS:
        raise CustardError(one_of("layout", layout, LAYOUTS))
    if layout == "nested" and tree.depth > MAX_NESTED_DEPTH:
        raise CustardError(f"C nests up to {MAX_NESTED_DEPTH} ifs here, this tree has depth {tree.depth}: choose table")
    first, last = tree.actions.start, tree.actions.start + tree.actions.n - 1
    if tree.actions.discrete and not -(2**31) <= first <= last < 2**31:
        raise CustardError(f"C's custard_act returns an int, which does not hold actions numbered {first}…{last}")
    tree = tree.keep_used_sums()
    used = [c for c in order(tree) if c < tree.features.n_raw]
    constants = dict(zip(used, identifiers((tree.features.names[c].upper() for c in used), "CUSTARD_"), strict=True))
    memory, seen = memory_of(tree), tree.features.raw.names
    n = len(seen) if memory is None else memory.n
    lines = [
        f"/* {heading(tree, remembers=True)}",
        f" * It takes {n} features, in this order:",
        *(f" *   obs[{i}]  {comment(name)}" for i, name in enumerate(seen[:n])),
        *_remembered_comment(memory, seen),
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
        names = {int(node): f"return {words[tree.value[node] - tree.actions.start]};" for node in tree.leaves()}
        answers = [names, names]
        heads = [f"int custard_act{end}(const {kind} *obs)" for end, kind in (("", "double"), ("_f", "float"))]
        decide = "static int custard_decide(const double *obs)"
    else:
        kind = "double" if tree.actions.kind == "box" else "long long"
        lines += [f"/* action[{i}] is {comment(name)} */" for i, name in enumerate(tree.actions.names)] + [""]
        answers = [_vector_answers(tree, kind) for kind in FLOAT_TYPES]
        heads = [
            f"void custard_act{end}(const {x} *obs, {kind} *action)" for end, x in (("", "double"), ("_f", "float"))
        ]
        decide = f"static void custard_decide(const double *obs, {kind} *action)"
    after: list[str] = []
    if memory is not None:
        heads, answers = [decide], answers[:1]
        after = ["", *c_memory(tree, memory, lambda value: _float_literal(value, "double"))]
    sums, functions = _sum_functions(tree, len(heads))
    is_nested = layout == "nested" or tree.depth == 0 or (layout == "auto" and tree.depth <= MAX_NESTED_DEPTH)
    body = (
        _nested_ifs(tree, heads, constants, sums, answers) if is_nested else _table_and_loop(tree, heads, sums, answers)
    )
    return "\n".join(lines + functions + body + after) + "\n"


def _remembered_comment(memory: MemoryLayout | None, seen: tuple[str, ...]) -> list[str]:
    """Return comment lines that say what is remembered."""
    if memory is None:
        return []
    steps = plural("step", memory.steps)
    return [
        f" * Of the last {memory.steps} {steps} it remembers what follows: call custard_reset before each episode.",
        *(f" *   x[{i}]  {comment(name)}" for i, name in enumerate(seen) if i >= memory.n),
    ]


def _sum_functions(tree: Tree, forms: int) -> tuple[dict[int, str], list[str]]:
    """Return what each derived feature's function is called, and the lines that sums and linear leaves need.

    `forms` is 1 for functions of doubles, 2 for those of floats too.
    """
    if not tree.is_linear:
        return {}, []
    words = sum_words(tree, "custard_", ("custard_act", "custard_act_f", "custard_wrap", "custard_clip", *C_NAMES))
    lines = ["#include <math.h>", ""] if is_nonlinear(tree) else []
    lines += [*SUM_GUARD.splitlines(), ""]
    lines += [*WRAP.splitlines(), ""] if has_wrap(tree) else []
    lines += [*CLIP.splitlines(), ""] if tree.gains is not None else []
    for c, word in words.items():
        total = tree.features.sum_of(c)
        lines.append(f"/* {comment(total.text(tree.features.names, number).replace('*', '·'))} */")
        for kind, end in [*zip(FLOAT_TYPES, ("", "_f"), strict=True)][:forms]:
            returned = sum_expression(total, _language(kind))
            lines += [f"static double {word}{end}(const {kind} *obs)", "{", f"    return {returned};", "}", ""]
    return words, lines


def _language(kind: str) -> Language:
    """Return how C writes sums over observations of a type."""
    widen = "" if kind == "double" else "(double)"
    return Language(lambda value: _float_literal(value, "double"), lambda i: f"{widen}obs[{i}]")


def _vector_answers(tree: Tree, kind: str) -> dict[int, str]:
    """Return the statements that write each leaf's action vector, for observations of a type."""
    language = _language(kind)
    return {
        int(node): " ".join(
            f"action[{i}] = "
            f"{_action_literal(v) if isinstance(v, int) else leaf_expression(tree, int(node), i, language)};"
            for i, v in enumerate(tree.value[node].tolist())
        )
        for node in tree.leaves()
    }


def _nested_ifs(
    tree: Tree, heads: list[str], constants: dict[int, str], sums: dict[int, str], answers: list[dict[int, str]]
) -> list[str]:
    """Return both functions as nested ifs.

    heads      the first line of each function
    constants  the name of each feature that is asked about
    sums       the function of each derived feature
    answers    what each leaf does, in each function
    """
    lines = []
    if tree.depth > MAX_READABLE_DEPTH and tree.n_nodes <= 1000:
        lines += ["/*", *(comment(line) for line in to_text(tree).splitlines()), "*/", ""]
    limits = (tree.threshold, round_down(tree.threshold))
    for head, threshold, kind, answer in zip(heads, limits, FLOAT_TYPES, answers, strict=False):
        lines += [head, "{"]
        if tree.n_nodes == 1:
            lines.append("    (void)obs;")
        for what, node, depth in nested(tree):
            pad = "    " * (depth + 1)
            if what == "if":
                c, end = int(tree.feature[node]), "" if kind == "double" else "_f"
                asked = f"{sums[c]}{end}(obs)" if c in sums else f"obs[{constants[c]}]"
                limit, type_ = (tree.threshold[node], "double") if c in sums else (threshold[node], kind)
                shown = f"{_float_literal(limit, type_)} /* {float(tree.threshold[node])!r} */"
                lines.append(f"{pad}if ({asked} <= {shown}) {{")
            elif what == "else":
                lines.append(f"{pad}}} else {{")
            elif what == "end":
                lines.append(f"{pad}}}")
            else:
                lines.append(pad + answer[node])
        lines += ["}", ""]
    return lines[:-1]


def _table_and_loop(tree: Tree, heads: list[str], sums: dict[int, str], answers: list[dict[int, str]]) -> list[str]:
    """Return arrays and a loop without a branch that depends on the data. Leaves lead to themselves.

    Where the observations cannot be foreseen, a mispredicted branch costs more than walking all of a short tree. With
    sums the loop reads an array of the features, widened to double, and their sums. Parameters as in `_nested_ifs`.
    """
    leaf, itself = tree.feature == LEAF, np.arange(tree.n_nodes)
    children = np.stack(
        [np.where(leaf, itself, tree.children_left), np.where(leaf, itself, tree.children_right)], axis=1
    )
    columns = {
        f"{_smallest_type(tree.features.n)} custard_feature[]": [str(max(c, 0)) for c in tree.feature.tolist()],
        f"{_smallest_type(tree.n_nodes)} custard_child[]": [str(v) for v in children.reshape(-1).tolist()],
        "double custard_threshold[]": [_float_literal(v, "double") for v in tree.threshold],
    }
    if not sums and len(heads) > 1:
        columns["float custard_threshold_f[]"] = [_float_literal(v, "float") for v in round_down(tree.threshold)]
    if tree.actions.discrete:
        kind = _smallest_type(int(tree.value.max()) + 1) if tree.actions.start >= 0 else "int"
        columns[f"{kind} custard_value[]"] = [str(v) for v in tree.value.tolist()]
    elif tree.gains is None:
        kind = "double" if tree.actions.kind == "box" else "long long"
        columns[f"{kind} custard_value[]"] = [_action_literal(v) for row in tree.value.tolist() for v in row]
    lines = []
    if tree.n_nodes <= 1000:
        lines += ["/*", *(comment(line) for line in to_text(tree).splitlines()), "*/", ""]
    for name, values in columns.items():
        lines += [f"static const {name} = {{", rows(values).rstrip(","), "};", ""]
    for head, end, answer in zip(heads, ("", "_f"), answers, strict=False):
        read, limits = ("x", "") if sums else ("obs", end)
        step = f"node = custard_child[2 * node + !({read}[custard_feature[node]] <= custard_threshold{limits}[node])];"
        loop = (
            [f"    for (int k = 0; k < {tree.depth}; k++) {{", f"        {step}", "    }"]
            if tree.depth <= MAX_COUNTED_DEPTH
            else ["    while (custard_child[2 * node] != node) {", f"        {step}", "    }"]
        )
        lines += [head, "{", "    unsigned long node = 0;"]
        if sums:
            lines += [f"    double x[{tree.features.n}];", f"    for (int k = 0; k < {tree.features.n_raw}; k++) {{"]
            lines += ["        x[k] = obs[k];", "    }"]
            lines += [f"    x[{c}] = {word}{end}(obs);" for c, word in sums.items()]
        lines += [*loop, *_table_answer(tree, answer), "}", ""]
    return lines[:-1]


def _table_answer(tree: Tree, answer: dict[int, str]) -> list[str]:
    """Return the lines that turn the number of a leaf into its action."""
    if tree.actions.discrete:
        return ["    return custard_value[node];"]
    if tree.gains is not None:
        cases = [
            line for node, text in answer.items() for line in (f"    case {node}:", f"        {text}", "        break;")
        ]
        return ["    switch (node) {", *cases, "    }"]
    size = tree.actions.size
    return [
        f"    for (int k = 0; k < {size}; k++) {{",
        f"        action[k] = custard_value[{size} * node + k];",
        "    }",
    ]


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
