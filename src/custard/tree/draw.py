"""Pictures of a tree with matplotlib: no system program, no global state.

Each inner node shows its question over a bar: the feature's range, the part of it that can still come here, and where
the question cuts it. With visit counts, edges are as wide as the share of states that take them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.files import write_atomically
from custard.tree.linear import definitions, leaf_text, picture_text, question_text
from custard.tree.palette import leaf_colours, used_features
from custard.tree.svg import leaf_order
from custard.tree.text import max_formula_lines, wrapped
from custard.tree.tree import LEAF, Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "draw_partition", "save_figure", "save_picture", "shown_ranges"]

TEXT_COLOUR, EDGE_COLOUR, RANGE_COLOUR = "#22303c", "#9aa7b3", "#e3e8ed"
DEFINITION_HEIGHT = 0.2  # inches of the line that says what a named sum is
LINE_HEIGHT, LINE_WIDTH = 0.16, 34  # of sums: inches, characters
MAX_LEAVES_TOP_DOWN = 9  # larger trees grow to the right, where names have room


def save_picture(tree: Tree, path: str | Path, visits: Any = None) -> None:
    """Draw the tree into a file whose name ends in .svg, .png or .pdf. `visits` is a count for each node."""
    save_figure(draw(tree, visits), path)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format its file's name says, the same bytes every time."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("svg", "png", "pdf"):
        raise CustardError(f"cannot draw {path.name!r}: the name must end in .svg, .png or .pdf")
    import matplotlib as mpl

    data = io.BytesIO()
    # Without a date and with a fixed salt for ids, the same tree gives the same file.
    metadata: dict[str, Any] = {} if kind == "png" else {"Date": None} if kind == "svg" else {"CreationDate": None}
    with mpl.rc_context({"svg.hashsalt": "custard", "svg.fonttype": "path"}):
        figure.savefig(data, format=kind, dpi=150, facecolor="white", metadata=metadata)
    write_atomically(path, data.getvalue())


def draw(tree: Tree, visits: Any = None) -> Figure:
    """Draw the tree as a matplotlib figure.

    >>> from custard import Actions, Features, Tree
    >>> tree = Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("left", "right")))
    >>> draw(tree, visits=[10, 7, 3]).get_size_inches().round(1).tolist()
    [2.9, 2.2]
    """
    from custard.tree.figure import Picture

    if tree.n_nodes > 4000:
        raise CustardError(f"a tree of {tree.n_leaves} leaves is too large to draw: simplify or prune it first")
    share = None if visits is None else np.asarray(visits, dtype=float)
    if share is not None:
        if share.shape != (tree.n_nodes,):
            raise CustardError(f"visits needs a count for each of {tree.n_nodes} nodes, got shape {share.shape}")
        share = share / max(share[0], 1e-300)
    down = tree.n_leaves <= MAX_LEAVES_TOP_DOWN
    across, along = leaf_order(tree), tree.node_depth.astype(float)
    wide, leaf_wide = _node_widths(tree)
    high = np.array([_height(tree, node) for node in range(tree.n_nodes)])
    taller = float(high.max()) - 0.44  # than a node of one line
    if down:
        step_x, step_y = max(leaf_wide + 0.25, (wide + 0.2) * 0.62), 1.05 + max(0.0, taller)
        x, y = across * step_x, -along * step_y
        size = ((tree.n_leaves - 1) * step_x + max(wide, leaf_wide) + 0.6, tree.depth * step_y + 1.1 + max(0.0, taller))
    else:
        step_x, step_y = wide + 0.75, max(0.5, (0.5 + taller) / 1.5)
        x, y = along * step_x, -across * step_y
        size = (
            tree.depth * step_x + wide / 2 + leaf_wide / 2 + 0.6,
            (tree.n_leaves - 1) * step_y + 1.1 + max(0.0, taller),
        )
    told = [
        picture_text(line) for line in definitions(tree, lambda value: f"{value:.3g}")
    ]  # of named sums, below the tree
    size = (max(size[0], 0.075 * max(map(len, told), default=0) + 0.4), size[1] + DEFINITION_HEIGHT * len(told))
    figure = Picture(figsize=size)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    half = max(wide, leaf_wide) / 2 + 0.3 if down else wide / 2 + 0.3
    left = min(float(x.min()), 0.0) - half
    axes.set_xlim(left, left + size[0])
    bottom = float(y.min()) - 0.55 - max(0.0, taller) / 2 - DEFINITION_HEIGHT * len(told)
    for k, line in enumerate(told):
        place = (left + 0.2, bottom + 0.16 + DEFINITION_HEIGHT * (len(told) - 1 - k))
        axes.text(*place, line, fontsize=8, color=TEXT_COLOUR, va="center", parse_math=False)
    axes.set_ylim(bottom, bottom + size[1])
    colours = leaf_colours(tree)
    for node in range(tree.n_nodes):
        _draw_edges(axes, tree, node, x, y, share, down, wide, leaf_wide, high)
    ranges = shown_ranges(tree)
    for node in range(tree.n_nodes):
        if tree.feature[node] == LEAF:
            _draw_leaf(axes, tree, node, x[node], y[node], leaf_wide, colours[node], share)
        else:
            _draw_split(axes, tree, node, x[node], y[node], wide, ranges)
    return figure


def shown_ranges(tree: Tree, observations: Any = None) -> np.ndarray:
    """Return the range of each feature that a person would want to see, [n, 2].

    Declared bounds where they are finite and not absurd; else what the observations span, or else room around the
    thresholds. Those of whole-number features end at whole numbers.
    """
    ranges = np.stack([tree.features.low, tree.features.high], axis=1).astype(float)
    for c in range(tree.features.n):
        own = tree.threshold[tree.feature == c]
        open_ended = bool(tree.features.unbounded[c])
        if not open_ended and (len(own) == 0 or np.ptp(ranges[c]) <= 1e4 * max(np.abs(own).max(), 1e-12)):
            continue
        if observations is not None and len(observations):
            seen = tree.features.extend(observations)[:, c]
            seen = seen[np.isfinite(seen)]
            if len(seen) and np.ptp(seen) > 0:
                span = np.concatenate([np.percentile(seen, [0.5, 99.5]), own])
                pad = 0.05 * np.ptp(span)
                ranges[c] = span.min() - pad, span.max() + pad
                continue
        if len(own):
            reach = max(0.5 * np.ptp(own), float(np.abs(own).max()), 1e-9)
            ranges[c] = min(float(own.min()), 0.0) - reach, max(float(own.max()), 0.0) + reach
        else:
            ranges[c] = np.where(np.isfinite(ranges[c]), ranges[c], (-1.0, 1.0))
    whole = tree.features.integer
    ranges[whole] = np.stack([np.floor(ranges[whole, 0]), np.ceil(ranges[whole, 1])], axis=1)
    return ranges


def short(value: float) -> str:
    """Return a number for a picture: four digits that matter, and a true minus sign."""
    return f"{value:.4g}".replace("-", "−")


def draw_partition(tree: Tree, trajectories: Sequence[np.ndarray] = ()) -> Figure:
    """Draw what a tree of one or two features decides, over the plane, with episodes ([steps, n] each) on it."""
    from matplotlib.patches import Patch, Rectangle

    from custard.tree.figure import Picture

    used = used_features(tree)
    if not 1 <= len(used) <= 2:
        raise CustardError(f"a partition is drawn for trees that use one or two features, this one uses {len(used)}")
    ranges = shown_ranges(tree, np.concatenate(list(trajectories)) if len(trajectories) else None)
    a, b = used[0], used[1] if len(used) == 2 else None
    figure = Picture(figsize=(6.4, 4.8 if b is not None else 2.2), layout="constrained")
    axes = figure.add_subplot()
    colours = leaf_colours(tree)
    shown: dict[str, str] = {}
    for leaf, box in tree.boxes():
        x0, x1 = _clipped_interval(box.get(a), ranges[a])
        y0, y1 = _clipped_interval(box.get(b), ranges[b]) if b is not None else (0.0, 1.0)
        if x1 <= x0 or y1 <= y0:
            continue
        shape = Rectangle(
            (x0, y0), x1 - x0, y1 - y0, facecolor=colours[leaf], alpha=0.28, edgecolor="white", linewidth=1.5
        )
        axes.add_patch(shape)
        shown.setdefault(tree.leaf_text(leaf), colours[leaf])
    # Many steps on one another would hide the plane.
    alpha = float(np.clip(1500 / max(1, sum(map(len, trajectories))), 0.08, 0.5))
    for path in trajectories:
        path = tree.features.extend(path)
        if b is not None:
            axes.plot(path[:, a], path[:, b], color=TEXT_COLOUR, linewidth=0.7, alpha=alpha)
            axes.plot(path[:1, a], path[:1, b], "o", color=TEXT_COLOUR, markersize=3)
        else:
            axes.plot(path[:, a], np.linspace(0.02, 0.98, len(path)), color=TEXT_COLOUR, linewidth=0.7, alpha=alpha)
    axes.set_xlim(*ranges[a])
    axes.set_xlabel(tree.features.names[a], parse_math=False)
    if b is not None:
        axes.set_ylim(*ranges[b])
        axes.set_ylabel(tree.features.names[b], parse_math=False)
    else:
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        if len(trajectories):
            axes.set_ylabel("time →")
    legend = axes.legend(
        handles=[Patch(facecolor=colour, alpha=0.4) for colour in shown.values()], labels=list(shown),
        loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def _clipped_interval(interval: tuple[float, float] | None, within: np.ndarray) -> tuple[float, float]:
    """Return the part of an interval that lies within a range."""
    low, high = interval or (-np.inf, np.inf)
    return max(low, float(within[0])), min(high, float(within[1]))


def _split_lines(tree: Tree, node: int) -> list[str]:
    """Return a node's split as text: one line, but for sums."""
    c, threshold = int(tree.feature[node]), short(tree.threshold[node])
    if c < tree.features.n_raw:
        return [f"{clipped(question_text(tree, c), 28)} ≤ {threshold}"]
    return wrapped(f"{question_text(tree, c)} ≤ {threshold}", LINE_WIDTH, max_formula_lines(tree.n_leaves))


def _leaf_lines(tree: Tree, node: int) -> list[str]:
    """Return a leaf's action as text; of a linear leaf its rounded coefficients."""
    if tree.gains is None:
        return [clipped(tree.actions.name(tree.value[node]), 30)]
    return wrapped(
        picture_text(leaf_text(tree, node, lambda value: f"{value:.3g}")), LINE_WIDTH, max_formula_lines(tree.n_leaves)
    )


def _height(tree: Tree, node: int) -> float:
    """Return how high a node's box is, in inches."""
    is_leaf = tree.feature[node] == LEAF
    lines = _leaf_lines(tree, node) if is_leaf else _split_lines(tree, node)
    return (0.36 if is_leaf else 0.44) + LINE_HEIGHT * (len(lines) - 1)


def clipped(text: str, most: int) -> str:
    """Return text on one line and not too long."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def _node_widths(tree: Tree) -> tuple[float, float]:
    """Return how wide inner nodes and leaves must be for their text, in inches."""
    inner = [len(line) for node in np.flatnonzero(tree.feature != LEAF).tolist() for line in _split_lines(tree, node)]
    leaves = [len(line) for node in tree.leaves() for line in _leaf_lines(tree, int(node))]
    return max(1.2, 0.088 * max(inner, default=0) + 0.3), max(0.8, 0.084 * max(leaves) + 0.3)


def _draw_edges(
    axes: Any,
    tree: Tree,
    node: int,
    x: Any,
    y: Any,
    share: Any,
    down: bool,
    wide: float,
    leaf_wide: float,
    high: np.ndarray,
) -> None:
    """Draw the edges from a node to its children, as wide as their shares of the states."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    if tree.feature[node] == LEAF:
        return
    children = (int(tree.children_left[node]), int(tree.children_right[node]))
    widths = [1.4 if share is None else 0.8 + 9.0 * float(share[child]) for child in children]
    apart = (widths[0] + widths[1]) / 4 / 72 + 0.01  # so that the two edges leave side by side
    for child, width, side, answer in zip(children, widths, (-1, 1), ("yes", "no"), strict=True):
        colour = EDGE_COLOUR if share is None or share[child] > 0 else "#d5dbe0"
        if down:
            start = (x[node] + side * apart, y[node] - high[node] / 2 + 0.01)
            end = (x[child], y[child] + high[child] / 2 - 0.01)
            middle = (start[1] + end[1]) / 2
            points = [start, (start[0], middle), (end[0], middle), end]
            at, aligned = (
                (x[child] + side * (0.1 + width / 144), y[child] + high[child] / 2 + 0.13),
                ("right", "left")[side > 0],
            )
        else:
            start = (x[node] + wide / 2, y[node] - side * apart)
            end = (x[child] - (leaf_wide if tree.feature[child] == LEAF else wide) / 2, y[child])
            middle = (start[0] + end[0]) / 2
            points = [start, (middle, start[1]), (middle, end[1]), end]
            at, aligned = (end[0] - 0.06, y[child] - side * (0.09 + width / 144)), "right"
        curve = Curve(points, [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4])
        axes.add_patch(
            PathPatch(curve, facecolor="none", edgecolor=colour, linewidth=width, capstyle="butt", zorder=1, alpha=0.75)
        )
        axes.text(*at, answer, ha=aligned, va="center", fontsize=7.5, color=TEXT_COLOUR, zorder=2)


def _draw_box(
    axes: Any, x: float, y: float, wide: float, high: float, face: str, edge: str, width: float = 1.0
) -> None:
    """Draw a rounded box of these measures around (x, y)."""
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch(
        (x - wide / 2 + 0.08, y - high / 2 + 0.08), wide - 0.16, high - 0.16,
        boxstyle="round,pad=0.08,rounding_size=0.1", facecolor=face, edgecolor=edge, linewidth=width, zorder=3,
    )  # fmt: skip
    axes.add_patch(shape)


def _draw_split(axes: Any, tree: Tree, node: int, x: float, y: float, wide: float, ranges: np.ndarray) -> None:
    """Draw an inner node: its split over a bar of the feature's range."""
    c, t, lines = int(tree.feature[node]), float(tree.threshold[node]), _split_lines(tree, node)
    _draw_box(axes, x, y, wide, _height(tree, node), "white", EDGE_COLOUR)
    text = {"ha": "center", "va": "center", "fontsize": 9, "color": TEXT_COLOUR, "zorder": 4, "parse_math": False}
    top = y + 0.05 + LINE_HEIGHT * (len(lines) - 1) / 2
    for k, line in enumerate(lines):
        axes.text(x, top - LINE_HEIGHT * k, line, **text)
    low, high = ranges[c]
    if not high > low:
        return
    ends = [short(float(f"{end:.3g}")) for end in (low, high)]
    room = 0.055 * max(map(len, ends)) + 0.14
    span = wide - 2 * room

    def place(value: float) -> float:
        return float(x - span / 2 + span * np.clip((value - low) / (high - low), 0, 1))

    above, most = tree.box(node).get(c, (-np.inf, np.inf))
    bar = y - 0.135 - LINE_HEIGHT * (len(lines) - 1) / 2
    for end, at, side in zip(ends, (x - span / 2 - 0.04, x + span / 2 + 0.04), ("right", "left"), strict=True):
        axes.text(at, bar, end, ha=side, va="center", fontsize=5.5, color="#6b7884", zorder=4)
    axes.plot([place(low), place(high)], [bar, bar], color=RANGE_COLOUR, linewidth=3, solid_capstyle="butt", zorder=4)
    axes.plot([place(above), place(most)], [bar, bar], color="#b7c2cc", linewidth=3, solid_capstyle="butt", zorder=5)
    axes.plot([place(t)] * 2, [bar - 0.035, bar + 0.035], color="#d4574e", linewidth=1.6, zorder=6)


def _draw_leaf(axes: Any, tree: Tree, node: int, x: float, y: float, wide: float, colour: str, share: Any) -> None:
    """Draw a leaf: its action, and its share of the states."""
    lines, seen = _leaf_lines(tree, node), share is None or share[node] > 0
    _draw_box(axes, x, y, wide, _height(tree, node), colour if seen else "white", colour, 1.2)
    ink, above = "white" if seen else colour, LINE_HEIGHT * (len(lines) - 1) / 2
    text = {"ha": "center", "va": "center", "color": ink, "zorder": 4, "parse_math": False, "weight": "bold"}
    for k, line in enumerate(lines):
        at, size = (0.0, 9.0) if share is None else (0.055, 8.5)
        axes.text(x, y + at + above - LINE_HEIGHT * k, line, fontsize=size, **text)
    if share is None:
        return
    percent = "never" if share[node] == 0 else f"{100 * share[node]:.3g} %" if share[node] >= 0.001 else "< 0.1 %"
    axes.text(x, y - 0.085 - above, percent, ha="center", va="center", fontsize=6.5, color=ink, zorder=4)
