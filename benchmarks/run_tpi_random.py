"""Tree policy iteration with defaults on random PrereqWorld and PotholeWorld instances, against what is proved of each.

    python benchmarks/run_tpi_random.py --instances 25 --first 500

Instance k of each kind is made with seed k and learned with seed k. Returns are exact, not sampled. PrereqWorld
(m = 4 + k modulo 7, no depth limit): the yardstick is the best return of any policy, and the fewest leaves, then the
least depth, of trees that reach it, where `plan` proves them within a minute. PotholeWorld (k modulo 4: depth limits 2,
3, 4 and none): the best return of any tree within the limit, by dynamic programming. "Optimal" means within 0.05 of the
yardstick, which for PrereqWorld's whole numbers means equal to it. Trials that results/tpi_random.csv holds already are
not run again.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import custard
from custard.envs.pothole_world import random_potholes
from custard.envs.prereq_world import random_prerequisites
from custard.planning.yardstick import best_return, exact_return
from custard.task.source import source

FILE = Path(__file__).parent.parent / "results" / "tpi_random.csv"
PREREQ, POTHOLE = "custard/PrereqWorld-v0", "custard/PotholeWorld-v0"
NEAR = 0.05


def trial(env: str, k: int) -> dict[str, Any]:
    """Make an instance, learn, compare."""
    depth: int | None = None
    if env == PREREQ:
        m = 4 + k % 7
        kwargs: dict[str, Any] = {"m": m, "prerequisites": random_prerequisites(m, k)}
    else:
        lane2, lane3 = random_potholes(k)
        kwargs, depth = {"lane2": lane2, "lane3": lane3}, (None, 2, 3, 4)[k % 4]
    started = time.process_time()
    run = custard.learn(env, "tpi", seed=k, max_depth=depth, env_kwargs=kwargs)
    seconds = time.process_time() - started
    where = source(env, kwargs)
    value, best = exact_return(where, run.tree), best_return(where, depth)
    assert value is not None
    assert best is not None
    row: dict[str, Any] = {
        "env": env, "instance": k, "m": kwargs.get("m", ""), "max_depth": depth, "return": round(value, 4),
        "best": round(best, 4), "optimal": int(value >= best - NEAR), "depth": run.tree.depth,
        "leaves": run.tree.n_leaves, "fewest_leaves": "", "steps": run.steps, "cpu_seconds": round(seconds, 2),
    }  # fmt: skip
    if env == PREREQ:
        plan = custard.learn(env, "plan", env_kwargs=kwargs, seconds=60.0)
        proved = plan.message.startswith("proved") and "fewer" in plan.message
        row["fewest_leaves"] = plan.tree.n_leaves if proved else ""
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=25, help="of each kind")
    parser.add_argument("--first", type=int, default=500, help="the first instance")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if FILE.exists():
        with FILE.open(encoding="utf-8") as text:
            rows = list(csv.DictReader(text))
    done = {(row["env"], int(row["instance"])) for row in rows}
    for k in range(given.first, given.first + given.instances):
        for env in (PREREQ, POTHOLE):
            if (env, k) in done:
                continue
            rows.append(trial(env, k))
            print(rows[-1], flush=True)
            with FILE.open("w", newline="", encoding="utf-8") as text:
                writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    for env in (PREREQ, POTHOLE):
        some = [row for row in rows if row["env"] == env]
        print(f"{env}: optimal in {sum(int(row['optimal']) for row in some)} of {len(some)}")


if __name__ == "__main__":
    main()
