"""Measure whether progress can be trusted: the time left shown at half time, and the value shown at the end.

    python benchmarks/run_time_left.py [--page]

Runs each method on one or several environments for at most 40 seconds and writes a row per run into
results/time_left.csv; the same command goes on where the file ends. `--page` only writes results/time_left.md anew.
With CUSTARD_TRACES=DIRECTORY it also keeps there what each run reported, as JSON.

Half time is half of the seconds that the run took. The time left shown then is compared with what was left: the one
expected if no better tree is found, or, where that is not known, the most it can be. Every method runs once before for
three seconds, so that little is compiled later. The value shown at the end is compared with the mean return of fresh
episodes: the difference is divided by the standard error of both together, so that more than 3 is more than noise
explains. For the value shown that is the larger of the error shown and the one that the fresh episodes' spread gives:
eighteen episodes without a failure have no spread, though one in thirty fails.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from result_rows import append_row, rows_in

import custard
from custard.lab.progress import NEAR_LIMIT

RESULTS = Path(__file__).parents[1] / "results"
TIME = "40s"
FRESH_SEED, FRESH_EPISODES, MAX_PYTHON_EPISODES = 4242, 1000, 200
MAX_FACTOR, MAX_NOISE = 2.0, 3.0
LONG = 6.0  # seconds of a run that has time to show something

POTHOLE, PREREQ = "custard/PotholeWorld-v0", "custard/PrereqWorld-v0"
RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("tpi", "CartPole-v1", {}),
    ("tpi", POTHOLE, {}),
    ("tpi", "MountainCar-v0", {}),
    ("direct", "CartPole-v1", {}),
    ("direct", "Acrobot-v1", {}),
    ("direct", "Pendulum-v1", {}),
    ("mfec", "CartPole-v1", {}),
    ("mfec", PREREQ, {"m": 7}),
    ("mfec", POTHOLE, {}),
    ("dqn", "CartPole-v1", {}),
    ("dqn", PREREQ, {"m": 6}),
    ("ppo", "CartPole-v1", {}),
    ("ppo", POTHOLE, {}),
    ("viper-dqn", "CartPole-v1", {}),
    ("viper-bi", PREREQ, {"m": 7}),
    ("cqi", "CartPole-v1", {}),
    ("pyeatt", "CartPole-v1", {}),
    ("cutree", POTHOLE, {}),
    ("random", "CartPole-v1", {}),
    ("tpi", "FrozenLake-v1", {}),
]
COLUMNS = (
    "method", "env", "env_kwargs", "budget", "steps", "seconds", "kind", "left_shown", "limit", "left_true", "factor",
    "value", "error", "episodes", "fresh", "fresh_error", "noise", "message", "load",
)  # fmt: skip

ABOUT = """\
`python benchmarks/run_time_left.py` writes [time_left.csv](time_left.csv) and this page. Each run is given 40 seconds
(budgets are rounded down to 1, 2 or 5 × 10^k); methods with a rule of their own for stopping may end earlier, and
most do. *Shown* is the time left that was shown at half of the time the run took, *left* what was left then, *factor*
their ratio. "About" is the time left if no better tree is found from then on; where all of the budget would take
clearly longer, that time stands beside it as a *limit*; "at most" is that limit alone; nothing (a dash) is shown where
it is not known, as before two seconds of learning were measured: runs of few seconds show nothing. *Value* is the
one shown at the end (± its standard error where it is known), *fresh* the mean over fresh episodes, *noise* their
difference in standard errors of both; the value's is taken from the fresh episodes' spread where that is larger, since
few episodes without a failure have none.
"""


def main(words: list[str]) -> None:
    """Run what is missing, row by row, and write the page."""
    warnings.simplefilter("ignore")
    path = RESULTS / "time_left.csv"
    done = {(row["method"], row["env"]) for row in rows_in(path)}
    for number, (method, env, kwargs) in enumerate(RUNS):
        if "--page" in words or (method, env) in done:
            continue
        append_row(path, COLUMNS, measured(method, env, kwargs, number))
    (RESULTS / "time_left.md").write_text(page(rows_in(path)))


def measured(method: str, env: str, kwargs: dict[str, Any], number: int) -> dict[str, Any]:
    """Learn once and return a row."""
    custard.learn(env, method, seed=number, env_kwargs=kwargs, time=3.0)
    reports: list[custard.Progress] = []
    run = custard.learn(env, method, seed=number, env_kwargs=kwargs, on_progress=reports.append, time=TIME)
    keep_trace(f"{number}-{method}", run, reports)
    half = run.seconds / 2
    before = [report for report in reports if report.seconds <= half]
    expected, limit = (
        (shown_at(half, before[-1].seconds, left) for left in (before[-1].seconds_expected, before[-1].seconds_left))
        if before
        else (None, None)
    )
    shown = limit if expected is None else expected
    last = reports[-1]
    is_python = env in ("FrozenLake-v1",) or method == "direct"
    gamma = run.config["settings"].get("gamma", 1.0) if method in ("tpi", "direct") else 1.0
    episodes = MAX_PYTHON_EPISODES if is_python else FRESH_EPISODES
    fresh = custard.evaluate(run.tree, env, episodes, FRESH_SEED, env_kwargs=kwargs, gamma=gamma)
    fresh_error = fresh.std / math.sqrt(fresh.episodes)
    shown_errors = [last.error] if math.isfinite(last.error) else []
    shown_errors += [fresh.std / math.sqrt(last.episodes)] if last.episodes else []
    spread = math.hypot(max(shown_errors, default=0.0), fresh_error)
    excess = last.value - fresh.mean
    return {
        "method": method, "env": env, "env_kwargs": json.dumps(kwargs), "budget": last.budget, "steps": run.steps,
        "seconds": round(run.seconds, 2), "kind": "at most" if last.may_stop_early and expected is None else "about",
        "left_shown": "" if shown is None else round(shown, 2), "limit": "" if limit is None else round(limit, 2),
        "left_true": round(run.seconds - half, 2), "factor": "" if shown is None else round(shown / half, 3),
        "value": round(last.value, 4), "error": round(last.error, 4), "episodes": last.episodes,
        "fresh": round(fresh.mean, 4), "fresh_error": round(fresh_error, 4),
        "noise": round(max(-99.0, min(99.0, excess / max(spread, 1e-9))), 2),
        "message": run.message, "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def shown_at(seconds: float, last_report: float, left: float | None) -> float | None:
    """Return the time left that is shown at some time: what the last report said, less what has passed since."""
    return None if left is None else max(0.0, left - (seconds - last_report))


def _is_limit_shown(row: dict[str, str]) -> bool:
    """Return whether the display showed a row's limit: alone, or beside an estimate that it clearly exceeds."""
    return row["kind"] == "at most" or float(row["limit"]) > NEAR_LIMIT * float(row["left_shown"])


def keep_trace(name: str, run: custard.Run, reports: list[custard.Progress]) -> None:
    """Keep what a run reported, where that is asked for."""
    if (directory := os.environ.get("CUSTARD_TRACES")) is None:
        return
    kept = [
        {"steps": one.steps, "budget": one.budget, "value": one.value, "leaves": one.leaves, "seconds": one.seconds,
         "left": one.seconds_left, "expected": one.seconds_expected, "message": one.message,
         "metrics": {k: float(v) for k, v in one.metrics.items()}}
        for one in reports
    ]  # fmt: skip
    told = {"seconds": run.seconds, "settings": run.config["settings"], "message": run.message, "reports": kept}
    (Path(directory) / f"{name}.json").write_text(json.dumps(told))


def page(rows: list[dict[str, str]]) -> str:
    """Return the page about the rows."""
    estimates, limits = (
        [row for row in rows if row["factor"] and row["kind"] == kind] for kind in ("about", "at most")
    )
    near = [row for row in estimates if 1 / MAX_FACTOR <= float(row["factor"]) <= MAX_FACTOR]
    close = [row for row in limits if 1 / MAX_FACTOR <= float(row["factor"]) <= MAX_FACTOR]
    bounded = [row for row in rows if row["limit"] and _is_limit_shown(row)]
    long = [row for row in rows if float(row["seconds"]) > LONG]
    silent = [row for row in long if not row["factor"]]
    held = [row for row in bounded if float(row["limit"]) >= float(row["left_true"])]
    high = [row for row in rows if float(row["noise"]) > MAX_NOISE]
    loads = [float(row["load"]) for row in rows if row.get("load")]
    shared = []
    if loads:
        shared = [
            f"The load average was {min(loads):g} to {max(loads):g} on {os.cpu_count()} cores: with more than one "
            "program per core the speed changes by the minute, which no estimate foresees.\n"
        ]
    lines = [
        "# Progress: the time left and the value shown", "", ABOUT, *shared,
        f"- {len(estimates)} of {len(rows)} runs show an estimate at half time; {len(near)} of them within a factor of "
        f"{MAX_FACTOR:g} of the truth.",
        f"- {len(limits)} show a limit alone, {len(close)} of them within a factor of {MAX_FACTOR:g}; "
        f"{len(rows) - len(estimates) - len(limits)} show nothing.",
        f"- Of the {len(bounded)} limits shown, {len(held)} held.",
        f"- Of the {len(long)} runs of more than {LONG:g} s, {len(silent)} show nothing at half time.",
        f"- The value shown exceeds the fresh evaluation by more than {MAX_NOISE:g} standard errors in {len(high)} of "
        f"{len(rows)} runs.", "",
        "| method | environment | seconds | shown | limit | left | factor | value | fresh | noise | load | stopped |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        error = "" if row["error"] == "nan" else f" ± {float(row['error']):.3g}"
        limit = row["limit"] if row in bounded else "–"
        shown = f"{row['kind']} {float(row['left_shown']):.1f}" if row["left_shown"] else "–"
        lines.append(
            f"| {row['method']} | {row['env']} | {float(row['seconds']):.1f} | {shown} | {limit} "
            f"| {float(row['left_true']):.1f} | {row['factor'] or '–'} | {float(row['value']):.4g}{error} "
            f"| {float(row['fresh']):.4g} ± {float(row['fresh_error']):.3g} | {row['noise']} "
            f"| {row['load']} | {row['message']} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
