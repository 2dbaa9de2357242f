"""A tree as a small SVG for notebooks: text that can be selected, colours as in pictures and in the report.

Small trees grow downwards, larger ones to the right, one leaf per row. Needs nothing but the tree: no matplotlib.
"""

from __future__ import annotations

import html

import numpy as np

from custard.tree.linear import leaf_text
from custard.tree.palette import leaf_colours
from custard.tree.text import max_formula_lines, one_line, plural, wrapped
from custard.tree.tree import LEAF, Tree

__all__ = ["MAX_LEAVES_DRAWN", "leaf_order", "to_html", "to_svg"]

MAX_LEAVES_DRAWN = 64  # larger trees are shown as text
MAX_LEAVES_DOWNWARD = 8
MAX_NAME_LENGTH = 34  # characters of a question or an action that are shown
FONT_SIZE, CHARACTER_WIDTH, BOX_HEIGHT, LINE_HEIGHT = 13, 7.4, 28, 17  # pixels
INK, LINE, CARD, CARD_LINE = "#22303c", "#9aa7b3", "#ffffff", "#c9d2da"


def to_svg(tree: Tree) -> str:
    """Return the tree as the text of an SVG picture.

    >>> from custard import Actions, Features, Tree
    >>> tree = Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("left", "right")))
    >>> picture = to_svg(tree)
    >>> picture[:4], "angle ≤ 0.5?" in picture, "left" in picture
    ('<svg', True, True)
    """
    texts = [_node_lines(tree, node) for node in range(tree.n_nodes)]
    wide = np.array([CHARACTER_WIDTH * max(map(len, lines)) + 22 for lines in texts])
    high = np.array([BOX_HEIGHT + LINE_HEIGHT * (len(lines) - 1) for lines in texts], dtype=float)
    across, depth = leaf_order(tree), tree.node_depth.astype(float)
    is_leaf = tree.feature == LEAF
    downward = tree.n_leaves <= MAX_LEAVES_DOWNWARD
    if downward:
        spacing = max(float(wide[is_leaf].max()) + 14, 0.62 * (float(wide.max()) + 14))
        x, y = across * spacing, depth * (44.0 + high.max())
    else:
        x, y = depth * (float(wide.max()) + 46) + wide / 2, across * max(BOX_HEIGHT + 8.0, (high.max() + 8.0) / 1.5)
    left, right = float((x - wide / 2).min()) - 4, float((x + wide / 2).max()) + 4
    top, bottom = float((y - high / 2).min()) - 4, float((y + high / 2).max()) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}" '
        f'width="{right - left:.0f}" role="img" aria-label="decision tree of depth {tree.depth} with {tree.n_leaves} '
        f'{plural("leaf", tree.n_leaves)}" style="max-width:100%;height:auto;font:{FONT_SIZE}px system-ui,sans-serif">'
    ]
    for node in np.flatnonzero(~is_leaf).tolist():
        for child, answer in ((int(tree.children_left[node]), "yes"), (int(tree.children_right[node]), "no")):
            parts.append(_edge(x, y, wide, high, node, child, answer, downward))
    colours = leaf_colours(tree)
    for node, lines in enumerate(texts):
        fill, line, ink = (colours[node], colours[node], "#fff") if is_leaf[node] else (CARD, CARD_LINE, INK)
        parts.append(
            f'<rect x="{x[node] - wide[node] / 2:.1f}" y="{y[node] - high[node] / 2:.1f}" width="{wide[node]:.1f}" '
            f'height="{high[node]:.0f}" rx="7" fill="{fill}" stroke="{line}"/>'
        )
        for k, text in enumerate(lines):
            at = y[node] + LINE_HEIGHT * (k - (len(lines) - 1) / 2)
            parts.append(
                f'<text x="{x[node]:.1f}" y="{at:.1f}" text-anchor="middle" dominant-baseline="central" fill="{ink}"'
                f' font-weight="{600 if is_leaf[node] else 400}">{html.escape(text)}</text>'
            )
    return "".join([*parts, "</svg>"])


def to_html(tree: Tree) -> str:
    """Return what a notebook shows of a tree: its picture (text, where it is large), size and origin."""
    from custard.tree.text import draw_text

    if tree.n_leaves <= MAX_LEAVES_DRAWN:
        shown = to_svg(tree)
    else:
        shown = f'<pre style="line-height:1.2">{html.escape(draw_text(tree, max_lines=200))}</pre>'
    facts = [f"depth {tree.depth}", f"{tree.n_leaves} {plural('leaf', tree.n_leaves)}"]
    facts += [f"{key} {tree.origin[key]}" for key in ("env", "method", "seed") if tree.origin.get(key) is not None]
    facts += ["edited since it was learned"] if tree.origin.get("edited") else []
    return f'<div>{shown}<div style="opacity:.75;font-size:90%">{html.escape(" · ".join(facts))}</div></div>'


def leaf_order(tree: Tree) -> np.ndarray:
    """Return each node's place across the picture, [n_nodes]: leaves 0, 1, 2, …, parents midway between children."""
    across, count, stack = np.zeros(tree.n_nodes), 0, [0]
    while stack:
        node = stack.pop()
        if tree.feature[node] == LEAF:
            across[node], count = count, count + 1
        else:
            stack += [int(tree.children_right[node]), int(tree.children_left[node])]
    for node in range(tree.n_nodes - 1, -1, -1):
        if tree.feature[node] != LEAF:
            across[node] = (across[tree.children_left[node]] + across[tree.children_right[node]]) / 2
    return across


def _node_lines(tree: Tree, node: int) -> list[str]:
    """Return a node's question, or a leaf's action, in lines short enough for its box: one, but for sums."""
    if tree.feature[node] == LEAF and tree.gains is None:
        text = one_line(tree.actions.name(tree.value[node]))
    elif tree.feature[node] == LEAF:
        return wrapped(
            leaf_text(tree, node, lambda value: f"{value:.3g}"), MAX_NAME_LENGTH, max_formula_lines(tree.n_leaves)
        )
    elif tree.feature[node] >= tree.features.n_raw:
        return wrapped(f"{tree.question(node)}?", MAX_NAME_LENGTH, max_formula_lines(tree.n_leaves))
    else:
        text = one_line(f"{tree.question(node)}?")
    return [text if len(text) <= MAX_NAME_LENGTH else text[: MAX_NAME_LENGTH - 1] + "…"]


def _edge(
    x: np.ndarray, y: np.ndarray, wide: np.ndarray, high: np.ndarray, node: int, child: int, answer: str, downward: bool
) -> str:
    """Return the line from a node to one of its children, with the answer it stands for."""
    if downward:
        x0, y0, x1, y1 = x[node], y[node] + high[node] / 2, x[child], y[child] - high[child] / 2
        middle = (y0 + y1) / 2
        curve = f"M{x0:.1f} {y0:.1f}C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
        at = (x1 + (-8 if answer == "yes" else 8), y1 - 8, "end" if answer == "yes" else "start")
    else:
        x0, y0, x1, y1 = x[node] + wide[node] / 2, y[node], x[child] - wide[child] / 2, y[child]
        middle = (x0 + x1) / 2
        curve = f"M{x0:.1f} {y0:.1f}C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
        at = (x1 - 6, y1 + (-6 if answer == "yes" else 13), "end")
    label = f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{at[2]}" font-size="11" fill="{LINE}">{answer}</text>'
    return f'<path d="{curve}" fill="none" stroke="{LINE}" stroke-width="1.4"/>{label}'
