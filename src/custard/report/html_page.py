"""Write a run as one HTML file."""

from __future__ import annotations

import csv
import hashlib
import html
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.files import write_atomically
from custard.report.audit import stored_proofs
from custard.report.page_data import report_data
from custard.tree.tree import Tree

__all__ = ["write_report"]

#: In the order in which the page runs them, as one script.
SCRIPTS = ("model.js", "tree.js", "outline.js", "policy.js", "leaf.js", "charts.js", "regions.js", "page.js")


def write_report(
    run_directory: str | Path,
    *,
    episodes: int | None = None,
    seed: int = 1,
    out: Path | None = None,
    purpose: str = "",
    on_progress: Callable[[str], Any] = lambda doing: None,
) -> Path:
    """Write report.html for a run directory (config.json, metrics.csv, tree.json) and return its path.

    The evaluation is the run's own (evaluation.json), where there is one and `episodes` is not given; otherwise the
    tree is evaluated over `episodes` episodes (1,000 where the environment is compiled, else 100). One is replayed.
    Where the environment cannot be made here, the report does without. `purpose` is what the policy is for, in your
    words, for the audit; proofs are read from verification.json (`custard verify RUN --json > RUN/verification.json`).
    Besides the evaluation it takes at most about 20 seconds or a tenth of what learning took: where steps are slow it
    shows fewer episodes. `on_progress` is called with what is being done.
    """
    where = Path(run_directory)
    data = run_data(where, episodes=episodes, seed=seed, purpose=purpose, on_progress=on_progress)
    return write_page(data, out or where / "report.html")


def run_data(
    where: Path,
    *,
    episodes: int | None = None,
    seed: int = 1,
    purpose: str = "",
    on_progress: Callable[[str], Any] = lambda doing: None,
) -> dict[str, Any]:
    """Return what the page of a run directory shows; the arguments are those of `write_report`."""
    config = _config(where / "config.json")
    tree = Tree.load(where / "tree.json")
    return report_data(
        tree, config, metrics_rows(where / "metrics.csv"), episodes=episodes, seed=seed,
        judged=None if episodes else _evaluation(where / "evaluation.json"),
        proofs=stored_proofs(where / "verification.json"), purpose=purpose, say=on_progress,
        fingerprint=hashlib.sha256((where / "tree.json").read_bytes()).hexdigest(),
    )  # fmt: skip


def write_page(data: dict[str, Any], path: Path) -> Path:
    """Write the page with its data in it."""
    write_atomically(path, page(data))
    return path


def page(data: dict[str, Any]) -> str:
    """Return the page with its data in it; the data is escaped, so that nothing in it can close its element."""
    files = resources.files("custard.report")
    template, style = ((files / name).read_text(encoding="utf-8") for name in ("template.html", "page.css"))
    script = "\n".join((files / name).read_text(encoding="utf-8") for name in SCRIPTS)
    text = json.dumps(_finite(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    parts = {"@TITLE@": html.escape(str(data["title"])), "@STYLE@": style, "@SCRIPT@": script, "@DATA@": text}
    # One pass, so that a mark inside the data is not replaced.
    pieces, rest = [], template
    for mark in ("@TITLE@", "@STYLE@", "@DATA@", "@SCRIPT@"):
        before, _, rest = rest.partition(mark)
        pieces += [before, parts[mark]]
    return "".join([*pieces, rest])


def metrics_rows(path: Path) -> list[dict[str, float]]:
    """Return the rows of metrics.csv as numbers, without cells that hold none; no rows if there is no file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            raw = list(csv.DictReader(file))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CustardError(f"cannot read {path}: {error}") from None
    rows = []
    for entry in raw:
        row = {}
        for key, value in entry.items():
            try:
                number = float(value)
            except (TypeError, ValueError):
                continue
            if key is not None and np.isfinite(number):
                row[key] = number
        rows.append(row)
    return rows


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CustardError(f"{path.parent} holds no run: there is no config.json in it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CustardError(f"cannot read {path}: {error}") from None
    if not isinstance(config, dict):
        raise CustardError(f"{path} does not hold an object")
    return config


def _evaluation(path: Path) -> dict[str, Any] | None:
    """Return what `Evaluation.to_json` wrote at the end of the run; None if the file is missing or invalid."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        returns = np.array(data["returns"], dtype=np.float64)
        numbers = [data[key] for key in ("mean", "min", "max", "mean_length", "episodes", "time_limited", "seed")]
        spread = [data["std"], *data["ci95"]] if data["episodes"] != 1 else [0.0] * 3  # one episode has none
        fits = np.isfinite([*numbers, *spread]).all() and len(spread) == 3
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return data if fits and returns.ndim == 1 and len(returns) and np.isfinite(returns).all() else None


def _finite(value: Any) -> Any:
    """Return plain data with {"float": "NaN"} for a number that is not finite, as model.js reads it."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value
