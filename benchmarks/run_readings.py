"""Run the readings of the paper's MFEC that its text leaves open, for results/readings.md.

    python benchmarks/run_readings.py [seeds] [first seed]

Writes results/readings.csv, one row per trial, as trials finish; the same command again runs what is missing.
"""

from __future__ import annotations

import sys
from pathlib import Path

from custard.lab.paper import WORLDS
from custard.lab.sweep import sweep
from custard.lab.trials import Trial

OUT = Path(__file__).parents[1] / "results" / "readings.csv"
BUDGETS = {"CartPole": 200_000, "PrereqWorld": 100_000, "PotholeWorld": 60_000}  # environment steps
APPENDIX = {"first_epsilon": 0.5, "epsilon": 0.05}  # the appendix's schedule for DQN
MFEC = {"first_epsilon": 0.005, "epsilon": 0.005}  # Blundell et al. (2016)
FACTORIAL = [
    {"optimistic": optimistic, **exploration, "target": target}
    for optimistic in (True, False)
    for exploration in (APPENDIX, MFEC)
    for target in ("one-step", "n-step", "episode")
]
BEST_OF_20 = [{"optimistic": True, **APPENDIX, "target": "one-step", "keep": True, "evaluations": 20}]


def trials(seeds: range) -> list[Trial]:
    """Return the factorial and the reading that reports the best of 20 trees; seeds are outermost, to fill evenly."""
    return [
        Trial(world.env, "mfec", seed, world.kwargs, "paper", world.max_depth,
              {"budget": BUDGETS[name], "evaluations": 5, **reading}, experiment="readings")
        for seed in seeds for reading in FACTORIAL + BEST_OF_20 for name, world in WORLDS.items()
    ]  # fmt: skip


if __name__ == "__main__":
    count, first = (int(word) for word in (sys.argv[1:] + ["2", "0"][len(sys.argv) - 1 :]))
    sweep(trials(range(first, first + count)), OUT, workers=0, show=False)
