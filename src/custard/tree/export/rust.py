"""A Rust file that defines `pub fn act(obs: &[f64; N])`: no crate, no allocation, fit for `no_std`."""

from __future__ import annotations

from custard.tree.export.names import comment, heading, identifiers, rows
from custard.tree.export.walk import MAX_NESTED_DEPTH, nested, order
from custard.tree.tree import Tree

__all__ = ["to_rust"]


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
    kind = "f64" if tree.actions.kind == "box" else "i64"
    result = kind if tree.actions.discrete else f"[{kind}; {tree.actions.size}]"
    lines = [
        f"// {heading(tree)}",
        "// Its features, in order:",
        *(f"//   obs[{i}]  {comment(name)}" for i, name in enumerate(tree.features.names)),
        "// NaN goes right (the else branch) at every question.",
        "",
        f"pub const FEATURES: usize = {tree.features.n};",
        "",
    ]
    lines += _nested_ifs(tree, result) if tree.depth <= MAX_NESTED_DEPTH else _table_and_loop(tree, result)
    return "\n".join(lines) + "\n"


def _nested_ifs(tree: Tree, result: str) -> list[str]:
    """Return `act` as nested ifs."""
    used = order(tree)
    words = identifiers(tree.features.names[c].lower() for c in used)
    local = dict(zip(used, words, strict=True))
    lines = [f"pub fn act({'obs' if used else '_obs'}: &[f64; FEATURES]) -> {result} {{"]
    lines += [f"    let {local[c]} = obs[{c}];" for c in used]
    for what, node, depth in nested(tree):
        pad = "    " * (depth + 1)
        if what == "if":
            lines.append(f"{pad}if {local[int(tree.feature[node])]} <= {_float_literal(tree.threshold[node])} {{")
        elif what == "else":
            lines.append(f"{pad}}} else {{")
        elif what == "end":
            lines.append(f"{pad}}}")
        else:
            lines.append(f"{pad}{_action_literal(tree, node)} // {comment(tree.actions.name(tree.value[node]))}")
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
    return [
        *lines, "",
        f"pub fn act(obs: &[f64; FEATURES]) -> {result} {{",
        "    let mut node = 0;",
        "    while LEFT[node] > 0 {",
        "        node = if obs[FEATURE[node]] <= THRESHOLD[node] { LEFT[node] } else { RIGHT[node] };",
        "    }",
        "    VALUE[node]",
        "}",
    ]  # fmt: skip


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
