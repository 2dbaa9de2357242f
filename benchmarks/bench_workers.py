"""Worker processes and `--time`: what a second worker gives, and whether a run ends when it was asked to.

    python benchmarks/bench_workers.py            # steps per second with one worker and with two
    python benchmarks/bench_workers.py --time 60  # seconds that runs of so many seconds take, on five environments

Rows go to results/workers.csv and results/time_kept.csv. The environment of the first table computes (it does not
sleep) for 1 or 20 milliseconds per step; both pools run the same episodes in turns, and the best of three turns counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from result_rows import append_row
from timing import best_of

import custard
from custard.core.spaces import describe
from custard.task.episodes import EpisodeRequest
from custard.task.problem import Problem
from custard.task.source import source
from custard.task.workers import make_runner
from custard.tree.tree import Tree

RESULTS = Path(__file__).parents[1] / "results"
EPISODE_STEPS = 30  # of the environment of `run_ray_runner`
EPISODES = {1.0: 128, 20.0: 16}  # by the milliseconds that a step takes
SLOW = "Drift, 5 ms a step"
TIMED = "FrozenLake-v1", "LunarLander-v3", "Hopper-v5", "MountainCarContinuous-v0", SLOW  # of different cost per step


def drift() -> Any:
    """Return the environment that computes, under the name by which workers import it."""
    sys.path.insert(0, str(Path(__file__).parent))
    from run_ray_runner import Drift

    return Drift


def speed_up(milliseconds: float) -> dict[str, object]:
    """Return steps per second with one worker and with two."""
    where = source(drift(), {"milliseconds": milliseconds})
    base = describe(where.make())
    tree = Tree.leaf(0, base.features, base.actions)
    requests = [EpisodeRequest(tree, np.arange(k, k + 1)) for k in range(EPISODES[milliseconds])]
    pools = {f"workers_{count}": make_runner(Problem(where, base, workers=count)) for count in (1, 2)}
    best = best_of(3, **{name: lambda pool=pool: pool.run(requests) for name, pool in pools.items()})
    for pool in pools.values():
        pool.close()
    steps = EPISODE_STEPS * len(requests)
    speeds = {name: round(steps / seconds, 1) for name, seconds in best.items()}
    ratio = round(speeds["workers_2"] / speeds["workers_1"], 3)
    return {"milliseconds": milliseconds, **speeds, "ratio": ratio, "load": round(os.getloadavg()[0], 1)}


def timed(env: str, seconds: float) -> dict[str, object]:
    """Learn for so many seconds and return what it took, all that the learner does included."""
    made, kwargs = (drift(), {"milliseconds": 5.0}) if env == SLOW else (env, {})
    begun = time.perf_counter()
    run = custard.learn(made, seed=900, env_kwargs=kwargs, time=seconds)
    taken = time.perf_counter() - begun
    return {
        "env": env, "asked": seconds, "taken": round(taken, 1), "ratio": round(taken / seconds, 3), "steps": run.steps,
        "budget": run.config["settings"]["budget"], "value": round(run.value, 3), "message": run.message,
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main() -> None:
    """Measure one of the two tables."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time", type=float)
    given = parser.parse_args()
    measured = (
        [("workers.csv", lambda each=each: speed_up(each)) for each in EPISODES]
        if given.time is None
        else [("time_kept.csv", lambda each=each: timed(each, given.time)) for each in TIMED]
    )
    for name, measure in measured:
        row = measure()
        append_row(RESULTS / name, tuple(row), row)


if __name__ == "__main__":
    main()
