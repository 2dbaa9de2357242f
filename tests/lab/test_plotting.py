"""The plots: intervals, points that do not hide each other, axes that say their numbers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from custard.lab import summary
from custard.lab.frontier_plot import draw_frontier
from custard.lab.plotting import mean_interval, plain_axis, side_by_side
from custard.report.curves import draw_curves

ROW = {
    "env": "E-v1", "env_args": "{}", "method": "tpi", "preset": "tuned", "settings": "{}", "max_depth": "2",
    "error": "", "bound": "", "depth": 2, "seconds": 3.0,
}  # fmt: skip


def row(leaves: int, value: float, **entries: Any) -> dict[str, Any]:
    return {**ROW, "leaves": leaves, "return": value, "ci_low": value - 2, "ci_high": value + 1, **entries}


def axis_texts(figure: Figure, axis: str, panel: int = 0) -> list[str]:
    figure.canvas.draw()
    chosen = getattr(figure.axes[panel], f"{axis}axis")
    assert chosen.get_offset_text().get_text() == ""
    return [text.get_text() for text in chosen.get_ticklabels() if text.get_text()]


@pytest.mark.parametrize("most", [6, 40])
def test_a_frontier_shows_intervals_and_every_point(most: int) -> None:
    rows = [
        row(2, 1e8 + 3),
        row(2, 1e8 + 3),
        row(2, 1e8 + 3),
        row(most, 1e8 + 9),
        row(4, 1e8 + 5, ci_low="", ci_high=""),
    ]
    figure = draw_frontier(rows, "E-v1")
    panel = figure.axes[0]
    assert all(float(text.replace(",", "").replace("M", "e6")) >= 1e8 - 10 for text in axis_texts(figure, "y"))
    assert all(float(text) == int(text) for text in axis_texts(figure, "x"))
    points = np.column_stack(panel.lines[0].get_data())
    assert len(np.unique(points.round(9), axis=0)) == 5  # three equal trials are three dots
    pixels = panel.transData.transform(points)
    gaps = [np.hypot(*(a - b)) for i, a in enumerate(pixels) for b in pixels[:i]]
    assert min(gaps) > 5 * figure.dpi / 72  # a dot is 5 points wide
    assert (abs(points[:3, 0] - 2) < 0.4).all()  # and still at two leaves
    lengths = sorted(float(np.ptp(segment[:, 1])) for segment in panel.collections[0].get_segments())
    assert lengths == pytest.approx([0, 3, 3, 3, 3])


def test_a_comparison_has_whole_numbers_intervals_and_names_that_do_not_meet(tmp_path: Path, monkeypatch: Any) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("custard.tree.draw.save_figure", lambda figure, path: drawn.append(figure))
    rows = [
        row(2 + seed % 2, 1e8 + seed, method=method, seconds=2.0**seed)
        for method in ("tpi", "mfec")
        for seed in range(6)
    ]
    rows += [row(3, 1e8, settings='{"a_long_setting": 12345, "another_long_one": 12345}')]
    summary.plot(rows, tmp_path / "x.png")
    figure = drawn[0]
    for panel in (1, 2):  # depth and leaves
        assert all(float(text) == int(text) for text in axis_texts(figure, "y", panel))
    axis_texts(figure, "y", 0)
    assert set(axis_texts(figure, "y", 3)) >= {"1", "10"}
    assert len(figure.axes[0].containers) == 2  # groups of several trials have an interval; a single trial has none
    boxes = [
        text.get_window_extent(FigureCanvasAgg(figure).get_renderer()) for text in figure.axes[0].get_xticklabels()
    ]
    assert all(a.x1 <= b.x0 for a, b in pairwise(boxes))


def test_curves_have_no_offset() -> None:
    figure = draw_curves([{"steps": 1e6 * k, "value": 1e8 + k, "leaves": 2 + k} for k in range(5)])
    assert {"0", "1M", "2M", "3M", "4M"} <= set(axis_texts(figure, "x", 1))
    assert all(text.startswith(("100,000,0", "100M", "99,999,9")) for text in axis_texts(figure, "y"))
    assert all(float(text) == int(text) for text in axis_texts(figure, "y", 1))
    only_size = draw_curves([{"steps": 1, "leaves": 3}, {"steps": 2, "leaves": 4}])
    assert [axes.get_ylabel() for axes in only_size.axes] == ["tree size"]


def test_points_keep_their_room() -> None:
    aside = side_by_side([1.0] * 50 + [9.0], 8.0, width=0.6)
    assert aside[-1] == 0
    assert np.ptp(aside[:50]) == pytest.approx(0.6)
    assert len(np.unique(aside[:50])) == 50


def test_the_interval_of_a_mean_holds_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    found = np.array([mean_interval(rng.normal(5, 2, 30).tolist()) for _ in range(200)])
    assert 0.88 < np.mean([low <= 5 <= high for low, high in found]) <= 1.0


def test_an_axis_of_whole_numbers_has_no_halves() -> None:
    figure = Figure()
    panel = figure.subplots()
    panel.plot([0, 1], [0, 1])
    plain_axis(panel.yaxis, integral=True)
    assert {"0", "1"} <= set(axis_texts(figure, "y"))
    assert all("." not in text for text in axis_texts(figure, "y"))
