"""Compare the tree learners on seven environments with equal budgets, for results/named.md.

    python benchmarks/named_table.py [--methods METHOD,...] [--worlds NAME,...] [--seeds N] [--budget STEPS]
    python benchmarks/named_table.py --page

Learns trial by trial into results/named_table.csv, one process per method and environment, so that no two methods
share what they trained; the same command again learns those that are missing. `--page` writes the table
into results/named.md anew. Environments that are compiled have 5 million steps, those that Python steps 500,000. Rows
of another `--budget` stand in the table where there are none of these; its column of steps tells them apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from result_rows import rows_in

from custard.lab.aggregate import bootstrap_interval
from custard.lab.summary import markdown

RESULTS = Path(__file__).parents[1] / "results"
ROWS, PAGE = RESULTS / "named_table.csv", RESULTS / "named.md"
BEGIN, END = "<!-- table: benchmarks/named_table.py -->", "<!-- end of the table -->"
FIRST_SEED = 1100
COMPILED_BUDGET, STEPPED_BUDGET = 5_000_000, 500_000


class World(NamedTuple):
    """An environment of the table."""

    title: str
    env: str
    env_args: dict[str, object]
    budget: int
    seeds: int
    methods: tuple[str, ...]


DISCRETE = (
    "moet", "utree", "cutree", "pyeatt", "cqi", "ddt", "viper-dqn", "mfec", "dqn", "ppo", "tpi", "random",
)  # fmt: skip
WORLDS = {
    "cartpole": World("CartPole-v1", "CartPole-v1", {}, COMPILED_BUDGET, 10, DISCRETE),
    "mountaincar": World("MountainCar-v0", "MountainCar-v0", {}, COMPILED_BUDGET, 10, DISCRETE),
    "acrobot": World("Acrobot-v1", "Acrobot-v1", {}, COMPILED_BUDGET, 10, DISCRETE),
    "prereq": World("PrereqWorld, m=7", "custard/PrereqWorld-v0", {"m": 7}, COMPILED_BUDGET, 10, DISCRETE),
    "pothole": World("PotholeWorld", "custard/PotholeWorld-v0", {}, COMPILED_BUDGET, 10, DISCRETE),
    "polar": World(
        "RobotNav, angles", "custard/RobotNav-v0", {"observation": "polar"}, COMPILED_BUDGET, 10, DISCRETE
    ),
    "positions": World(
        "RobotNav, positions", "custard/RobotNav-v0", {"observation": "positions"}, COMPILED_BUDGET, 10, DISCRETE
    ),
    "lunar": World("LunarLander-v3", "LunarLander-v3", {}, STEPPED_BUDGET, 3, DISCRETE),
    "lunar-continuous": World(
        "LunarLander-v3, continuous", "LunarLander-v3", {"continuous": True}, STEPPED_BUDGET, 3, ("icct", "ppo", "tpi")
    ),
}  # fmt: skip
#: Returns that the methods' authors report, by title and method.
PUBLISHED = {("CartPole-v1", "ddt"): "499.5 (soft: 500)"}
HEADER = (
    "environment", "method", "trials (failed, one leaf)", "mean return", "95 % interval", "leaves", "depth",
    "parameters", "steps", "CPU seconds", "published",
)  # fmt: skip


def command(world: World, method: str, seeds: int, budget: int) -> list[str]:
    """Return the words of `custard compare` for one method in one world."""
    env_args = [f"{name}={json.dumps(value).strip(chr(34))}" for name, value in world.env_args.items()]
    words = ["compare", world.env, *(["--env-args", *env_args] if env_args else []), "--methods", method]
    return [
        *words, "--seeds", str(seeds), "--first-seed", str(FIRST_SEED), "--set", f"budget={budget}",
        "--workers", "0", "--out", str(ROWS),
    ]  # fmt: skip


def learn(worlds: Sequence[str], methods: Sequence[str], seeds: int, budget: int | None) -> None:
    """Learn what is missing, all methods in one world before the next; without a budget the world's own is used."""
    done = {key(row["env"], json.loads(row["env_args"]), row) for row in rows_in(ROWS)}
    for name in worlds:
        world = WORLDS[name]
        for method in (each for each in methods if each in world.methods):
            asked = {"method": method, "settings": json.dumps({"budget": budget or world.budget})}
            wanted = range(FIRST_SEED, FIRST_SEED + min(seeds, world.seeds))
            if any(key(world.env, world.env_args, {**asked, "seed": str(seed)}) not in done for seed in wanted):
                words = command(world, method, len(wanted), budget or world.budget)
                subprocess.run([sys.executable, "-m", "custard", *words], stdout=subprocess.DEVNULL, check=False)


def key(env: str, env_args: dict[str, object], row: Mapping[str, str]) -> tuple[str, ...]:
    """Return what tells a trial from the others of the table."""
    return env, json.dumps(env_args, sort_keys=True), row["method"], row["settings"], row["seed"]


def page_table() -> str:
    """Return the table in Markdown, a line per world and method that has trials, and what has none yet."""
    rows, lines, missing = rows_in(ROWS), [], []
    for world in WORLDS.values():
        there = [row for row in rows if row["env"] == world.env and json.loads(row["env_args"]) == world.env_args]
        for method in ("icct", *DISCRETE):
            members = of_one_budget([row for row in there if row["method"] == method], world.budget)
            if members:
                lines.append(table_line(world, method, members))
            elif method in world.methods:
                missing.append((world.title, method))
            elif method == "icct":
                lines.append((world.title, f"`{method}`", *["—"] * (len(HEADER) - 2)))
    by_world = [
        f"{world.title}: {', '.join(f'`{method}`' for title, method in missing if title == world.title)}"
        for world in WORLDS.values()
        if any(title == world.title for title, _ in missing)
    ]
    not_run = "\n".join(["\n\nNot run yet:\n", *(f"- {line}" for line in by_world)]) if missing else ""
    return markdown(HEADER, lines) + not_run


def of_one_budget(rows: Sequence[dict[str, str]], usual: int) -> list[dict[str, str]]:
    """Return the rows with the usual budget, or if there are none those with the largest."""
    budgets = [int(json.loads(row["settings"])["budget"]) for row in rows]
    chosen = usual if usual in budgets else max(budgets, default=usual)
    return [row for row, budget in zip(rows, budgets, strict=True) if budget == chosen]


def table_line(world: World, method: str, members: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """Return the cells of one method in one world; sizes, steps and times are medians."""
    good = [row for row in members if not row["error"]]
    trials = f"{len(members)} ({len(members) - len(good)}, {sum(row['trivial'] == '1' for row in good)})"
    published = PUBLISHED.get((world.title, method), "")
    if not good:
        return (world.title, f"`{method}`", trials, *["—"] * (len(HEADER) - 4), published)
    returns = np.array([float(row["return"]) for row in good])
    low, high = bootstrap_interval(returns[:, None], lambda values: float(values.mean()))
    if len(good) == 1:  # over the evaluation episodes of the only tree
        low, high = float(good[0]["ci_low"]), float(good[0]["ci_high"])
    sizes = [median(good, name) for name in ("leaves", "depth")]
    parameters = np.median([number_count(row) for row in good])
    steps, seconds = (float(median(good, name)) for name in ("steps", "cpu_seconds"))
    return (
        world.title, f"`{method}`", trials, f"{returns.mean():.1f}", f"{low:.1f} … {high:.1f}", *sizes,
        f"{parameters:g}", f"{steps / 1e6:.2f} M", f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}", published,
    )  # fmt: skip


def median(rows: Sequence[dict[str, str]], name: str) -> str:
    """Return the median of a column."""
    return f"{np.median([float(row[name]) for row in rows]):.12g}"


def number_count(row: dict[str, str]) -> int:
    """Return how many numbers a tree consists of: thresholds, coefficients and actions at leaves."""
    nodes, leaves, coefficients = (int(float(row[name] or 0)) for name in ("nodes", "leaves", "coefficients"))
    actions = 2 if json.loads(row["env_args"]).get("continuous") else 1  # numbers per action
    return nodes - leaves + coefficients + actions * leaves


def write_page() -> None:
    """Put the table into its place on the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page_table()}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(("icct", *DISCRETE)))
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=int)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    if args.page:
        write_page()
    else:
        learn(args.worlds.split(","), args.methods.split(","), args.seeds, args.budget)


if __name__ == "__main__":
    main()
