"""What is lost when soft trees are made crisp: results/soft_and_crisp.csv.

    python benchmarks/soft_and_crisp.py ENV BUDGET [SEEDS]     # runs what the file has not

Learns differentiable decision trees (`ddt`) and judges, on the same fresh episodes, the soft policy with which a run
ends, the crisp tree of that policy, and the best of all crisp trees that were judged on the way.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from result_rows import append_row, rows_in

import custard
from custard.baselines.ddt import load_soft_policy

FILE = Path(__file__).parents[1] / "results" / "soft_and_crisp.csv"
COLUMNS = (
    "env", "budget", "seed", "soft", "soft_error", "crisp", "crisp_error", "best_crisp", "best_crisp_error", "leaves",
    "best_leaves", "steps", "cpu_seconds",
)  # fmt: skip
FIRST_SEED, EPISODES, FRESH_SEED = 1100, 1000, 1


def run(env: str, budget: int, seed: int) -> dict[str, object]:
    """Learn one soft tree and judge it and its crisp trees."""
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = custard.learn(env, "ddt", seed=seed, budget=budget, workers=0, progress=False, out=Path(folder) / "run")
        seconds = time.process_time() - begun
        soft = load_soft_policy(Path(folder) / "run")
    last = found.final or found.tree
    row: dict[str, object] = {
        "env": env, "budget": budget, "seed": seed, "leaves": last.n_leaves, "best_leaves": found.tree.n_leaves,
        "steps": found.steps, "cpu_seconds": round(seconds, 1),
    }  # fmt: skip
    for name, policy in (("soft", soft), ("crisp", last), ("best_crisp", found.tree)):
        fresh = custard.evaluate(policy, env, EPISODES, FRESH_SEED, workers=0)
        row[name], row[f"{name}_error"] = round(fresh.mean, 3), round(fresh.std / EPISODES**0.5, 3)
    return row


def main(env: str, budget: str, seeds: str = "3") -> None:
    """Run the seeds that the file has not."""
    done = {(row["env"], row["budget"], row["seed"]) for row in rows_in(FILE)}
    for seed in range(FIRST_SEED, FIRST_SEED + int(seeds)):
        if (env, budget, str(seed)) not in done:
            append_row(FILE, COLUMNS, run(env, int(budget), seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
