"""Learn the same tree in one process and on a Ray cluster of two nodes, one of which is killed in the middle.

    python benchmarks/run_ray_runner.py [--budget 30000] [--milliseconds 1]

Both nodes are on the loopback address, one core each. The environment computes for some milliseconds per step. Prints
the seconds that each run took, how many actors were lost, and whether tree, value and steps are the same; the exit code
is 1 if they are not.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

import custard
from custard.task.ray_runner import RayRunner


class Drift(gym.Env):
    """A point that drifts at random: the action pushes it left or right, and its distance from 0 is the loss."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2)

    def __init__(self, milliseconds: float = 1.0) -> None:
        self.seconds = milliseconds / 1000

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=2), 0
        return self.x.astype(np.float32), {}

    def step(self, action):
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        self.t += 1
        self.x = np.clip(self.x + self.np_random.normal(size=2) + 0.5 * (2 * action - 1), -9, 9)
        return self.x.astype(np.float32), float(-abs(self.x[0])), False, self.t >= 30, {}


def main() -> int:
    """Run both and compare."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=30_000)
    parser.add_argument("--milliseconds", type=float, default=1.0)
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from run_ray_runner import Drift as Importable  # under the name by which actors import it

    how = {"method": "direct", "budget": given.budget, "seed": 3, "env_kwargs": {"milliseconds": given.milliseconds}}
    begun = time.perf_counter()
    here = custard.learn(Importable, workers=0, **how)
    seconds = time.perf_counter() - begun
    print(f"one process: {seconds:.1f} s, value {here.value:.3f}, {here.steps:,} steps", flush=True)

    from ray.cluster_utils import Cluster

    lost: list[float] = []
    replace = RayRunner._replace_actor

    def counted(runner: RayRunner, actor: object) -> None:
        lost.append(time.perf_counter())
        replace(runner, actor)

    RayRunner._replace_actor = counted  # type: ignore[method-assign]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        timer = threading.Timer(seconds / 3, cluster.remove_node, [other], {"allow_graceful": False})
        timer.start()
        begun = time.perf_counter()
        there = custard.learn(Importable, engine="ray", address=cluster.address, **how)
        print(
            f"two nodes, one killed after {seconds / 3:.1f} s: {time.perf_counter() - begun:.1f} s, "
            f"value {there.value:.3f}, {there.steps:,} steps, {len(lost)} actors lost"
        )
        timer.join()
    finally:
        cluster.shutdown()
    same = (here.raw, here.value, here.steps) == (there.raw, there.value, there.steps)
    print("the same tree, value and steps" if same and lost else "NOT the same tree" if lost else "no actor was lost")
    return int(not (same and lost))


if __name__ == "__main__":
    sys.exit(main())
