"""Compare the speed of two states of the code on whole runs: processor seconds, warm, in turns, best of each.

    python benchmarks/compare_versions.py OLD/src [NEW/src]

Every case runs in a process of its own for each state, once to compile and load, then timed. The ratio is new / old.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PREREQ, POTHOLE = "custard/PrereqWorld-v0", "custard/PotholeWorld-v0"
RUNS = {
    "tpi CartPole-v1": ("CartPole-v1", "tpi", {"max_depth": 2, "budget": 20_000_000}),
    "tpi PrereqWorld m=7": (PREREQ, "tpi", {"budget": 10_000_000}),
    "tpi PotholeWorld": (POTHOLE, "tpi", {"max_depth": 5, "budget": 10_000_000}),
    "tpi FrozenLake-v1 (Python)": ("FrozenLake-v1", "tpi", {"budget": 30_000}),
    "mfec CartPole-v1": ("CartPole-v1", "mfec", {"max_depth": 2, "budget": 3_000_000}),
    "mfec PrereqWorld m=7": (PREREQ, "mfec", {"budget": 2_000_000}),
    "mfec FrozenLake-v1 (Python)": ("FrozenLake-v1", "mfec", {"budget": 60_000}),
    "mfec paper PotholeWorld": (POTHOLE, "mfec", {"preset": "paper", "budget": 1_000_000}),
    "dqn PotholeWorld": (POTHOLE, "dqn", {"budget": 300_000}),
    "dqn paper CartPole-v1": ("CartPole-v1", "dqn", {"preset": "paper", "budget": 20_000, "warmup": 2000}),
    "ppo PrereqWorld m=7": (PREREQ, "ppo", {"budget": 150_000}),
    "ppo paper PrereqWorld m=7": (PREREQ, "ppo", {"preset": "paper", "budget": 100_000}),
    "viper-dqn PrereqWorld m=7": (PREREQ, "viper-dqn", {"budget": 100_000}),
    "plan PrereqWorld m=6": (PREREQ, "plan", {"max_depth": 2, "env_kwargs": {"m": 6}}),
    "plan PrereqWorld m=10": (PREREQ, "plan", {"max_depth": 3, "env_kwargs": {"m": 10}}),
    "plan PotholeWorld, depth 3": (POTHOLE, "plan", {"max_depth": 3}),
    "plan PotholeWorld, depth 5": (POTHOLE, "plan", {"max_depth": 5}),
    "plan FrozenLake-v1, depth 1": ("FrozenLake-v1", "plan", {"max_depth": 1}),
    "plan FrozenLake-v1, depth 2": ("FrozenLake-v1", "plan", {"max_depth": 2}),
    "plan FrozenLake-v1, depth 3": ("FrozenLake-v1", "plan", {"max_depth": 3}),
    "plan FrozenLake-v1, depth 4": ("FrozenLake-v1", "plan", {"max_depth": 4}),
    "plan FrozenLake8x8-v1, depth 1": ("FrozenLake8x8-v1", "plan", {"max_depth": 1}),
    "plan FrozenLake8x8-v1, depth 2": ("FrozenLake8x8-v1", "plan", {"max_depth": 2}),
    "plan CliffWalking-v1, depth 1": ("CliffWalking-v1", "plan", {"max_depth": 1}),
    "plan CliffWalking-v1, depth 2": ("CliffWalking-v1", "plan", {"max_depth": 2}),
    "plan Taxi-v4, depth 1": ("Taxi-v4", "plan", {"max_depth": 1}),
}
REPEATS = 3

TIMED = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import custard
env, method, given = json.loads(sys.argv[1])
for seed in range(2):  # another seed: an expert that was trained already would be remembered
    begun = time.process_time()
    run = custard.learn(env, method, seed=seed, **given)
    seconds = time.process_time() - begun
print(json.dumps([seconds, run.steps, run.value]))
"""


def timed(source: Path, case: tuple) -> list:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", TIMED, json.dumps(case)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main(old: Path, new: Path, wanted: list[str]) -> None:
    for name, case in RUNS.items():
        if wanted and not any(part in name for part in wanted):
            continue
        turns = [(timed(old, case), timed(new, case)) for _ in range(REPEATS)]
        before, after = (min(turn[side][0] for turn in turns) for side in (0, 1))
        same = "" if turns[0][0][1:] == turns[0][1][1:] else "  other steps or return"
        print(f"{name:<32} {after / before:6.2f}   {before:7.2f} s -> {after:7.2f} s{same}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    here = Path(__file__).parents[1] / "src"
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else here, sys.argv[3:])
