"""Run trials drawn at random from the results with two states of the code, and compare what they give.

    python benchmarks/same_trials.py OLD/src [NEW/src] [--count 30] [--seed 0] [--max-budget 60000]

For changes that must change nothing. A method is drawn first and then one of its rows, so that methods with many rows
do not crowd out the others; settings are taken as the row has them, by whatever names it was made with. Budgets are cut
to `--max-budget`, so that everything runs in minutes. Trees, steps, values and the returns of fresh episodes must be
equal, or the exit code is 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
METHODS = ("mfec", "dqn", "ppo", "tpi", "viper-dqn", "viper-bi", "cqi", "pyeatt", "cutree", "utree", "moet", "random")
ENVIRONMENTS = ("CartPole-v1", "custard/CartPole-v0", "custard/PrereqWorld-v0", "custard/PotholeWorld-v0",
                "custard/RobotNav-v0")  # fmt: skip

RUN = """
import hashlib, json, sys, warnings
warnings.simplefilter("ignore")
import custard
for trial in json.load(sys.stdin):
    env, given = trial["env"], trial["given"]
    try:
        run = custard.learn(env, trial["method"], workers=0, progress=False, **given)
        judged = custard.evaluate(run.tree, env, 50, env_kwargs=given["env_kwargs"], workers=0)
        nodes = json.dumps(run.tree.to_json()["nodes"], sort_keys=True)
        tree = hashlib.sha256(nodes.encode()).hexdigest()[:12]
        found = [tree, run.tree.n_leaves, run.steps, repr(run.value), repr(judged.mean), run.message]
    except Exception as error:
        found = [repr(error)]
    print(json.dumps(found), flush=True)
"""


def draw(count: int, seed: int, max_budget: int) -> list[dict]:
    """Return trials as `custard.learn` takes them, with the file that each row is in."""
    rows: dict[str, list[tuple[str, dict[str, str]]]] = defaultdict(list)
    for file in sorted((ROOT / "results").rglob("*.csv")):
        with file.open(newline="") as text:
            reader = csv.DictReader(text)
            if not {"method", "settings", "env_args", "preset"} <= set(reader.fieldnames or ()):
                continue
            for row in reader:
                if row["method"] in METHODS and row["env"] in ENVIRONMENTS and not row["error"]:
                    rows[row["method"]].append((file.name, row))
    rng = random.Random(seed)
    trials = []
    for _ in range(count):
        name, row = rng.choice(rows[rng.choice(sorted(rows))])
        settings = json.loads(row["settings"] or "{}")
        budget = min(settings.get("budget") or max_budget, max_budget)
        given = {**settings, "budget": budget, "preset": row["preset"], "seed": int(row["seed"]),
                 "max_depth": int(row["max_depth"]) if row["max_depth"] else None,
                 "env_kwargs": json.loads(row["env_args"] or "{}")}  # fmt: skip
        trials.append({"file": name, "env": row["env"], "method": row["method"], "given": given})
    return trials


def results(source: Path, trials: list[dict]) -> list[list]:
    """Run the trials with the package in `source`, in one process."""
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(trials), text=True, check=True, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(source)},
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=ROOT / "src")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-budget", type=int, default=60_000)
    options = parser.parse_args()
    trials = draw(options.count, options.seed, options.max_budget)
    before, after = (results(source.resolve(), trials) for source in (options.old, options.new))
    different = 0
    for trial, a, b in zip(trials, before, after, strict=True):
        different += a != b
        given = {key: value for key, value in trial["given"].items() if value not in (None, {})}
        said = "equal    " if a == b else f"DIFFERENT {b} not"
        print(said, trial["method"], trial["env"], json.dumps(given), a, f"({trial['file']})", flush=True)
    print(f"{len(trials) - different} of {len(trials)} trials are equal")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
