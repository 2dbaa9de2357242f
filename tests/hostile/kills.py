"""Kill a run with SIGKILL at random moments, resume it, and compare with the run that was never interrupted.

    python -m tests.hostile.kills [--kills 20] [--methods mfec dqn …] [--seed 0]

Prints one row per method: how many kills hit the run, and how many differences resuming gave. There is a checkpoint at
every snapshot, so that kills fall between, during and after checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import custard

#: name -> environment, method and arguments of `custard.learn`, small enough to take seconds
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mfec": ("custard/PrereqWorld-v0", "mfec", {"env_kwargs": {"m": 5}, "budget": 200_000, "patience": 40}),
    "mfec/paper": ("custard/PrereqWorld-v0", "mfec", {"env_kwargs": {"m": 5}, "budget": 60_000, "preset": "paper"}),
    "mfec (Python)": ("FrozenLake-v1", "mfec", {"budget": 30_000}),
    "tpi": ("CartPole-v1", "tpi", {"budget": 3_000_000, "max_depth": 2}),
    "dqn": ("custard/PrereqWorld-v0", "dqn", {"env_kwargs": {"m": 5}, "budget": 40_000}),
    "ppo": ("custard/PrereqWorld-v0", "ppo", {"env_kwargs": {"m": 5}, "budget": 40_000}),
    "dqn/paper": ("custard/PrereqWorld-v0", "dqn", {"env_kwargs": {"m": 4}, "budget": 30_000, "preset": "paper"}),
    "ppo/paper": ("custard/PrereqWorld-v0", "ppo", {"env_kwargs": {"m": 4}, "budget": 60_000, "preset": "paper"}),
    "viper-bi": ("custard/PrereqWorld-v0", "viper-bi", {"env_kwargs": {"m": 5}, "iterations": 20}),
    "viper-dqn": ("CartPole-v1", "viper-dqn", {"budget": 30_000}),
    "plan": ("custard/PrereqWorld-v0", "plan", {"env_kwargs": {"m": 6}, "max_depth": 3}),
    "cqi": ("custard/PrereqWorld-v0", "cqi", {"env_kwargs": {"m": 3}, "budget": 20_000}),
    "pyeatt": ("custard/PrereqWorld-v0", "pyeatt", {"env_kwargs": {"m": 3}, "budget": 20_000}),
    "cutree": ("custard/PrereqWorld-v0", "cutree", {"env_kwargs": {"m": 3}, "budget": 6000}),
    "utree": ("FrozenLake-v1", "utree", {"budget": 3000, "history": 1, "workers": 0}),
    "random": ("custard/PotholeWorld-v0", "random", {"budget": 200_000, "max_depth": 2}),
    "moet": ("custard/PrereqWorld-v0", "moet", {"env_kwargs": {"m": 3}, "budget": 12_000, "iterations": 3,
                                                "epochs": 5}),
    "ddt": ("custard/PrereqWorld-v0", "ddt", {"env_kwargs": {"m": 3}, "budget": 24_000}),
    "icct": ("MountainCarContinuous-v0", "icct", {"budget": 4000, "max_depth": 1, "updates_per_step": 0.1, "hidden": 16,
                                                  "batch": 32, "warmup": 500, "workers": 0}),
    "direct": ("MountainCarContinuous-v0", "direct", {"budget": 40_000, "max_depth": 1, "workers": 0}),
    "direct/workers": ("MountainCarContinuous-v0", "direct", {"budget": 40_000, "max_depth": 1, "workers": 2}),
    "viper/expert": ("custard/PrereqWorld-v0", "viper-dqn", {"env_kwargs": {"m": 4}, "budget": 20_000}),
}  # fmt: skip

_CHILD = """
import json, sys
import custard
from custard.lab import learn
learn.CHECKPOINT_SECONDS = 0.0
env, method, given, out = json.loads(sys.argv[1])
run = custard.learn(env, method, out=out, resume=True, **given)
print(json.dumps([run.tree.to_json()["nodes"], run.steps, repr(run.value)]))
"""


def begin(name: str, out: Path) -> subprocess.Popen[str]:
    """Start or resume a run in a process of its own."""
    env, method, given = RUNS[name]
    paths = [str(Path(custard.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _CHILD, json.dumps([env, method, given, str(out)])], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip


def kill_and_resume(name: str, kills: int, rng: np.random.Generator, place: Path) -> tuple[int, list[str]]:
    """Return how many kills hit a run that was under way, and what went wrong."""
    begun = time.perf_counter()
    whole, said = begin(name, place / "whole").communicate()
    seconds = time.perf_counter() - begun
    if not whole:
        return 0, [said.strip().splitlines()[-1] if said.strip() else "no result"]
    hits, wrong, number = 0, [], 0
    while hits < kills and number < 4 * kills:
        out, number = place / f"run-{number}", number + 1
        result = ""
        while not result and hits < kills:
            process = begin(name, out)
            try:
                result, said = process.communicate(timeout=float(rng.uniform(0.3 * seconds, seconds)))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                hits += 1
                continue
            if not result:
                wrong.append(f"resuming failed: {said.strip().splitlines()[-1] if said.strip() else 'silently'}")
                break
        if not result:
            result, said = begin(name, out).communicate()
        if result != whole:
            wrong.append(f"another result: {result[:200] or said[-200:]}")
        left = [file.name for file in out.rglob(".*") if file.is_file()]
        if left:
            wrong.append(f"left behind: {', '.join(left)}")
    return hits, wrong


def main(words: list[str]) -> int:
    """Print the table; return the number of methods with a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--methods", nargs="*", default=list(RUNS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    differing = 0
    for name in given.methods:
        with tempfile.TemporaryDirectory() as place:
            hits, wrong = kill_and_resume(name, given.kills, np.random.default_rng(given.seed), Path(place))
        print(f"{name:14} {hits:3} kills, {len(wrong)} differences", flush=True)  # noqa: T201
        for line in wrong[:5]:
            print(f"    {line}")  # noqa: T201
        differing += bool(wrong)
    return differing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
