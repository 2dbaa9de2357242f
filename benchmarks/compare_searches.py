"""Discounted models by both searches, over constraints and over partial trees (branch and bound), in CPU seconds.

python benchmarks/compare_searches.py --seconds 10 --out results/plan_searches.csv
python benchmarks/compare_searches.py --page results/plan_searches.csv           the table of results/plan.md

Branch and bound is what `plan` does with models without a discount; here it has to take the discounted ones as well.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import omdt_models
import pytest
from bench_plan_suite import compile_first, standing

import custard.planning.optimal_tree as optimal_tree
from custard.planning.model import model_of
from custard.planning.optimal_tree import best_tree
from custard.task.source import source

COLUMNS = ("model", "max_depth", "search", "value", "bound", "proved", "cpu_seconds")
TOY_TEXT = ("FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1")
SEARCHES = {"constraints": optimal_tree.MAX_HEAP_DEPTH, "partial trees": -1}  # the deepest trees left to the first


def measured(name: str, depth: int, seconds: float) -> list[dict]:
    """Return a row per search."""
    mdp = model_of(source(name), gamma=0.99) if name in TOY_TEXT else omdt_models.MODELS[name]()
    low = omdt_models.random_return(mdp)
    rows = []
    for search, deepest in SEARCHES.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(optimal_tree, "MAX_HEAP_DEPTH", deepest)
            began = time.process_time()
            found = best_tree(mdp, depth, seconds=seconds, fewest_leaves=False)
            took = time.process_time() - began
        value, bound = ((number - low) / (found.optimum - low) for number in (found.value, found.bound))
        rows.append(dict(zip(COLUMNS, (
            name, depth, search, round(value, 6), round(bound, 6), int(found.optimal), round(took, 2)
        ), strict=True)))  # fmt: skip
    return rows


def page(path: Path) -> str:
    """Return the table."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = ["| model | depth | constraints | CPU s | partial trees | CPU s |", "|---" * 6 + "|"]
    for a, b in zip(rows[::2], rows[1::2]):
        cells = (a["model"], a["max_depth"], standing(a), a["cpu_seconds"], standing(b), b["cpu_seconds"])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write rows as they finish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[*TOY_TEXT, *omdt_models.MODELS])
    parser.add_argument("--depths", nargs="*", type=int, default=[3])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.page is not None:
        print(page(given.page))
        return
    time.monotonic = time.process_time  # the limit counts CPU time
    compile_first()
    measured("frozenlake_4x4", 2, 5.0)
    rows: list[dict] = []
    for name in given.models:
        for depth in given.depths:
            rows += measured(name, depth, given.seconds)
            print(*(list(row.values()) for row in rows[-2:]), flush=True)
            if given.out is not None:
                with given.out.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
