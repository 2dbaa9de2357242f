"""Learn with several seeds in one call, one process per core.

Each process uses one thread and compiles, or loads compiled code, once for all of its seeds. Each seed gives what
`custard.learn` gives with that seed alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from custard.core.errors import CustardError
from custard.lab.engines import events
from custard.lab.run import Run
from custard.tree.tree import Tree

__all__ = ["learn_seeds"]


def learn_seeds(
    env: str,
    method: str | None = None,
    *,
    seeds: int | Iterable[int] = 8,
    workers: int | None = None,
    out: str | Path | None = None,
    **given: Any,
) -> list[Run]:
    """Learn with each of several seeds, as `custard.learn(env, method, seed=…, **given)` does with one.

    `seeds` is a list, or a number n for the seeds 0 to n - 1. `env` is an id, since other processes make it. `workers`
    is one per core unless given; 0 runs all seeds in this process. With `out` every seed has its own run directory
    there. An interrupt ends all runs and keeps their best trees.

    >>> runs = learn_seeds("custard/PrereqWorld-v0", "mfec", seeds=2, workers=0, env_kwargs={"m": 4}, budget=50_000)
    >>> [(run.config["seed"], run.value) for run in runs]
    [(0, -2.0), (1, -2.0)]
    """
    if not isinstance(env, str):
        raise CustardError("several seeds at once need an environment's id, since other processes make it")
    numbers = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    if not numbers:
        raise CustardError("seeds must be at least one")
    jobs = [
        {"env": env, "method": method, "seed": seed, "out": _seed_directory(out, seed), **given} for seed in numbers
    ]
    try:
        json.dumps(jobs)
    except (TypeError, ValueError) as error:
        raise CustardError(f"several seeds at once need arguments that other processes can be told: {error}") from None
    rows: dict[int, dict[str, Any]] = {}
    for kind, number, row in events(jobs, f"{__name__}:run_seed", "local", workers, None, hand_in=True):
        if row is not None and not row.get("error"):
            rows[number] = row
        elif row is not None and kind == "finished":
            raise CustardError(f"seed {numbers[number]}: {row['error']}")
    if not rows:
        raise KeyboardInterrupt  # before any seed had a tree
    return [_run_from_row(rows[k]) for k in sorted(rows)]  # fewer than seeds after an interrupt


def run_seed(job: dict[str, Any]) -> dict[str, Any]:
    """Learn with one seed and return the run as plain data, or {"error": …}."""
    from custard.lab.learn import learn

    try:
        run = learn(**job, progress=False)  # several runs side by side would write over each other's lines
    except CustardError as error:
        return {"error": str(error)}
    row = {name: getattr(run, name) for name in ("value", "steps", "seconds", "config", "message")}
    row["metrics"] = [{key: float(value) for key, value in entry.items()} for entry in run.metrics]
    trees = {name: getattr(run, name) for name in ("tree", "raw", "final")}
    row |= {name: None if tree is None else tree.to_json() for name, tree in trees.items()}
    return {**row, "directory": None if run.directory is None else str(run.directory)}


def _run_from_row(row: dict[str, Any]) -> Run:
    trees = {name: None if row[name] is None else Tree.from_json(row[name]) for name in ("tree", "raw", "final")}
    return Run(**{**row, **trees, "directory": None if row["directory"] is None else Path(row["directory"])})


def _seed_directory(out: str | Path | None, seed: int) -> str | None:
    return None if out is None else str(Path(out) / f"seed-{seed}")
