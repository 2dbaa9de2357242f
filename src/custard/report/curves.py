"""Draw a run's learning curve, or value and bound of its planning, and the size of its trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from custard.core.errors import CustardError
from custard.report.page_data import curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_curves"]


def draw_curves(rows: Sequence[Mapping[str, float]]) -> Figure:
    """Draw rows of metrics.csv: value against environment steps, and below it the tree's size where it was logged.

    Of a planned tree: value and bound against time, below them the gap.

    >>> figure = draw_curves([{"steps": 0, "value": 9.0, "leaves": 1}, {"steps": 100, "value": 200.0, "leaves": 3}])
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['mean return', 'tree size']
    """
    from matplotlib.figure import Figure

    from custard.lab.plotting import plain_axis

    charts = curves(rows)
    if not charts:
        raise CustardError("there are no metrics to draw: metrics.csv is missing or empty")
    figure = Figure(figsize=(6.4, 1.4 + 2.2 * len(charts)), layout="constrained")
    for k, chart in enumerate(charts):
        axes = figure.add_subplot(len(charts), 1, k + 1)
        lines = [[float("nan") if value is None else value for value in one["values"]] for one in chart["series"]]
        style = "steps-post" if chart["held"] else "default"
        for line, series, colour in zip(lines, chart["series"], ("#d99a00", "#3b7dd8"), strict=False):
            axes.plot(chart["x"], line, color=colour, linewidth=1.8, label=series["name"], drawstyle=style)
        if chart["band"] and len(lines) > 1:
            axes.fill_between(chart["x"], lines[0], lines[1], step="post", color="#d99a00", alpha=0.15, linewidth=0)
        if chart["zero"]:
            axes.set_ylim(bottom=0.0)
        axes.set_ylabel(chart["ylabel"])
        axes.set_xlabel(chart["xlabel"] if k == len(charts) - 1 else "")
        plain_axis(axes.xaxis)
        plain_axis(axes.yaxis, integral=bool(chart["integral"]))
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        legend = axes.legend(frameon=False, fontsize=9)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure
