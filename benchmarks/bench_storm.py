"""The best policy without a tree of large models: our value iteration beside Storm's, in CPU seconds, one thread.

python benchmarks/bench_storm.py --out results/plan_storm.csv            both models, 10^5 states
python benchmarks/bench_storm.py --states 10000                          smaller, printed only
python benchmarks/bench_storm.py --page results/plan_storm.csv           the table of docs/explanation/planning.md

`grid` goes to a corner of a square, with slips; undiscounted. `random` has four actions of three random successors,
discounted by 0.99. Storm gets each model as a DRN file, in which every step of a discounted model ends
with probability 0.01.
Both are asked for a relative precision of 1e-9. Only the solving is timed, not the reading. Storm must be installed.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path

import numpy as np
import stormpy

from custard.core.actions import Actions
from custard.core.features import INTEGER, Features
from custard.core.mdp import FiniteMDP
from custard.planning.solve import value_iteration

PRECISION = 1e-9
COLUMNS = ("model", "states", "transitions", "gamma", "custard_cpu_seconds", "storm_vi_cpu_seconds",
           "storm_topological_cpu_seconds", "custard_value", "storm_value")  # fmt: skip


def grid(count: int) -> FiniteMDP:
    """Go to a corner of a square: a step of four goes another way with probability 0.2."""
    side = round(count**0.5)
    state = np.arange(side * side)
    row, column = np.divmod(state, side)
    moves = [np.clip(row + dr, 0, side - 1) * side + np.clip(column + dc, 0, side - 1)
             for dr, dc in ((-1, 0), (1, 0), (0, -1), (0, 1))]  # fmt: skip
    entries = np.concatenate([
        np.stack([np.full(len(state), a), state, moves[b], np.full(len(state), 0.8 if a == b else 0.2 / 3)], axis=1)
        for a in range(4) for b in range(4)
    ])  # fmt: skip
    return model(entries, np.full((side * side, 4), -1.0), goal=0, start=side * side - 1, gamma=1.0)


def random_model(count: int) -> FiniteMDP:
    """Four actions of three random successors each, rewards between 0 and 1."""
    rng = np.random.default_rng(0)
    pairs = np.stack([np.tile(np.arange(4), count), np.repeat(np.arange(count), 4)], axis=1)
    weights = rng.dirichlet(np.ones(3), size=len(pairs))
    entries = np.concatenate([np.column_stack([pairs, rng.integers(count, size=len(pairs)), w]) for w in weights.T])
    return model(entries, rng.random((count, 4)), goal=0, start=1, gamma=0.99)


def model(entries: np.ndarray, rewards: np.ndarray, *, goal: int, start: int, gamma: float) -> FiniteMDP:
    """Return the MDP with one terminal state; the state's number is its only feature."""
    count = len(rewards)
    loops = np.array([(a, goal, goal, 1.0) for a in range(4)])
    rewards[goal] = 0.0
    x = np.arange(count, dtype=float)[:, None]
    return FiniteMDP.from_entries(
        np.concatenate([entries[entries[:, 1] != goal], loops]), rewards, terminal=np.arange(count) == goal,
        start=(np.arange(count) == start).astype(float), gamma=gamma, x=x,
        features=Features(("state",), x.min(axis=0), x.max(axis=0), (INTEGER,)),
        actions=Actions("discrete", tuple("abcd")),
    )  # fmt: skip


def write_drn(mdp: FiniteMDP, path: Path) -> None:
    """Write the MDP as a DRN file whose rewards are positive; one state more ends discounted episodes."""
    matrices = [matrix.tocsr() for matrix in mdp.transitions]
    stays, count = mdp.gamma, mdp.n_states
    with path.open("w") as file:
        file.write(f"@type: MDP\n@parameters\n\n@reward_models\nr\n@nr_states\n{count + 1}\n")
        file.write(f"@nr_choices\n{4 * count + 1}\n@model\n")
        for s in range(count):
            labels = "".join([" init"] * bool(mdp.start[s]) + [" done"] * bool(mdp.terminal[s]))
            file.write(f"state {s}{labels}\n")
            for a, matrix in enumerate(matrices):
                file.write(f"\taction {a} [{abs(mdp.rewards[s, a]):.17g}]\n")
                own = slice(matrix.indptr[s], matrix.indptr[s + 1])
                gamma = 1.0 if mdp.terminal[s] else stays
                rows = [(int(t), gamma * p) for t, p in zip(matrix.indices[own], matrix.data[own])]
                rows += [(count, 1.0 - gamma)] if gamma < 1.0 else []
                file.writelines(f"\t\t{t} : {p:.17g}\n" for t, p in sorted(rows))
        file.write(f"state {count} done\n\taction 0 [0]\n\t\t{count} : 1\n")


def storm_solves(path: Path, least: bool, method: str) -> tuple[float, float]:
    """Return Storm's value at the start and its CPU seconds."""
    built = stormpy.build_model_from_drn(str(path))
    formula = stormpy.parse_properties(f'R{{"r"}}{"min" if least else "max"}=? [F "done"]')[0]
    environment = stormpy.Environment()
    environment.solver().min_max().method = getattr(stormpy.environments.MinMaxMethod, method)
    environment.solver().min_max().precision = stormpy.Rational(PRECISION)
    began = time.process_time()
    found = stormpy.model_checking(built, formula, environment=environment)
    return float(found.get_value(int(next(iter(built.initial_states))))), time.process_time() - began


def measured(name: str, count: int) -> dict:
    """Return one row."""
    mdp = {"grid": grid, "random": random_model}[name](count)
    began = time.process_time()
    values, _ = value_iteration(mdp, PRECISION)
    ours = time.process_time() - began
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.drn"
        write_drn(mdp, path)
        value, plain = storm_solves(path, name == "grid", "VALUE_ITERATION")
        _, topological = storm_solves(path, name == "grid", "TOPOLOGICAL")
    return dict(zip(COLUMNS, (
        name, mdp.n_states, sum(matrix.nnz for matrix in mdp.transitions), mdp.gamma, round(ours, 2), round(plain, 2),
        round(topological, 2), float(mdp.start @ values), -value if name == "grid" else value,
    ), strict=True))  # fmt: skip


def page(path: Path) -> str:
    """Return the table."""
    lines = [
        "| model | states | transitions | custard, s | Storm, value iteration, s | Storm, topological, s |",
        "|---" * 6 + "|",
    ]
    with path.open(newline="") as file:
        lines += [
            f"| {row['model']} | {int(row['states']):,} | {int(row['transitions']):,} | {row['custard_cpu_seconds']} | "
            f"{row['storm_vi_cpu_seconds']} | {row['storm_topological_cpu_seconds']} |"
            for row in csv.DictReader(file)
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write a row as it finishes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", nargs="*", type=int, default=[100_000])
    parser.add_argument("--models", nargs="*", default=["grid", "random"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.page is not None:
        print(page(given.page))
        return
    rows = []
    for name in given.models:
        for count in given.states:
            rows.append(measured(name, count))
            print(*rows[-1].values(), flush=True)
            if given.out is not None:
                with given.out.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
