"""Where trials run: in this process, in a pool of processes on this machine, or as tasks on a Ray cluster.

An engine is a generator that takes jobs (plain dictionaries) and the name of the function that runs one, "module:name",
and yields ("started", number of the job, None) and ("finished", number, row) as they happen. A job whose process died
ends with the row {"error": …}. Closing the generator ends what still runs.
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

#: One native thread a process: workers that each use every core only get into each other's way.
ONE_THREAD = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM", "NUMEXPR")},
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
HANDING_IN = 20.0  # seconds that interrupted jobs have to hand in what they have
RETRIES = 3  # times a Ray task is run again after its node or its process was lost


def events(
    jobs: Sequence[Mapping[str, Any]], run: str, engine: str, workers: int | None, address: str | None,
    hand_in: bool = False,
) -> Iterator[Event]:  # fmt: skip
    """Run all jobs on an engine; `workers=0` runs them here, one after the other.

    With `hand_in` an interrupt is passed on to the jobs under way: what they have comes as "handed in".
    """
    if engine not in ENGINES:
        raise CustardError(one_of("engine", engine, ENGINES))
    if workers is not None and workers < 0:
        raise CustardError(f"workers={workers} must be at least 0")
    if engine == "ray":
        return _ray(jobs, run, workers, address)
    if address is not None:
        raise CustardError("an address goes with the engine ray")
    count = cores() if workers is None else workers
    return _pool(jobs, run, min(count, len(jobs)), hand_in) if count else _here(jobs, run)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def found(run: str) -> Any:
    """The function that a "module:name" names."""
    module, _, name = run.partition(":")
    return getattr(importlib.import_module(module), name)


def _here(jobs: Sequence[Mapping[str, Any]], run: str) -> Iterator[Event]:
    call = found(run)
    for number, job in enumerate(jobs):
        yield "started", number, None
        with redirect_stdout(sys.stderr):  # what an environment prints is no result
            row = call(dict(job))
        yield "finished", number, row


class _Worker:
    """A Python process that runs one job after the other; each message is a line of JSON on a socket of its own."""

    def __init__(self, run: str) -> None:
        self.run, self.number = run, -1
        self.socket, theirs = socket.socketpair()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  # its last line may tell why it died
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), run],
            stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said, pass_fds=[theirs.fileno()],
            start_new_session=True,  # an interrupt at the terminal is the driver's to handle
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},  # with -P that alone says where modules are
        )  # fmt: skip
        theirs.close()
        self.lines = self.socket.makefile("r", encoding="utf-8")

    def give(self, number: int, job: Mapping[str, Any]) -> None:
        self.number = number
        with suppress(OSError):  # one that died already is noticed when its answer is read
            self.socket.sendall(json.dumps(dict(job)).encode() + b"\n")

    def answer(self) -> dict[str, Any] | None:
        """The row of the job given, or None if the process died."""
        with suppress(OSError, json.JSONDecodeError):
            return json.loads(self.lines.readline())
        return None

    def epitaph(self) -> str:
        code = self.process.wait()
        how = f"ended with code {code}"
        if code < 0:
            with suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
        self.said.seek(0)
        words = [line for line in self.said.read().decode(errors="replace").splitlines() if line.strip()]
        return f"the process {how}" + (f": {one_line(words[-1])}" if words else "")

    def end(self) -> None:
        with suppress(OSError):  # with whatever its environments have started
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.lines.close()
        self.socket.close()
        self.said.close()


def _pool(jobs: Sequence[Mapping[str, Any]], run: str, count: int, hand_in: bool) -> Iterator[Event]:
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
                row = {"error": worker.epitaph()}
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
                worker, row = answers.get(timeout=HANDING_IN)
                yield "handed in", worker.number, row or {"error": "interrupted"}
    finally:
        for worker in workers:
            worker.end()


def _serve(handle: int, run: str) -> None:
    """A worker's life: it ends when its socket does, even in the middle of a job, so that no orphan goes on."""
    link = socket.socket(fileno=handle)
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        with suppress(OSError):
            for line in link.makefile("r", encoding="utf-8"):
                jobs.put(line)
        os.killpg(0, signal.SIGKILL)  # itself, and whatever its environments have started

    threading.Thread(target=read, daemon=True).start()
    call = found(run)
    while True:
        link.sendall(json.dumps(call(json.loads(jobs.get()))).encode() + b"\n")


def _ray(jobs: Sequence[Mapping[str, Any]], run: str, workers: int | None, address: str | None) -> Iterator[Event]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise CustardError("the engine ray needs the extra 'ray': pip install 'custard-rl[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        try:
            _knock(address)
            ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises many kinds
            place = address or "this machine"
            raise CustardError(
                f"no Ray cluster at {place} ('ray start --head' starts one): {one_line(error)}"
            ) from None
    try:
        task = ray.remote(_call).options(
            num_cpus=1, max_retries=RETRIES, runtime_env={"env_vars": ONE_THREAD}, name=run
        )  # fmt: skip
        waiting, running = iter(range(len(jobs))), dict[Any, int]()
        while True:
            # Enough tasks for every core and a few in reserve; the cluster may grow and shrink meanwhile.
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


def _knock(address: str | None) -> None:
    """Raise at once where nobody listens: Ray itself would go on trying for minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10.0).close()


def _call(run: str, job: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = found(run)(job)
    return row


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
