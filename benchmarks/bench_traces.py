"""Best trees from fixed starts, without a model: `plan` beside the published enumeration, in CPU seconds, one thread.

python benchmarks/bench_traces.py --seconds 60 --out results/plan_traces.csv
python benchmarks/bench_traces.py --only MountainCar-v0                         some of it; with --out these rows
                                                                                replace those of the CSV
python benchmarks/bench_traces.py --page results/plan_traces.csv                the table of results/plan.md

The enumeration is `trace_enumeration`: it skips threshold moves that cannot change the trace (Broccoli, AAAI 2025).
Both search the same thresholds from the same starts. The limit counts CPU seconds of this process, compiling excepted.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path

from trace_enumeration import enumerate_trees

from custard.planning.fixed_starts import fixed_starts, plan_from_starts
from custard.task.source import source

COLUMNS = ("env", "env_args", "max_depth", "splits", "episodes", "start_seed", "seconds_limit", "value", "bound",
           "proved", "leaves", "cpu_seconds", "enumeration_value", "enumeration_finished", "enumeration_trees",
           "enumeration_cpu_seconds")  # fmt: skip
KEY = COLUMNS[:6]

#: Environment, its arguments, depth, thresholds per feature, how many starts.
CASES = (
    ("CartPole-v1", {}, 1, 49, 16), ("CartPole-v1", {}, 2, 9, 1), ("CartPole-v1", {}, 2, 4, 16),
    ("CartPole-v1", {}, 2, 9, 16), ("MountainCar-v0", {}, 1, 49, 16), ("MountainCar-v0", {}, 2, 9, 1),
    ("MountainCar-v0", {}, 2, 19, 1), ("MountainCar-v0", {}, 2, 29, 1), ("MountainCar-v0", {}, 2, 9, 8),
    ("MountainCar-v0", {}, 3, 5, 1), ("MountainCar-v0", {}, 3, 9, 1), ("Acrobot-v1", {}, 1, 19, 1),
    ("Acrobot-v1", {}, 2, 5, 1), ("custard/RobotNav-v0", {}, 2, 9, 16),
    ("custard/RobotNav-v0", {"hole": "random"}, 3, 9, 8), ("custard/PrereqWorld-v0", {"m": 7}, 3, 1, 1),
    ("custard/PrereqWorld-v0", {"m": 10}, 3, 1, 1), ("FrozenLake8x8-v1", {"is_slippery": False}, 3, 9, 1),
    ("CliffWalking-v1", {}, 3, 9, 1), ("Taxi-v4", {}, 3, 9, 1),
)  # fmt: skip


def measured(env: str, kwargs: dict, depth: int, splits: int, episodes: int, seconds: float) -> dict:
    """Return one row."""
    where = source(env, kwargs)
    began = time.process_time()
    found = list(plan_from_starts(where, depth, start_seed=0, episodes=episodes, splits=splits, seconds=seconds))[-1]
    took = time.process_time() - began
    world = fixed_starts(where, 0, episodes, splits).world
    began = time.process_time()
    other = enumerate_trees(world, depth, seconds)
    return dict(zip(COLUMNS, (
        env, json.dumps(kwargs) if kwargs else "", depth, splits, episodes, 0, seconds, found.value, found.bound,
        int(found.optimal), found.tree.n_leaves, round(took, 3), other.value / episodes, int(other.is_finished),
        other.trees, round(time.process_time() - began, 3),
    ), strict=True))  # fmt: skip


def line(row: dict) -> str:
    """Return a row of the page's table."""
    where = row["env"].rpartition("/")[2] + (f" {row['env_args']}" if row["env_args"] else "")
    standing = "proved" if int(row["proved"]) else f"{float(row['bound']):.6g}"
    other = f"{float(row['enumeration_value']):.6g} / {'proved' if int(row['enumeration_finished']) else 'not proved'}"
    took = [f"{float(row[name]):.2f}" for name in ("cpu_seconds", "enumeration_cpu_seconds")]
    size = f"{row['max_depth']} | {row['splits']} | {row['episodes']}"
    return f"| {where} | {size} | {float(row['value']):.6g} / {standing} | {took[0]} | {other} | {took[1]} |"


def page(rows: list[dict]) -> str:
    """Return the table and, in words, what it shows."""
    head = ("environment", "depth", "thresholds", "starts", "plan: value / bound", "CPU s", "enumeration", "CPU s")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *map(line, rows), ""]
    ours, theirs = (sum(int(row[name]) for row in rows) for name in ("proved", "enumeration_finished"))
    worse = [row for row in rows if float(row["value"]) < float(row["enumeration_value"]) - 1e-9]
    lines.append(f"- `plan` proves {ours} of {len(rows)}, the enumeration {theirs}.")
    lines.append(f"- Values of `plan` below the enumeration's: {len(worse) or 'none'}.")
    return "\n".join(lines)


def main() -> None:
    """Measure, print a line per row, and write the CSV row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="environments")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    rows: dict[tuple, dict] = {}
    path = given.page or given.out
    if path is not None and path.exists():
        with path.open(newline="") as file:
            rows = {tuple(row[name] for name in KEY): row for row in csv.DictReader(file)}
    if given.page is not None:
        print(page(list(rows.values())))
        return
    time.monotonic = time.process_time  # the limit counts CPU time
    for env, kwargs in (("MountainCar-v0", {}), ("FrozenLake-v1", {"is_slippery": False})):  # compiles
        measured(env, kwargs, 1, 3, 1, 60.0)
    for case in CASES:
        if given.only and case[0] not in given.only:
            continue
        row = measured(*case, given.seconds)
        rows[tuple(str(row[name]) for name in KEY)] = row
        print(line(row), flush=True)
        if given.out is not None:
            with given.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows.values())


if __name__ == "__main__":
    main()
