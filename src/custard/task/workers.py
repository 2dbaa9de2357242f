"""Episodes run by worker processes, each with an environment of its own.

An episode is its seed: results are the same with any number of workers, and after a worker was lost, because its
episodes are run again by another.
"""

from __future__ import annotations

import contextlib
import selectors
import time
import warnings
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from custard.core.errors import CustardError
from custard.core.processes import Worker, cores, is_worker
from custard.core.spaces import describe
from custard.task.chunks import MAX_ATTEMPTS_PER_CHUNK, MAX_WORKER_BYTES, chunks_of, joined_chunks, too_slow
from custard.task.episodes import EpisodeRequest, Episodes, InProcess, Runner
from custard.task.problem import DEFAULT_STEP_TIMEOUT, Problem
from custard.task.ray_runner import RayRunner
from custard.task.recipes import encoder_recipe
from custard.task.vector_episodes import VectorRunner

__all__ = ["LateWorkers", "WorkerPool", "make_judging_runner", "make_runner"]

WORKER_POLL_SECONDS = 1.0  # between two looks at workers that do not answer
MAX_SECONDS_WITHOUT_WORKERS = 2.0  # about what starting workers takes: a run that steps for less needs none
EPISODES_PER_CLOCK_LOOK = 8  # that run here before the clock is looked at again


class WorkerPool:
    """Processes that run episodes of one environment."""

    def __init__(
        self, setup: Mapping[str, Any], name: str, count: int, step_timeout: float | None = DEFAULT_STEP_TIMEOUT
    ) -> None:
        """`setup` is what `serve_episodes` takes, `name` what the environment is called in messages."""
        self.setup, self.name, self.step_timeout = dict(setup), name, step_timeout
        self.workers: list[Worker] = [self._start_worker() for _ in range(count)]
        self._closing = weakref.finalize(self, _end_workers, self.workers)

    def run(self, requests: Sequence[EpisodeRequest]) -> list[Episodes]:
        """Run all requests; their episodes in order."""
        chunks = chunks_of(requests, len(self.workers))
        waiting, results = deque(range(len(chunks))), dict[int, Episodes]()
        attempts, busy = [0] * len(chunks), dict[Worker, int]()
        progress: dict[Worker, tuple[int, float]] = {}
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                selector.register(worker, selectors.EVENT_READ)
            while waiting or busy:
                for worker in [worker for worker in self.workers if worker not in busy]:
                    if waiting:
                        busy[worker] = waiting.popleft()
                        attempts[busy[worker]] += 1
                        progress[worker] = (worker.ticks, time.monotonic())
                        worker.send(chunks[busy[worker]][1])
                for key, _ in selector.select(WORKER_POLL_SECONDS):
                    worker = cast("Worker", key.fileobj)
                    answer = worker.receive()
                    if answer is not None and "error" in answer:
                        raise CustardError(answer["error"])
                    number = busy.pop(worker, None)
                    if answer is None:
                        cause = worker.cause_of_death()
                        if number is not None:
                            if attempts[number] >= MAX_ATTEMPTS_PER_CHUNK:
                                raise CustardError(f"environment {self.name!r} ended its worker process: {cause}")
                            waiting.appendleft(number)
                        self._replace_worker(worker, selector)
                    elif number is not None:
                        results[number] = Episodes(**answer["episodes"])
                        if answer["bytes"] > MAX_WORKER_BYTES:
                            self._replace_worker(worker, selector)
                for worker in list(busy):
                    self._require_progress(worker, progress)
        return joined_chunks(chunks, results, len(requests))

    def close(self) -> None:
        """End all workers."""
        self._closing()

    def _start_worker(self) -> Worker:
        return Worker("custard.task.chunks:serve_episodes", self.setup)

    def _replace_worker(self, worker: Worker, selector: selectors.BaseSelector) -> None:
        selector.unregister(worker)
        worker.end()
        self.workers[self.workers.index(worker)] = fresh = self._start_worker()
        selector.register(fresh, selectors.EVENT_READ)

    def _require_progress(self, worker: Worker, progress: dict[Worker, tuple[int, float]]) -> None:
        ticks, since = progress[worker]
        if worker.ticks != ticks:
            progress[worker] = (worker.ticks, time.monotonic())
        elif self.step_timeout is not None and time.monotonic() - since > self.step_timeout:
            raise CustardError(too_slow(self.name, self.step_timeout))


class LateWorkers:
    """Runs episodes in this process, and once that has taken as long as starting workers does, in worker processes.

    Results are the same, so when that is changes nothing but the time.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.env, self.seconds = problem, problem.source.make(), 0.0
        self.in_process = InProcess(self.env, describe(self.env, features=problem.encoder))
        self.workers: Runner | None = None

    def run(self, requests: Sequence[EpisodeRequest]) -> list[Episodes]:
        """Run all requests; their episodes in order."""
        return [self._run_request(request) for request in requests]

    def _run_request(self, request: EpisodeRequest) -> Episodes:
        parts: list[Episodes] = []
        seeds = request.seeds
        while self.workers is None and (len(seeds) or not parts):
            begun = time.monotonic()
            parts += self.in_process.run([replace(request, seeds=seeds[:EPISODES_PER_CLOCK_LOOK])])
            seeds = seeds[EPISODES_PER_CLOCK_LOOK:]
            self.seconds += time.monotonic() - begun
            if self.seconds > MAX_SECONDS_WITHOUT_WORKERS:
                self.workers = make_runner(self.problem)
        if self.workers is not None and (len(seeds) or not parts):
            parts += self.workers.run([replace(request, seeds=seeds)])
        return Episodes.joined(parts)

    def close(self) -> None:
        """End the workers, if any were started."""
        if self.workers is not None:
            self.workers.close()


def make_judging_runner(problem: Problem) -> Runner:
    """Return what judges trees while something else learns: worker processes only once there is much to judge."""
    if problem.is_compiled or problem.source.vector is not None or problem.engine == "ray":
        return make_runner(problem)
    return LateWorkers(problem)


def make_runner(problem: Problem) -> Runner:
    """Return what runs a problem's episodes: compiled code, worker processes, or this process where no other can make
    the environment.

    `problem.workers` is how many processes; by default one per core, or none in a process that is a worker itself.
    With the engine ray it is how many actors of a cluster; by default one per core of the cluster. The user's vector
    environment runs episodes side by side by itself.
    """
    venv = problem.source.vector
    if venv is not None:
        return VectorRunner(venv, describe(venv, features=problem.encoder), problem.source.name)
    if problem.is_compiled and problem.engine != "ray":
        from custard.task.compiled_runner import CompiledRunner  # compiled code loads when it is used

        return CompiledRunner(problem)
    recipe = getattr(problem.source.make, "recipe", None)
    encoder = encoder_recipe(problem.encoder)
    count = (0 if is_worker() else cores()) if problem.workers is None else problem.workers
    can_remake = recipe is not None and (problem.encoder is None or encoder is not None)
    if recipe is not None and can_remake and problem.engine == "ray":
        setup = {**recipe, "features": encoder}
        return RayRunner(setup, problem.source.name, problem.address, problem.workers, problem.step_timeout)
    if (count > 1 or problem.engine == "ray") and not can_remake:
        warnings.warn(
            f"{problem.source.name} is stepped in this process alone, on one core: other processes can make an "
            "environment given by its id, or by a function or class of a module they can import",
            stacklevel=2,
        )
    if count == 0 or recipe is None or not can_remake:
        env = problem.source.make()
        return InProcess(env, describe(env, features=problem.encoder))
    return WorkerPool({**recipe, "features": encoder}, problem.source.name, count, problem.step_timeout)


def _end_workers(workers: list[Worker]) -> None:
    for worker in workers:
        with contextlib.suppress(Exception):
            worker.end()
