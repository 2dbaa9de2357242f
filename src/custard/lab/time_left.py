"""Estimate how long a run still takes, from its recent speed."""

from __future__ import annotations

from collections import deque
from typing import Any

from custard.task.problem import Snapshot

__all__ = ["TimeLeft", "may_stop_early"]

SPEED_SECONDS = 20.0  # over which the speed is measured that tells the time left
MAX_DISAGREEMENT = 2.0  # factor between the latest estimate and others; beyond it the time left is not known
MIN_ESTIMATES = 2  # that must agree


def may_stop_early(settings: Any) -> bool:
    """Return whether a method with these settings may stop before its budget is used: then it has a `patience`."""
    return hasattr(settings, "patience")


class TimeLeft:
    """Estimates the seconds until a run's budget is used, by the speed of recent snapshots.

    The first snapshot is no measure: code was compiled before it. Phases of a run differ in speed, so the estimates
    made since half of the time that has passed are compared: where they disagree, the time left is not known. Otherwise
    it is the latest estimate or, for a method that may stop early, the longest, which is a limit.

    >>> left = TimeLeft(may_stop_early=False)
    >>> left.note(Snapshot(steps=100, tree=None, value=0.0, budget=1000), 50.0)
    >>> left.note(Snapshot(steps=350, tree=None, value=0.0, budget=1000), 52.5)
    >>> left.note(Snapshot(steps=600, tree=None, value=0.0, budget=1000), 55.0)
    >>> left.seconds(55.0), left.seconds(56.0)
    (4.0, 3.0)
    >>> left.note(Snapshot(steps=610, tree=None, value=0.0, budget=1000), 65.0)  # a slower phase has begun
    >>> left.seconds(65.0)
    """

    def __init__(self, may_stop_early: bool) -> None:
        self.may_stop_early = may_stop_early
        self._recent: deque[tuple[float, int]] = deque()  # seconds and steps of recent snapshots
        self._ends: deque[tuple[float, float]] = deque()  # seconds, and the end that was expected then
        self._is_over = False

    def note(self, snapshot: Snapshot, seconds: float) -> None:
        """Take in a snapshot and the seconds that had passed by then."""
        self._is_over = not snapshot.budget or snapshot.steps >= snapshot.budget
        self._recent.append((seconds, snapshot.steps))
        while seconds - self._recent[0][0] > SPEED_SECONDS and len(self._recent) > 2:
            self._recent.popleft()
        (begun, first), (_, last) = self._recent[0], self._recent[-1]
        if snapshot.budget and seconds > begun and last > first:
            self._ends.append((seconds, seconds + (snapshot.budget - last) * (seconds - begun) / (last - first)))
        while len(self._ends) > 1 and self._ends[1][0] < seconds / 2:
            self._ends.popleft()

    def seconds(self, passed: float) -> float | None:
        """Return the seconds left when so many have passed; None where that is not known."""
        ends = list(self._ends)  # another thread may note a snapshot meanwhile
        if self._is_over or not ends:
            return None
        lefts = [max(0.0, end - passed) for noted, end in ends if noted >= passed / 2]
        if len(lefts) < MIN_ESTIMATES:
            return None
        latest = lefts[-1]
        if max(lefts) > MAX_DISAGREEMENT * latest or latest > MAX_DISAGREEMENT * min(lefts):
            return None
        return max(lefts) if self.may_stop_early else latest
