"""What the engine's tests run instead of trials: quick, slow and deadly jobs that leave a trace."""

import os
import signal
import time
from pathlib import Path


def run(job):
    settings = job["settings"]
    log = Path(os.environ["JOBS_LOG"])
    with log.open("a") as file:
        file.write(f"begin {job['seed']} {os.getpid()} {os.environ.get('NUMBA_NUM_THREADS')}\n")
    if settings.get("deadly") == job["seed"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.get("wrong") == job["seed"]:
        return {"error": "could not be done"}
    if settings.get("cured") == job["seed"] and not Path(os.environ["JOBS_LOG"] + ".cure").exists():
        return {"error": "ill"}
    patience = time.monotonic() + 40
    while len(processes(log)) < settings.get("together", 1) and time.monotonic() < patience:
        time.sleep(0.02)
    started = time.perf_counter()
    time.sleep(settings.get("sleep", 0.0))
    with log.open("a") as file:
        file.write(f"end {job['seed']} {os.getpid()}\n")
    return {
        "return": float(job["seed"]),
        "depth": 1,
        "leaves": 2,
        "seconds": time.perf_counter() - started,
        "error": "",
    }


def processes(log):
    """The processes that have begun a job."""
    return {line.split()[2] for line in log.read_text().splitlines()} if log.exists() else set()
