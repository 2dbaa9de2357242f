"""Changes of `mutants.py` that no test can notice, each with its reason."""

from __future__ import annotations

from benchmarks.mutants_explained_planning import PLANNING

#: Changes that no test can notice: module, change and text of the line, with the reason.
EXPLAINED: dict[tuple[str, str, str], str] = {
    **PLANNING,
    ("tree/extract", "2 to 3",
     'warnings.warn(f"the policy would have asked for ever at {cut} node(s): cut there", stacklevel=2)'):
        "where a warning is shown",
    ("tree/extract", "zeros to ones",
     "numbers, v = _whole_numbers(answer).reshape(size), np.zeros(size)"): "v is not read in the discrete form",
    ("tree/simplify", "1 to 2", "for node in range(tree.n_nodes - 1, -1, -1):"):
        "-1 is the last node again, with the same class",
    ("tree/simplify", "0.0 to 1.0", "stack.append((kids[0][node], -1, 0.0))"): "read with the marks 0 and 2 only",
    ("tree/explain", "Lt to LtE",
     "return first if value < first else last  # NaN goes right, so that it has come to be at most `most`"):
        "a value equal to the box's first number lies in the box, for which the value itself was returned above",
    **dict.fromkeys(
        [
            ("tree/simplify", change, text)
            for change in ("1 to 2", "0.0 to 1.0")
            for text in ("stack: list[tuple[int, int, float]] = [(0, -1, 0.0)]",
                         "stack.append((kids[0][node], -1, 0.0))",
                         "stack.append((kids[1][node], -1, 0.0))", "stack.append((goes[node], -1, 0.0))",
                         "stack.append((node, 2, 0.0))")
        ],
        "any mark but 0, 1 and 2 means that a node is met first, and a bound is read with the marks 0 and 1 only",
    ),
    ("tree/simplify", "any to all", "elif not seen.any() and visits[node] >= at_least:"):
        "where one of the two is seen the branch before is taken",
    ("tree/simplify", "1 to 2",
     "level = goes[np.stack([tree.children_left[at], tree.children_right[at]], axis=1).reshape(-1)]"):
        "reshape reads -2 like -1",
    ("tree/explain", "Lt to LtE", "if key not in best or (distance, leaf) < (best[key].distance, best[key].leaf):"):
        "no leaf comes twice",
    ("tree/explain", "Lt to LtE",
     "if near_point is not None and (key not in best or near_point[1] < best[key].distance):"):
        "of leaves of one action that are as near, either may be named",
    ("tree/verify", "1 to 2",
     "array[0] for array in rules.thresholds(lower[k : k + 1], upper[k : k + 1], numbers[[k]], v[[k]])"):
        "the first row alone is read",
    ("tree/verify", "zeros to ones",
     'v = np.asarray(answer["v"], dtype=np.float64).reshape(len(level)) if parameterised else np.zeros(len(level))'):
        "v is not read in the discrete form",
    ("tree/verify", "True to False", "fraction = model.eval(real, model_completion=True).as_fraction()"):
        "every feature has conditions, so that a model holds a number for it",
    ("tree/verify", "GtE to Gt", "return z3.If(parts[0] >= 0, parts[0], -parts[0])"): "zero is its own negative",
    **dict.fromkeys(
        [
            ("tree/verify", "condition negated",
             'flipped = Term("or" if inner.kind == "and" else "and", tuple(Term("not", (p,)) for p in inner.parts))'),
            ("tree/verify", "Eq to NotEq",
             'flipped = Term("or" if inner.kind == "and" else "and", tuple(Term("not", (p,)) for p in inner.parts))'),
            ("tree/verify", "condition negated",
             'turned = Term("<=" if inner.kind == "<" else "<", (inner.parts[1], inner.parts[0]))'),
            ("tree/verify", "Eq to NotEq",
             'turned = Term("<=" if inner.kind == "<" else "<", (inner.parts[1], inner.parts[0]))'),
            ("tree/verify", "0 to 1",
             'turned = Term("<=" if inner.kind == "<" else "<", (inner.parts[1], inner.parts[0]))'),
            ("tree/verify", "IsNot to Is",
             'if term.kind == "not" and slack is not None:  # push negations in, so that they meet the inequalities'),
            ("tree/verify", "Add to Sub",
             'return parts[0] + room < parts[1] if kind == "<" else parts[0] + room <= parts[1]'),
            ("tree/verify", "Add to Sub",
             "above = [reals[c] > _exact(z3, low) + slack for c, (low, _) in box.items() if np.isfinite(low)]"),
            ("tree/verify", "Add to Sub",
             "apart = [z3.Or(a > b + room, b > a + room) for a, b in zip(mine, its, strict=True)]"),
        ],
        "of the question for a point with room: what it gives is confirmed by the tree, and the question without room, "
        "which proves, is another",
    ),
    ("tree/verify", "0.0 to 1.0",
     "return np.where(np.isfinite(last), last, np.where(first > -MAX_FLOAT64, first, 0.0))"):
        "of a feature that may have any value",
    ("task/evaluate", "zeros to ones",
     "time_limited, traversal_limited = np.zeros(episodes, dtype=bool), np.zeros(episodes, dtype=bool)"):
        "both are set in every episode",
    ("task/evaluate", "1 to 2", "for part in pace.parts(1, end=pace.done + 1):"):
        "one episode, which is the limit given",
}  # fmt: skip
