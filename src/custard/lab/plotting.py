"""What the plots share: axes with plain numbers, points that do not hide each other, intervals of means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["axis_number", "draw_points", "mean_interval", "plain_axis", "side_by_side"]

BOOTSTRAP_RESAMPLES = 2000
SAME_HEIGHT = 0.025  # of the plotted range: points closer than this stand side by side


def axis_number(value: float) -> str:
    """Return a number for an axis, without an offset or a power of ten beside the axis.

    >>> [axis_number(value) for value in (0.0, -0.25, 499.5, 9000, 20000, 1500000, 100000056, 2e15)]
    ['0', '−0.25', '499.5', '9000', '20k', '1.5M', '100,000,056', '2e+15']
    """
    size = abs(value)
    text = f"{value:,.10g}" if size >= 1e4 else f"{value:.10g}"
    unit, letter = (1e6, "M") if size >= 1e6 else (1e3, "k")
    brief = f"{value / unit:.4g}"
    if size >= 1e4 and "e" not in brief and float(brief) * unit == value:  # four digits say it all
        text = f"{brief}{letter}"
    if size >= 1e12 or 0 < size < 1e-4:
        text = f"{value:.3g}"
    return text.replace("-", "−")


def plain_axis(axis: Any, *, integral: bool = False, log: bool = False) -> None:
    """Give a matplotlib axis plain numbers, and ticks at whole numbers only where its values are whole."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    count: Any = "auto" if integral or axis.axis_name == "y" else 6  # numbers of steps are long
    linear = MaxNLocator(nbins=count, steps=[1, 2, 2.5, 5, 10], integer=integral, min_n_ticks=2)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if log else linear)
    axis.set_major_formatter(FuncFormatter(lambda value, _: axis_number(float(f"{value:.10g}"))))
    axis.set_minor_formatter(NullFormatter())


def mean_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a mean; None for fewer than two values.

    >>> mean_interval([3.0, 3.0, 3.0]), mean_interval([1.0])
    ((3.0, 3.0), None)
    """
    if len(values) < 2:
        return None
    rng, numbers = np.random.default_rng(seed), np.asarray(values, dtype=np.float64)
    means = numbers[rng.integers(len(numbers), size=(BOOTSTRAP_RESAMPLES, len(numbers)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def side_by_side(values: Sequence[float], span: float, *, width: float = 0.7, step: float = 0.09) -> np.ndarray:
    """Return how far to the side each point goes so that points at about the same height do not hide each other.

    values  heights of points that belong to one place
    span    of all heights in the plot
    width   room at a place, within which points stay
    step    distance of two points side by side, where there is room for it

    >>> side_by_side([1.0, 5.0, 1.0], span=4.0).tolist()
    [-0.045, 0.0, 0.045]
    """
    heights = np.asarray(values, dtype=np.float64)
    off = np.zeros(len(heights))
    near = SAME_HEIGHT * span if span > 0 else np.inf
    order = np.argsort(heights, kind="stable")
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and heights[order[end]] - heights[order[start]] <= near:
            end += 1
        row = order[start:end]
        apart = min(step, width / max(1, len(row) - 1))
        off[row] = apart * (np.arange(len(row)) - (len(row) - 1) / 2)
        start = end
    return off


def draw_points(
    panel: Any, place: float, values: Sequence[float], span: float, colour: Any, width: float = 0.7
) -> None:
    """Draw every value of a group as a dot, their mean as a line and its 95 % interval as a bar beside the dots.

    panel   matplotlib axes
    place   of the group on the x-axis
    values  of the group
    span    of the y-axis: dots that are closer than a share of it stand side by side
    colour  of the group
    width   of the group on the x-axis
    """
    if not values:
        return
    dots = place - 0.08 + side_by_side(values, span, width=width - 0.16)
    panel.plot(dots, values, "o", color=colour, alpha=0.55, markersize=4.5, markeredgewidth=0)
    mean, interval = float(np.mean(values)), mean_interval(values)
    panel.hlines(mean, place - width / 2, place + width / 2, color=colour, linewidth=1.8)
    if interval is not None:
        reach = [[mean - interval[0]], [interval[1] - mean]]
        panel.errorbar([place + width / 2], [mean], reach, fmt="none", color=colour, capsize=3, linewidth=1.6)
