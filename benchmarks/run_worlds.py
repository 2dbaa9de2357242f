"""Trees for environments that Python steps, with defaults: results/worlds.csv, a row a run, written as it ends.

    python benchmarks/run_worlds.py LunarLander-v3 --time 10m --max-leaves 32 --tests axis --seeds 5 --first 100
    python benchmarks/run_worlds.py --table --first 300        # the rows of these seeds as Markdown
    python benchmarks/run_worlds.py --calibration              # results/worlds_calibration.svg: shown against fresh

Runs that the file has are passed over. Every tree is kept beside it, in results/worlds: `custard evaluate FILE` judges
it. `shown` is the value that the run itself showed at its end with its 95 % interval; `return` is over fresh episodes
that neither learning nor judging has used.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist

import numpy as np
from result_rows import append_row, rows_in

import custard
from custard.commands.common import assignments

FILE = Path(__file__).parent.parent / "results" / "worlds.csv"
TREES = FILE.with_suffix("")
COLUMNS = (
    "env", "time", "budget", "tests", "leaves", "max_leaves", "seed", "return", "error", "shown", "shown_error",
    "shown_episodes", "leaf_count", "depth", "coefficients", "expert", "steps", "seconds",
)  # fmt: skip
FRESH_EPISODES, FRESH_SEED = 500, 77


def key(row: Mapping[str, str]) -> tuple[str, ...]:
    """Return what tells one run from another."""
    return tuple(str(row[name]) for name in ("env", "time", "tests", "leaves", "max_leaves", "seed"))


def name_of(args: argparse.Namespace) -> str:
    """Return the environment's id with its arguments."""
    return " ".join([args.env, *args.env_args])


def run(args: argparse.Namespace, seed: int) -> dict[str, object]:
    """Learn with one seed, and judge on fresh episodes."""
    given = {"tests": args.tests, "leaves": args.leaves, "max_leaves": args.max_leaves, "budget": args.budget}
    given = {name: value for name, value in given.items() if value is not None}
    begun = time.perf_counter()
    arguments = assignments(args.env_args, "--env-args")
    found = custard.learn(
        args.env, seed=seed, time=args.time if args.budget is None else None, env_kwargs=arguments, **given
    )
    seconds = time.perf_counter() - begun
    fresh = custard.evaluate(found.tree, args.env, FRESH_EPISODES, FRESH_SEED, env_kwargs=arguments)
    last = found.metrics[-1]
    TREES.mkdir(exist_ok=True)
    limits = [args.max_leaves or "any", args.time or args.budget or "default"]
    asked = "_".join(map(str, [name_of(args), args.tests, args.leaves, *limits, seed]))
    found.tree.save(TREES / (asked.translate({ord(":"): None, ord("/"): "-", ord(" "): "_"}) + ".json"))
    return {
        "env": name_of(args), "time": args.time or "", "budget": found.config["settings"]["budget"] or "",
        "tests": args.tests, "leaves": args.leaves, "max_leaves": args.max_leaves or "",
        "seed": seed, "return": round(fresh.mean, 3),
        "error": round(fresh.std / np.sqrt(FRESH_EPISODES), 3), "shown": round(found.value, 3),
        "shown_error": round(last.get("error", np.nan), 3), "shown_episodes": int(last.get("judged", 0)),
        "leaf_count": found.tree.n_leaves, "depth": found.tree.depth, "coefficients": found.tree.n_coefficients,
        "expert": round(last.get("expert", np.nan), 3), "steps": found.steps, "seconds": round(seconds, 1),
    }  # fmt: skip


def table(first: int, last: int) -> None:
    """Print the rows of seeds from `first` to `last`, one line per environment and setting."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    chosen = [row for row in rows_in(FILE) if first <= int(row["seed"]) <= last]
    for row in chosen:
        budget = "" if row["time"] else row["budget"]
        groups.setdefault((*key(row)[:-1], budget), []).append(row)
    print("| environment | time | tests, leaves | seeds | return (each seed) | leaves | coefficients | wall s |")
    print("|---|---|---|---|---|---|---|---|")
    for (env, limit, tests, leaves, most, budget), some in groups.items():
        returns = [float(row["return"]) for row in some]
        each = ", ".join(f"{value:.4g}" for value in returns)
        sizes, coefficients = (", ".join(row[name] for row in some) for name in ("leaf_count", "coefficients"))
        asked = f"{tests}, {leaves}" + (f", ≤ {most} leaves" if most else "")
        seconds = np.mean([float(row["seconds"]) for row in some])
        limit = limit or (f"{int(budget):,} steps" if budget else "default")
        print(f"| {env} | {limit} | {asked} | {len(some)} | **{np.mean(returns):.4g}** ({each}) | {sizes} "
              f"| {coefficients} | {seconds:.0f} |")  # fmt: skip
    judged = [row for row in chosen if row["shown_error"] not in ("", "nan")]
    covered = sum(
        abs(float(row["shown"]) - float(row["return"]))
        <= 1.96 * np.hypot(float(row["shown_error"]), float(row["error"]))
        for row in judged
    )
    print(f"\nThe interval shown at the end agrees with the fresh mean in {covered} of {len(judged)} runs.")


def draw_calibration() -> None:
    """Draw by how many standard errors the value shown differs from the fresh mean in every run, in order."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "custard"
    import matplotlib.pyplot as plt

    rows = [row for row in rows_in(FILE) if row["shown_error"] not in ("", "nan")]
    gap = np.array([float(row["shown"]) - float(row["return"]) for row in rows])
    own, fresh = (np.array([float(row[name]) for row in rows]) for name in ("shown_error", "error"))
    both = np.hypot(own, fresh)
    same = gap == 0.0  # of returns that do not vary
    z = np.sort(np.where(same, 0.0, gap / np.where(same, 1.0, both)))
    expected = np.array([NormalDist().inv_cdf((k + 0.5) / len(z)) for k in range(len(z))])
    within = int((np.abs(z) <= 1.96).sum())
    figure, axis = plt.subplots(figsize=(5.2, 3.6))
    axis.axhspan(-1.96, 1.96, color="#4477aa", alpha=0.12, lw=0)
    axis.plot([-2.6, 2.6], [-2.6, 2.6], color="#888888", lw=0.8)
    axis.plot(expected, z, "o", color="#4477aa", markersize=4)
    axis.set_xlabel("expected where the value shown is unbiased", fontsize=9)
    axis.set_ylabel("shown less fresh, in standard errors of both", fontsize=9)
    axis.set_title(f"{len(z)} runs, {within} within 1.96", fontsize=10)
    figure.tight_layout()
    figure.savefig(FILE.with_name("worlds_calibration.svg"), metadata={"Date": None})
    covered = int((np.abs(gap) <= 1.96 * own).sum())
    print(f"{len(z)} runs: the 95 % interval shown covers the mean of the fresh episodes in {covered};")
    print(f"the two differ by less than 1.96 standard errors of both in {within}, by {z.mean():.2f} on average.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="?")
    parser.add_argument("--time")
    parser.add_argument("--budget", type=int)
    parser.add_argument("--tests", default="auto")
    parser.add_argument("--leaves", default="auto")
    parser.add_argument("--max-leaves", type=int)
    parser.add_argument("--env-args", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--last", type=int, default=10**9, help="of the seeds in the table")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--calibration", action="store_true")
    args = parser.parse_args()
    if args.calibration:
        draw_calibration()
        return
    if args.table:
        table(args.first, args.last)
        return
    done = {key(row) for row in rows_in(FILE)}
    for seed in range(args.first, args.first + args.seeds):
        asked = {"env": name_of(args), "time": args.time or "", "tests": args.tests, "leaves": args.leaves}
        if key({**asked, "max_leaves": args.max_leaves or "", "seed": str(seed)}) in done:
            continue
        append_row(FILE, COLUMNS, run(args, seed))


if __name__ == "__main__":
    main()
