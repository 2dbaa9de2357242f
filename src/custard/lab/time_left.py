"""Estimate how long a run still takes, from its recent speed."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from custard.core.compile_time import seconds_compiled
from custard.task.problem import Snapshot

__all__ = ["TimeLeft", "may_stop_early"]

MIN_SECONDS = 2.0  # that the speed is measured over before a time left is shown: less says little
MIN_SHARE = 0.1  # of the steps so far that must have been measured: what follows the first snapshot may take few
RECENT_SHARE = 0.5  # of the measured seconds: the last ones, whose speed counts
RECENT_PARTS = 5  # of them, each with a speed; the median counts, since judging one tree may take millions of steps


def may_stop_early(settings: Any) -> bool:
    """Return whether a method with these settings may stop before its budget is used: then it has a `patience`."""
    return hasattr(settings, "patience")


class Speed:
    """How long a step takes, by the last half of the seconds so far."""

    def __init__(self) -> None:
        self._totals: deque[tuple[float, int]] = deque([(0.0, 0)])  # seconds and steps, in all

    def add(self, seconds: float, steps: int) -> None:
        """Take in the seconds that a number of steps took."""
        seconds, steps = seconds + self._totals[-1][0], steps + self._totals[-1][1]
        self._totals.append((seconds, steps))
        while self._totals[1][0] <= RECENT_SHARE * seconds and len(self._totals) > 2:
            self._totals.popleft()

    def seconds_per_step(self, steps: int) -> float | None:
        """Return the seconds per step after a number of steps; None where too little of that was measured."""
        all_seconds, all_steps = self._totals[-1]
        if all_seconds < MIN_SECONDS or all_steps <= MIN_SHARE * steps:
            return None
        edges = np.linspace((1.0 - RECENT_SHARE) * all_seconds, all_seconds, RECENT_PARTS + 1)
        parts = np.diff(np.interp(edges, *np.transpose(self._totals)))
        steps_per_part = float(np.median(parts)) or float(parts.mean())
        return RECENT_SHARE * all_seconds / RECENT_PARTS / steps_per_part if steps_per_part > 0.0 else None


class TimeLeft:
    """Estimates the seconds until a run ends, by its recent speed.

    `seconds` is until its budget is used. A method that stops when nothing better comes may end before: `expected` is
    until it ends if it finds no better tree (`Snapshot.end_without_progress`).

    The time before the first snapshot does not count, nor that in which code is compiled. Phases whose steps are slower
    than most (`Snapshot.slow_until`) have a speed of their own; while one lasts whose end is not known, neither is the
    time left, nor while what is to come is of another kind (`Snapshot.is_foreseeable`).
    For a method that may stop early the longest of the estimates since half of the time that has passed is a limit.

    >>> left = TimeLeft(may_stop_early=False)
    >>> left.note(Snapshot(steps=100, tree=None, value=0.0, budget=1000), 50.0)
    >>> left.note(Snapshot(steps=350, tree=None, value=0.0, budget=1000), 52.5)
    >>> left.note(Snapshot(steps=600, tree=None, value=0.0, budget=1000), 55.0)
    >>> left.seconds(55.0), left.seconds(56.0)
    (4.0, 3.0)
    >>> left.note(Snapshot(steps=700, tree=None, value=0.0, budget=1000, slow_until=800), 65.0)
    >>> left.seconds(65.0)  # 100 more steps at 10 a second, and 200 at 100 a second
    12.0
    >>> left.note(Snapshot(steps=800, tree=None, value=0.0, budget=1000), 66.0)
    >>> left.seconds(66.0)
    2.0
    >>> left.note(Snapshot(steps=900, tree=None, value=0.0, budget=1000, is_foreseeable=False), 67.0)
    >>> left.seconds(67.0), left.expected(67.0)
    (None, None)
    >>> left = TimeLeft(may_stop_early=True)
    >>> left.note(Snapshot(steps=0, tree=None, value=0.0, budget=1000), 0.0)
    >>> left.note(Snapshot(steps=100, tree=None, value=0.0, budget=1000, end_without_progress=300), 4.0)
    >>> left.seconds(4.0), left.expected(4.0)
    (36.0, 8.0)
    >>> left.seconds(13.0), left.expected(13.0)  # it takes longer than was foreseen
    (27.0, None)
    """

    def __init__(self, may_stop_early: bool) -> None:
        self.may_stop_early = may_stop_early
        self._last: tuple[float, int] | None = None  # seconds, without compiling, and steps of the last snapshot
        self._speed, self._slow_speed = Speed(), Speed()
        self._slow_until: float | None = None  # of the last snapshot
        self._ends: deque[tuple[float, float]] = deque()  # seconds, and the end that was expected then
        self._is_known = False
        self._expected_end: float | None = None  # seconds

    def note(self, snapshot: Snapshot, seconds: float) -> None:
        """Take in a snapshot and the seconds that had passed by then."""
        if self._slow_until is None:  # a phase of slow steps may begin
            self._slow_speed = Speed()
        self._slow_until = snapshot.slow_until
        working_seconds = seconds - seconds_compiled()
        if self._last is not None:
            speed = self._speed if snapshot.slow_until is None else self._slow_speed
            speed.add(max(0.0, working_seconds - self._last[0]), snapshot.steps - self._last[1])
        self._last = (working_seconds, snapshot.steps)
        limit = self._seconds_until(snapshot, snapshot.budget or 0) if snapshot.is_foreseeable else None
        self._is_known = limit is not None
        if limit is not None:
            self._ends.append((seconds, seconds + limit))
        ends = [snapshot.budget, snapshot.end_without_progress if self.may_stop_early else None]
        is_told = snapshot.is_foreseeable and (not self.may_stop_early or snapshot.end_without_progress is not None)
        expected = self._seconds_until(snapshot, min([end for end in ends if end is not None], default=0))
        self._expected_end = seconds + expected if is_told and expected is not None else None
        while len(self._ends) > 1 and self._ends[0][0] < seconds / 2:
            self._ends.popleft()

    def _seconds_until(self, snapshot: Snapshot, end: float) -> float | None:
        """Return the seconds that the steps from a snapshot to an end will take; None where that is not known."""
        steps, slow_until = snapshot.steps, snapshot.slow_until or 0
        slow = max(0.0, min(end, slow_until) - steps)
        per_slow, per_step = self._slow_speed.seconds_per_step(0), self._speed.seconds_per_step(steps)
        rest = end - steps - slow
        if end <= steps or math.isinf(slow_until) or (slow and per_slow is None) or (rest and per_step is None):
            return None
        return slow * (per_slow or 0.0) + rest * (per_step or 0.0)

    def seconds(self, passed: float) -> float | None:
        """Return the seconds left when `passed` seconds have passed; None where that is not known."""
        ends = [end for _, end in list(self._ends)]  # another thread may note a snapshot meanwhile
        if not self._is_known or not ends:
            return None
        return max(0.0, (max(ends) if self.may_stop_early else ends[-1]) - passed)

    def expected(self, passed: float) -> float | None:
        """Return the seconds left if no better tree is found; None where that is not known, or was and has passed."""
        end = self._expected_end
        return end - passed if end is not None and end > passed else None
