"""One colour per action, the same in pictures and in the report."""

from __future__ import annotations

from custard.tree.tree import LEAF, Tree

__all__ = ["ACTION_COLOURS", "leaf_colours"]

#: Distinct also to colour-blind eyes and on light and dark ground (after Okabe and Ito, and Tableau).
ACTION_COLOURS = (
    "#3b7dd8", "#e8833a", "#2fa37a", "#c9589c", "#8a6fd1", "#c7a512", "#4fb3c9", "#d4574e", "#7f8c9b", "#8c6d4f",
)  # fmt: skip


def leaf_colours(tree: Tree) -> list[str]:
    """Return a colour for each node, "" at inner nodes: one for each action, also for each distinct vector."""
    colours = [""] * tree.n_nodes
    leaves = tree.leaves()
    if tree.actions.discrete:
        for node in leaves:
            colours[node] = ACTION_COLOURS[int(tree.value[node] - tree.actions.start) % len(ACTION_COLOURS)]
        return colours
    keys = [tree.leaf_key(node) for node in leaves]
    distinct = sorted(set(keys), key=lambda key: tree.value[leaves[keys.index(key)]].tolist())
    if len(distinct) <= len(ACTION_COLOURS):
        for node, key in zip(leaves, keys, strict=True):
            colours[node] = ACTION_COLOURS[distinct.index(key)]
        return colours
    # More than there are colours to tell apart: a scale over the vectors in order.
    for node, key in zip(leaves, keys, strict=True):
        share = distinct.index(key) / (len(distinct) - 1)
        colours[node] = _blended((59, 125, 216), (150, 150, 160), (232, 131, 58), share)
    return colours


def _blended(a: tuple, middle: tuple, b: tuple, t: float) -> str:
    """Return the colour a share `t` of the way from `a` over `middle` to `b`."""
    start, end, u = (a, middle, 2 * t) if t < 0.5 else (middle, b, 2 * t - 1)
    return "#" + "".join(f"{round(p + (q - p) * u):02x}" for p, q in zip(start, end, strict=True))


def used_features(tree: Tree) -> list[int]:
    """Return the features the tree asks about, by first appearance from the root down."""
    return list(dict.fromkeys(int(c) for c in tree.feature if c != LEAF))
