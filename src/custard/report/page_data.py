"""Collect what the report shows, as plain data."""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.version import VERSION
from custard.report.episodes import Episode, record_episodes
from custard.tree.draw import shown_ranges
from custard.tree.explain import node_visits, read_features, scales
from custard.tree.export import FORMATS, export
from custard.tree.linear import leaf_terms
from custard.tree.palette import leaf_colours
from custard.tree.tree import Tree

__all__ = ["curves", "report_data"]

MAX_REPLAY_PICTURES = 160  # drawing and compressing them takes most of a report's time
VISIT_COUNT_EPISODES = 20  # episodes whose states are counted as visits
MAX_REPLAY_BYTES = 1_700_000  # of the replay's pictures as base64
FORMAT_LABELS = {"python": "Python", "c": "C", "rust": "Rust", "json": "JSON", "dot": "Graphviz", "text": "Text"}
FORMAT_LABELS |= {"sklearn": "scikit-learn", "onnx": "ONNX", "smt2": "SMT-LIB"}


def report_data(
    tree: Tree,
    config: Mapping[str, Any],
    rows: Sequence[Mapping[str, float]],
    *,
    episodes: int | None,
    seed: int,
    judged: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return everything the page needs.

    tree      the policy
    config    what config.json holds
    rows      of metrics.csv
    episodes  of the evaluation; None for 1,000 where the environment is compiled, else 100
    seed      where the episodes' seeds come from
    judged    an evaluation made before, as `Evaluation.to_json` returns it
    """
    env, kwargs = config.get("env") or tree.origin.get("env"), config.get("env_kwargs") or {}
    evaluation, replay = None, None
    watched: list[Episode] = []
    if isinstance(env, str) and isinstance(kwargs, dict):
        evaluation, watched, replay = _evaluate_and_watch(tree, env, kwargs, episodes, seed, judged)
    elif judged is not None:
        evaluation = _summary(judged)
    states = np.concatenate([run.x for run in watched]) if watched else None
    method = str(config.get("method") or tree.origin.get("method") or "unknown method")
    arguments = ", ".join(f"{key} = {value}" for key, value in kwargs.items())
    steps = rows[-1].get("steps") if rows else tree.origin.get("steps")
    facts = []
    if evaluation is not None:
        low, high = evaluation["ci95"] or (math.nan, math.nan)
        spread = "in every episode" if low == high else f"{_number(low)} to {_number(high)}"
        spread = spread if evaluation["ci95"] else "in one episode"
        facts.append(["Return", _number(evaluation["mean"]), spread])
    facts += [["Depth", str(tree.depth), ""], ["Leaves", str(tree.n_leaves), ""]]
    if tree.is_linear:
        facts.append(["Coefficients", str(tree.n_coefficients), ""])
    if isinstance(steps, (int, float)):
        facts.append(["Learned in", f"{int(steps):,}", "steps"])
    return {
        "title": str(env or "A decision tree"),
        "subtitle": f"A decision tree that is the policy, by {method}" + (f" ({arguments})" if arguments else ""),
        "facts": facts, "tree": _tree(tree, states), "features": _features(tree, states), "episodes": len(watched),
        "replay": replay, "curves": curves(rows), "evaluation": evaluation, "settings": _settings(config, tree),
        "exports": _exports(tree), "footer": f"Made by custard {VERSION}. This file is complete: it loads nothing.",
    }  # fmt: skip


def _evaluate_and_watch(
    tree: Tree, env: str, kwargs: dict[str, Any], episodes: int | None, seed: int, judged: Mapping[str, Any] | None
) -> tuple[Any, Any, Any]:
    """Return evaluation, watched episodes and replay; only the given evaluation if the environment cannot run here."""
    from custard.task.evaluate import evaluate
    from custard.task.source import source

    try:
        if judged is None:
            where = source(env, kwargs)
            judged = evaluate(
                tree, where, episodes or (1000 if where.make_compiled is not None else 100), seed
            ).to_json()
        watched = record_episodes(tree, env, kwargs, episodes=VISIT_COUNT_EPISODES, seed=seed)
        every = -(-len(watched[0].x) // MAX_REPLAY_PICTURES)
        shown = record_episodes(tree, env, kwargs, episodes=1, seed=seed, pictures=every)[0]
        return _summary(judged), watched, _replay(tree, shown, _frames_per_second(env, kwargs))
    except CustardError:
        return None if judged is None else _summary(judged), [], None


def _summary(judged: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluation with a histogram in place of its episodes."""
    returns = np.array(judged["returns"], dtype=np.float64)
    low, high = float(returns.min()), float(returns.max())
    wide = high - low > 1e-9 * max(1.0, abs(low), abs(high))  # more than rounding
    counts, _ = np.histogram(returns, bins=30, range=(low, high) if wide else (low - 0.5, high + 0.5))
    kept = {key: value for key, value in judged.items() if key not in ("returns", "lengths")}
    return {**kept, "histogram": {"low": low, "high": high, "counts": counts.tolist()}}


def _frames_per_second(env: str, kwargs: dict[str, Any]) -> float:
    """Return the frames per second at which the environment declares to be shown."""
    from custard.task.source import source

    made = source(env, kwargs).make()
    try:
        return float(np.clip(float(made.metadata.get("render_fps") or 15), 1, 60))
    finally:
        made.close()


def _replay(tree: Tree, run: Episode, speed: float) -> dict[str, Any]:
    frames, index = encode_frames(run.frames[: len(run.x)])
    before = np.concatenate([[0.0], np.cumsum(run.rewards)[:-1]])
    return {
        "x": run.x.tolist(), "total": (before + run.rewards).tolist(), "ending": run.ending, "seed": run.seed,
        "frames": frames, "index": index, "fps": speed,
    }  # fmt: skip


def encode_frames(frames: Sequence[np.ndarray], budget: int = MAX_REPLAY_BYTES) -> tuple[list[str], list[int]]:
    """Return the distinct pictures as data URLs, in at most `budget` bytes, and the index of each step's picture."""
    if not frames:
        return [], []
    names = {key: frame.tobytes() for key, frame in {id(frame): frame for frame in frames}.items()}
    for width, quality, stride in ((420, 68, 1), (360, 55, 1), (320, 45, 1), (320, 45, 2), (280, 40, 3), (240, 35, 6)):
        shown = [frames[step - step % stride] for step in range(len(frames))]
        distinct = {names[id(frame)]: frame for frame in shown}
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # compressing lets go of the interpreter lock
            pictures = list(pool.map(partial(_data_url, width=width, quality=quality), distinct.values()))
        if sum(map(len, pictures)) <= budget:
            number = {name: k for k, name in enumerate(distinct)}
            return pictures, [number[names[id(frame)]] for frame in shown]
    return [], []


def _data_url(frame: np.ndarray, width: int, quality: int) -> str:
    """Return a picture as a data URL, at most `width` pixels wide."""
    from PIL import Image

    image = Image.fromarray(frame)
    if image.width > width:
        image = image.resize((width, max(1, round(image.height * width / image.width))), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "WEBP", quality=quality, method=1)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()


def _tree(tree: Tree, states: np.ndarray | None) -> dict[str, Any]:
    visits = None if states is None else node_visits(tree, states)
    keys: dict[bytes, int] = {}
    leaf = tree.feature < 0
    return {
        "feature": tree.feature.tolist(), "threshold": tree.threshold.tolist(), "left": tree.children_left.tolist(),
        "right": tree.children_right.tolist(), "colour": leaf_colours(tree),
        "label": [tree.leaf_text(n) if leaf[n] else "" for n in range(tree.n_nodes)],
        "linear": None if tree.gains is None else [_linear_leaf(tree, n) for n in range(tree.n_nodes)],
        "action": [keys.setdefault(tree.leaf_key(n), len(keys)) if leaf[n] else -1 for n in range(tree.n_nodes)],
        "visits": None if visits is None else visits.tolist(),
        "share": None if visits is None else (visits / max(int(visits[0]), 1)).tolist(),
    }  # fmt: skip


def _linear_leaf(tree: Tree, node: int) -> list[dict[str, Any]] | None:
    """Return how each component of a linear leaf's action is computed; None for other nodes."""
    if tree.gains is None or not tree.gains[node].any():
        return None
    assert tree.actions.low is not None
    assert tree.actions.high is not None
    return [
        {
            "name": name, "value": float(tree.value[node, k]), "terms": leaf_terms(tree, node, k),
            "low": float(tree.actions.low[k]), "high": float(tree.actions.high[k]),
        }
        for k, name in enumerate(tree.actions.names)
    ]  # fmt: skip


def _features(tree: Tree, states: np.ndarray | None) -> list[dict[str, Any]]:
    ranges, width, used = shown_ranges(tree, states), scales(tree), read_features(tree)
    rows = []
    for c, entry in enumerate(tree.features.to_json()):
        low, high = (float(v) for v in ranges[c])
        shown = [low, high] if high > low else [low - 1.0, low + 1.0]
        if "sum" in entry:
            entry["about"] = tree.features.sum_of(c).text(tree.features.names)
        rows.append({**entry, "shown": shown, "scale": float(width[c]), "used": c in used})
    return rows


def curves(rows: Sequence[Mapping[str, float]], most: int = 600) -> list[dict[str, Any]]:
    """Return the charts: the learning curve, and the size of the tree where it was logged."""
    rows = [row for row in rows if "steps" in row]
    if not rows:
        return []
    thin = rows if len(rows) <= most else [rows[k] for k in np.linspace(0, len(rows) - 1, most).astype(int)]
    x = [row["steps"] for row in thin]
    columns = list(dict.fromkeys(key for row in thin for key in row))

    def series(names: list[str]) -> list[dict[str, Any]]:
        found = [{"name": name.replace("_", " "), "values": [row.get(name) for row in thin]} for name in names]
        return [one for one in found if any(value is not None for value in one["values"])]

    charts = []
    also = [
        name for name in ("final_value", "current_value", "policy_value", "train_return", "return") if name in columns
    ]
    value = series(["value", *also[:1]])
    if value:
        value[0]["name"] = "value of the best tree"
        charts.append({"x": x, "series": value, "xlabel": "environment steps", "small": False})
    best = "best_" if "best_leaves" in columns else ""  # of the tree whose value stands above, where that was logged
    size = series([f"{best}leaves", f"{best}depth"])
    if size:
        charts.append({"x": x, "series": size, "xlabel": "environment steps", "small": True})
    return charts


def _settings(config: Mapping[str, Any], tree: Tree) -> list[list[str]]:
    entries: list[list[str]] = []

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix and prefix != "settings" else str(key), inner)
        elif value is not None and value != "" and prefix:
            entries.append([prefix.replace("_", " "), str(value)])

    add("", dict(config) or dict(tree.origin))
    return entries


def _exports(tree: Tree) -> list[dict[str, Any]]:
    """Return the export formats that can hold this tree, with their files."""
    items: list[dict[str, Any]] = []
    for name in FORMAT_LABELS:
        try:
            content = export(tree, name)
        except CustardError:
            continue
        if len(content) > 300_000:
            continue
        item = {
            "format": name,
            "label": FORMAT_LABELS[name],
            "about": FORMATS[name].about,
            "name": f"tree{FORMATS[name].suffix}",
        }
        if name == "sklearn":
            item["name"] = "tree_sklearn.py"
        items.append({**item, **({"text": content} if isinstance(content, str) else {"base64": _base64(content)})})
    return items


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _number(value: float) -> str:
    return (f"{value:,.5g}" if abs(value) < 1e4 else f"{value:,.0f}").replace("-", "−")
