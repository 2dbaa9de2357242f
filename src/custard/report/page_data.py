"""Collect what the report shows, as plain data."""

from __future__ import annotations

import base64
import io
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.metadata import feature_units
from custard.core.number_format import passed_time
from custard.core.version import VERSION
from custard.report.audit import audit_sections
from custard.report.comparisons import compare_exactly, compare_return, judgement
from custard.report.episodes import Episode, record_episodes
from custard.report.visits import deciding_shares, leaf_visits, sample_states
from custard.tree.certificate import certificate_items, certificate_of, is_discounted
from custard.tree.draw import shown_ranges
from custard.tree.explain import node_visits, read_features, scales
from custard.tree.export import FORMATS, export
from custard.tree.linear import leaf_terms
from custard.tree.palette import leaf_colours
from custard.tree.tree import Tree

__all__ = ["curves", "report_data"]

MAX_REPLAY_PICTURES = 160  # drawing and compressing them takes most of a report's time
VISIT_COUNT_EPISODES = 20  # episodes whose states are counted as visits
MIN_RUN_SECONDS, RUN_SHARE = 20.0, 0.1  # for all episodes of a report but the evaluation; of the time of learning
MAX_REPLAY_BYTES = 1_700_000  # of the replay's pictures as base64
FORMAT_LABELS = {"python": "Python", "c": "C", "rust": "Rust", "json": "JSON", "dot": "Graphviz", "text": "Text"}
FORMAT_LABELS |= {"sklearn": "scikit-learn", "onnx": "ONNX", "smt2": "SMT-LIB"}


@dataclass(frozen=True)
class _Watched:
    """What running the tree in its environment gives; what could not be had is empty or None."""

    evaluation: dict[str, Any] | None = None  # as `_summary` returns it
    episodes: tuple[Episode, ...] = ()
    replay: dict[str, Any] | None = None
    comparisons: tuple[dict[str, Any], ...] = ()
    units: tuple[str, ...] = ()  # of the observation's features

    @property
    def states(self) -> np.ndarray | None:
        """The visited states [N, n]; None if no episode was run."""
        return np.concatenate([run.x for run in self.episodes]) if self.episodes else None


def report_data(
    tree: Tree,
    config: Mapping[str, Any],
    rows: Sequence[Mapping[str, float]],
    *,
    episodes: int | None,
    seed: int,
    judged: Mapping[str, Any] | None = None,
    proofs: Sequence[Mapping[str, Any]] = (),
    fingerprint: str = "",
    purpose: str = "",
    say: Callable[[str], Any] = lambda doing: None,
) -> dict[str, Any]:
    """Return everything the page needs.

    tree         the policy
    config       what config.json holds
    rows         of metrics.csv
    episodes     of the evaluation; None for 1,000 where the environment is compiled, else 100
    seed         where the episodes' seeds come from
    judged       an evaluation made before, as `Evaluation.to_json` returns it
    proofs       results of `custard verify --json`
    fingerprint  SHA-256 of tree.json
    purpose      what the policy is for, in the user's words
    say          called with what is being done
    """
    env, kwargs = config.get("env") or tree.origin.get("env"), config.get("env_kwargs") or {}
    watched = _Watched(None if judged is None else _summary(judged))
    if isinstance(env, str) and isinstance(kwargs, dict):
        watched = _watch(tree, env, kwargs, rows, episodes, seed, judged, say)
    say("writing the page")
    states, evaluation = watched.states, watched.evaluation
    method = str(config.get("method") or tree.origin.get("method") or "unknown method")
    arguments = ", ".join(f"{key} = {value}" for key, value in kwargs.items())
    steps = rows[-1].get("steps") if rows else tree.origin.get("steps")
    steps = steps if isinstance(steps, (int, float)) else None
    seconds = next((passed_time(row["seconds"]) for row in reversed(rows) if "seconds" in row), "")
    verdict = judgement(watched.comparisons) if watched.comparisons else []
    return {
        "title": str(env or "A decision tree"),
        "subtitle": f"A decision tree that is the policy, by {method}" + (f" ({arguments})" if arguments else ""),
        "facts": _facts(tree, evaluation, steps, seconds), "proof": certificate_items(tree),
        "tree": _tree(tree, watched.episodes),
        "features": _features(tree, states, watched.units), "episodes": len(watched.episodes),
        "states": sample_states(states), "replay": watched.replay, "curves": curves(rows),
        "size_note": _size_note(tree, rows), "evaluation": evaluation, "comparisons": list(watched.comparisons),
        "judgement": verdict, "settings": _settings(config, tree), "exports": _exports(tree),
        "audit": audit_sections(
            tree, config, evaluation=evaluation, judged=verdict, states=states, proofs=proofs, steps=steps,
            seconds=seconds, fingerprint=fingerprint, purpose=purpose,
        ),
        "footer": f"Made by custard {VERSION}. This file is complete: it loads nothing.",
    }  # fmt: skip


def _facts(tree: Tree, evaluation: Mapping[str, Any] | None, steps: float | None, seconds: str) -> list[list[str]]:
    """Return the header's numbers: a name, the number and what stands beside it."""
    facts = []
    planned = certificate_of(tree)
    if planned is not None and is_discounted(tree):
        value = "−∞" if planned["value"] is None else _number(planned["value"])
        facts.append(["Return", value, f"exact, discounted by {planned['gamma']:g}"])
    elif evaluation is not None:
        low, high = evaluation["ci95"] or (math.nan, math.nan)
        beside = (
            "in every episode" if evaluation["min"] == evaluation["max"] else f"95 %: {_number(low)} to {_number(high)}"
        )
        facts.append(["Return", _number(evaluation["mean"]), beside if evaluation["ci95"] else "in one episode"])
    facts += [["Depth", str(tree.depth), ""], ["Leaves", str(tree.n_leaves), ""]]
    if tree.is_linear:
        facts.append(["Coefficients", str(tree.n_coefficients), ""])
    if planned is not None and not steps and seconds:
        facts.append(["Planned in", seconds, ""])
    elif steps is not None:
        facts.append(["Learned in", f"{int(steps):,}", f"steps, {seconds}" if seconds else "steps"])
    return facts


def _size_note(tree: Tree, rows: Sequence[Mapping[str, float]]) -> str:
    """Return why the last logged size is another than the tree's; "" where it is not."""
    logged = [row.get("best_leaves", row.get("leaves")) for row in rows]
    last = next((int(count) for count in reversed(logged) if count is not None), tree.n_leaves)
    if last == tree.n_leaves:
        return ""
    counted = f"The curve counts leaves as they were learned, {last} at the end"
    return f"{counted}; with equal branches merged the tree has {tree.n_leaves}."


def _watch(
    tree: Tree,
    env: str,
    kwargs: dict[str, Any],
    rows: Sequence[Mapping[str, float]],
    episodes: int | None,
    seed: int,
    judged: Mapping[str, Any] | None,
    say: Callable[[str], Any],
) -> _Watched:
    """Run the tree in its environment; only the given evaluation is there if the environment cannot run here."""
    from custard.task.evaluate import evaluate
    from custard.task.history import remembered
    from custard.task.source import source

    is_exact = is_discounted(tree)
    planned = certificate_of(tree) or {}
    gamma = planned["gamma"] if is_exact else 1.0
    allowed = max(MIN_RUN_SECONDS, RUN_SHARE * max((row.get("seconds", 0.0) for row in rows), default=0.0))
    try:
        where, _ = remembered(tree, source(env, kwargs))
        if judged is None and (episodes or not is_exact):
            count = episodes or (1000 if where.make_compiled is not None else 100)
            heard = lambda done, of: say(f"evaluating the tree, {done:,} of {of:,} episodes")  # noqa: E731
            judged = evaluate(tree, where, count, seed, gamma=gamma, on_progress=heard).to_json()
        begun = time.monotonic()
        watched = record_episodes(
            tree, env, kwargs, episodes=VISIT_COUNT_EPISODES, seed=seed, seconds=allowed / 2,
            on_progress=lambda done, of: say(f"recording what the tree meets, {done} of {of} episodes"),
        )  # fmt: skip
        per_step = (time.monotonic() - begun) / sum(len(run.x) for run in watched)
        every = -(-len(watched[0].x) // MAX_REPLAY_PICTURES)
        say("recording the episode to show")
        shown = record_episodes(tree, env, kwargs, episodes=1, seed=seed, pictures=every)[0]
        made = where.make()
        try:
            speed, units = _frames_per_second(made), feature_units(made, tree.features.n_raw)
        finally:
            made.close()
        if is_exact:
            compared = compare_exactly(tree, where, planned)
        else:
            assert judged is not None
            compared = compare_return(tree, where, judged, rows, seed, affordable_steps=allowed / 2 / per_step, say=say)
        say("compressing the pictures of the episode shown")
        summary = None if judged is None else _summary(judged)
        return _Watched(summary, tuple(watched), _replay(shown, speed, gamma), tuple(compared), units)
    except CustardError:
        return _Watched(None if judged is None else _summary(judged))


def _summary(judged: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluation with a histogram in place of its episodes."""
    returns = np.array(judged["returns"], dtype=np.float64)
    low, high = float(returns.min()), float(returns.max())
    wide = high - low > 1e-9 * max(1.0, abs(low), abs(high))  # more than rounding
    counts, _ = np.histogram(returns, bins=30, range=(low, high) if wide else (low - 0.5, high + 0.5))
    kept = {key: value for key, value in judged.items() if key not in ("returns", "lengths")}
    return {**kept, "histogram": {"low": low, "high": high, "counts": counts.tolist()}}


def _frames_per_second(env: Any) -> float:
    """Return the frames per second at which the environment declares to be shown."""
    return float(np.clip(float(env.metadata.get("render_fps") or 15), 1, 60))


def _replay(run: Episode, speed: float, gamma: float = 1.0) -> dict[str, Any]:
    """Return an episode for the page: the state and the return so far before each step, and after the last one."""
    frames, index = encode_frames(run.frames)
    total = np.concatenate([[0.0], np.cumsum(run.rewards * gamma ** np.arange(len(run.rewards)))])
    return {
        "x": [*run.x.tolist(), run.end.tolist()], "total": total.tolist(), "ending": run.ending, "seed": run.seed,
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


def _tree(tree: Tree, episodes: Sequence[Episode]) -> dict[str, Any]:
    states = np.concatenate([run.x for run in episodes]) if episodes else None
    visits = None if states is None else node_visits(tree, states)
    at_leaf = leaf_visits(tree, [run.x for run in episodes]) if episodes else {}
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
        "at_leaf": {str(n): at_leaf[n] for n in at_leaf},
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


def _features(tree: Tree, states: np.ndarray | None, units: Sequence[str]) -> list[dict[str, Any]]:
    """Return the observation's features and, after them, derived ones with their sum."""
    n = tree.features.n_raw
    ranges = _page_ranges(tree, None if states is None else tree.features.extend(states))
    width, used, shares = scales(tree), read_features(tree), deciding_shares(tree, states)
    rows = []
    for c, entry in enumerate(tree.features.to_json()):
        low, high = (float(v) for v in ranges[c])
        row = {**entry, "shown": [low, high] if high > low else [low - 1.0, low + 1.0], "scale": float(width[c])}
        if "sum" in entry:
            row["about"] = tree.features.sum_of(c).text(tree.features.names)
        row |= {"used": c in used, "decides": shares[c] if c < n else 0.0}
        rows.append(row | {"unit": units[c] if c < len(units) else ""})
    return rows


def _page_ranges(tree: Tree, states: np.ndarray | None) -> np.ndarray:
    """Return the range of each feature that the page shows, [n, 2]: what visited states and thresholds span.

    Declared bounds are often far wider than what is ever visited; without visited states there is nothing better.
    """
    ranges = shown_ranges(tree, states)
    if states is None:
        return ranges
    for c in np.flatnonzero(~tree.features.integer).tolist():
        seen = np.concatenate([states[:, c], tree.threshold[tree.feature == c]])
        seen = seen[np.isfinite(seen)]
        if len(seen) and np.ptp(seen) > 0:
            pad = 0.08 * float(np.ptp(seen))
            ranges[c] = max(ranges[c, 0], seen.min() - pad), min(ranges[c, 1], seen.max() + pad)
    return ranges


def curves(rows: Sequence[Mapping[str, float]], most: int = 600) -> list[dict[str, Any]]:
    """Return the charts: the learning curve, or value, bound and gap of a planned tree; and the tree's size if logged.

    A chart has "x" and "series" (names and values), "xlabel" and "ylabel", "small" (whether it is drawn low),
    "integral" (whether only whole numbers are marked), "held" (whether a value holds until the next one), "band"
    (whether the area between the first two series is filled) and "zero" (whether the axis begins there).
    """
    rows = [row for row in rows if "steps" in row]
    if not rows:
        return []
    thin = rows if len(rows) <= most else [rows[k] for k in np.linspace(0, len(rows) - 1, most).astype(int)]
    columns = list(dict.fromkeys(key for row in thin for key in row))
    is_planned = "bound" in columns and "seconds" in columns  # planning takes no steps: its curves are over time
    if is_planned and len(rows) == 1:  # planned at one go: the certificate says it all
        return []
    x = [row["seconds" if is_planned else "steps"] for row in thin]
    xlabel = "seconds" if is_planned else "environment steps"

    def add(names: Mapping[str, str], ylabel: str, **kind: bool) -> None:
        found = [{"name": name, "values": [row.get(key) for row in thin]} for key, name in names.items()]
        series = [one for one in found if any(value is not None for value in one["values"])]
        if series:
            shown = {"small": False, "integral": False, "held": is_planned, "band": False, "zero": False, **kind}
            charts.append({"x": x, "series": series, "xlabel": xlabel, "ylabel": ylabel, **shown})

    charts: list[dict[str, Any]] = []
    value = {"value": "value of the best tree"}
    if is_planned:
        add({**value, "bound": "bound: no tree has more"}, "return", band=True)
        add({"gap": "gap: bound less value"}, "gap", small=True, zero=True)
    else:
        others = ("final_value", "current_value", "policy_value", "train_return", "return")
        also = [name for name in others if name in columns]
        add({**value, **{name: name.replace("_", " ") for name in also[:1]}}, "mean return")
    best = "best_" if "best_leaves" in columns else ""  # of the tree whose value stands above, where that was logged
    sizes = {f"{best}{name}": f"{best}{name}".replace("_", " ") for name in ("leaves", "depth")}
    add(sizes, "tree size", small=True, integral=True)
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
