"""Learning curves of MFEC's preset `paper`: the last policy's tree against episodes, for results/mfec.md.

    python benchmarks/run_paper_curves.py [--seeds 5] [--first 2000] [--scale 1.0]

Writes results/mfec_curves.csv, twenty rows per run, after each run; the same command again runs what is missing. Trees
are evaluated on 200 fresh episodes, which are not counted as steps. `--scale` multiplies the steps below; the
appendix's 10^6 episodes would be about 50 to 200 million steps on CartPole and 67 million on PotholeWorld, its
256,000 on PrereqWorld (m = 7) at least 1.3 million.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from pathlib import Path
from typing import Any

from custard.core.spaces import describe
from custard.lab.paper import WORLDS
from custard.solvers.mfec import mfec, paper
from custard.task.evaluate import evaluate
from custard.task.problem import Problem
from custard.task.settings import settings_for
from custard.task.source import source
from custard.tree.balance import balance

OUT = Path(__file__).parents[1] / "results" / "mfec_curves.csv"
STEPS = {"CartPole": 600_000, "PrereqWorld": 1_000_000, "PotholeWorld": 200_000}


def curve(name: str, seed: int, budget: int) -> list[dict[str, Any]]:
    """Learn once; return a row for each of twenty moments."""
    world = WORLDS[name]
    where = source(world.env, world.kwargs)
    problem = Problem(where, describe(where.make_vec(1)), seed, world.max_depth)
    settings = settings_for(mfec, world.env, "paper", {"budget": budget})
    rows, begun = [], time.process_time()
    for snapshot in paper.solve(problem, settings):
        assert snapshot.final is not None
        tree = balance(snapshot.final)
        result = evaluate(tree, world.env, episodes=200, seed=1, env_kwargs=world.kwargs)
        rows.append({
            "world": name, "seed": seed, "budget": budget, "steps": snapshot.steps,
            "episodes": snapshot.metrics["episodes"], "return": round(result.mean, 4), "depth": tree.depth,
            "leaves": tree.n_leaves, "raw_depth": snapshot.final.depth, "raw_leaves": snapshot.final.n_leaves,
            "cut": snapshot.final.origin.get("cut", 0), "cpu_seconds": round(time.process_time() - begun, 1),
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=2000)
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    stored: list[dict[str, Any]] = list(csv.DictReader(OUT.open())) if OUT.exists() else []
    done = {(row["world"], int(row["seed"]), int(row["budget"])) for row in stored}
    for seed in range(given.first, given.first + given.seeds):
        for name, steps in STEPS.items():
            budget = int(steps * given.scale)
            if (name, seed, budget) not in done:
                stored += curve(name, seed, budget)
                with OUT.open("w", newline="") as file:
                    writer = csv.DictWriter(file, list(stored[0]), lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(stored)
