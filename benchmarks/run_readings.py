"""Run the readings of the paper's MFEC that its text leaves open, for results/readings.md.

    python benchmarks/run_readings.py [seeds] [first seed] [all]
    python benchmarks/run_readings.py table

Writes results/readings.csv, one row per trial, as trials finish; the same command again runs what is missing. `all`
runs the whole factorial, otherwise only the readings that a few trials left in question. `table` prints the page's
table from the rows that are there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from custard.lab.paper import PAPER_TABLE1, WORLDS
from custard.lab.summary import markdown
from custard.lab.sweep import sweep, trials_in
from custard.lab.trials import Trial

OUT = Path(__file__).parents[1] / "results" / "readings.csv"
BUDGETS = {"CartPole": 200_000, "PrereqWorld": 100_000, "PotholeWorld": 60_000}  # environment steps
EXPLORATIONS: dict[str, dict[str, Any]] = {
    "0.5 to 0.05": {"first_epsilon": 0.5, "epsilon": 0.05, "epsilon_steps": 200_000},  # the appendix's for DQN
    "0.005": {"first_epsilon": 0.005, "epsilon": 0.005, "epsilon_steps": 200_000},  # Blundell et al. (2016)
    "0.5 to 0.005": {"first_epsilon": 0.5, "epsilon": 0.005, "epsilon_steps": 200_000},  # from the one to the other
    "1 to 0.005": {"first_epsilon": 1.0, "epsilon": 0.005, "epsilon_steps": 10_000},  # MFEC as others program it
}
FACTORIAL = [
    {"optimistic": optimistic, **exploration, "target": target}
    for optimistic in (True, False)
    for exploration in EXPLORATIONS.values()
    for target in ("one-step", "n-step", "episode")
]
BEST_OF_20 = [{**FACTORIAL[0], "keep_best": True, "evaluations": 20}]
ASKED = [reading for reading in FACTORIAL if reading["target"] == "one-step" and reading["optimistic"]]
ASKED.append({**FACTORIAL[0], "optimistic": False})
ASKED_ON_CARTPOLE = [{**ASKED[i], "target": "n-step"} for i in (0, 2, 4)]


def trials(seeds: range, everything: bool = False) -> list[Trial]:
    """Return the factorial and the reading that reports the best of 20 trees, or only the readings in `ASKED`; seeds
    are outermost, to fill evenly.
    """
    return [
        Trial(world.env, "mfec", seed, world.kwargs, "paper", world.max_depth,
              {"budget": BUDGETS[name], "evaluations": 5, **reading}, experiment="readings")
        for seed in seeds for reading in FACTORIAL + BEST_OF_20 for name, world in WORLDS.items()
        if everything or reading in ASKED or (name == "CartPole" and reading in ASKED_ON_CARTPOLE)
    ]  # fmt: skip


SCALES = {"CartPole": (200.0, None), "PrereqWorld": (996.0, 7.0), "PotholeWorld": (50.0, 10.0)}  # reward, depth


def table() -> str:
    """Return every reading's rewards and depths, means over its seeds, and the distance to the paper's.

    The distance is the mean, over the five numbers that the paper prints, of the difference in units of `SCALES`.
    """
    lines = []
    for reading in FACTORIAL + BEST_OF_20:
        line, distances = [_words(reading)], []
        for name, world in WORLDS.items():
            settings = {"budget": BUDGETS[name], "evaluations": 5, **reading}
            asked = [Trial(world.env, "mfec", seed, world.kwargs, "paper", world.max_depth, settings)
                     for seed in range(50)]  # fmt: skip
            rows = trials_in(OUT, asked)[0]
            if not rows:
                line += ["–"] * (1 if name == "CartPole" else 2)
                continue
            for column, scale, cell in zip(("return", "depth"), SCALES[name], PAPER_TABLE1["mfec"][name], strict=True):
                if cell is not None:
                    mean = float(np.mean([row[column] for row in rows]))
                    distances.append(abs(mean - cell.mean) / scale)  # type: ignore[operator]
                    line.append(f"{mean:.2f}" if column == "return" else f"{mean:.1f}")
            line[-1] += f" ({len(rows)})"
        if distances:
            lines.append([*line, f"{np.mean(distances):.2f}" if len(distances) == 5 else "–"])
    published = [str(cell) for name in WORLDS for cell in PAPER_TABLE1["mfec"][name] if cell is not None]
    header = ["reading", "CartPole reward", "PrereqWorld reward", "depth", "PotholeWorld reward", "depth", "distance"]
    return markdown(header, [*lines, ["the paper", *published, ""]])


def _words(reading: dict[str, Any]) -> str:
    """Return a reading in words."""
    names = (name for name, exploration in EXPLORATIONS.items() if exploration.items() <= reading.items())
    first = "untried first" if reading["optimistic"] else "neighbours' mean"
    return f"{reading['target']}, ε {next(names)}, {first}" + (", best of 20 trees" if reading.get("keep_best") else "")


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        print(table())
    else:
        words = [word for word in sys.argv[1:] if word != "all"]
        count, first = (int(word) for word in words + ["2", "0"][len(words) :])
        sweep(trials(range(first, first + count), "all" in sys.argv), OUT, workers=0, show=False)
