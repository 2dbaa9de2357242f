"""Draw the paper's experiments: every trial a dot, means as lines, proved limits in black."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from custard.lab.paper import (
    DEPTH_LIMITS,
    METHOD_TITLES,
    METHODS,
    PAPER_TABLE1,
    PREREQ_SIZES,
    PRESETS,
    WORLDS,
    pothole_limits,
    smallest_trees,
)
from custard.lab.summary import draw_strip, rows_with_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure"]

Rows = Sequence[Mapping[str, Any]]
METHOD_COLOURS = {
    "viper-dqn": "#7f7f7f", "viper-bi": "#1f77b4", "dqn": "#9467bd", "ppo": "#8c564b", "mfec": "#d99a00",
    "tpi": "#2ca02c", "random": "#bbbbbb",
}  # fmt: skip


def figure(experiment: str, rows: Mapping[str, Rows]) -> Figure | None:
    """Draw an experiment from the rows of each preset; None if no trial has finished."""
    good = {preset: rows_with_results(preset_rows) for preset, preset_rows in rows.items()}
    good = {preset: good[preset] for preset in PRESETS if good.get(preset)}
    if not good:
        return None
    return {"table1": _table1, "size": _size, "depth": _depth}[experiment](good)


def _panels(rows: int, columns: int, width: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, 3.1 * rows + 0.4), layout="constrained")
    return drawn, drawn.subplots(rows, columns, squeeze=False)


def _style_panel(panel: Any, title: str, ylabel: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.set_ylabel(ylabel)
    panel.ticklabel_format(axis="y", useOffset=False)
    if ylabel != "reward":
        panel.set_ylim(bottom=0)
    panel.grid(axis="y", alpha=0.25)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _table1(good: Mapping[str, Rows]) -> Figure:
    drawn, panels = _panels(2 * len(good), 3, 13.0)
    limits, _ = pothole_limits()
    m = WORLDS["PrereqWorld"].kwargs["m"]
    best = {"CartPole": 200.0, "PrereqWorld": smallest_trees((m,))[m][0], "PotholeWorld": max(limits.values())}
    for i, (preset, rows) in enumerate(good.items()):
        methods = [name for name in METHODS["table1"] if any(row["method"] == name for row in rows)]
        for j, (world, (env, _, _)) in enumerate(WORLDS.items()):
            for k, column in enumerate(("return", "depth")):
                panel = panels[2 * i + k][j]
                for place, name in enumerate(methods):
                    values = [row[column] for row in rows if row["env"] == env and row["method"] == name]
                    draw_strip(panel, place, values, METHOD_COLOURS[name])
                    printed = PAPER_TABLE1.get(name, {}).get(world, (None, None))[k]
                    if printed is not None:
                        panel.errorbar(
                            [place + 0.36], [printed.mean], [printed.std], fmt="_", color="black", alpha=0.7, capsize=2,
                            markersize=7,
                        )  # fmt: skip
                if column == "return":
                    panel.axhline(best[world], color="black", linestyle=":", linewidth=1)
                panel.set_xticks(range(len(methods)), methods, fontsize=8)
                panel.set_xlim(-0.6, len(methods) - 0.4)
                _style_panel(panel, f"{world}, preset {preset}", "reward" if column == "return" else "depth")
    drawn.suptitle("dots: trials, bars: their means; black: the paper's mean and deviation, dotted: proved best")
    return drawn


def _size(good: Mapping[str, Rows]) -> Figure:
    best = smallest_trees()
    minimum: dict[str, Callable[[int], float]] = {"depth": lambda m: best[m][1], "nodes": lambda m: 2 * best[m][2] - 1}
    drawn, panels = _panels(len(good), 2, 11.0)
    for i, (preset, rows) in enumerate(good.items()):
        for j, column in enumerate(("depth", "nodes")):
            panel = panels[i][j]

            def values(name: str, m: int, rows: Rows = rows, column: str = column) -> list[float]:
                args = json.dumps({"m": m})
                return [row[column] for row in rows if row["method"] == name and row["env_args"] == args]

            _draw_series(panel, PREREQ_SIZES, METHODS["size"], values, minimum[column], "proved minimum")
            panel.set_xlabel("m, the number of items")
            _style_panel(panel, f"PrereqWorld, preset {preset}", column)
    return drawn


def _depth(good: Mapping[str, Rows]) -> Figure:
    limits, _ = pothole_limits()
    drawn, panels = _panels(len(good), 1, 8.0)
    for i, (preset, rows) in enumerate(good.items()):
        panel = panels[i][0]

        def values(name: str, limit: int, rows: Rows = rows) -> list[float]:
            return [row["return"] for row in rows if row["method"] == name and row["max_depth"] == str(limit)]

        _draw_series(panel, DEPTH_LIMITS, METHODS["depth"], values, lambda limit: limits[limit], "proved limit")
        panel.set_xlabel("depth limit")
        _style_panel(panel, f"PotholeWorld, preset {preset}", "reward")
    return drawn


def _draw_series(
    panel: Any, xs: Sequence[int], methods: Sequence[str], values: Callable[[str, int], list[float]],
    best: Callable[[int], float], word: str,
) -> None:  # fmt: skip
    """Draw a strip of dots per x and method, the means joined by lines, and the proved limits.

    panel    matplotlib axes
    xs       positions on the x-axis
    methods  names, drawn side by side at each x
    values   function from method and x to the values of its trials
    best     function from x to the proved limit
    word     what the legend calls the proved limit
    """
    for k, name in enumerate(methods):
        shift = (k - (len(methods) - 1) / 2) * 0.26
        values_at = [(x, values(name, x)) for x in xs]
        means_at = [(x + shift, numbers) for x, numbers in values_at if numbers]
        for x, numbers in means_at:
            draw_strip(panel, x, numbers, METHOD_COLOURS[name], width=0.2)
        if means_at:
            means = [float(np.mean(numbers)) for _, numbers in means_at]
            panel.plot(
                [x for x, _ in means_at], means, "-", color=METHOD_COLOURS[name], linewidth=1, label=METHOD_TITLES[name]
            )
    panel.plot(xs, [best(x) for x in xs], "k:", drawstyle="steps-mid", linewidth=1.4, label=word)
    panel.set_xticks(list(xs))
    panel.legend(frameon=False, fontsize=8)
