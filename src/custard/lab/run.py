"""A run directory: settings, metrics, the tree, a checkpoint. Enough to reproduce, resume and share a run.

config.json     what was asked for, with every setting and the versions
metrics.csv     one row per snapshot
tree.json       the best tree (simplified and balanced), with where it came from
final.json      the tree of the last policy, where that differs
checkpoint/     state.npz, what --resume continues from, and the tree as it was then
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError, one_line
from custard.core.files import load_arrays, make_directory, remove_leftovers, require_possible_name, write_atomically
from custard.core.locks import Lock
from custard.core.number_format import format_numbers, html_table, passed_time
from custard.task.problem import Snapshot
from custard.task.settings import present_names
from custard.tree.loading import load
from custard.tree.text import plural
from custard.tree.tree import Tree

__all__ = ["Run", "RunDirectory"]


@dataclass(frozen=True, repr=False)
class Run:
    """What `custard.learn` returns; `Run.load` reads one from its directory."""

    tree: Tree  # the best tree found, simplified and balanced
    value: float  # its mean return over the selection episodes (not a final judgement: use `custard.evaluate`)
    steps: int  # environment steps used, judging included
    seconds: float
    config: dict[str, Any]
    metrics: list[dict[str, float]] = field(repr=False, default_factory=list)
    raw: Tree | None = field(repr=False, default=None)  # the best tree exactly as extracted
    final: Tree | None = field(repr=False, default=None)  # the tree of the last policy, where that differs
    message: str = ""  # why it stopped
    directory: Path | None = None

    @classmethod
    def load(cls, directory: str | Path) -> Run:
        """Read a run that `custard.learn(…, out=directory)` or `custard train` kept."""
        stored = RunDirectory(directory)
        config, _, progress = stored.reopen()
        last = {"value": math.nan, "steps": 0, "seconds": 0.0, **(stored.rows[-1] if stored.rows else {})}
        final = stored.path / "final.json"
        return cls(
            tree=load(stored.path), value=float(last["value"]), steps=int(progress.get("steps", last["steps"])),
            seconds=float(progress.get("seconds", last["seconds"])), config=config, metrics=stored.rows,
            final=Tree.load(final) if final.exists() else None, directory=stored.path,
        )  # fmt: skip

    def __repr__(self) -> str:
        facts = [f"{key} {value}" for key, value in self._facts().items() if key not in ("kept in", "stopped")]
        return f"Run({', '.join(facts)})"

    def _facts(self) -> dict[str, str]:
        """Return what a person wants to know first."""
        leaves = f"{self.tree.n_leaves} {plural('leaf', self.tree.n_leaves)}"
        facts = {
            "method": str(self.config.get("method")), "environment": str(self.config.get("env")),
            "seed": str(self.config.get("seed")), "tree": f"of depth {self.tree.depth} with {leaves}",
            "mean return while learning": format_numbers(self.value)[0], "environment steps": f"{self.steps:,}",
            "time": passed_time(self.seconds), "stopped": self.message,
            "kept in": "" if self.directory is None else str(self.directory),
        }  # fmt: skip
        return {key: value for key, value in facts.items() if value}

    def _repr_html_(self) -> str:
        return f"<div>{self.tree._repr_html_()}{html_table(self._facts())}</div>"


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        require_possible_name(path)
        self.path = Path(path)
        self.rows: list[dict[str, float]] = []
        self._lock: Lock | None = None

    def create(self, config: dict[str, Any]) -> None:
        """Begin a run; raise if the directory holds one already."""
        if (self.path / "config.json").exists():
            raise CustardError(
                f"{self.path} holds a run already: choose another --out, or pass --resume to go on with it"
            )
        self.lock()
        try:
            if (self.path / "config.json").exists():  # another process was first
                raise CustardError(f"{self.path} holds a run already: choose another --out")
            make_directory(self.path / "checkpoint")
            write_atomically(self.path / "config.json", json.dumps(config, indent=2) + "\n")
        except BaseException:
            self.release()
            raise

    def lock(self) -> None:
        """Keep other processes from writing, until `release` or the end of this one; raise if one does already."""
        make_directory(self.path)
        self._lock = Lock(self.path / ".lock", f"the run in {self.path}")
        for place in (self.path, self.path / "checkpoint"):
            remove_leftovers(place)

    def release(self) -> None:
        """Let other processes write."""
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def discard_if_empty(self) -> None:
        """Remove the files of a run that failed before its first snapshot, so that its directory can be used again."""
        if self.rows:
            return
        (self.path / "config.json").unlink(missing_ok=True)
        self.release()
        for made in (self.path / "checkpoint", self.path):
            with contextlib.suppress(OSError):  # something else is in it
                made.rmdir()

    def reopen(self) -> tuple[dict[str, Any], dict[str, np.ndarray] | None, dict[str, Any]]:
        """Return the configuration, the checkpoint's state (None if there is none yet) and its progress."""
        self.lock()
        try:
            config = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CustardError(f"{self.path} holds no run to resume (config.json: {one_line(error)})") from None
        if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
            raise CustardError(f"{self.path} holds no run to resume (config.json is damaged)")
        config["settings"] = present_names(config["settings"])
        state_file = self.path / "checkpoint" / "state.npz"
        if not state_file.exists():
            return config, None, {}
        try:
            state = load_arrays(state_file)
            checksum = state.pop("checksum", None)  # which checkpoints up to version 0.2 do not have
            if checksum is not None and str(checksum) != _checksum(state):
                raise ValueError("it does not hold what was written")
            progress = json.loads(str(state.pop("progress")))
            self.rows = _rows_of(progress)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CustardError(f"the checkpoint in {self.path} cannot be read: {one_line(error)}") from None
        return config, state, progress

    def stored_budget(self) -> int | None:
        """Return the budget of the run in this directory; None if there is no run or it has none."""
        if not (self.path / "config.json").exists():
            return None
        budget = self.reopen()[0]["settings"].get("budget")
        return budget if isinstance(budget, int) else None

    def last(self, progress: Mapping[str, Any]) -> Snapshot | None:
        """Return the last snapshot of a reopened run, for when it is finished or interrupted before its next one."""
        tree, final = self.path / "checkpoint" / "tree.json", self.path / "final.json"
        if not self.rows or not tree.exists():
            return None
        return Snapshot(
            int(progress["steps"]), Tree.load(tree), self.rows[-1]["value"], message="nothing was left to do",
            final=Tree.load(final) if final.exists() else None,
        )  # fmt: skip

    def log(self, snapshot: Snapshot, seconds: float) -> None:
        """Add a row of metrics."""
        self.rows.append(
            {"steps": snapshot.steps, "seconds": round(seconds, 3), "value": snapshot.value, **snapshot.metrics}
        )

    def checkpoint(self, snapshot: Snapshot, seconds: float, finished: bool = False) -> None:
        """Save all that is needed to resume from a snapshot, or to know that the run is finished."""
        self.save_metrics()
        if snapshot.tree is not None:
            snapshot.tree.save(self.path / "checkpoint" / "tree.json")
        if snapshot.state is None and not finished:
            return
        if snapshot.ended and snapshot.final is not None:
            snapshot.final.save(self.path / "final.json")
        finished = finished or snapshot.ended
        progress = {"steps": snapshot.steps, "seconds": seconds, "metrics": self.rows, "finished": finished}
        given = snapshot.state() if snapshot.state is not None else {}
        state = {key: np.asarray(value) for key, value in {**given, "progress": json.dumps(progress)}.items()}
        buffer = io.BytesIO()
        np.savez(buffer, checksum=np.array(_checksum(state)), **state)  # type: ignore[arg-type]
        write_atomically(self.path / "checkpoint" / "state.npz", buffer.getvalue())

    def save_metrics(self) -> None:
        """Write metrics.csv; a column that appears later is empty in earlier rows."""
        if not self.rows:
            return
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.path / "metrics.csv", text.getvalue())


def _checksum(state: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of a checkpoint's names, types, shapes and numbers: what differs would be misread."""
    found = hashlib.sha256()
    for name in sorted(state):
        array = state[name]
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        columns = array.dtype.names
        for part in [array] if columns is None else [array[column] for column in columns]:
            found.update(part.tobytes())  # records have gaps between their fields, which hold anything
    return found.hexdigest()


def _rows_of(progress: Any) -> list[dict[str, float]]:
    """Return the rows of metrics in a checkpoint's progress; raise ValueError unless `checkpoint` wrote it."""
    if not isinstance(progress, dict) or not isinstance(progress.get("metrics"), list):
        raise ValueError("its progress is damaged")
    rows = progress["metrics"]
    fits = all(isinstance(row, dict) and "value" in row and all(map(_is_number, row.values())) for row in rows)
    if not fits or not all(math.isfinite(float(progress[name])) for name in ("steps", "seconds")):
        raise ValueError("its progress is damaged")
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))
