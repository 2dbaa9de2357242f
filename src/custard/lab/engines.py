"""Run jobs in this process, in worker processes on this machine, or as tasks on a Ray cluster.

An engine is a generator that takes jobs (plain dictionaries) and the name of the function that runs one, "module:name",
and yields ("started", number of the job, None) and ("finished", number, row) as they happen. A job whose process died
ends with the row {"error": …}. Closing the generator ends the jobs that still run.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from typing import Any

from custard.core.clusters import cluster_cores, connected, require_engine
from custard.core.errors import CustardError, one_line
from custard.core.processes import ONE_THREAD, Worker, cores, find_function

__all__ = ["Event", "events"]

Event = tuple[str, int, dict[str, Any] | None]

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
    require_engine(engine, address)
    if workers is not None and workers < 0:
        raise CustardError(f"workers={workers} must be at least 0")
    if engine == "ray":
        return _on_ray(jobs, run, workers, address)
    count = cores() if workers is None else workers
    return _in_worker_processes(jobs, run, min(count, len(jobs)), hand_in) if count else _in_this_process(jobs, run)


def _in_this_process(jobs: Sequence[Mapping[str, Any]], run: str) -> Iterator[Event]:
    call = find_function(run)
    for number, job in enumerate(jobs):
        yield "started", number, None
        with redirect_stdout(sys.stderr):  # an environment may print anything: that is not part of the result
            row = call(dict(job))
        yield "finished", number, row


def _in_worker_processes(jobs: Sequence[Mapping[str, Any]], run: str, count: int, hand_in: bool) -> Iterator[Event]:
    answers: queue.SimpleQueue[tuple[Worker, dict[str, Any] | None]] = queue.SimpleQueue()
    workers: dict[Worker, int] = {}  # and the job each runs, or ran last

    def listen(worker: Worker) -> None:
        answers.put((worker, worker.receive()))

    def start(number: int, worker: Worker | None = None) -> None:
        worker = worker or Worker(f"{__name__}:serve_jobs", run)
        workers[worker] = number
        worker.send(dict(jobs[number]))
        threading.Thread(target=listen, args=(worker,), daemon=True).start()

    busy = 0
    waiting = iter(range(len(jobs)))
    try:
        for number in waiting:
            start(number)
            busy += 1
            yield "started", number, None
            if busy == count:
                break
        while busy:
            worker, row = answers.get()
            number = workers[worker]
            idle: Worker | None = worker
            if row is None:
                row, idle = {"error": worker.cause_of_death()}, None
                worker.end()
                del workers[worker]
            yield "finished", number, row
            following = next(waiting, None)
            if following is None:
                busy -= 1
                continue
            start(following, idle)
            yield "started", following, None
    except KeyboardInterrupt:
        if not hand_in:
            raise
        for worker in workers:
            worker.process.send_signal(signal.SIGINT)
        with suppress(queue.Empty):
            for _ in range(busy):
                worker, row = answers.get(timeout=HAND_IN_SECONDS)
                yield "handed in", workers[worker], row or {"error": "interrupted"}
    finally:
        for worker in workers:
            worker.end()


def serve_jobs(run: str, tick: Callable[[], None]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the function that a worker process calls with each job."""
    function: Callable[[dict[str, Any]], dict[str, Any]] = find_function(run)
    return function


def _on_ray(jobs: Sequence[Mapping[str, Any]], run: str, workers: int | None, address: str | None) -> Iterator[Event]:
    with connected(address) as ray:
        task = ray.remote(_run_job).options(
            num_cpus=1, max_retries=MAX_RAY_RETRIES, runtime_env={"env_vars": ONE_THREAD}, name=run
        )  # fmt: skip
        waiting, running = iter(range(len(jobs))), dict[Any, int]()
        while True:
            # Enough tasks for every core and a few in reserve; the cluster may grow or shrink meanwhile.
            most = workers or cluster_cores(ray) + 2
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


def _run_job(run: str, job: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = find_function(run)(job)
    return row
