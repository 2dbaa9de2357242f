"""Changes of `mutants.py` that no test can notice, each with its reason."""

from __future__ import annotations

#: Changes that no test can notice: module, change and text of the line, with the reason.
EXPLAINED: dict[tuple[str, str, str], str] = {
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
    ("planning/agreement", "1 to 2", "least, most = sizes[feature[level]], -1"): "the first rank replaces it",
    ("planning/agreement", "0 to 1",
     "return np.bitwise_and.reduce(words[index], axis=0) if len(index) else words[:1].max(axis=0) | ~np.uint64(0)"):
        "of the part for no points: any action is right there",
    ("planning/agreement", "False to True",
     "low[level], found[level], high[level], on_right[level] = 0, -1, -1, False"): "set again with the first feature",
    ("planning/agreement", "zeros to ones",
     "feature, low, found = np.zeros(depth + 1, np.int64), np.zeros(depth + 1, np.int64), "
     "np.zeros(depth + 1, np.int64)"):
        "set again when a level is entered",
    ("planning/agreement", "low to high",
     "low[level], found[level], high[level], on_right[level] = least, least - 1, most - 1, False"):
        "a cut with nothing on its left is tried as well, which finds a tree only where there is one",
    ("planning/agreement", "Lt to LtE", "if depth == 0 or work[0] < 0:"): "gives up one point earlier",
    ("planning/relaxation", "Sub to Add", "drift = max(drift, abs(mine - policy.values[s]))"):
        "the inverse is computed anew once more than needed",
    ("planning/relaxation", "condition negated", "s = n - 1 - k if sweep % 2 == 0 else k"): "the order of the states",
}  # fmt: skip
