"""Methods side by side: the same environments, seeds and evaluation episodes, one row of a CSV a trial."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from custard.errors import CustardError
from custard.files import write_atomically
from custard.lab.evaluate import evaluate
from custard.lab.learn import learn
from custard.lab.methods import method as find_method
from custard.lab.source import source
from custard.planning.yardstick import best_return

__all__ = ["COLUMNS", "compare", "plot", "read_rows", "summary"]

#: What identifies a trial, then what it measured.
KEY = ("env", "env_args", "method", "preset", "settings", "max_depth", "seed", "episodes", "evaluation_seed")
COLUMNS = (
    *KEY, "return", "std", "ci_low", "ci_high", "depth", "leaves", "nodes", "seconds", "steps", "selection_value",
    "bound", "gap", "time_limited", "message", "error",
)  # fmt: skip
NUMBERS = COLUMNS[COLUMNS.index("return") : COLUMNS.index("message")]


def compare(
    env: str,
    methods: Sequence[str],
    *,
    seeds: Sequence[int],
    max_depths: Sequence[int | None] = (None,),
    episodes: int = 1000,
    evaluation_seed: int = 1,
    env_kwargs: Mapping[str, Any] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    preset: str | None = None,
    file: Path | None = None,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    **common: Any,
) -> list[dict[str, Any]]:
    """Run every method with every depth limit and seed; rows already in `file` are not run again.

    `settings` maps a method (or "" for all) to settings of its own. A trial that fails keeps its row, with the error.
    `bound` is the most any tree could return there, where that is known, and `gap` the distance to it.
    """
    for name in methods:
        find_method(name)
    rows = read_rows(file) if file is not None and file.exists() else []
    done = {tuple(row[key] for key in KEY): row for row in rows}
    where = source(env, env_kwargs)
    results = []
    for depth in max_depths:
        bound = best_return(where, depth)
        for name in methods:
            own = {**(settings or {}).get("", {}), **(settings or {}).get(name, {})}
            for seed in seeds:
                row: dict[str, Any] = {
                    "env": env, "env_args": _text(dict(env_kwargs or {})), "method": name, "preset": preset or "tuned",
                    "settings": _text(own), "max_depth": "" if depth is None else str(depth), "seed": str(seed),
                    "episodes": str(episodes), "evaluation_seed": str(evaluation_seed),
                }  # fmt: skip
                found = done.get(tuple(row.values()))
                if found is None:
                    found = {**row, **_trial(env, name, depth, seed, preset, env_kwargs, own, common)}
                    tree = found.pop("tree")
                    if tree is not None:
                        found |= _judged(tree, env, episodes, evaluation_seed, env_kwargs, bound)
                    found = {column: found.get(column, "") for column in COLUMNS}
                    rows.append(found)
                    if file is not None:
                        _write(file, rows)
                if on_row is not None:
                    on_row(found)
                results.append(found)
    return results


def _trial(
    env: str, name: str, depth: int | None, seed: int, preset: str | None, env_kwargs: Any, own: Any, common: Any
) -> dict[str, Any]:
    try:
        run = learn(env, name, max_depth=depth, seed=seed, preset=preset, env_kwargs=env_kwargs, **own, **common)
    except CustardError as error:
        return {"tree": None, "error": " ".join(str(error).split())}
    return {
        "tree": run.tree, "seconds": round(run.seconds, 3), "steps": run.steps, "selection_value": run.value,
        "message": run.message,
    }  # fmt: skip


def _judged(tree: Any, env: str, episodes: int, seed: int, env_kwargs: Any, bound: float | None) -> dict[str, Any]:
    result = evaluate(tree, env, episodes, seed, env_kwargs=env_kwargs)
    low, high = result.ci95
    return {
        "return": result.mean, "std": result.std, "ci_low": low, "ci_high": high, "depth": tree.depth,
        "leaves": tree.n_leaves, "nodes": tree.n_nodes, "time_limited": int(result.time_limited.sum()),
        "bound": "" if bound is None else bound, "gap": "" if bound is None else bound - result.mean,
    }  # fmt: skip


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a CSV that `compare` wrote; numbers as numbers."""
    try:
        with file.open(newline="", encoding="utf-8") as text:
            reader = csv.DictReader(text)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise CustardError(f"{file} is not a comparison's CSV: its columns differ")
            rows = [dict(row) for row in reader]
    except (OSError, UnicodeDecodeError) as error:
        raise CustardError(f"cannot read {file}: {error}") from None
    for row in rows:
        for key in NUMBERS:
            try:
                row[key] = float(row[key]) if row[key] != "" else ""
            except (TypeError, ValueError):
                raise CustardError(f"{file}: {key} holds {row[key]!r} instead of a number") from None
    return rows


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each method and depth limit: means over seeds, the spread of the return, failures counted."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["max_depth"]), []).append(row)
    entries = []
    for (name, depth), members in groups.items():
        good = [row for row in members if row["error"] == ""]
        entry: dict[str, Any] = {
            "method": name, "max_depth": None if depth == "" else int(depth), "trials": len(members),
            "failures": len(members) - len(good),
        }  # fmt: skip
        for key in ("return", "depth", "leaves", "nodes", "seconds", "steps", "gap"):
            values = [float(row[key]) for row in good if row[key] != ""]
            entry[key] = float(np.mean(values)) if values else None
        returns = [float(row["return"]) for row in good]
        entry["return_std"] = float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0 if returns else None
        entry["return_min"] = min(returns) if returns else None
        entry["return_max"] = max(returns) if returns else None
        bounds = [float(row["bound"]) for row in good if row["bound"] != ""]
        entry["bound"] = bounds[0] if bounds else None
        entries.append(entry)
    return entries


def plot(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """A picture (png, svg or pdf): each trial a dot, each mean a bar, for return, depth, leaves and wall time."""
    if file.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise CustardError(f"cannot draw {file}: choose a name that ends in .png, .svg or .pdf")
    from matplotlib.figure import Figure

    good = [row for row in rows if row["error"] == ""]
    if not good:
        raise CustardError("there is no finished trial to draw")
    labels = list(dict.fromkeys(_label(row) for row in good))
    figure = Figure(figsize=(max(8.0, 2.2 * len(labels) + 4), 6.0), layout="constrained")
    axes = figure.subplots(2, 2)
    figure.suptitle(good[0]["env"] + (f" {good[0]['env_args']}" if good[0]["env_args"] != "{}" else ""))
    for panel, (key, title) in zip(
        axes.flat,
        (("return", "return"), ("depth", "depth"), ("leaves", "leaves"), ("seconds", "wall time in seconds")),
        strict=True,
    ):
        for place, label in enumerate(labels):
            values = np.array([float(row[key]) for row in good if _label(row) == label])
            spread = np.linspace(-0.18, 0.18, len(values)) if len(values) > 1 else np.zeros(1)
            panel.plot(place + spread, values, "o", color=f"C{place}", alpha=0.6, markersize=5)
            panel.hlines(values.mean(), place - 0.3, place + 0.3, color=f"C{place}", linewidth=2)
            bounds = [float(row["bound"]) for row in good if _label(row) == label and row["bound"] != ""]
            if key == "return" and bounds and math.isfinite(bounds[0]):
                panel.hlines(bounds[0], place - 0.4, place + 0.4, color="black", linestyle=":", linewidth=1)
        panel.set_xticks(range(len(labels)), labels)
        panel.set_title(title)
        panel.grid(axis="y", alpha=0.3)
        if key == "seconds":
            panel.set_yscale("log")
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format=file.suffix[1:].lower(), dpi=120, metadata={"Date": None} if file.suffix == ".svg" else None
    )
    write_atomically(file, buffer.getvalue())


def _label(row: Mapping[str, Any]) -> str:
    return row["method"] + (f"\ndepth ≤ {row['max_depth']}" if row["max_depth"] != "" else "")


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, default=repr)


def _write(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(file, text.getvalue())
