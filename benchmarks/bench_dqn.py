"""How fast CUSTARD (DQN) learns beside other DQNs on the same IBMDP: one update for each step, same layers and batch.

    python benchmarks/bench_dqn.py

custard's preset "paper" trains two networks (Q over bounds and the omniscient Q_o), the others one over the full state.
All take turns in one process on one thread; the figures are steps per second of processor time, so that other programs
do not count, and each rival's best turn counts. Compile times are apart. sbx is left out where it is not installed.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym

import custard
from custard.core.spaces import describe
from custard.solvers.dqn import dqn, paper
from custard.task.problem import Problem
from custard.task.settings import settings_for
from custard.task.source import source

STEPS, TURNS, START = 512, 4, 256
WORLDS: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "PrereqWorld m=7": ("custard/PrereqWorld-v0", {"m": 7}, None),
    "CartPole depth 2": ("custard/CartPole-v0", {}, 2),
}


def ours(env: str, kwargs: dict[str, Any], depth: int | None) -> Callable[[], None]:
    where = source(env, kwargs)
    given = {"budget": 10**9, "warmup": START, "buffer": 100_000, "steps_per_update": 1}
    settings = settings_for(dqn, env, "paper", given)
    problem = Problem(where, describe(where.make_vec(1), low=settings.low, high=settings.high), 0, depth)
    learner = paper.PaperLearner(problem, paper.rules_for(problem, settings)[0], settings)

    def turn() -> None:
        goal = learner.steps + STEPS
        while learner.steps < goal:
            learner.learn()

    return turn


def theirs(make: Any, env: str, kwargs: dict[str, Any], depth: int | None) -> Callable[[], None]:
    settings = settings_for(dqn, env, "paper", {})
    ibmdp = custard.IBMDP(
        gym.make(env, **kwargs), splits=settings.splits, max_depth=depth, low=settings.low, high=settings.high
    )
    model = make(
        "MlpPolicy", ibmdp, policy_kwargs={"net_arch": [128, 128]}, batch_size=128, train_freq=1, gradient_steps=1,
        learning_starts=START, buffer_size=100_000, learning_rate=2.5e-4, target_update_interval=1000,
    )  # fmt: skip
    return lambda: model.learn(STEPS, reset_num_timesteps=False)


def main() -> None:
    import torch
    from stable_baselines3 import DQN

    torch.set_num_threads(1)
    rivals: dict[str, Any] = {"Stable-Baselines3": DQN}
    try:
        from sbx import DQN as sbx_DQN

        rivals["sbx"] = sbx_DQN
    except ImportError as error:
        print(f"sbx is left out: {error}")
    print(f"{'':<18} {'':<18} {'steps/s':>9} {'custard':>9} {'first turn s':>13}")
    for world, (env, kwargs, depth) in WORLDS.items():
        turns = {"custard": ours(env, kwargs, depth)}
        turns |= {name: theirs(make, env, kwargs, depth) for name, make in rivals.items()}
        first, best = {}, dict.fromkeys(turns, 0.0)
        for name, turn in turns.items():  # the first turn compiles
            before = time.process_time()
            turn()
            first[name] = time.process_time() - before
        for _ in range(TURNS):
            for name, turn in turns.items():
                before = time.process_time()
                turn()
                best[name] = max(best[name], STEPS / (time.process_time() - before))
        for name, speed in best.items():
            compiling = max(0.0, first[name] - STEPS / speed)
            print(f"{world:<18} {name:<18} {speed:>9.0f} {best['custard'] / speed:>8.2f}x {compiling:>13.1f}")


if __name__ == "__main__":
    main()
