"""Kill a run with SIGKILL at random moments, resume it, and compare with the run that was never interrupted.

    python -m tests.hostile.kills [--kills 20] [--methods mfec dqn …] [--seed 0] [--out kills.csv]

Prints one row per method, and appends it to the CSV: how many kills hit the run, how many of them after it had stored a
checkpoint, and how many differences resuming gave. There is a checkpoint at every snapshot. Every other kill of a new
run waits for its first checkpoint, so that kills fall before, between, during and after checkpoints. Runs are forks of
this process, in which what they need is imported and compiled already (networks are compiled from a cache), so that
kills hit the run and not its start.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import custard
from custard.core import threads
from custard.lab import learn

PREREQ = {"env_kwargs": {"m": 4}}
#: name -> environment, method and arguments of `custard.learn`, small enough to take seconds
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mfec": ("custard/PrereqWorld-v0", "mfec", {"env_kwargs": {"m": 5}, "budget": 200_000, "patience": 40}),
    "mfec/paper": ("custard/PrereqWorld-v0", "mfec", {"env_kwargs": {"m": 4}, "budget": 20_000, "preset": "paper"}),
    "mfec (Python)": ("FrozenLake-v1", "mfec", {"budget": 10_000}),
    "tpi": ("CartPole-v1", "tpi", {"budget": 300_000, "max_depth": 2}),
    "random": ("custard/PotholeWorld-v0", "random", {"budget": 300_000, "max_depth": 2}),
    "plan": ("custard/PrereqWorld-v0", "plan", {"env_kwargs": {"m": 6}, "max_depth": 3}),
    "plan/discounted": ("FrozenLake-v1", "plan", {"max_depth": 2, "gamma": 0.99}),
    "viper-bi": ("custard/PrereqWorld-v0", "viper-bi", {"env_kwargs": {"m": 5}, "iterations": 8}),
    "cqi": ("custard/PrereqWorld-v0", "cqi", {"env_kwargs": {"m": 3}, "budget": 10_000}),
    "pyeatt": ("custard/PrereqWorld-v0", "pyeatt", {"env_kwargs": {"m": 3}, "budget": 10_000}),
    "cutree": ("custard/PrereqWorld-v0", "cutree", {"env_kwargs": {"m": 3}, "budget": 3000}),
    "utree": ("FrozenLake-v1", "utree", {"budget": 2000, "history": 1, "workers": 0}),
    "direct": ("MountainCarContinuous-v0", "direct", {"budget": 20_000, "max_depth": 1, "workers": 0}),
    "direct/linear": ("Pendulum-v1", "direct", {"budget": 30_000, "leaves": "linear", "tests": "linear", "workers": 0}),
    "direct/workers": ("MountainCarContinuous-v0", "direct", {"budget": 20_000, "max_depth": 1, "workers": 2}),
    "dqn": ("custard/PrereqWorld-v0", "dqn", {**PREREQ, "budget": 10_000}),
    "dqn/paper": ("custard/PrereqWorld-v0", "dqn", {**PREREQ, "budget": 10_000, "preset": "paper"}),
    "ppo": ("custard/PrereqWorld-v0", "ppo", {**PREREQ, "budget": 40_000}),
    "ppo/paper": ("custard/PrereqWorld-v0", "ppo", {**PREREQ, "budget": 20_000, "preset": "paper", "num_steps": 64}),
    "viper-dqn": ("CartPole-v1", "viper-dqn", {"budget": 10_000}),
    "viper/expert": ("custard/PrereqWorld-v0", "viper-dqn", {**PREREQ, "budget": 10_000}),
    "moet": ("custard/PrereqWorld-v0", "moet", {"env_kwargs": {"m": 3}, "budget": 12_000, "iterations": 3,
                                                "epochs": 5}),
    "ddt": ("custard/PrereqWorld-v0", "ddt", {"env_kwargs": {"m": 3}, "budget": 24_000}),
    "icct": ("Pendulum-v1", "icct", {"budget": 20_000, "max_depth": 1, "updates_per_step": 0.05, "hidden": 16,
                                     "batch": 32, "warmup": 500, "workers": 0}),
}  # fmt: skip
COLUMNS = ("run", "kills", "after_a_checkpoint", "runs", "snapshots", "differences", "seconds_uninterrupted", "custard")
#: A kill falls at a share of the uninterrupted run's time, drawn between these; one that waits for the first checkpoint
#: at a share, up to `LATEST`, of the time from there to the end.
EARLIEST, LATEST = 0.05, 0.7
POLL_SECONDS = 0.005  # between looks for a first checkpoint


@dataclass
class Kills:
    """What came of one run: kills that hit it, kills after a checkpoint, runs taken to their end, snapshots per run."""

    hits: int = 0
    after_checkpoint: int = 0
    ends: int = 0
    snapshots: int = 0
    seconds: float = 0.0  # of the run that was left alone
    first_checkpoint: float = 0.0  # seconds until then
    wrong: list[str] = field(default_factory=list)


def has_checkpoint(out: Path) -> bool:
    """Return whether a run directory holds something to go on from."""
    return (out / "checkpoint" / "state.npz").exists()


def wait_for_checkpoint(out: Path, pipe: Any) -> float:
    """Wait until a run has stored a checkpoint or has something to say; return the seconds that took."""
    begun = time.perf_counter()
    while not has_checkpoint(out) and not select.select([pipe], [], [], POLL_SECONDS)[0]:
        pass
    return time.perf_counter() - begun


def attempt(name: str, out: Path, seconds: float | None, after_checkpoint: bool = False) -> tuple[str | None, float]:
    """Start or resume a run in a fork; return what it says at its end, or None where it was killed after `seconds`,
    and when the first checkpoint was there.

    after_checkpoint  whether those seconds are counted from the first checkpoint on
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            threads._pool.cache_clear()  # its threads did not come along
            os.write(writing, result(name, out).encode())
        except BaseException:
            os.write(writing, ("failed: " + traceback.format_exc().strip().splitlines()[-1]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        waited = wait_for_checkpoint(out, pipe) if after_checkpoint or seconds is None else 0.0
        is_over = bool(select.select([pipe], [], [], seconds)[0])
        if not is_over:
            os.kill(child, signal.SIGKILL)
        said = pipe.read().decode() if is_over else None
    os.waitpid(child, 0)
    return said, waited


def result(name: str, out: Path) -> str:
    """Run to the end; return the tree, the steps and the value as text."""
    env, method, given = RUNS[name]
    run = custard.learn(env, method, out=out, resume=True, **given)
    return json.dumps([run.tree.to_json()["nodes"], run.steps, repr(run.value), "jax" in sys.modules])


def kill_and_resume(name: str, kills: int, rng: np.random.Generator, place: Path) -> Kills:
    """Run once undisturbed, then kill and resume runs until so many kills hit one that was under way."""
    done = Kills()
    attempt(name, place / "first", None)  # fills caches on disk
    if not json.loads(attempt(name, place / "second", None)[0] or "[0]")[-1]:
        result(name, place / "here")  # no network: loaded here, all forks have it
    begun = time.perf_counter()
    whole, done.first_checkpoint = attempt(name, place / "whole", None)
    done.seconds = time.perf_counter() - begun
    metrics = place / "whole" / "metrics.csv"
    done.snapshots = len(metrics.read_text().splitlines()) - 1 if metrics.exists() else 0
    if not whole or whole.startswith("failed"):
        done.wrong.append(whole or "no result")
        return done
    attempts = 0
    for number in range(4 * kills):
        if done.hits >= kills:
            break
        out, said = place / f"run-{number}", None
        while said is None and done.hits < kills:
            attempts += 1
            waits = attempts % 2 == 0 and not has_checkpoint(out)
            seconds = float(rng.uniform(0.0, LATEST)) * (done.seconds - done.first_checkpoint)
            if not waits:
                seconds = float(rng.uniform(EARLIEST, LATEST)) * done.seconds
            said, _ = attempt(name, out, seconds, waits)
            done.hits += said is None
            done.after_checkpoint += said is None and has_checkpoint(out)
        if said is None:
            said, _ = attempt(name, out, None)
        done.ends += 1
        if said != whole:
            done.wrong.append(f"another result: {str(said)[:300]}")
        left = [file.name for file in out.rglob(".*") if file.is_file()]
        if left:
            done.wrong.append(f"left behind: {', '.join(left)}")
    return done


def main(words: list[str]) -> int:
    """Print the table; return the number of methods with a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--methods", nargs="*", default=list(RUNS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(words)
    warnings.simplefilter("ignore")
    learn.CHECKPOINT_SECONDS = 0.0  # type: ignore[misc]
    differing = 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }  # fmt: skip
        for name in given.methods:
            with tempfile.TemporaryDirectory() as place:
                done = kill_and_resume(name, given.kills, np.random.default_rng(given.seed), Path(place))
            print(  # noqa: T201
                f"{name:16} {done.hits:3} kills ({done.after_checkpoint} after a checkpoint), {len(done.wrong)} "
                f"differences in {done.ends} runs of {done.seconds:.1f} s and {done.snapshots} snapshots", flush=True,
            )  # fmt: skip
            for line in done.wrong[:5]:
                print(f"    {line}")  # noqa: T201
            if given.out is not None:
                is_new = not given.out.exists()
                with given.out.open("a", newline="") as file:
                    writer = csv.writer(file, lineterminator="\n")
                    writer.writerows([COLUMNS] * is_new)
                    writer.writerow([name, done.hits, done.after_checkpoint, done.ends, done.snapshots, len(done.wrong),
                                     round(done.seconds, 2), custard.__version__])  # fmt: skip
            differing += bool(done.wrong)
    return differing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
