"""Tree policy iteration on unseen tasks with no settings, beside rules made by hand: results/tpi_unseen.csv.

    python benchmarks/run_tpi_unseen.py --seeds 3 --first 30

One row a run, written as it ends; runs that the file has are passed over. `expert` is what the search began from:
`auto` is the default, `none` a search by itself. Returns are means over 1,000 fresh episodes.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np

import custard

FILE = Path(__file__).parent.parent / "results" / "tpi_unseen.csv"


class Junction(gym.Env):
    """Two lanes, one green light that takes a step to switch; waiting in the first lane costs three times as much."""

    observation_space = gym.spaces.Dict(
        {
            "waiting": gym.spaces.Box(0, np.inf, (2,)),
            "green": gym.spaces.Discrete(2),
            "hour": gym.spaces.Box(-1, 1, (1,)),
        }
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.waiting, self.green, self.t = np.zeros(2), 0, 0
        return self.seen(), {}

    def seen(self):
        hour = np.array([np.sin(self.t / 10)], dtype=np.float32)
        return {"waiting": self.waiting.astype(np.float32), "green": self.green, "hour": hour}

    def step(self, action):
        switched, self.green = action != self.green, int(action)
        if not switched and self.waiting[action] > 0 and self.np_random.random() < (0.9, 0.7)[action]:
            self.waiting[action] -= 1
        self.waiting += self.np_random.random(2) < (0.3, 0.25)
        self.t += 1
        return self.seen(), -float(3 * self.waiting[0] + self.waiting[1]), False, self.t == 200, {}


class Balance(gym.Env):
    """A rod that falls away from the middle; noise, three forces, a price for using them and a large one for a fall."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.speed, self.t = self.np_random.uniform(-0.3, 0.3), 0.0, 0
        return np.array([self.at, self.speed]), {}

    def step(self, action):
        self.speed += 0.1 * (self.at + 0.8 * (int(action) - 1)) + self.np_random.normal(0, 0.02)
        self.at += 0.1 * self.speed
        self.t += 1
        fell = abs(self.at) > 1
        reward = -abs(self.at) - 100.0 * fell - 0.05 * (action != 1)
        return np.array([self.at, self.speed]), reward, fell, self.t == 200, {}


def first_lane_first(x: np.ndarray) -> np.ndarray:
    """Stay until the lane is empty, leave the second one when two wait in the first."""
    green, one, two = x[:, 0], x[:, 2], x[:, 3]  # features go by name: green, hour, waiting
    return np.where(green == 0, (one == 0) & (two > 0), one < 2).astype(int)


def against_the_fall(x: np.ndarray) -> np.ndarray:
    """Push against position and speed together, unless both are small."""
    lean = x[:, 0] + x[:, 1]
    return 1 - np.sign(lean).astype(int) * (np.abs(lean) > 0.05)


TASKS: dict[str, tuple[type[gym.Env], Callable[[np.ndarray], np.ndarray]]] = {
    "junction": (Junction, first_lane_first),
    "balance": (Balance, against_the_fall),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=30)
    args = parser.parse_args()
    columns = ("task", "expert", "seed", "return", "leaves", "depth", "steps", "cpu_seconds", "by_hand")
    done = set()
    if FILE.exists():
        with FILE.open() as text:
            done = {(row["task"], row["expert"], int(row["seed"])) for row in csv.DictReader(text)}
    else:
        FILE.write_text(",".join(columns) + "\n")
    by_hand = {name: custard.evaluate(rule, make, 1000, seed=1).mean for name, (make, rule) in TASKS.items()}
    for seed in range(args.first, args.first + args.seeds):
        for name, (make, _) in TASKS.items():
            for expert in ("auto", "none"):
                if (name, expert, seed) in done:
                    continue
                begun = time.process_time()
                run = custard.learn(make, seed=seed, expert=None if expert == "auto" else expert)
                seconds = time.process_time() - begun
                mean = custard.evaluate(run.tree, make, 1000, seed=1).mean
                row = (
                    name,
                    expert,
                    seed,
                    round(mean, 3),
                    run.tree.n_leaves,
                    run.tree.depth,
                    run.steps,
                    round(seconds, 1),
                )
                with FILE.open("a", newline="") as text:
                    csv.writer(text, lineterminator="\n").writerow([*row, round(by_hand[name], 3)])
                print(*row, by_hand[name], flush=True)


if __name__ == "__main__":
    main()
