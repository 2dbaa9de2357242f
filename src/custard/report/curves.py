"""Draw a run's learning curve and the size of its trees."""

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
        for series, colour in zip(chart["series"], ("#d99a00", "#3b7dd8"), strict=False):
            values = [float("nan") if value is None else value for value in series["values"]]
            axes.plot(chart["x"], values, color=colour, linewidth=1.8, label=series["name"])
        axes.set_ylabel("tree size" if chart["small"] else "mean return")
        axes.set_xlabel(chart["xlabel"] if k == len(charts) - 1 else "")
        plain_axis(axes.xaxis)
        plain_axis(axes.yaxis, integral=bool(chart["small"]))
        axes.grid(alpha=0.25)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        legend = axes.legend(frameon=False, fontsize=9)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure
