"""Summarise rows of trials by group: means, spread, counted failures; as a table and as a picture."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.number_format import format_numbers

__all__ = ["markdown", "mean_and_std", "plot", "rows_with_results", "summary", "table", "trial_label"]

GROUP_COLUMNS = ("env", "env_args", "method", "preset", "settings", "max_depth")
MAX_UPRIGHT_LABELS = 10  # groups in a picture beyond which their names are slanted
MAX_LABEL_CHARACTERS = 52  # of a slanted name
LABEL_INCHES = 0.075  # a letter of a name
RESULT_COLUMNS = ("return", "depth", "leaves")
MEAN_COLUMNS = (
    "return",
    "depth",
    "leaves",
    "nodes",
    "raw_depth",
    "final_return",
    "seconds",
    "cpu_seconds",
    "steps",
    "gap",
)


def summary(rows: Sequence[Mapping[str, Any]], group: Sequence[str] = GROUP_COLUMNS) -> list[dict[str, Any]]:
    """Return one entry per group of trials that differ only in the seed: means, spread and counts of failures."""
    return [
        {**dict(zip(group, names, strict=True)), **_summarise(members)}
        for names, members in _grouped(rows, group).items()
    ]


def rows_with_results(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that have a tree and its return."""
    good = [row for row in rows if row["error"] == "" and "" not in [row[name] for name in RESULT_COLUMNS]]
    return [row for row in good if not math.isnan(float(row["return"]))]


def _grouped(rows: Sequence[Mapping[str, Any]], group: Sequence[str]) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in group), []).append(row)
    return groups


def _summarise(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    good = [row for row in members if row["error"] == ""]
    entry: dict[str, Any] = {"trials": len(members), "failures": len(members) - len(good)}
    if "max_depth" in members[0]:
        entry["max_depth"] = None if members[0]["max_depth"] == "" else int(members[0]["max_depth"])
    for name in MEAN_COLUMNS:
        values = _values(good, name)
        entry[name] = float(np.mean(values)) if values else None
    for name in ("return", "depth", "nodes"):
        values = _values(good, name)
        entry[f"{name}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    returns = _values(good, "return")
    entry["return_min"], entry["return_max"] = (min(returns), max(returns)) if returns else (None, None)
    bounds = _values(good, "bound")
    entry["bound"] = bounds[0] if bounds else None
    for name in ("optimal", "trivial"):
        values = _values(good, name)
        entry[name] = int(sum(values)) if values else None
    cut = _values(good, "cut")
    entry["cut"] = int(sum(value > 0 for value in cut)) if cut else None
    return entry


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(row[name]) for row in rows if row[name] != ""]


def trial_label(row: Mapping[str, Any]) -> str:
    """Return what distinguishes a row's trial from others, apart from the seed, in words.

    >>> trial_label({"env": "custard/PrereqWorld-v0", "env_args": '{"m": 7}', "method": "mfec", "preset": "paper",
    ...        "settings": "{}", "max_depth": "3"})
    'PrereqWorld-v0 m=7 mfec paper depth ≤ 3'
    """
    parts = [str(row["env"]).rpartition("/")[2], _assignments_text(row["env_args"]), str(row["method"])]
    parts += [row["preset"] if row["preset"] != "tuned" else "", _assignments_text(row["settings"])]
    parts += [f"depth ≤ {row['max_depth']}" if row["max_depth"] not in ("", None) else ""]
    return " ".join(part for part in parts if part)


def _assignments_text(values: str) -> str:
    return " ".join(f"{name}={value}" for name, value in json.loads(values or "{}").items())


def mean_and_std(entry: Mapping[str, Any], name: str = "return") -> str:
    """Return a mean with its standard deviation over seeds, as the paper prints it; a single trial has none.

    >>> mean_and_std({"return": 200, "return_std": 0.0})
    '200.00 (0.00)'
    """
    mean, std = entry[name], entry[f"{name}_std"]
    return "–" if mean is None else f"{mean:.2f} ({'–' if std is None else f'{std:.2f}'})"


def table(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a header and one line per entry, for people; columns that are the same in all entries are left out."""
    show = lambda entry, name, form: "–" if entry[name] is None else format(entry[name], form)  # noqa: E731
    share = lambda entry, name: "–" if entry[name] is None else f"{entry[name]}/{entry['trials']}"  # noqa: E731
    columns: dict[str, Any] = {
        "environment": lambda entry: " ".join(filter(None, [entry["env"], _assignments_text(entry["env_args"])])),
        "method": lambda entry: entry["method"], "preset": lambda entry: entry["preset"],
        "settings": lambda entry: _assignments_text(entry["settings"]) or "–",
        "depth ≤": lambda entry: "–" if entry["max_depth"] is None else str(entry["max_depth"]),
        "trials": lambda entry: str(entry["trials"]), "failed": lambda entry: str(entry["failures"]),
        "return": lambda entry: " ± ".join(format_numbers(entry["return"], entry["return_std"])),
        "min … max": lambda entry: " … ".join(format_numbers(entry["return_min"], entry["return_max"])),
        "depth": lambda entry: show(entry, "depth", ".1f"), "leaves": lambda entry: show(entry, "leaves", ".1f"),
        "nodes": lambda entry: show(entry, "nodes", ".1f"), "seconds": lambda entry: show(entry, "seconds", ".1f"),
        "gap": lambda entry: show(entry, "gap", ".3f"), "optimal": lambda entry: share(entry, "optimal"),
    }  # fmt: skip
    if entries:
        for name in ("environment", "preset", "settings"):
            if len({columns[name](entry) for entry in entries}) == 1:
                del columns[name]
    return [tuple(columns), *(tuple(cell(entry) for cell in columns.values()) for entry in entries)]


def markdown(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *body])


def plot(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw return, depth, leaves and wall time (png, svg or pdf): trials as dots, means with their 95 % intervals."""
    from matplotlib.figure import Figure

    from custard.lab.plotting import draw_points, plain_axis
    from custard.tree.draw import save_figure

    good = rows_with_results(rows)
    if not good:
        raise CustardError("there is no finished trial to draw")
    same = [name for name in GROUP_COLUMNS if len({row[name] for row in good}) == 1]
    groups = _grouped(good, GROUP_COLUMNS)
    crowded = len(groups) > MAX_UPRIGHT_LABELS
    width = float(np.clip(4.0 + (0.5 if crowded else 2.2) * len(groups), 8.0, 24.0))
    room = (width / 2 - 0.7) / len(groups)  # inches for a group's name
    names = _group_labels([members[0] for members in groups.values()], same, max(8, int(room / LABEL_INCHES)))
    figure = Figure(figsize=(width, 9.0 if crowded else 6.0), layout="constrained")
    axes = figure.subplots(2, 2)
    if "env" in same and "env_args" in same:
        figure.suptitle(" ".join(filter(None, [good[0]["env"], _assignments_text(good[0]["env_args"])])))
    panels = (("return", "return"), ("depth", "depth"), ("leaves", "leaves"), ("seconds", "wall time in seconds"))
    for panel, (column, title) in zip(axes.flat, panels, strict=True):
        everything = _values(good, column)
        for place, members in enumerate(groups.values()):
            draw_points(panel, place, _values(members, column), max(everything) - min(everything), f"C{place}")
            bounds = _values(members, "bound")
            if column == "return" and bounds and math.isfinite(bounds[0]):
                mark = {"color": "black", "linestyle": ":", "linewidth": 1}
                mark |= {} if panel.get_legend_handles_labels()[1] else {"label": "no tree returns more"}
                panel.hlines(bounds[0], place - 0.4, place + 0.4, **mark)
        if panel.get_legend_handles_labels()[1]:
            panel.legend(frameon=False, fontsize=8)
        slanted = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        panel.set_xticks(range(len(names)), names, fontsize=8, **slanted)
        panel.set_xlim(-0.6, len(names) - 0.4)
        panel.set_title(title)
        panel.grid(axis="y", alpha=0.3)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
        if column == "seconds":
            panel.set_yscale("log")
        elif column != "return":
            panel.set_ylim(0, 1.08 * max(1.0, *everything))
        plain_axis(panel.yaxis, integral=column in ("depth", "leaves"), log=column == "seconds")
    save_figure(figure, file)


def draw_strip(panel: Any, place: float, values: Sequence[float], colour: str, width: float = 0.36) -> None:
    """Draw every value of a group as a dot and their mean as a line."""
    if not values:
        return
    across = np.linspace(-width / 2, width / 2, len(values)) if len(values) > 1 else np.zeros(1)
    panel.plot(place + across, sorted(values), "o", color=colour, alpha=0.5, markersize=4, markeredgewidth=0)
    panel.hlines(float(np.mean(values)), place - width * 0.8, place + width * 0.8, color=colour, linewidth=2)


def _group_labels(rows: Sequence[Mapping[str, Any]], same: Sequence[str], line: int) -> list[str]:
    """Return what distinguishes groups of trials, in lines of at most `line` letters where they stand side by side."""
    blank = {"env": "", "env_args": "{}", "preset": "tuned", "settings": "{}", "max_depth": ""}
    rows = [{**row, **{name: blank[name] for name in same if name in blank}} for row in rows]
    names = [trial_label(row) for row in rows]
    if len(set(names)) < len(names):  # the same name in two namespaces
        names = [trial_label({**row, "env": str(row["env"]).replace("/", " ")}) for row in rows]
    if len(names) > MAX_UPRIGHT_LABELS:
        return [textwrap.shorten(name, MAX_LABEL_CHARACTERS, placeholder=" …") for name in names]
    kept = [name.replace("depth ≤ ", "depth\u00a0≤\u00a0") for name in names]  # not broken within
    return ["\n".join(textwrap.wrap(name, line, break_on_hyphens=False)) for name in kept]
