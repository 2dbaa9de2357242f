"""Worlds that separate methods: random PrereqWorlds and PotholeWorlds under depth limits, with a proved optimum each.

    python benchmarks/run_separating_worlds.py [--instances 20] [--methods random,mfec,…] [--budgets 100000,1000000]
    python benchmarks/run_separating_worlds.py --table

Rows go to results/separating_worlds.csv as trials finish; the same command again runs what is missing. Instance k is
made and learned with seed k. PrereqWorld: m = 8 + k modulo 7 items, attempts fail with probability 0, 0.1 or 0.2; a
score is the best expected number of steps over that of the tree. PotholeWorld: depth limits 2, 3 and 4; a score is the
share of what splits can gain, from 45, what one leaf returns, to the proved limit. Both are cut to [0, 1]. `--table`
prints interquartile means with 95 % stratified bootstrap intervals and writes the performance profiles' figure.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from custard.envs.pothole_world import random_potholes
from custard.envs.prereq_world import random_prerequisites
from custard.lab.aggregate import bootstrap_interval, interquartile_mean, performance_profile
from custard.lab.paper import METHOD_TITLES
from custard.lab.summary import markdown
from custard.lab.sweep import sweep
from custard.lab.trial_file import read_rows, with_numbers
from custard.lab.trials import Trial

OUT = Path(__file__).parents[1] / "results" / "separating_worlds.csv"
PREREQ, POTHOLE = "custard/PrereqWorld-v0", "custard/PotholeWorld-v0"
ONE_LEAF = 45.0  # what one leaf returns on PotholeWorld
OPTIMAL_SLACK = 1e-4  # of the score of a tree at the optimum: values are sums, rounded
DEPTHS, FAILURES = (2, 3, 4), (0.0, 0.1, 0.2)


def trials(instances: range, methods: list[str], budgets: list[int]) -> list[Trial]:
    """Return every instance × method × budget, instances outermost."""
    found = []
    for k in instances:
        m = 8 + k % 7
        lane2, lane3 = random_potholes(k)
        prerequisites = {str(item): needed for item, needed in random_prerequisites(m, k).items()}
        worlds: list[tuple[str, dict[str, Any], int | None]] = [
            (PREREQ, {"m": m, "rho": FAILURES[k % 3], "prerequisites": prerequisites}, None),
            (POTHOLE, {"lane2": list(lane2), "lane3": list(lane3)}, DEPTHS[k % 3]),
        ]
        found += [
            Trial(env, name, k, kwargs, "tuned", depth, {"budget": budget}, experiment="separating worlds")
            for env, kwargs, depth in worlds for name in methods for budget in budgets
        ]  # fmt: skip
    return found


def score(row: dict[str, Any]) -> float:
    """Return a trial's score: 1 at the optimum, 0 at what needs no learning, or at a failure."""
    if row["error"] != "" or row["bound"] == "":
        return 0.0
    value = row["exact"] if row["exact"] != "" else row["return"]
    share = row["bound"] / value if row["env"] == PREREQ else (value - ONE_LEAF) / (row["bound"] - ONE_LEAF)
    return float(np.clip(share, 0.0, 1.0))


def table() -> str:
    """Return interquartile means with their intervals by world, method and budget; draw the profiles."""
    from matplotlib.figure import Figure

    rows = with_numbers(read_rows(OUT))
    drawn = Figure(figsize=(9, 3.4), layout="constrained")
    panels, lines, thresholds = drawn.subplots(1, 2), [], np.linspace(0.0, 0.999, 200)
    for panel, env in zip(panels, (PREREQ, POTHOLE), strict=True):
        panel.set(title=env.split("/")[1], xlabel="share of the optimum τ", ylabel="trials above τ", ylim=(-0.02, 1.02))
        for name in METHOD_TITLES:
            mine = [row for row in rows if row["env"] == env and row["method"] == name]
            budgets = sorted({json.loads(row["settings"])["budget"] for row in mine})
            for budget in budgets:
                scores = np.array([[score(row) for row in mine if json.loads(row["settings"])["budget"] == budget]]).T
                low, high = bootstrap_interval(scores)
                shares = [f"{np.mean(scores > 1.0 - OPTIMAL_SLACK):.2f}", str(len(scores))]
                cell = f"{interquartile_mean(scores):.3f} [{low:.3f}, {high:.3f}]"
                lines.append([env.split("/")[1], METHOD_TITLES[name], f"{budget:,}", cell, *shares])
            if budgets:
                panel.plot(thresholds, performance_profile(scores, thresholds), label=METHOD_TITLES[name])
        panel.legend(fontsize=7)
    lines += _both(rows)
    drawn.savefig(OUT.with_suffix(".svg"), metadata={"Date": None})
    header = ["world", "method", "steps", "interquartile mean [95 %]", "at the optimum", "instances"]
    return markdown(header, lines)


def _both(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return the lines for both kinds of world together: two tasks, whose instances are drawn anew apart."""
    lines = []
    for name in METHOD_TITLES:
        for budget in sorted({json.loads(row["settings"])["budget"] for row in rows}):
            parts = [[score(row) for row in rows if (row["env"], row["method"]) == (env, name)
                      and json.loads(row["settings"])["budget"] == budget] for env in (PREREQ, POTHOLE)]  # fmt: skip
            count = min(map(len, parts))
            if count:
                scores = np.array([part[:count] for part in parts]).T
                low, high = bootstrap_interval(scores)
                cell = f"{interquartile_mean(scores):.3f} [{low:.3f}, {high:.3f}]"
                shares = [f"{np.mean(scores > 1.0 - OPTIMAL_SLACK):.2f}", str(2 * count)]
                lines.append(["both", METHOD_TITLES[name], f"{budget:,}", cell, *shares])
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=20)
    parser.add_argument("--first", type=int, default=500)
    parser.add_argument("--methods", default="random,mfec,tpi")
    parser.add_argument("--budgets", default="100000,1000000")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table())
    else:
        chosen = range(given.first, given.first + given.instances)
        steps = [int(word) for word in given.budgets.split(",")]
        sweep(trials(chosen, given.methods.split(","), steps), OUT, workers=0, show=False)
