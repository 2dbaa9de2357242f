"""Run trials on an engine and store one row each; trials whose row is stored already are not run again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from custard.core.processes import cores
from custard.lab.engines import events
from custard.lab.trial_file import Row, TrialFile, read_rows, with_numbers
from custard.lab.trial_table import TrialTable
from custard.lab.trials import KEY_COLUMNS, Trial, as_json, code_fingerprint, identity, is_comparable

__all__ = ["sweep", "trials_in"]

RUN_TRIAL = "custard.lab.trials:run_trial"


def sweep(
    trials: Sequence[Trial],
    file: Path | None = None,
    *,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    retry: bool = False,
    strict: bool = True,
    borrow: Iterable[Path] = (),
    show: bool = False,
    title: str = "",
    run: str = RUN_TRIAL,
) -> list[dict[str, Any]]:
    """Run trials and return one row per trial, in their order; rows are written to `file` as trials finish.

    `engine` is "local" (`workers` processes, one per core unless given; 0: in this process) or "ray" (the
    cluster at `address`). A trial that fails keeps its row, with the error, and is run again only with `retry`. Rows
    of the same trials in the files of `borrow` are taken over. With `strict` a mistake in a trial's method or settings
    is raised before anything runs. `run` names the function that makes a row from a trial.

    >>> from custard.lab.trials import grid
    >>> rows = sweep(grid([("custard/PrereqWorld-v0", {"m": 4})], ["plan"], [0, 1], episodes=10), workers=0)
    >>> [(row["return"], row["leaves"], row["optimal"]) for row in rows]
    [(-2.0, 3.0, 1.0), (-2.0, 3.0, 1.0)]
    """
    wanted = {about["trial"]: (trial, about) for trial in trials for about in (identity(trial, strict),)}
    with TrialFile(file) as store:
        own_rows = _rows_without_errors(store.rows, wanted)
        for name, other_row in _rows_without_errors(_rows_of_other_files(borrow, file), wanted).items():
            if name not in own_rows:
                store.add({**other_row, "experiment": wanted[name][1]["experiment"]})
        done, notes = _rows_of_trials(store.rows, wanted, retry)
        waiting = [name for name in wanted if name not in done]
        jobs = [json.loads(json.dumps(dataclasses.asdict(wanted[name][0]), default=as_json)) for name in waiting]
        slots = workers or (1 if workers == 0 else cores())
        waiting_rows = [wanted[name][1] for name in waiting]
        with TrialTable(title, waiting_rows, list(done.values()), slots, notes, show) as trial_table:
            for kind, number, row in events(jobs, run, engine, workers, address) if jobs else ():
                name = waiting[number]
                if kind == "started":
                    trial_table.started(name)
                    continue
                assert row is not None
                if row.get("trial", name) != name:
                    row = {"error": "the settings or the version changed while trials ran: run it again"}
                done[name] = store.add({"code": code_fingerprint(), **row, **wanted[name][1]})
                trial_table.finished(done[name])
        store.replace(_sorted_rows(store.rows, done))
    return with_numbers(done[name] for name in wanted)


def trials_in(file: Path, trials: Iterable[Trial]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of a file that belong to these trials as they would run now, and notes about its other rows."""
    wanted = {about["trial"]: (trial, about) for trial in trials for about in (identity(trial, strict=False),)}
    rows = read_rows(file) if file.exists() else []
    done, notes = _rows_of_trials(rows, wanted, retry=False)
    return with_numbers(done.values()), notes


def _rows_of_trials(rows: Sequence[Row], wanted: dict[str, Any], retry: bool) -> tuple[dict[str, Row], list[str]]:
    """Return the rows that stand for wanted trials, by name, and notes for people about the others."""
    by_key = _names_by_key(wanted)
    done: dict[str, Row] = {}
    unversioned = other = 0
    for row in rows:
        name = _trial_of_row(row, wanted, by_key) or by_key.get(tuple(row[part] for part in KEY_COLUMNS), "")
        if name in wanted and not (retry and row["error"]):
            unversioned += row["trial"] == ""
            done[name] = row
        elif name not in wanted and not row["error"]:
            other += tuple(row[part] for part in KEY_COLUMNS) in by_key
    notes = []
    if unversioned:
        notes.append(f"{unversioned} rows do not say with which version they were made: taken as they are")
    if other:
        notes.append(f"{other} rows were made with other default settings: not counted")
    return done, notes


def _names_by_key(wanted: dict[str, Any]) -> dict[tuple[str, ...], str]:
    """Return the name of each wanted trial by its key."""
    return {tuple(about[part] for part in KEY_COLUMNS): name for name, (_, about) in wanted.items()}


def _trial_of_row(row: Row, wanted: dict[str, Any], by_key: dict[tuple[str, ...], str]) -> str:
    """Return the name of the wanted trial that a row stands for; of any other row its own name.

    A row made before its method lost or got a setting has a name of its own. It stands for the trial with its key if
    the settings of that trial are equal in the row, or unknown to it and as they are by default: settings that the
    method no longer has cannot differ.
    """
    name = by_key.get(tuple(row[part] for part in KEY_COLUMNS), "")
    if row["trial"] in wanted or not name or not row["full_settings"]:
        return row["trial"]
    trial, about = wanted[name]
    stored, current = (json.loads(each["full_settings"] or "{}") for each in (row, about))
    if any(key not in stored for key in current):
        by_default = identity(dataclasses.replace(trial, settings={}), strict=False)["full_settings"]
        stored = json.loads(by_default or "{}") | stored
    same = (
        bool(current) and is_comparable(row["version"]) and all(stored.get(key, ...) == current[key] for key in current)
    )
    return name if same else row["trial"]


def _rows_without_errors(rows: Iterable[Row], wanted: dict[str, Any]) -> dict[str, Row]:
    """Return the rows of wanted trials by name, without those that hold an error."""
    by_key = _names_by_key(wanted)
    named = {_trial_of_row(row, wanted, by_key): row for row in rows if not row["error"]}
    return {name: row for name, row in named.items() if name in wanted}


def _rows_of_other_files(files: Iterable[Path], own: Path | None) -> Iterator[Row]:
    """Yield the rows of other files that exist."""
    for file in files:
        if file != own and file.exists():
            yield from read_rows(file)


def _sorted_rows(rows: Sequence[Row], done: dict[str, Row]) -> list[Row]:
    """Return all rows sorted, without errors of trials that a later row repeated with success."""
    good = {tuple(row[part] for part in KEY_COLUMNS) for row in done.values()}
    kept = {id(row) for row in done.values()}
    rows = [
        row for row in rows if id(row) in kept or not row["error"] or tuple(row[p] for p in KEY_COLUMNS) not in good
    ]
    return sorted(rows, key=_sort_key)


def _sort_key(row: Row) -> tuple[Any, ...]:
    args = json.loads(row["env_args"] or "{}")
    size = [(name, value if isinstance(value, int | float) else 0, str(value)) for name, value in sorted(args.items())]
    numbers = [int(row[part] or -1) for part in ("max_depth", "seed")]
    return row["env"], size, row["method"], row["preset"], numbers[0], row["settings"], numbers[1], row["trial"]
