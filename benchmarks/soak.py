"""Soak: learn, judge, predict, export and draw in one process for a long time, and watch what grows.

    python benchmarks/soak.py [--minutes 60] [--out soak.csv]

Every round writes a row: seconds, rounds, resident memory, open files, threads, child processes and files in the
temporary directory. The last line says by how much each grew between the second quarter of the time and the last; a
picture of the same name (.png) shows the curves.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import tempfile
import threading
import time
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np

import custard
from custard.tree.export import export

#: method, environment and arguments of `custard.learn`: tables, networks, direct search here and in worker processes
PREREQ = {"env_kwargs": {"m": 4}}
RUNS = (
    ("mfec", "FrozenLake-v1", {"budget": 3000}),
    ("plan", "custard/PrereqWorld-v0", PREREQ),
    ("tpi", "FrozenLake-v1", {"budget": 3000}),
    ("mfec", "custard/PrereqWorld-v0", {**PREREQ, "budget": 3000}),
    ("tpi", "custard/PrereqWorld-v0", {**PREREQ, "budget": 3000}),
    ("tpi", "CartPole-v1", {"budget": 20_000}),
    ("dqn", "custard/PrereqWorld-v0", {**PREREQ, "budget": 3000}),
    ("ppo", "custard/PrereqWorld-v0", {**PREREQ, "budget": 3000}),
    ("viper-bi", "custard/PrereqWorld-v0", {**PREREQ, "iterations": 3}),
    ("direct", "MountainCarContinuous-v0", {"budget": 5000, "workers": 0}),
    ("direct", "MountainCarContinuous-v0", {"budget": 5000, "workers": 2}),
)
COLUMNS = ("seconds", "round", "megabytes", "open_files", "threads", "children", "temporary_files")


def measure(begun: float, number: int) -> dict[str, float]:
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "seconds": round(time.monotonic() - begun, 1), "round": number,
        "megabytes": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        "open_files": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
        "children": len(children), "temporary_files": len(os.listdir(tempfile.gettempdir())),
    }  # fmt: skip


def one_round(number: int, place: Path) -> None:
    """Do a bit of everything that a long-lived process may do."""
    method, env, given = RUNS[number % len(RUNS)]
    kwargs = given.get("env_kwargs", {})
    out = place / f"run-{number % 5}-{number}"
    run = custard.learn(env, method, seed=number, max_depth=2, out=out, **given)
    custard.evaluate(run.tree, env, 50, seed=number, env_kwargs=kwargs)
    x = np.random.default_rng(number).normal(size=(10_000, run.tree.features.n))
    run.tree.predict(x)
    for row in x[:200]:
        run.tree.act(row)
    for name in ("c", "python", "json", "dot"):
        export(run.tree, name)
    custard.check_env(gym.make(env, **kwargs), steps=50)
    for file in sorted(out.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    out.rmdir()


def draw(rows: list[dict[str, float]], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 9), layout="constrained")
    for axes, name in zip(figure.subplots(len(COLUMNS) - 2, sharex=True), COLUMNS[2:], strict=True):
        axes.plot([row["seconds"] / 60 for row in rows], [row[name] for row in rows])
        axes.set_ylabel(name.replace("_", " "))
        axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes")
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("soak.csv"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    begun, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as place, given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        while time.monotonic() - begun < 60 * given.minutes:
            one_round(len(rows), Path(place))
            rows.append(measure(begun, len(rows) + 1))
            writer.writerow(rows[-1])
            file.flush()
    draw(rows, given.out.with_suffix(".png"))
    quarter = max(1, len(rows) // 4)
    for name in COLUMNS[2:]:
        early, late = (np.mean([row[name] for row in part]) for part in (rows[quarter : 2 * quarter], rows[-quarter:]))
        print(
            f"{name.replace('_', ' ')}: {early:.1f} in the second quarter, {late:.1f} in the last ({late - early:+.1f})"
        )
    print(f"{len(rows)} rounds in {given.minutes:g} minutes; {given.out} and its picture")


if __name__ == "__main__":
    main()
