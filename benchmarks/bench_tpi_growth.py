"""How the cost of tree policy iteration grows: with features, states, depth and budget.

CartPole-v1 with noise features beside its own four: what one fit takes, and what a whole short run takes and returns.
Writes results/tpi_growth.csv and results/tpi_growth.svg if asked to (`--write`); prints the table in any case.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import custard
from custard import Actions, Features
from custard.tree.fit import fit_tree

RESULTS = Path(__file__).parent.parent / "results"


class Noisy(gym.ObservationWrapper):
    """CartPole's features and others that mean nothing."""

    def __init__(self, extra: int) -> None:
        super().__init__(gym.make("CartPole-v1", disable_env_checker=True))
        low, high = self.env.observation_space.low, self.env.observation_space.high
        ones = np.ones(extra, dtype=np.float32)
        self.observation_space = gym.spaces.Box(np.concatenate([low, -ones]), np.concatenate([high, ones]))
        self.extra, self.rng = extra, np.random.default_rng(0)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.concatenate([observation, self.rng.uniform(-1, 1, self.extra).astype(np.float32)])


def fit_seconds(features: int, states: int, depth: int) -> float:
    """One fit to values that depend on three of the features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(states, features))
    gain = np.where(x[:, 0] > 0.3, x[:, 1], x[:, 2 % features]) + 0.3 * rng.normal(size=states)
    names = Features(tuple(f"f{i}" for i in range(features)), np.full(features, -9.0), np.full(features, 9.0))
    value = np.stack([gain, np.zeros(states)], axis=1)
    begun = time.process_time()
    fit_tree(x, value, names, Actions("discrete", ("a", "b")), max_depth=depth)
    return time.process_time() - begun


def run(features: int, budget: int) -> tuple[float, float]:
    """A whole run: processor seconds and the return of its tree."""
    begun = time.process_time()
    learned = custard.learn(lambda: Noisy(features - 4), "tpi", max_depth=2, seed=0, budget=budget)
    seconds = time.process_time() - begun
    return seconds, custard.evaluate(learned.tree, lambda: Noisy(features - 4), 50, 1).mean


def table() -> list[dict[str, Any]]:
    """All measurements."""
    fit_seconds(4, 200, 4)  # compiled code is loaded before the clock runs
    rows: list[dict[str, Any]] = []

    def add(what: str, varied: str, size: int, seconds: float, mean: Any = "") -> None:
        rows.append({"what": what, "varied": varied, "size": size, "seconds": round(seconds, 3), "return": mean})
        print(f"{what:4} {varied:9} {size:7}  {seconds:8.3f} s  {mean}", flush=True)

    for size in (4, 8, 16, 32, 64):
        add("fit", "features", size, fit_seconds(size, 1500, 3))
    for size in (500, 1500, 5000, 15000, 50000):
        add("fit", "states", size, fit_seconds(4, size, 3))
    for size in (1, 2, 3, 4, 5, 6):
        add("fit", "depth", size, fit_seconds(4, 1500, size))
    for size in (4, 8, 16, 32, 64):
        add("run", "features", size, *run(size, 60_000))
    for size in (30_000, 60_000, 120_000, 240_000):
        add("run", "budget", size, *run(4, size))
    return rows


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """One panel for each thing that was varied."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys((row["what"], row["varied"]) for row in rows))
    figure = Figure(figsize=(3.2 * len(kinds), 3.0), layout="constrained")
    for panel, (what, varied) in zip(figure.subplots(1, len(kinds)), kinds, strict=True):
        some = [row for row in rows if (row["what"], row["varied"]) == (what, varied)]
        panel.plot([row["size"] for row in some], [row["seconds"] for row in some], "o-")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(f"one {what}")
        panel.set_xlabel(varied)
        panel.set_ylabel("processor seconds")
        panel.grid(alpha=0.3)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table and the plot into results/")
    given = parser.parse_args()
    measured = table()
    if given.write:
        with (RESULTS / "tpi_growth.csv").open("w", newline="", encoding="utf-8") as text:
            writer = csv.DictWriter(text, list(measured[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(measured)
        plot(measured, RESULTS / "tpi_growth.svg")
