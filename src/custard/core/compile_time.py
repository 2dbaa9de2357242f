"""How long this process has compiled, so that compiling is not taken for the cost of what is compiled."""

from __future__ import annotations

import sys
import threading
import time
from functools import cache
from typing import Any

__all__ = ["seconds_compiled"]

NUMBA_EVENT = "numba:compiler_lock"  # held while a function is compiled or read from the cache
JAX_EVENTS = "/jax/core/compile/"  # tracing, lowering and compiling


class CompileTimer:
    """Adds up the time in which anything was compiled; what several threads compile at the same time counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._intervals = list[tuple[float, float]]()  # that count, apart from each other, the last one last
        self._started_at, self._depth = 0.0, 0  # of what numba compiles: functions compile the functions they call
        self._lock = threading.Lock()

    def start(self) -> None:
        """Note that numba begins to compile a function."""
        with self._lock:
            self._started_at = self._started_at if self._depth else time.perf_counter()
            self._depth += 1

    def end(self) -> None:
        """Note that numba has compiled a function."""
        with self._lock:
            self._depth = max(0, self._depth - 1)
            if not self._depth:
                self._count_from(self._started_at)

    def add(self, seconds: float) -> None:
        """Note that JAX has compiled for so long until now."""
        with self._lock:
            self._count_from(time.perf_counter() - seconds)

    def _count_from(self, start: float) -> None:
        """Count the time from `start` until now, but none of it twice."""
        end = time.perf_counter()
        while self._intervals and self._intervals[-1][1] >= start:
            before = self._intervals.pop()
            start = min(start, before[0])
            self.seconds -= before[1] - before[0]
        self._intervals.append((start, end))
        self.seconds += end - start


@cache
def _timer() -> CompileTimer:
    """Return the one timer of the process, which numba tells what it compiles from now on."""
    from numba.core import event

    timer = CompileTimer()

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            timer.start()

        def on_end(self, event: Any) -> None:
            timer.end()

    event.register(NUMBA_EVENT, Listener())
    return timer


@cache
def _listen_to_jax() -> None:
    """Let JAX tell the timer what it compiles."""
    import jax.monitoring

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event.startswith(JAX_EVENTS):
            _timer().add(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)


def seconds_compiled() -> float:
    """Return the seconds in which this process compiled anything since this was first asked."""
    timer = _timer()
    if "jax" in sys.modules:
        _listen_to_jax()
    return timer.seconds
