"""Tree policy iteration on unseen tasks with no settings, beside rules made by hand: results/tpi_unseen.csv.

    python benchmarks/run_tpi_unseen.py --seeds 3 --first 40 --budget 500000 --experts auto

One row per run, written as it ends; runs that the file has are passed over. `expert` is what the search began from:
`auto` is the default, `none` a search by itself. Returns are means over 1,000 fresh episodes.
"""

from __future__ import annotations

import argparse
import gc
import resource
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
from result_rows import append_row, rows_in

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


class Tanks(gym.Env):
    """Two tanks in a row: a pump fills the first, and the level of the second should follow a goal that jumps."""

    observation_space = gym.spaces.Box(0, 2, (3,))
    action_space = gym.spaces.Box(0, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level, self.goal, self.t = self.np_random.uniform(0.2, 1.0, 2), self.np_random.uniform(0.3, 1.2), 0
        return self.seen(), {}

    def seen(self):
        return np.array([*self.level, self.goal], dtype=np.float32)

    def step(self, action):
        flow = np.array([float(action[0]), *(np.array([0.5, 0.4]) * np.sqrt(self.level))])
        self.level = (self.level - 0.2 * np.diff(flow) + self.np_random.normal(0, 0.005, 2)).clip(0, 2)
        self.t += 1
        if self.t % 50 == 0:
            self.goal = self.np_random.uniform(0.3, 1.2)
        return self.seen(), -abs(float(self.level[1]) - self.goal), False, self.t == 200, {}


class Drone(gym.Env):
    """A mass in the plane, pushed to the middle by two forces against the wind; forces cost, leaving costs much."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.speed, self.t = self.np_random.uniform(-1, 1, 2), np.zeros(2), 0
        return np.concatenate([self.at, self.speed]), {}

    def step(self, action):
        self.speed = self.speed + 0.1 * (action + np.array([0.1, 0.0])) + self.np_random.normal(0, 0.02, 2)
        self.at = self.at + 0.1 * self.speed
        self.t += 1
        left = bool(np.abs(self.at).max() > 3)
        reward = -float(np.abs(self.at).sum() + 0.1 * np.abs(action).sum()) - 100.0 * left
        return np.concatenate([self.at, self.speed]), reward, left, self.t == 150, {}


def first_lane_first(x: np.ndarray) -> np.ndarray:
    """Stay until the lane is empty, leave the second one when two wait in the first."""
    green, one, two = x[:, 0], x[:, 2], x[:, 3]  # features go by name: green, hour, waiting
    return np.where(green == 0, (one == 0) & (two > 0), one < 2).astype(int)


def against_the_fall(x: np.ndarray) -> np.ndarray:
    """Push against position and speed together, unless both are small."""
    lean = x[:, 0] + x[:, 1]
    return 1 - np.sign(lean).astype(int) * (np.abs(lean) > 0.05)


def by_levels(x: np.ndarray) -> np.ndarray:
    """What keeps the goal, more below it and less above, and less if the first tank is fuller than it need be."""
    one, two, goal = x.T
    return (0.4 * np.sqrt(goal) + 2.0 * (goal - two) - 0.5 * (one - 0.64 * two)).clip(0, 1)[:, None]


def against_both(x: np.ndarray) -> np.ndarray:
    """Against position, speed and wind."""
    return (-x[:, :2] - 1.5 * x[:, 2:] - np.array([0.1, 0.0])).clip(-1, 1)


TASKS: dict[str, tuple[type[gym.Env], Callable[[np.ndarray], np.ndarray]]] = {
    "junction": (Junction, first_lane_first),
    "balance": (Balance, against_the_fall),
    "tanks": (Tanks, by_levels),
    "drone": (Drone, against_both),
}


def cpu_seconds() -> float:
    """Return the processor seconds of this process and of the workers that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=30)
    parser.add_argument("--budget", type=int, help="environment steps; by default what about five minutes allow")
    parser.add_argument("--experts", nargs="+", choices=["auto", "none"], default=["auto", "none"])
    args = parser.parse_args()
    columns = ("task", "expert", "seed", "return", "leaves", "depth", "steps", "cpu_seconds", "by_hand", "budget")
    done = {(row["task"], row["expert"], row["seed"], row["budget"]) for row in rows_in(FILE)}
    by_hand = {name: custard.evaluate(rule, make, 1000, seed=1).mean for name, (make, rule) in TASKS.items()}
    for seed in range(args.first, args.first + args.seeds):
        for name, (make, _) in TASKS.items():
            for expert in args.experts:
                if (name, expert, str(seed), str(args.budget or "")) in done:
                    continue
                begun = cpu_seconds()
                run = custard.learn(make, seed=seed, budget=args.budget, expert=None if expert == "auto" else expert)
                gc.collect()  # ends the workers, so that their seconds are known
                row = {
                    "task": name, "expert": expert, "seed": seed, "leaves": run.tree.n_leaves, "depth": run.tree.depth,
                    "steps": run.steps, "cpu_seconds": round(cpu_seconds() - begun, 1),
                    "return": round(custard.evaluate(run.tree, make, 1000, seed=1).mean, 3),
                    "by_hand": round(by_hand[name], 3), "budget": args.budget or "",
                }  # fmt: skip
                append_row(FILE, columns, row)


if __name__ == "__main__":
    main()
