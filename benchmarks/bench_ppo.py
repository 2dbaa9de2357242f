"""PPO's speed beside Stable-Baselines3's and sbx's PPO on `custard.IBMDP`, and 8 seeds in one call.

    python benchmarks/bench_ppo.py [--seeds]

Same networks (two layers of 64 for actor and critic), rows per iteration, epochs and minibatches. A step is a node of
the tree visited: what the others call a step of the IBMDP. Each of ours also has the greedy traversals behind splits.
Speeds are steps per second of processor time, so that other programs count less. Rivals take turns, and each is judged
by its best turn; the first call, which compiles (or loads what numba compiled before), is reported apart.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym

import custard
from custard.core.spaces import describe
from custard.lab.multi_seed import learn_seeds
from custard.solvers.ppo.ppo import Learner, Settings
from custard.task.problem import Problem
from custard.task.source import source

BOUNDS = {"low": [-2, -2, -0.14, -1.4], "high": [2, 2, 0.14, 1.4]}
STEPS = 64


def ours(env: Any, envs: int) -> Callable[[], int]:
    """One iteration of custard's PPO; how many rows it learned from."""
    where = source(env)
    problem = Problem(where, describe(where.make_vec(1), **BOUNDS), 0, 2)
    settings = Settings(
        budget=10**9,
        splits=3,
        num_envs=envs,
        num_steps=STEPS,
        minibatches=4,
        exploring_share=0.0,
        iterations_per_extraction=10**9,
    )
    learner = Learner(problem, settings)

    def iteration() -> int:
        learner.advance()
        return learner.rollouts.rows.has_action.size

    return iteration


def rival(library: str, env: str, envs: int) -> Callable[[], int]:
    """One iteration of another library's PPO on the same IBMDP."""
    if library == "sb3":
        from stable_baselines3 import PPO
    else:
        from sbx import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    made = DummyVecEnv([lambda: custard.IBMDP(gym.make(env), splits=3, max_depth=2, **BOUNDS)] * envs)
    nets: Any = {"pi": [64, 64], "vf": [64, 64]} if library == "sb3" else [64, 64]
    model = PPO(
        "MlpPolicy", made, n_steps=STEPS, batch_size=envs * STEPS // 4, n_epochs=4, policy_kwargs={"net_arch": nets},
        **({"device": "cpu"} if library == "sb3" else {}),
    )  # fmt: skip
    size = envs * STEPS

    def iteration() -> int:
        model.learn(size, reset_num_timesteps=False)
        return size

    return iteration


def compare(title: str, rivals: dict[str, Callable[[], Callable[[], int]]], wanted: float, turns: int = 5) -> None:
    print(title)
    runs, best, first = {}, {}, {}
    for name, build in rivals.items():
        try:
            runs[name] = build()
        except ImportError as error:
            print(f"  {name}: not installed ({error})")
            continue
        start = time.perf_counter(), time.process_time()
        runs[name]()
        first[name], best[name] = (time.perf_counter() - start[0], time.process_time() - start[1]), 0.0
        runs[name]()
    for _ in range(turns):
        for name, run in runs.items():
            start, rows = time.process_time(), 0
            while time.process_time() - start < 1.0:
                rows += run()
            best[name] = max(best[name], rows / (time.process_time() - start))
    for name, speed in best.items():
        ratio = best["custard"] / speed
        goal = f" (wanted {wanted:g})" if name == "sb3" else ""
        print(
            f"  {name:<8} {speed:>9,.0f} steps/s   custard is {ratio:6.1f} times as fast{goal}; "
            f"first call {first[name][0]:.1f} s, {first[name][1]:.1f} s of the processor's"
        )


def seeds(count: int = 8) -> None:
    given: dict[str, Any] = {"env_kwargs": {"m": 5}, "budget": 60_000}
    env = "custard/PrereqWorld-v0"
    start = time.perf_counter()
    together = learn_seeds(env, "ppo", seeds=count, **given)
    at_once = time.perf_counter() - start
    start = time.perf_counter()
    apart = [learn_seeds(env, "ppo", seeds=[seed], workers=1, **given)[0] for seed in range(count)]
    one_by_one = time.perf_counter() - start
    same = all(a.tree == b.tree and a.steps == b.steps for a, b in zip(together, apart, strict=True))
    print(
        f"{count} seeds in one call {at_once:.1f} s, {count} calls {one_by_one:.1f} s: {one_by_one / at_once:.2f} times"
    )
    print(f"  each seed's tree and steps equal those of its own call: {same}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", action="store_true", help="only 8 seeds in one call")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.seeds:
        env, foreign = "custard/CartPole-v0", "CartPole-v1"
        for envs, wanted in ((8, 18.0), (32, 8.0)):
            rivals = {"custard": lambda: ours(env, envs), "sb3": lambda: rival("sb3", env, envs),
                      "sbx": lambda: rival("sbx", env, envs)}  # fmt: skip
            compare(f"native CartPole, {envs} environments x {STEPS} steps, 4 epochs, 4 minibatches", rivals, wanted,
                    args.turns)  # fmt: skip
        rivals = {"custard": lambda: ours(lambda: gym.make(foreign), 8), "sb3": lambda: rival("sb3", foreign, 8)}
        compare(f"Gymnasium's CartPole stepped in Python, 8 environments x {STEPS} steps", rivals, 3.0, args.turns)
    seeds()


if __name__ == "__main__":
    main()
