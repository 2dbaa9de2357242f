"""Learning curves of MFEC's preset `paper`: the last policy's tree against episodes, for results/mfec.md.

    python benchmarks/run_paper_curves.py [--seeds 5] [--first 2000] [--worlds PrereqWorld,CartPole,PotholeWorld]
    python benchmarks/run_paper_curves.py table

Writes results/mfec_curves.csv, twenty rows per run, after each run; the same command again runs what is missing. Trees
are evaluated on 200 fresh episodes, which are not counted as steps; `reached_depth` and `reached_leaves` are of what is
left of a tree without the branches that none of 50 further episodes reached. `table` prints the page's table.

PrereqWorld (m = 7) has the appendix's 256,000 episodes and some more. Its 10^6 episodes would be about 50 to 200
million steps on CartPole and 67 million on PotholeWorld, which have far fewer here.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from custard import Tree, prune_unvisited, simplify
from custard.core.spaces import describe
from custard.lab.paper import WORLDS
from custard.lab.summary import markdown
from custard.solvers.mfec import mfec, paper
from custard.task.evaluate import evaluate
from custard.task.problem import Problem
from custard.task.settings import settings_for
from custard.task.source import Source, source
from custard.tree.balance import balance

OUT = Path(__file__).parents[1] / "results" / "mfec_curves.csv"
STEPS = {"PrereqWorld": 1_900_000, "CartPole": 600_000, "PotholeWorld": 200_000}
REACHING_EPISODES = 50


def states_reached(tree: Tree, where: Source) -> np.ndarray:
    """Return the base states [n_states, n] of some episodes that follow a tree."""
    envs = where.make_vec(REACHING_EPISODES)
    x, _ = envs.reset(seed=2)
    states, is_over = [np.array(x)], np.zeros(REACHING_EPISODES, dtype=bool)
    while not is_over.all():
        x, _, terminated, truncated, _ = envs.step(tree.predict(x))
        is_over |= terminated | truncated
        states.append(np.array(x)[~is_over])
    return np.concatenate(states)


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
        reached = simplify(prune_unvisited(snapshot.final, states_reached(snapshot.final, where)).tree)
        result = evaluate(tree, world.env, episodes=200, seed=1, env_kwargs=world.kwargs)
        rows.append({
            "world": name, "seed": seed, "budget": budget, "steps": snapshot.steps,
            "episodes": snapshot.metrics["episodes"], "return": round(result.mean, 4), "depth": tree.depth,
            "leaves": tree.n_leaves, "raw_depth": snapshot.final.depth, "raw_leaves": snapshot.final.n_leaves,
            "reached_depth": reached.depth, "reached_leaves": reached.n_leaves,
            "cut": snapshot.final.origin.get("cut", 0), "cpu_seconds": round(time.process_time() - begun, 1),
        })  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line per run: returns at four moments, and the last tree."""
    lines = []
    for name, seed, budget in sorted({(row["world"], int(row["seed"]), int(row["budget"])) for row in rows}):
        run = [row for row in rows if (row["world"], int(row["seed"]), int(row["budget"])) == (name, seed, budget)]
        returns, last = [float(row["return"]) for row in run], run[-1]
        moments = [returns[round(share * len(run)) - 1] for share in (0.25, 0.5, 0.75, 1.0)]
        lines.append([
            name, str(seed), f"{int(last['episodes']):,}", *(f"{moment:.2f}" for moment in moments),
            f"{last['raw_depth']}, {last['raw_leaves']}", f"{last['depth']}, {last['leaves']}",
            f"{last['reached_depth']}, {last['reached_leaves']}" if last["reached_depth"] else "–",
            f"{np.median(returns):.2f}", last["cpu_seconds"],
        ])  # fmt: skip
    header = ["world", "seed", "episodes", "return at a quarter", "half", "three quarters", "the end",
              "depth, leaves at the end", "balanced", "reached", "median of twenty", "CPU seconds"]  # fmt: skip
    return markdown(header, lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    stored: list[dict[str, Any]] = list(csv.DictReader(OUT.open())) if OUT.exists() else []
    if sys.argv[1:] == ["table"]:
        print(table(stored))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=2000)
    parser.add_argument("--worlds", default=",".join(STEPS))
    given = parser.parse_args()
    done = {(row["world"], int(row["seed"]), int(row["budget"])) for row in stored}
    for seed in range(given.first, given.first + given.seeds):
        for name in given.worlds.split(","):
            if (name, seed, STEPS[name]) not in done:
                stored += curve(name, seed, STEPS[name])
                with OUT.open("w", newline="") as file:
                    writer = csv.DictWriter(file, list(stored[0]), lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(stored)
