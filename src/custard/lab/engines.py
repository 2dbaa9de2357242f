"""Run jobs in this process, in worker processes on this machine, or as tasks on a Ray cluster.

An engine is a generator that takes jobs (plain dictionaries) and the name of the function that runs one, "module:name",
and yields ("started", number of the job, None) and ("finished", number, row) as they happen. A job whose process died
ends with the row {"error": …}. Closing the generator ends the jobs that still run.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from typing import Any

from custard.core.errors import CustardError, one_line, one_of

__all__ = ["ENGINES", "Event", "events"]

Event = tuple[str, int, dict[str, Any] | None]
ENGINES = ("local", "ray")

#: One native thread per process: workers that each use every core slow each other down.
ONE_THREAD_VARIABLES = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM", "NUMEXPR")},
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
HAND_IN_SECONDS = 20.0  # that interrupted jobs have to return what they found so far
MAX_RAY_RETRIES = 3  # of a task whose node or process was lost


def events(
    jobs: Sequence[Mapping[str, Any]], run: str, engine: str, workers: int | None, address: str | None,
    hand_in: bool = False,
) -> Iterator[Event]:  # fmt: skip
    """Run all jobs on an engine and yield what happens.

    jobs     plain dictionaries
    run      "module:name" of the function that makes a row from a job
    engine   "local" or "ray"
    workers  jobs at a time; None for one per core, 0 to run them in this process, one after the other
    address  the Ray cluster's
    hand_in  whether an interrupt is passed on to running jobs, whose rows so far then come as "handed in"
    """
    if engine not in ENGINES:
        raise CustardError(one_of("engine", engine, ENGINES))
    if workers is not None and workers < 0:
        raise CustardError(f"workers={workers} must be at least 0")
    if engine == "ray":
        return _on_ray(jobs, run, workers, address)
    if address is not None:
        raise CustardError("an address goes with the engine ray")
    count = cores() if workers is None else workers
    return _in_worker_processes(jobs, run, min(count, len(jobs)), hand_in) if count else _in_this_process(jobs, run)


def cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def function_named(run: str) -> Any:
    """Return the function that "module:name" names."""
    module, _, name = run.partition(":")
    return getattr(importlib.import_module(module), name)


def _in_this_process(jobs: Sequence[Mapping[str, Any]], run: str) -> Iterator[Event]:
    call = function_named(run)
    for number, job in enumerate(jobs):
        yield "started", number, None
        with redirect_stdout(sys.stderr):  # an environment may print anything: that is not part of the result
            row = call(dict(job))
        yield "finished", number, row


class _Worker:
    """A Python process that runs one job after another; messages are lines of JSON on its own socket."""

    def __init__(self, run: str) -> None:
        self.run, self.number = run, -1
        self.socket, theirs = socket.socketpair()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  # its last line may tell why it died
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), run],
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, pass_fds=[theirs.fileno()],
            start_new_session=True,  # an interrupt at the terminal is the driver's to handle
            env={**os.environ, **ONE_THREAD_VARIABLES, "PYTHONPATH": path},  # with -P, the only place for modules
        )  # fmt: skip
        theirs.close()
        self.lines = self.socket.makefile("r", encoding="utf-8")

    def give(self, number: int, job: Mapping[str, Any]) -> None:
        self.number = number
        with suppress(OSError):  # a dead worker is noticed when its answer is read
            self.socket.sendall(json.dumps(dict(job)).encode() + b"\n")

    def answer(self) -> dict[str, Any] | None:
        """Return the row of the job given, or None if the process died."""
        with suppress(OSError, json.JSONDecodeError):
            return json.loads(self.lines.readline())
        return None

    def how_it_died(self) -> str:
        code = self.process.wait()
        how = f"ended with code {code}"
        if code < 0:
            with suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
        self.output.seek(0)
        words = [line for line in self.output.read().decode(errors="replace").splitlines() if line.strip()]
        return f"the process {how}" + (f": {one_line(words[-1])}" if words else "")

    def end(self) -> None:
        with suppress(OSError):  # and whatever processes its environments started
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.lines.close()
        self.socket.close()
        self.output.close()


def _in_worker_processes(jobs: Sequence[Mapping[str, Any]], run: str, count: int, hand_in: bool) -> Iterator[Event]:
    answers: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = queue.SimpleQueue()

    def listen(worker: _Worker) -> None:
        answers.put((worker, worker.answer()))

    def start(worker: _Worker, number: int) -> None:
        worker.give(number, jobs[number])
        threading.Thread(target=listen, args=(worker,), daemon=True).start()

    workers: set[_Worker] = set()
    busy = 0
    waiting = iter(range(len(jobs)))
    try:
        for number in waiting:
            workers.add(worker := _Worker(run))
            start(worker, number)
            busy += 1
            yield "started", number, None
            if busy == count:
                break
        while busy:
            worker, row = answers.get()
            number = worker.number
            if row is None:
                row = {"error": worker.how_it_died()}
                worker.end()
                workers.discard(worker)
                worker = None  # type: ignore[assignment]
            yield "finished", number, row
            following = next(waiting, None)
            if following is None:
                busy -= 1
                continue
            if worker is None:
                workers.add(worker := _Worker(run))
            start(worker, following)
            yield "started", following, None
    except KeyboardInterrupt:
        if not hand_in:
            raise
        for worker in workers:
            worker.process.send_signal(signal.SIGINT)
        with suppress(queue.Empty):
            for _ in range(busy):
                worker, row = answers.get(timeout=HAND_IN_SECONDS)
                yield "handed in", worker.number, row or {"error": "interrupted"}
    finally:
        for worker in workers:
            worker.end()


def _worker_main(handle: int, run: str) -> None:
    """Run jobs from the socket until it closes, even during a job, so that no worker outlives its parent."""
    link = socket.socket(fileno=handle)
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        with suppress(OSError):
            for line in link.makefile("r", encoding="utf-8"):
                jobs.put(line)
        os.killpg(0, signal.SIGKILL)  # this process, and whatever its environments started

    threading.Thread(target=read, daemon=True).start()
    call = function_named(run)
    while True:
        link.sendall(json.dumps(call(json.loads(jobs.get()))).encode() + b"\n")


def _on_ray(jobs: Sequence[Mapping[str, Any]], run: str, workers: int | None, address: str | None) -> Iterator[Event]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise CustardError("the engine ray needs the extra 'ray': pip install 'custard-rl[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        try:
            _require_listener(address)
            ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises many kinds
            place = address or "this machine"
            raise CustardError(
                f"no Ray cluster at {place} ('ray start --head' starts one): {one_line(error)}"
            ) from None
    try:
        task = ray.remote(_run_job).options(
            num_cpus=1, max_retries=MAX_RAY_RETRIES, runtime_env={"env_vars": ONE_THREAD_VARIABLES}, name=run
        )  # fmt: skip
        waiting, running = iter(range(len(jobs))), dict[Any, int]()
        while True:
            # Enough tasks for every core and a few in reserve; the cluster may grow or shrink meanwhile.
            most = workers or int(ray.cluster_resources().get("CPU", 1)) + 2
            while len(running) < most and (number := next(waiting, None)) is not None:
                running[task.remote(run, dict(jobs[number]))] = number
                yield "started", number, None
            if not running:
                return
            ready, _ = ray.wait(list(running), num_returns=1, timeout=5.0)
            for reference in ready:
                number = running.pop(reference)
                try:
                    row = ray.get(reference)
                except ray.exceptions.RayError as error:
                    row = {"error": one_line(str(error).strip().splitlines()[-1])}
                yield "finished", number, row
    finally:
        if ours:
            ray.shutdown()


def _require_listener(address: str | None) -> None:
    """Raise at once if nothing listens at the address: Ray itself would keep trying for minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10.0).close()


def _run_job(run: str, job: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = function_named(run)(job)
    return row


if __name__ == "__main__":
    _worker_main(int(sys.argv[1]), sys.argv[2])
