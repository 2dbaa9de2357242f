"""A Rust file that defines `pub fn act(obs: &[f64; N])`: no crate, no allocation, fit for `no_std`.

A tree with a history comes with a `Memory`, whose `act` takes the present observation only.
"""

from __future__ import annotations

from custard.tree.export.formula import (
    Language,
    has_wrap,
    leaf_expression,
    raw_features_read,
    sum_expression,
    sum_words,
)
from custard.tree.export.memory import rust_memory
from custard.tree.export.names import comment, heading, identifiers, rows
from custard.tree.export.walk import MAX_NESTED_DEPTH, nested, order
from custard.tree.memory import memory_of
from custard.tree.text import number
from custard.tree.tree import Tree

__all__ = ["to_rust"]

WRAP = """\
fn of_wrap(angle: f64) -> f64 {
    angle - 6.283185307179586 * ((angle + 3.141592653589793) / 6.283185307179586).floor()
}
"""
CLIP = """\
fn of_clip(value: f64, low: f64, high: f64) -> f64 {
    if value < low { low } else if value > high { high } else { value }
}
"""


def to_rust(tree: Tree) -> str:
    """Return the tree as Rust source: `act` returns an `i64`, or an array for vector actions. NaN goes right.

    >>> from custard import Actions, Features, Tree
    >>> source = to_rust(Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b"))))
    >>> print(source[source.index("pub fn") :])
    pub fn act(obs: &[f64; FEATURES]) -> i64 {
        let angle = obs[0];
        if angle <= 0.5 {
            0 // a
        } else {
            1 // b
        }
    }
    <BLANKLINE>
    """
    tree = tree.keep_used_sums()
    kind = "f64" if tree.actions.kind == "box" else "i64"
    result = kind if tree.actions.discrete else f"[{kind}; {tree.actions.size}]"
    memory = memory_of(tree)
    lines = [
        f"// {heading(tree, remembers=True)}",
        *(
            ["// It has a history: Memory keeps its last steps and takes the present observation only."]
            if memory
            else []
        ),
        "// Its features, in order:",
        *(f"//   obs[{i}]  {comment(name)}" for i, name in enumerate(tree.features.raw.names)),
        "// NaN goes right (the else branch) at every question.",
        "",
        f"pub const FEATURES: usize = {tree.features.n_raw};",
        "",
    ]
    lines += _sum_functions(tree)
    lines += _nested_ifs(tree, result) if tree.depth <= MAX_NESTED_DEPTH else _table_and_loop(tree, result)
    if memory is not None:
        lines += ["", *rust_memory(tree, memory, result, _real_literal)]
    return "\n".join(lines) + "\n"


def _sum_functions(tree: Tree) -> list[str]:
    """Return the functions of sums and linear leaves; Rust never fuses a product and an addition."""
    lines = [*WRAP.splitlines(), ""] if has_wrap(tree) else []
    lines += [*CLIP.splitlines(), ""] if tree.gains is not None else []
    for c, word in _sum_names(tree).items():
        total = tree.features.sum_of(c)
        lines += [f"// {comment(total.text(tree.features.names, number).replace('*', '·'))}"]
        lines += [f"fn {word}(obs: &[f64; FEATURES]) -> f64 {{", f"    {sum_expression(total, LANGUAGE)}", "}", ""]
    return lines


def _sum_names(tree: Tree) -> dict[int, str]:
    """Return the name of each derived feature's function."""
    names = sum_words(tree, "of_", ("of_wrap", "of_clip"))
    return {c: name.lower() for c, name in names.items()}


def _nested_ifs(tree: Tree, result: str) -> list[str]:
    """Return `act` as nested ifs."""
    used = [c for c in order(tree) if c < tree.features.n_raw]
    sums = _sum_names(tree)
    words = identifiers(tree.features.names[c].lower() for c in used)
    local = dict(zip(used, words, strict=True))
    lines = [f"pub fn act({'obs' if raw_features_read(tree) else '_obs'}: &[f64; FEATURES]) -> {result} {{"]
    lines += [f"    let {local[c]} = obs[{c}];" for c in used]
    for what, node, depth in nested(tree):
        pad = "    " * (depth + 1)
        if what == "if":
            c = int(tree.feature[node])
            asked = f"{sums[c]}(obs)" if c in sums else local[c]
            lines.append(f"{pad}if {asked} <= {_float_literal(tree.threshold[node])} {{")
        elif what == "else":
            lines.append(f"{pad}}} else {{")
        elif what == "end":
            lines.append(f"{pad}}}")
        else:
            lines.append(f"{pad}{_action(tree, node)} // {comment(tree.leaf_text(node).replace('*', '·'))}")
    return [*lines, "}"]


def _table_and_loop(tree: Tree, result: str) -> list[str]:
    """Return `act` as a loop over tables, for trees too deep to nest."""
    count = tree.n_nodes
    columns = {
        f"FEATURE: [usize; {count}]": [str(max(v, 0)) for v in tree.feature.tolist()],
        f"THRESHOLD: [f64; {count}]": [_float_literal(v) for v in tree.threshold],
        f"LEFT: [usize; {count}]": [str(max(v, 0)) for v in tree.children_left.tolist()],
        f"RIGHT: [usize; {count}]": [str(max(v, 0)) for v in tree.children_right.tolist()],
        f"VALUE: [{result}; {count}]": [_action_literal(tree, node) for node in range(count)],
    }
    lines = []
    for name, values in columns.items():
        lines += [f"static {name} = [", rows(values), "];"]
    n_raw, sums, read, extended = tree.features.n_raw, _sum_names(tree), "obs", []
    if sums:
        read = "x"
        extended = [f"    let mut x = [0.0f64; {tree.features.n}];", f"    x[..{n_raw}].copy_from_slice(obs);"]
        extended += [f"    x[{c}] = {word}(obs);" for c, word in sums.items()]
    return [
        *lines, "",
        f"pub fn act(obs: &[f64; FEATURES]) -> {result} {{",
        "    let mut node = 0;",
        *extended,
        "    while LEFT[node] > 0 {",
        f"        node = if {read}[FEATURE[node]] <= THRESHOLD[node] {{ LEFT[node] }} else {{ RIGHT[node] }};",
        "    }",
        *_linear_leaves(tree),
        "}",
    ]  # fmt: skip


def _linear_leaves(tree: Tree) -> list[str]:
    """Return the lines that answer at a leaf."""
    if tree.gains is None:
        return ["    VALUE[node]"]
    leaves = [int(node) for node in tree.leaves() if tree.gains[node].any()]
    arms = [f"        {node} => {_action(tree, node)}," for node in leaves]
    return ["    match node {", *arms, "        _ => VALUE[node],", "    }"]


def _action(tree: Tree, node: int) -> str:
    """Return a leaf's action as an expression."""
    if tree.gains is None or not tree.gains[node].any():
        return _action_literal(tree, node)
    return f"[{', '.join(leaf_expression(tree, node, k, LANGUAGE) for k in range(tree.actions.size))}]"


def _float_literal(value: float) -> str:
    """Return a finite float as a literal."""
    return repr(float(value))


def _action_literal(tree: Tree, node: int) -> str:
    """Return a leaf's action as a literal."""
    if tree.actions.discrete:
        return str(int(tree.value[node]))
    entries = tree.value[node].tolist()
    return f"[{', '.join(_real_literal(v) if isinstance(v, float) else str(v) for v in entries)}]"


def _real_literal(value: float) -> str:
    """Return a float, infinite ones included, as a literal."""
    if abs(value) == float("inf"):
        return "f64::INFINITY" if value > 0 else "f64::NEG_INFINITY"
    return repr(value)


LANGUAGE = Language(_real_literal, "obs[{}]".format, "f64::abs", "of_wrap", "of_clip")
