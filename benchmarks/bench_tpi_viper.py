"""Time until a tree of the same return: tree policy iteration beside VIPER with a Stable-Baselines3 DQN expert.

VIPER first: the expert is trained (its best checkpoint on 20 episodes kept), then imitated at a depth limit. Then tree
policy iteration at the same depth limit, until a tree returns as much on 200 episodes neither has seen. Both run one
after the other in one process on one thread; processor seconds are compared, so that other work on the machine counts
for neither.

    python benchmarks/bench_tpi_viper.py                                     a short form: CartPole-v1, 20,000 steps
    python benchmarks/bench_tpi_viper.py CartPole-v1 MountainCar-v0 --full   the expert's usual number of steps
    … --write                                                                also adds a line to results/tpi_viper.csv
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path
from typing import Any

import custard
from custard.core.spaces import describe
from custard.solvers.tpi import search as tpi
from custard.task.problem import Problem
from custard.task.source import source

FILE = Path(__file__).parent.parent / "results" / "tpi_viper.csv"

#: Hyper-parameters of the RL Zoo, with its steps; the short form trains less.
EXPERTS = {
    "CartPole-v1": dict(
        steps=50_000, short=20_000, learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1000,
        gamma=0.99, target_update_interval=10, train_freq=256, gradient_steps=128, exploration_fraction=0.16,
        exploration_final_eps=0.04, policy_kwargs={"net_arch": [256, 256]},
    ),
    "MountainCar-v0": dict(
        steps=120_000, short=60_000, learning_rate=4e-3, batch_size=128, buffer_size=10_000, learning_starts=1000,
        gamma=0.98, target_update_interval=600, train_freq=16, gradient_steps=8, exploration_fraction=0.2,
        exploration_final_eps=0.07, policy_kwargs={"net_arch": [256, 256]},
    ),
}  # fmt: skip


def expert(env: str, folder: Path, full: bool, seed: int) -> float:
    """Train, keep the best checkpoint in the folder; processor seconds."""
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    settings = dict(EXPERTS[env])
    steps, short = settings.pop("steps"), settings.pop("short")
    begun = time.process_time()
    model = DQN("MlpPolicy", make_vec_env(env, seed=seed), seed=seed, **settings)
    keep = EvalCallback(
        make_vec_env(env, seed=seed + 1000), n_eval_episodes=20, eval_freq=5000, best_model_save_path=str(folder),
        verbose=0,
    )  # fmt: skip
    model.learn(steps if full else short, callback=keep)
    return time.process_time() - begun


def race(env: str, depth: int, full: bool, seed: int) -> dict[str, Any]:
    """Both methods, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training = expert(env, folder, full, seed)
        begun = time.process_time()
        viper = custard.learn(
            env, "viper-dqn", max_depth=depth, seed=seed, expert=str(folder / "best_model.zip"), iterations=40
        )
        imitating = time.process_time() - begun
    theirs = custard.evaluate(viper.tree, env, 200, seed=90_001)
    where = source(env)
    problem = Problem(where, describe(where.make_vec(1)), seed, depth)
    list(tpi.solve(problem, tpi.Settings(budget=10_000, patience=1)))  # compiled code is loaded before the clock runs
    ours, seconds, mean = None, 0.0, float("-inf")
    begun = time.process_time()
    for snapshot in tpi.solve(problem, tpi.Settings()):
        seconds += time.process_time() - begun
        ours = snapshot.tree
        mean = custard.evaluate(ours, env, 200, seed=90_001).mean
        if mean >= theirs.mean:
            break
        begun = time.process_time()
    assert ours is not None
    print(
        f"{env}, depth ≤ {depth}, seed {seed}: VIPER {theirs.mean:.1f} with {viper.tree.n_nodes} nodes in "
        f"{training:.1f} s (expert) + {imitating:.1f} s; tree policy iteration {mean:.1f} with {ours.n_nodes} nodes in "
        f"{seconds:.1f} s: {(training + imitating) / seconds:.0f}× as fast"
        + ("" if mean >= theirs.mean else " but not as good"),
        flush=True,
    )
    return {
        "env": env, "max_depth": depth, "seed": seed, "expert_steps": EXPERTS[env]["steps" if full else "short"],
        "expert_cpu_seconds": round(training, 2), "viper_cpu_seconds": round(imitating, 2),
        "viper_return": round(theirs.mean, 3), "viper_nodes": viper.tree.n_nodes, "tpi_cpu_seconds": round(seconds, 2),
        "tpi_return": round(mean, 3), "tpi_nodes": ours.n_nodes,
        "times_as_fast": round((training + imitating) / seconds, 1),
    }  # fmt: skip


def write(row: dict[str, Any]) -> None:
    """Add a line to the results."""
    new = not FILE.exists()
    with FILE.open("a", newline="", encoding="utf-8") as text:
        writer = csv.DictWriter(text, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=["CartPole-v1"])
    parser.add_argument("--full", action="store_true", help="train experts for as long as the RL Zoo does")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    for number in range(given.first, given.first + given.seeds):
        for name in given.envs:
            row = race(name, given.depth, given.full, number)
            if given.write:
                write(row)
