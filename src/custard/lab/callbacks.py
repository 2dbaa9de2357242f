"""Report a run's progress to functions: for every snapshot of the method, and at least every five seconds."""

from __future__ import annotations

import _thread
import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType, TracebackType
from typing import Any

from custard.core.errors import CustardError, one_line
from custard.lab.time_left import TimeLeft
from custard.task.problem import Snapshot
from custard.tree.tree import Tree

__all__ = ["COMPILING", "TRYING_CONSTANTS", "Callbacks", "Progress", "judging_of"]

COMPILING = "compiling (once, about 20 s)"
TRYING_CONSTANTS = "starting, trying constant actions"  # direct search where Python steps, which compiles nothing
MAX_SILENT_SECONDS = 4.0  # between two calls; with what a busy processor adds they are less than five seconds apart
DELIVERY_SECONDS = 1.0  # within which an interrupt that this process sent to itself arrives


@dataclass(frozen=True)
class Progress:
    """How far a run is: what `on_progress` receives."""

    steps: int  # environment steps used so far
    budget: int | None  # environment steps the run may use; None if it is not limited so
    value: float  # the best tree's mean return over the judging episodes; NaN before the first tree
    error: float  # its standard error; NaN where it is not known
    episodes: int  # judging episodes; 0 where that is not known
    leaves: int  # of the best tree; 0 before the first tree
    message: str  # what is being done, or why the method stopped; may be empty
    seconds: float  # passed since the run began, those before an interrupt included
    seconds_left: float | None  # by the recent speed; None where it is not known
    may_stop_early: bool  # whether `seconds_left` is the most it can be, since the method has a patience
    metrics: Mapping[str, float] = field(default_factory=dict)  # the method's own numbers, as in metrics.csv
    tree: Tree | None = None  # the best tree so far
    seconds_expected: float | None = None  # the time left if no better tree is found; None where it is not known


class Callbacks:
    """Calls functions with the progress of a run, one call at a time.

    `report` calls them in the caller's thread. Where no snapshot comes for a while, a thread of its own calls them with
    the last one. A function that returns True ends the run as Ctrl-C does; one that raises ends it with an error.

    functions       by the name that an error shows
    budget          environment steps of the run, if that is known before the first snapshot
    may_stop_early  whether the method may stop before its budget is used
    message         what is being done before the first snapshot
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[[Progress], Any]],
        budget: int | None = None,
        may_stop_early: bool = True,
        message: str = COMPILING,
    ) -> None:
        self.functions = functions
        self.last = Progress(0, budget, math.nan, math.nan, 0, 0, message, 0.0, None, may_stop_early)
        self.failure: BaseException | None = None  # why the functions' thread ended the run
        self._time_left = TimeLeft(may_stop_early)
        self._caller = threading.current_thread()
        self._started_at = self._called_at = time.monotonic()
        self._calling = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Callbacks:
        if self.functions:
            self._caller = threading.current_thread()
            self._started_at = self._called_at = time.monotonic()
            self._thread = threading.Thread(target=self._call_regularly, daemon=True)
            self._thread.start()
        return self

    def report(self, snapshot: Snapshot, seconds: float) -> None:
        """Call all functions with a new snapshot; `seconds` have passed since the run began."""
        if not self.functions:
            return
        self._time_left.note(snapshot, seconds)
        error, episodes = judging_of(snapshot)
        with self._calling:
            self._raise_failure()
            self._started_at = time.monotonic() - seconds
            self.last = Progress(
                snapshot.steps, snapshot.budget, snapshot.value, error, episodes,
                snapshot.tree.n_leaves if snapshot.tree is not None else 0, snapshot.message, seconds,
                self._time_left.seconds(seconds), self._time_left.may_stop_early,
                MappingProxyType(dict(snapshot.metrics)), snapshot.tree, self._time_left.expected(seconds),
            )  # fmt: skip
            self._call(self.last)

    def _call(self, progress: Progress) -> None:
        """Call all functions; raise KeyboardInterrupt where one wants the run to end, CustardError where one fails."""
        stopped = False
        for name, function in self.functions.items():
            try:
                stopped = function(progress) is True or stopped
            except CustardError:
                raise
            except (Exception, SystemExit) as error:  # a user's function may raise anything
                said = one_line(error)
                raise CustardError(f"{name} raised {type(error).__name__}" + (f": {said}" if said else "")) from error
        self._called_at = time.monotonic()
        if stopped:
            raise KeyboardInterrupt

    def _call_regularly(self) -> None:
        while not self._over.wait(MAX_SILENT_SECONDS / 10):
            with self._calling:
                now = time.monotonic()
                if self._over.is_set() or now - self._called_at < MAX_SILENT_SECONDS:
                    continue
                seconds = now - self._started_at
                seconds_left, expected = self._time_left.seconds(seconds), self._time_left.expected(seconds)
                self.last = replace(self.last, seconds=seconds, seconds_left=seconds_left, seconds_expected=expected)
                try:
                    self._call(self.last)
                except BaseException as error:
                    self.failure = error
                    if self._caller is threading.main_thread():
                        _thread.interrupt_main()  # otherwise the next snapshot ends the run
                    return

    def _raise_failure(self) -> None:
        """Raise what the functions' thread ended the run with."""
        if self.failure is None:
            return
        with contextlib.suppress(KeyboardInterrupt):  # that it sent, and that may not have arrived yet
            until = time.monotonic() + DELIVERY_SECONDS
            while self._caller is threading.main_thread() and time.monotonic() < until:
                time.sleep(0.01)
        raise self.failure

    def finish(self) -> None:
        """End the thread; raise what it ended the run with, unless that was raised before."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._raise_failure()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


def judging_of(snapshot: Snapshot) -> tuple[float, int]:
    """Return the standard error of a snapshot's value and the number of judging episodes; NaN and 0 if unknown.

    Methods give them as metrics, or keep the returns shown for resuming (`custard.solvers.common.selection`).
    """
    error, episodes = snapshot.metrics.get("error", math.nan), snapshot.metrics.get("judged", 0.0)
    if math.isfinite(error) and episodes:
        return float(error), int(episodes)
    returns = snapshot.state().get("best.shown") if snapshot.state is not None else None
    if returns is None or len(returns) < 2 or not math.isclose(returns.mean(), snapshot.value):
        return math.nan, 0
    return float(returns.std(ddof=1)) / math.sqrt(len(returns)), len(returns)
