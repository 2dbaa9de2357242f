"""The trials behind results/mfec.md: one CSV row for each finished trial; trials already in the file are passed over.

    python benchmarks/run_mfec_shows.py prereq pothole cartpole foreign random depths --seeds 10 --first 650
    python benchmarks/run_mfec_shows.py ablation ablation_depth --seeds 10 --first 640

    python benchmarks/run_mfec_shows.py prereq pothole --summary

All shows are run with one seed before the next seed has its turn, so that tables grow evenly.

`seconds` is wall-clock time, `cpu_seconds` the processor's; both without compilation, which a first, unrecorded run of
each environment takes on itself.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import custard
from custard.envs.pothole_world import random_potholes
from custard.envs.prereq_world import random_prerequisites
from custard.planning.yardstick import best_return
from custard.task.source import source

RESULTS = Path(__file__).parent.parent / "results"
PREREQ, POTHOLE, CARTPOLE_200 = "custard/PrereqWorld-v0", "custard/PotholeWorld-v0", "custard/CartPole-v0"

COLUMNS = ("return", "raw_depth", "leaves", "cpu_seconds")

#: What each ingredient's removal means.
ABLATIONS: dict[str, dict[str, Any]] = {
    "tuned": {},
    "one action a visit": {"all_actions": False},
    "Q as a running target": {"alpha_b": 0.1},
    "no masks": {"mask": False},
    "a third of the steps": {"share": 1 / 3},
    "a tenth of the steps": {"share": 1 / 10},
    "constant rates": {"kappa": 0.0, "alpha_b": 0.01, "alpha_o": 0.3},
    "no remembered outcomes": {"remember_outcomes": False},
    "only remembered outcomes": {"trace": 0.0},
    "a new question at each visit": {"visits_per_random_split": 1},
    "no guide": {"follow_best_tree": False},
    "no drawn trees": {"sampled_trees": 0},
    "no small changes": {"max_changes": 0},
    "a tenth of random questions": {"epsilon": 0.1},
    "one neighbour": {"k": 1},
    "last tree, not the best": {"keep_best": False},
}


def trials(show: str, seeds: list[int]) -> list[dict[str, Any]]:
    """The trials of a show: label, environment, and what `custard.learn` is given."""
    if show == "prereq":
        return [_trial(f"m={m}", PREREQ, s, env_kwargs={"m": m}) for m in (7, 10, 9, 8, 6, 5, 4) for s in seeds]
    if show == "pothole":
        return [_trial("no limit", POTHOLE, s) for s in seeds]
    if show == "depths":
        return [_trial(f"depth {d}", POTHOLE, s, max_depth=d) for d in range(1, 7) for s in seeds]
    if show == "cartpole":
        return [_trial("500", "CartPole-v1", s, max_depth=2) for s in seeds] + [
            _trial("200", CARTPOLE_200, s, max_depth=2) for s in seeds
        ]
    if show == "random":
        prereq = [_trial("prereq", PREREQ, s, env_kwargs={"m": 7, "prerequisites": _table(s)}) for s in seeds]
        lanes = [(s, *random_potholes(s)) for s in seeds]
        return prereq + [_trial("pothole", POTHOLE, s, env_kwargs={"lane2": a, "lane3": b}) for s, a, b in lanes]
    if show == "foreign":
        lake = "FrozenLake-v1"
        return (
            [_trial("mountain car", "MountainCar-v0", s) for s in seeds]
            + [_trial("slippery lake", lake, s, max_depth=3) for s in seeds]
            + [_trial("dry lake", lake, s, max_depth=3, env_kwargs={"is_slippery": False}) for s in seeds]
        )
    if show == "ablation":
        out = []
        for name, all_given in ABLATIONS.items():
            share = all_given.get("share", 1.0)
            given = {key: value for key, value in all_given.items() if key != "share"}
            few, some, many = (int(share * steps) for steps in (1_000_000, 2_000_000, 20_000_000))
            for s in seeds:
                out.append(_trial(f"prereq: {name}", PREREQ, s, env_kwargs={"m": 7}, budget=few, **given))
                out.append(_trial(f"pothole: {name}", POTHOLE, s, budget=some, **given))
                out.append(_trial(f"cartpole: {name}", "CartPole-v1", s, max_depth=2, budget=many, **given))
        return out
    if show == "ablation_depth":
        return [
            _trial(f"depth 4: {name}", POTHOLE, s, max_depth=4, budget=5_000_000, **given)
            for name, given in ABLATIONS.items()
            if "share" not in given
            for s in seeds
        ]
    raise SystemExit(f"unknown show {show!r}")


def _trial(label: str, env: str, seed: int, **given: Any) -> dict[str, Any]:
    return {"label": label, "env": env, "seed": seed, "given": given}


def _table(seed: int) -> dict[int, list[int]]:
    return random_prerequisites(7, seed)


def run(trial: dict[str, Any]) -> dict[str, Any]:
    """Learn, then evaluate on 1,000 fresh episodes."""
    given = dict(trial["given"])
    started, cpu = time.perf_counter(), time.process_time()
    learned = custard.learn(trial["env"], "mfec", seed=trial["seed"], **given)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    kwargs = given.get("env_kwargs")
    result = custard.evaluate(learned.tree, trial["env"], 1000, seed=10_000 + trial["seed"], env_kwargs=kwargs)
    raw = learned.raw or learned.tree
    return {
        "label": trial["label"], "env": trial["env"], "seed": trial["seed"], "return": round(result.mean, 4),
        "worst": round(float(result.returns.min()), 4), "selection": round(learned.value, 4), "raw_depth": raw.depth,
        "raw_leaves": raw.n_leaves, "depth": learned.tree.depth, "leaves": learned.tree.n_leaves,
        "steps": learned.steps, "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "stopped": learned.message,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shows", nargs="+")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=300)
    parser.add_argument("--summary", action="store_true", help="print tables of what the files hold, and run nothing")
    args = parser.parse_args()
    if args.summary:
        for show in args.shows:
            print(f"\n{show}\n\n{summary(RESULTS / f'mfec_{show}.csv')}")
            if show == "random":
                print(f"\n{optimal(RESULTS / 'mfec_random.csv')}")
        return
    warm: set[str] = set()
    for seed in range(args.first, args.first + args.seeds):
        for show in args.shows:
            path = RESULTS / f"mfec_{show}.csv"
            for trial in trials(show, [seed]):
                if (trial["label"], seed) in finished(path):
                    continue
                if trial["env"] not in warm:
                    custard.learn(trial["env"], "mfec", seed=1, **{**trial["given"], "budget": 30_000})
                    warm.add(trial["env"])
                store(path, run(trial))


def summary(path: Path) -> str:
    """A file as a Markdown table, one line a label: means over seeds, standard deviation of the return in brackets."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    lines = ["| trial | seeds | return | lowest | depth as extracted | leaves | processor seconds | longest |"]
    lines.append("|---" * 8 + "|")
    for label in dict.fromkeys(row["label"] for row in rows):
        column = {key: [float(row[key]) for row in rows if row["label"] == label] for key in COLUMNS}
        returns, depth, leaves, seconds = (column[key] for key in COLUMNS)
        spread = stdev(returns) if len(returns) > 1 else 0.0
        lines.append(
            f"| {label} | {len(returns)} | {mean(returns):.2f} ({spread:.2f}) | {min(returns):.2f} "
            f"| {mean(depth):.1f} | {mean(leaves):.1f} | {mean(seconds):.0f} | {max(seconds):.0f} |"
        )
    return "\n".join(lines)


def optimal(path: Path) -> str:
    """How many random instances have a tree within 0.05 of the best return of any policy."""
    count: dict[str, list[bool]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            (trial,) = (t for t in trials("random", [int(row["seed"])]) if t["label"] == row["label"])
            best = best_return(source(trial["env"], trial["given"]["env_kwargs"]), None)
            assert best is not None
            count.setdefault(row["label"], []).append(float(row["return"]) >= best - 0.05)
    return "\n".join(f"{label}: {sum(good)} of {len(good)} optimal" for label, good in count.items())


def finished(path: Path) -> set[tuple[str, int]]:
    """Label and seed of the trials a file holds."""
    if not path.exists():
        return set()
    with path.open() as file:
        return {(row["label"], int(row["seed"])) for row in csv.DictReader(file)}


def store(path: Path, row: dict[str, Any]) -> None:
    """Add a trial's row."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(row, flush=True)


if __name__ == "__main__":
    main()
