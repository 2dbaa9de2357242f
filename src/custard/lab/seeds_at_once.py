"""Several seeds in one call: the same run with each seed, one process a core.

Each process uses one thread and compiles (or loads what is compiled) once for all of its seeds. What a seed gives is
what `custard.learn` gives with that seed alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from custard.errors import CustardError
from custard.lab.engines import events
from custard.tree.tree import Tree

__all__ = ["SeedRun", "learn_seeds"]


@dataclass(frozen=True)
class SeedRun:
    """What one seed gave: the fields of `custard.lab.run.Run` that fit through a line of JSON."""

    seed: int
    tree: Tree
    value: float
    steps: int
    seconds: float
    message: str


def learn_seeds(
    env: str, method: str | None = None, *, seeds: int | Iterable[int] = 8, workers: int | None = None, **given: Any
) -> list[SeedRun]:
    """Learn with each of some seeds (a number: 0, 1, …), as `custard.learn(env, method, seed=…, **given)` would.

    `env` is an id, since other processes make it. `workers` is one a core unless given; 0 runs all seeds here.

    >>> runs = learn_seeds("custard/PrereqWorld-v0", "mfec", seeds=2, workers=0, env_kwargs={"m": 4}, budget=50_000)
    >>> [(run.seed, run.value) for run in runs]
    [(0, -2.0), (1, -2.0)]
    """
    if not isinstance(env, str):
        raise CustardError("several seeds at once need an environment's id, since other processes make it")
    numbers = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    jobs = [{"env": env, "method": method, "seed": seed, **given} for seed in numbers]
    rows: dict[int, dict[str, Any]] = {}
    for kind, number, row in events(jobs, f"{__name__}:one", "local", workers, None):
        if kind == "finished" and row is not None:
            if row.get("error"):
                raise CustardError(f"seed {numbers[number]}: {row['error']}")
            rows[number] = row
    return [SeedRun(**{**rows[k], "tree": Tree.from_json(rows[k]["tree"])}) for k in range(len(numbers))]


def one(job: dict[str, Any]) -> dict[str, Any]:
    """One seed's run as plain data; what goes wrong is in `error`."""
    from custard.lab.learn import learn

    started = time.perf_counter()
    try:
        run = learn(**job)
    except CustardError as error:
        return {"error": str(error)}
    seconds = time.perf_counter() - started
    return {
        "seed": job["seed"], "tree": run.tree.to_json(), "value": run.value, "steps": run.steps, "seconds": seconds,
        "message": run.message,
    }  # fmt: skip
