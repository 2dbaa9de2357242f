"""What `plan` finds and proves, and in what time: PrereqWorld, PotholeWorld and Gymnasium's toy-text environments.

python benchmarks/bench_plan.py --seconds 60 --out results            all of it, one CSV a part, a row as it finishes
python benchmarks/bench_plan.py --parts prereq                        one part, printed only
python benchmarks/bench_plan.py --parts million --seconds 600         PrereqWorld, m = 20: 2^20 states (3 GB)
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import custard
from custard.envs.prereq_world import random_prerequisites
from custard.planning.model import model_of
from custard.planning.optimal_tree import best_tree
from custard.task.source import source

COLUMNS = ("env", "env_args", "time_limit", "max_depth", "return", "bound", "gap", "optimum", "return_proved",
           "leaves_proved", "depth", "leaves", "nodes", "explored", "seconds")  # fmt: skip


def planned(env: str, kwargs: dict, limit: bool, depth: int | None, seconds: float) -> dict:
    """One row: the best tree of one model and depth."""
    where = source(env, kwargs)
    mdp = model_of(where, limit=limit)
    began = time.perf_counter()
    found = best_tree(mdp, depth, seconds=seconds)
    tree = found.tree
    return dict(zip(COLUMNS, (
        env, kwargs, mdp.horizon or "", "smallest" if depth is None else depth, found.value, found.bound, found.gap,
        found.optimum, found.optimal, found.fewest, tree.depth, tree.n_leaves, tree.n_nodes, found.explored,
        round(time.perf_counter() - began, 2),
    ), strict=True))  # fmt: skip


def prereq(seconds: float) -> list:
    """Each m at depth 2 and 3, and at the smallest depth that loses nothing."""
    return [
        ("custard/PrereqWorld-v0", {"m": m}, True, depth, seconds) for m in range(4, 11) for depth in (1, 2, 3, None)
    ]


def million(seconds: float) -> list:
    """Random prerequisites of 20 items, depth 3; the seed of the prerequisites counts."""
    needs = {seed: random_prerequisites(20, seed) for seed in range(4)}
    return [("custard/PrereqWorld-v0", {"m": 20, "prerequisites": one}, True, 3, seconds) for one in needs.values()]


def toy_text(seconds: float) -> list:
    """Depths 1 to 4; FrozenLake with and without its time limit."""
    kinds = (("FrozenLake-v1", False), ("FrozenLake-v1", True), ("FrozenLake8x8-v1", True), ("CliffWalking-v1", True),
             ("Taxi-v4", True))  # fmt: skip
    return [(env, {}, limit, depth, seconds) for env, limit in kinds for depth in (1, 2, 3, 4)]


def pothole() -> list[dict]:
    """Depths 0 to 5, with rollouts beside the promise."""
    rows = []
    for depth in range(6):
        run = custard.learn("custard/PotholeWorld-v0", "plan", max_depth=depth)
        result = custard.evaluate(run.tree, "custard/PotholeWorld-v0", episodes=10_000, seed=1)
        rows.append({"env": "custard/PotholeWorld-v0", "max_depth": depth, "return": run.value, "rollouts": result.mean,
                     "leaves": run.tree.n_leaves, "seconds": round(run.seconds, 2)})  # fmt: skip
    return rows


def write(file: Path | None, rows: list[dict]) -> None:
    if file is not None:
        with file.open("w", newline="") as text:
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--parts", nargs="+", default=["prereq", "pothole", "toy_text"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    best_tree(model_of(source("FrozenLake-v1"), limit=True), 1, seconds=1)  # compile, so that times are the search's
    best_tree(model_of(source("CliffWalking-v1")), 1, seconds=1)
    for part in options.parts:
        file = options.out / f"plan_{part}.csv" if options.out else None
        if part == "pothole":
            rows = pothole()
            write(file, rows)
            for row in rows:
                print(row)
            continue
        rows = []
        for job in {"prereq": prereq, "million": million, "toy_text": toy_text}[part](options.seconds):
            rows.append(planned(*job))
            write(file, rows)
            print(*rows[-1].values(), flush=True)


if __name__ == "__main__":
    main()
