"""Estimate how long a run still takes, from its recent speed."""

from __future__ import annotations

from collections import deque
from typing import Any

from custard.task.problem import Snapshot

__all__ = ["TimeLeft", "may_stop_early"]

MIN_SECONDS = 1.0  # that the speed is measured over before a time left is shown
MIN_SHARE = 0.1  # of the steps so far that it is measured over: what follows the first snapshot may take few steps


def may_stop_early(settings: Any) -> bool:
    """Return whether a method with these settings may stop before its budget is used: then it has a `patience`."""
    return hasattr(settings, "patience")


class TimeLeft:
    """Estimates the seconds until a run ends, by the mean speed so far.

    `seconds` is until its budget is used. A method that stops when nothing better comes may end before: `expected` is
    until it ends if it finds no better tree (`Snapshot.quiet_end`).

    The time before the first snapshot does not count: code was compiled then. Neither do phases whose steps are slower
    than most (`Snapshot.is_slow`): while one lasts, the time left is not known. For a method that may stop early the
    longest of the estimates made since half of the time that has passed is a limit.

    >>> left = TimeLeft(may_stop_early=False)
    >>> left.note(Snapshot(steps=100, tree=None, value=0.0, budget=1000), 50.0)
    >>> left.note(Snapshot(steps=350, tree=None, value=0.0, budget=1000), 52.5)
    >>> left.note(Snapshot(steps=600, tree=None, value=0.0, budget=1000), 55.0)
    >>> left.seconds(55.0), left.seconds(56.0)
    (4.0, 3.0)
    >>> left.note(Snapshot(steps=700, tree=None, value=0.0, budget=1000, is_slow=True), 65.0)
    >>> left.seconds(65.0)
    >>> left.note(Snapshot(steps=800, tree=None, value=0.0, budget=1000), 66.0)
    >>> left.seconds(66.0)
    2.0
    >>> left = TimeLeft(may_stop_early=True)
    >>> left.note(Snapshot(steps=0, tree=None, value=0.0, budget=1000), 0.0)
    >>> left.note(Snapshot(steps=100, tree=None, value=0.0, budget=1000, quiet_end=300), 1.0)
    >>> left.seconds(1.0), left.expected(1.0)
    (9.0, 2.0)
    """

    def __init__(self, may_stop_early: bool) -> None:
        self.may_stop_early = may_stop_early
        self._last: tuple[float, int] | None = None  # seconds and steps of the last snapshot
        self._measured_seconds, self._measured_steps = 0.0, 0
        self._ends: deque[tuple[float, float]] = deque()  # seconds, and the end that was expected then
        self._is_known = False
        self._expected_end: float | None = None  # seconds

    def note(self, snapshot: Snapshot, seconds: float) -> None:
        """Take in a snapshot and the seconds that had passed by then."""
        if self._last is not None and not snapshot.is_slow:
            self._measured_seconds += seconds - self._last[0]
            self._measured_steps += snapshot.steps - self._last[1]
        self._last = (seconds, snapshot.steps)
        steps_left = (snapshot.budget or 0) - snapshot.steps
        self._is_known = steps_left > 0 and not snapshot.is_slow
        has_speed = self._measured_seconds >= MIN_SECONDS and self._measured_steps > MIN_SHARE * snapshot.steps
        if self._is_known and has_speed:
            self._ends.append((seconds, seconds + steps_left * self._measured_seconds / self._measured_steps))
        ends = [snapshot.budget, snapshot.quiet_end if self.may_stop_early else None]
        steps_until = min([end for end in ends if end is not None], default=0) - snapshot.steps
        is_told = not self.may_stop_early or snapshot.quiet_end is not None
        self._expected_end = None
        if is_told and has_speed and steps_until > 0 and not snapshot.is_slow:
            self._expected_end = seconds + steps_until * self._measured_seconds / self._measured_steps
        while len(self._ends) > 1 and self._ends[0][0] < seconds / 2:
            self._ends.popleft()

    def seconds(self, passed: float) -> float | None:
        """Return the seconds left when so many have passed; None where that is not known."""
        ends = [end for _, end in list(self._ends)]  # another thread may note a snapshot meanwhile
        if not self._is_known or not ends:
            return None
        return max(0.0, (max(ends) if self.may_stop_early else ends[-1]) - passed)

    def expected(self, passed: float) -> float | None:
        """Return the seconds left if no better tree is found; None where that is not known."""
        return None if self._expected_end is None else max(0.0, self._expected_end - passed)
