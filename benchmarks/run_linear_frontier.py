"""Return against the numbers a person must read, with and without weighted sums: results/linear_frontier.csv and .svg.

    python benchmarks/run_linear_frontier.py [ENV …]     # runs what the file has not, one row per tree as it ends
    python benchmarks/run_linear_frontier.py --draw      # the picture alone

Every tree has the same budget; the numbers of a tree are its thresholds, coefficients and the actions at its leaves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from result_rows import append_row, rows_in

import custard
from custard.solvers.common.race import number_count

FILE = Path(__file__).parent.parent / "results" / "linear_frontier.csv"
COLUMNS = (
    "env", "form", "limit", "seed", "budget", "return", "error", "leaves", "coefficients", "numbers", "seconds",
)  # fmt: skip
#: id -> arguments of the environment, and the budget of each tree in steps
ENVIRONMENTS: dict[str, tuple[dict[str, Any], int]] = {
    "CartPole-v1": ({}, 5_000_000),
    "Pendulum-v1": ({}, 20_000_000),
    "InvertedPendulum-v5": ({}, 500_000),
    "InvertedDoublePendulum-v5": ({}, 500_000),
    "LunarLander-v3": ({}, 1_000_000),
    "LunarLander-v3 continuous": ({"continuous": True}, 1_000_000),
    "Swimmer-v5": ({}, 1_000_000),
    "Hopper-v5": ({}, 1_000_000),
    "HalfCheetah-v5": ({}, 2_000_000),
}
PLAIN, SUMS = "plain", "sums"
PLAIN_SETTINGS = {"tests": "axis", "leaves": "constant"}
MAX_LINEAR_LEAVES = 4
#: form -> limit, as the picture's points are told apart -> settings
DISCRETE: dict[str, dict[str, dict[str, Any]]] = {
    PLAIN: {f"{most} leaves": {**PLAIN_SETTINGS, "max_leaves": most} for most in (2, 4, 8, 16, 32)},
    SUMS: {f"{most} leaves": {"tests": "linear", "max_leaves": most} for most in (2, 4, 8)},
}
REAL: dict[str, dict[str, dict[str, Any]]] = {
    PLAIN: {f"{most} leaves": {**PLAIN_SETTINGS, "max_leaves": most} for most in (2, 8, 32)},
    SUMS: {
        leaves: {"leaves": leaves, "tests": leaves, "max_leaves": MAX_LINEAR_LEAVES}
        for leaves in ("linear:1", "linear:2", "linear:4", "linear")
    },
}
SEED, EPISODES, FRESH_SEED = 700, 500, 77
NAMES = {
    PLAIN: "one feature per test, constant leaves",
    SUMS: "weighted sums, linear leaves where actions are real",
}


def run(name: str, form: str, limit: str, settings: dict[str, Any]) -> dict[str, object]:
    """Learn one tree and judge it on fresh episodes."""
    env, (env_kwargs, budget) = name.split()[0], ENVIRONMENTS[name]
    begun = time.perf_counter()
    found = custard.learn(env, "direct", seed=SEED, budget=budget, env_kwargs=env_kwargs, **settings)
    seconds = time.perf_counter() - begun
    fresh = custard.evaluate(found.tree, env, EPISODES, FRESH_SEED, env_kwargs=env_kwargs)
    return {
        "env": name, "form": form, "limit": limit, "seed": SEED, "budget": budget,
        "return": round(fresh.mean, 3), "error": round(fresh.std / np.sqrt(EPISODES), 3), "leaves": found.tree.n_leaves,
        "coefficients": found.tree.n_coefficients, "numbers": number_count(found.tree), "seconds": round(seconds, 1),
    }  # fmt: skip


def _has_real_actions(env: str, env_kwargs: Mapping[str, Any]) -> bool:
    import gymnasium as gym

    made = gym.make(env, **env_kwargs)
    made.close()
    return isinstance(made.action_space, gym.spaces.Box)


def draw() -> None:
    """Draw a panel per environment and a line per form."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "custard"
    import matplotlib.pyplot as plt

    rows = rows_in(FILE)
    names = [name for name in ENVIRONMENTS if any(row["env"] == name for row in rows)]
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.2 * columns, 2.7 * lines + 0.4), squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        for form, (colour, marker) in {PLAIN: ("#4477aa", "o"), SUMS: ("#cc6677", "s")}.items():
            points = sorted(
                (int(row["numbers"]), float(row["return"]), float(row["error"]))
                for row in rows
                if row["env"] == name and row["form"] == form
            )
            if points:
                numbers, returns, errors = zip(*points, strict=True)
                bars = [1.96 * error for error in errors]
                axis.errorbar(numbers, returns, bars, color=colour, marker=marker, markersize=4, label=NAMES[form])
        axis.set_title(name, fontsize=9)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
        axis.tick_params(labelsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("numbers to read", fontsize=8)
    for row in axes:
        row[0].set_ylabel("mean return", fontsize=8)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(FILE.with_suffix(".svg"), metadata={"Date": None})


def main(words: list[str]) -> None:
    """Run what is missing, then draw."""
    done = {(row["env"], row["form"], row["limit"]) for row in rows_in(FILE)}
    wanted = [] if "--draw" in words else words or list(ENVIRONMENTS)
    for name in wanted:
        forms = REAL if _has_real_actions(name.split()[0], ENVIRONMENTS[name][0]) else DISCRETE
        for form, limits in forms.items():
            for limit, settings in limits.items():
                if (name, form, limit) not in done:
                    append_row(FILE, COLUMNS, run(name, form, limit, settings))
    draw()


if __name__ == "__main__":
    main(sys.argv[1:])
