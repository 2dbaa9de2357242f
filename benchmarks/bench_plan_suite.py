"""What `plan` finds and proves on the thirteen models of the literature (`omdt_models`), in CPU seconds, one thread.

python benchmarks/bench_plan_suite.py --seconds 20 --depths 1 2 3 4 --out results/plan_suite.csv
python benchmarks/bench_plan_suite.py --models xor traffic --depths 3           some of it, printed only; with --out
                                                                                these rows replace those of the CSV
python benchmarks/bench_plan_suite.py --page results/plan_suite.csv             the second table of results/plan.md

Values and bounds are normalised: 0 is a random policy's return, 1 the best policy's. The time limit counts CPU seconds
of this process, so that a busy machine changes nothing; compilation is done before, on a small model.
`run_plan_peer.py` runs the peer's method beside it.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import omdt_models
import pytest

import custard.planning.constraint_search as constraint_search
from custard.planning.optimal_tree import best_tree

COLUMNS = ("model", "states", "actions", "features", "max_depth", "seconds_limit", "return", "bound_return",
           "optimum", "random_return", "value", "bound", "gap", "proved", "tolerance", "leaves", "explored",
           "cpu_seconds")  # fmt: skip


def measured(name: str, depth: int, seconds: float) -> dict:
    """Return one row."""
    mdp = omdt_models.MODELS[name]()
    low = omdt_models.random_return(mdp)
    began = time.process_time()
    found = best_tree(mdp, depth, seconds=seconds, fewest_leaves=False)
    took = time.process_time() - began
    scale = found.optimum - low
    return dict(zip(COLUMNS, (
        name, mdp.n_states, mdp.actions.n, mdp.features.n, depth, seconds, found.value, found.bound, found.optimum, low,
        round((found.value - low) / scale, 6), round((found.bound - low) / scale, 6),
        round((found.bound - found.value) / scale, 6), int(found.optimal),
        found.tree.origin["certificate"]["tolerance"], found.tree.n_leaves, found.explored, round(took, 2),
    ), strict=True))  # fmt: skip


def compile_first() -> None:
    """Run both forms of the relaxation on a small model."""
    mdp = omdt_models.MODELS["frozenlake_4x4"]()
    best_tree(mdp, 2, seconds=2.0, fewest_leaves=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraint_search, "MAX_DENSE_STATES", 0)
        best_tree(mdp, 1, seconds=2.0, fewest_leaves=False)


def page(path: Path) -> str:
    """Return the table of a CSV: a row per model, a column per depth."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    depths = sorted({int(row["max_depth"]) for row in rows})
    lines = ["| model | " + " | ".join(f"depth {depth}" for depth in depths) + " |"]
    lines.append("|---" * (1 + len(depths)) + "|")
    for name in dict.fromkeys(row["model"] for row in rows):
        own = {int(row["max_depth"]): row for row in rows if row["model"] == name}
        cells = [f"{standing(own[d])}, {float(own[d]['cpu_seconds']):.2f} s" if d in own else "–" for d in depths]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def standing(row: dict[str, str]) -> str:
    """Return value and bound in words."""
    return f"{float(row['value']):.4f} / " + ("proved" if int(row["proved"]) else f"{float(row['bound']):.4f}")


def main() -> None:
    """Measure, print a line per row, and write the CSV row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(omdt_models.MODELS), choices=list(omdt_models.MODELS))
    parser.add_argument("--depths", nargs="*", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.page is not None:
        print(page(given.page))
        return
    time.monotonic = time.process_time  # the limit counts CPU time
    compile_first()
    rows = {}
    if given.out is not None and given.out.exists():
        with given.out.open(newline="") as file:
            rows = {(int(row["max_depth"]), row["model"]): row for row in csv.DictReader(file)}
    for depth in given.depths:
        for name in given.models:
            row = rows[depth, name] = measured(name, depth, given.seconds)
            print(f"{name}, depth {depth}: {standing(row)}, {row['cpu_seconds']} s", flush=True)
            if given.out is not None:
                with given.out.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                    writer.writeheader()
                    order = list(omdt_models.MODELS)
                    writer.writerows(rows[key] for key in sorted(rows, key=lambda key: (key[0], order.index(key[1]))))


if __name__ == "__main__":
    main()
