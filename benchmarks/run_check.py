"""Check registered environments with `custard check`, for results/check.md.

    python benchmarks/run_check.py [--page]

Checks each environment of `ENVS` in a process of its own and writes a row into results/check.csv as each finishes; the
same command again checks those that are missing. `--page` only writes results/check.md anew. Environments of packages
that are not installed (minigrid, highway-env) are passed over. A check that dies or takes more than ten minutes is a
row as well.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from result_rows import append_row, rows_in

import custard

RESULTS = Path(__file__).parents[1] / "results"
MAX_SECONDS = 600.0  # of one check
MAX_GOOD_SECONDS = 60.0  # a check that takes longer is named on the page
ENVS = (
    "Acrobot-v1", "CartPole-v0", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1",
    "Blackjack-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4",
    "BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3", "LunarLander-v3", "LunarLanderContinuous-v3",
    "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5", "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5", "Walker2d-v5",
    "custard/CartPole-v0", "custard/PotholeWorld-v0", "custard/PrereqWorld-v0", "custard/RobotNav-v0",
    "minigrid:MiniGrid-Empty-5x5-v0", "minigrid:MiniGrid-DoorKey-5x5-v0",
    "highway_env:highway-fast-v0", "highway_env:parking-v0", "highway_env:intersection-v1",
)  # fmt: skip
COLUMNS = (
    "env", "ok", "faults", "warnings", "notes", "features", "actions", "steps_per_second", "makes", "seconds", "texts",
)  # fmt: skip

ABOUT = """\
`python benchmarks/run_check.py` checks each environment with 2,000 random steps, or 20 seconds of them, writes
[check.csv](check.csv), where the findings are in full, and this page. A *fault* is what learning refuses, a *warning*
costs quality, speed or repeatability ([what is checked](../docs/how-to/check.md)). *Makes* is what custard makes of
the environment: compiled episodes, or processes on all cores; a table of states where features are whole numbers; an
exact model. Steps per second are those of random steps in Python, and seconds those of the whole check, on a machine
that was shared with other work.
"""


def main(words: list[str]) -> None:
    """Check what is missing, row by row, and write the page."""
    path = RESULTS / "check.csv"
    done = {row["env"] for row in rows_in(path)}
    for env in ENVS:
        if "--page" in words or env in done or not is_installed(env):
            continue
        append_row(path, COLUMNS, checked(env))
    (RESULTS / "check.md").write_text(page(rows_in(path)))


def is_installed(env: str) -> bool:
    """Return whether the module that an id names is installed."""
    module, colon, _ = env.rpartition(":")
    return not colon or importlib.util.find_spec(module) is not None


def checked(env: str) -> dict[str, Any]:
    """Check an environment in another process and return a row."""
    command = [sys.executable, __file__, "--one", env]
    start = time.perf_counter()
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return failed(env, f"the check took more than {MAX_SECONDS:g} seconds", time.perf_counter() - start)
    lines, complaints = ended.stdout.splitlines(), ended.stderr.splitlines()
    if ended.returncode or not lines:
        last = complaints[-1] if complaints else f"exit code {ended.returncode}"
        return failed(env, f"the check died: {last}", time.perf_counter() - start)
    return json.loads(lines[-1])  # MuJoCo prints warnings before it


def failed(env: str, why: str, seconds: float) -> dict[str, Any]:
    """Return the row of a check that gave no report."""
    row = dict.fromkeys(COLUMNS, "")
    return row | {"env": env, "ok": False, "faults": "check-failed", "seconds": round(seconds, 1), "texts": why}


def report_row(env: str) -> dict[str, Any]:
    """Check an environment and return a row."""
    start = time.perf_counter()
    report = custard.check_env(env)
    seconds = time.perf_counter() - start
    facts = report.facts
    faults, warnings, notes = (
        " ".join(finding.name for finding in report.findings if finding.level == level)
        for level in ("error", "warning", "note")
    )
    return {
        "env": env, "ok": report.ok, "faults": faults, "warnings": warnings, "notes": notes,
        "features": facts.get("kinds", ""), "actions": facts.get("actions", ""),
        "steps_per_second": facts.get("steps_per_second", ""), "makes": makes(facts), "seconds": round(seconds, 1),
        "texts": " | ".join(map(str, report.findings)),
    }  # fmt: skip


def makes(facts: dict[str, Any]) -> str:
    """Return in words what custard makes of an environment."""
    if not facts:
        return "nothing"
    parts = ["compiled" if facts["compiled"] else f"Python, {facts['workers']}"]
    if facts["table"] != "no":
        parts.append(f"a table of {facts['table']}")
    if facts["exact_model"]:
        parts.append("an exact model")
    if not facts.get("deterministic", True):
        parts.append("cannot be repeated")
    return "; ".join(parts)


def page(rows: list[dict[str, str]]) -> str:
    """Return the page about the rows."""
    refused = [row["env"] for row in rows if row["faults"]]
    warned = [row["env"] for row in rows if row["warnings"]]
    slow = [row["env"] for row in rows if float(row["seconds"]) > MAX_GOOD_SECONDS]
    lines = [
        "# `custard check` on registered environments", "", ABOUT,
        f"- {len(rows)} environments; {len(refused)} with a fault{named(refused)}.",
        f"- {len(warned)} with a warning{named(warned)}.",
        f"- {len(slow)} checks took more than {MAX_GOOD_SECONDS:g} seconds{named(slow)}.", "",
        "| environment | faults | warnings | notes | features | actions | steps/s | makes | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        speed = f"{float(row['steps_per_second']):,.0f}" if row["steps_per_second"] else "–"
        findings = " | ".join(row[level].replace(" ", ", ") or "–" for level in ("faults", "warnings", "notes"))
        lines.append(
            f"| {row['env']} | {findings} | {row['features'] or '–'} | {row['actions'] or '–'} | {speed} "
            f"| {row['makes'] or '–'} | {row['seconds']} |"
        )
    return "\n".join(lines) + "\n"


def named(envs: list[str]) -> str:
    """Return the environments in brackets, nothing if there is none."""
    return f" ({', '.join(envs)})" if envs else ""


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(report_row(sys.argv[2])))
    else:
        main(sys.argv[1:])
