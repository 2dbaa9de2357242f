"""Episodes run by the actors of a Ray cluster, each with an environment of its own.

An episode is its seed, as with worker processes: results are the same with any number of actors, and after a node was
lost, because its episodes are run again by others.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from custard.core.clusters import cluster_cores, connected
from custard.core.errors import CustardError, one_line
from custard.core.processes import ONE_THREAD, WORKER_MARK
from custard.task.chunks import (
    MAX_ATTEMPTS_PER_CHUNK,
    MAX_WORKER_BYTES,
    chunks_of,
    joined_chunks,
    serve_episodes,
    too_slow,
)
from custard.task.episodes import EpisodeRequest, Episodes

__all__ = ["RayRunner"]

CLUSTER_POLL_SECONDS = 1.0  # between two looks at the cluster
STEP_POLL_SECONDS = 0.5  # between two looks at a step that takes long
MAX_SECONDS_WITHOUT_ACTOR = 300.0  # the cluster has no core to spare
MAX_FAILED_ACTOR_STARTS = 3  # actors in a row that die before they are ready


class EpisodeActor:
    """What runs on a node: an environment, made and stepped in one thread, so that another can watch its steps."""

    def __init__(self, path: Sequence[str]) -> None:
        """`path` is where the process that asks finds modules; those that this node lacks are looked for there."""
        sys.path += [entry for entry in path if entry not in sys.path]
        self.thread, self.ticks = ThreadPoolExecutor(1), 0
        self.answer: Any = None

    def start(self, setup: Mapping[str, Any]) -> dict[str, Any]:
        """Make the environment; returns {} or {"error": …}."""

        def make() -> dict[str, Any]:
            self.answer = serve_episodes(setup, self._count_tick)
            return {}

        return self._run_watched(make, None, "")

    def is_there(self) -> dict[str, Any]:
        """Answer, as an actor of a lost node cannot."""
        return {}

    def run(self, chunk: dict[str, Any], step_timeout: float | None, name: str) -> dict[str, Any]:
        """Run episodes; returns what `serve_episodes` says, or {"error": …}."""
        return self._run_watched(lambda: self.answer(dict(chunk)), step_timeout, name)

    def _run_watched(self, function: Any, step_timeout: float | None, name: str) -> dict[str, Any]:
        done = threading.Event()
        future = self.thread.submit(function)
        future.add_done_callback(lambda _: done.set())
        seen, since = self.ticks, time.monotonic()
        while not done.wait(STEP_POLL_SECONDS):
            if self.ticks != seen:
                seen, since = self.ticks, time.monotonic()
            elif step_timeout is not None and time.monotonic() - since > step_timeout:
                return {"error": too_slow(name, step_timeout)}
        try:
            result: dict[str, Any] = future.result()
        except (Exception, SystemExit) as error:  # an environment may raise anything
            kind = "" if type(error).__name__ == "CustardError" else f"{type(error).__name__}: "
            return {"error": kind + one_line(error)}
        return result

    def _count_tick(self) -> None:
        self.ticks += 1


class RayRunner:
    """Actors of a Ray cluster that run episodes of one environment."""

    def __init__(
        self, setup: Mapping[str, Any], name: str, address: str | None, count: int | None, step_timeout: float | None
    ) -> None:
        """Connect to the cluster and start the actors.

        setup         what `serve_episodes` takes
        name          what the environment is called in messages
        address       the cluster's; None for the one this machine belongs to
        count         how many actors; None for one per core of the cluster
        step_timeout  seconds that a step may take
        """
        self.setup, self.name, self.step_timeout = dict(setup), name, step_timeout
        self._connection = contextlib.ExitStack()
        self.ray = self._connection.enter_context(connected(address))
        self.make = self.ray.remote(EpisodeActor).options(
            num_cpus=1, max_restarts=0, runtime_env={"env_vars": {**ONE_THREAD, WORKER_MARK: "1"}}
        )
        self.count = max(1, count or cluster_cores(self.ray))
        self.actors: list[Any] = []
        self.starting: dict[Any, tuple[Any, bool]] = {}  # by the reference that says when they are ready; is it new?
        self.idle: list[Any] = []
        self.failed_starts = 0
        for _ in range(self.count):
            self._start_actor()

    def run(self, requests: Sequence[EpisodeRequest]) -> list[Episodes]:
        """Run all requests; their episodes in order."""
        ray = self.ray
        chunks = chunks_of(requests, self.count)
        waiting, results = deque(range(len(chunks))), dict[int, Episodes]()
        attempts, busy = [0] * len(chunks), dict[Any, tuple[Any, int]]()
        since = time.monotonic()
        while waiting or busy:
            while waiting and self.idle:
                actor, number = self.idle.pop(), waiting.popleft()
                attempts[number] += 1
                busy[actor.run.remote(chunks[number][1], self.step_timeout, self.name)] = actor, number
            if busy:
                since = time.monotonic()
            elif time.monotonic() - since > MAX_SECONDS_WITHOUT_ACTOR:
                raise CustardError(f"the Ray cluster had no core to spare for {MAX_SECONDS_WITHOUT_ACTOR:g} seconds")
            for reference in ray.wait([*busy, *self.starting], num_returns=1, timeout=CLUSTER_POLL_SECONDS)[0]:
                if reference in self.starting:
                    self._take_ready_actor(reference)
                    continue
                actor, number = busy.pop(reference)
                try:
                    answer = self._answer_or_raise(reference)
                except ray.exceptions.RayError as error:
                    if attempts[number] >= MAX_ATTEMPTS_PER_CHUNK:
                        raise CustardError(
                            f"environment {self.name!r} ended its actor: {_last_line_of_error(error)}"
                        ) from None
                    waiting.appendleft(number)
                    self._replace_actor(actor)
                    self._check_idle_actors()
                    continue
                results[number] = Episodes(**answer["episodes"])
                if answer["bytes"] > MAX_WORKER_BYTES:
                    self._replace_actor(actor)
                else:
                    self.idle.append(actor)
        return joined_chunks(chunks, results, len(requests))

    def close(self) -> None:
        """End all actors, and the connection if it was made here."""
        for actor in self.actors:
            with contextlib.suppress(Exception):
                self.ray.kill(actor)
        self.actors, self.idle, self.starting = [], [], {}
        self._connection.close()

    def _answer_or_raise(self, reference: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.ray.get(reference)
        if "error" in answer:
            raise CustardError(answer["error"])
        return answer

    def _start_actor(self) -> None:
        actor = self.make.remote(list(sys.path))
        self.actors.append(actor)
        self.starting[actor.start.remote(self.setup)] = actor, True

    def _take_ready_actor(self, reference: Any) -> None:
        """Take an actor that is ready; another takes the place of one that died before."""
        actor, is_new = self.starting.pop(reference)
        try:
            self._answer_or_raise(reference)
        except self.ray.exceptions.RayError as error:
            self.failed_starts += is_new
            if self.failed_starts >= MAX_FAILED_ACTOR_STARTS:
                raise CustardError(
                    f"no actor for environment {self.name!r} could start: {_last_line_of_error(error)}"
                ) from None
            self._replace_actor(actor)
            return
        self.failed_starts = 0
        self.idle.append(actor)

    def _check_idle_actors(self) -> None:
        """Ask all idle actors whether they are there: those of a lost node are not."""
        for actor in self.idle:
            self.starting[actor.is_there.remote()] = actor, False
        self.idle = []

    def _replace_actor(self, actor: Any) -> None:
        self.actors.remove(actor)
        with contextlib.suppress(Exception):
            self.ray.kill(actor)
        self._start_actor()


def _last_line_of_error(error: Exception) -> str:
    """Return the last line of what Ray says, which may be a page long."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__)[:200]
