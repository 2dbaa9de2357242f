"""Estimate how long a run still takes, from its recent speed."""

from __future__ import annotations

from collections import deque

from custard.task.problem import Snapshot

__all__ = ["TimeLeft"]

SPEED_SECONDS = 20.0  # over which the speed is measured that tells the time left


class TimeLeft:
    """Estimates the seconds until a run's budget is used, by the speed of recent snapshots.

    A method may stop before its budget is used. The first snapshot is no measure: code was compiled before it.

    >>> left = TimeLeft()
    >>> left.note(Snapshot(steps=100, tree=None, value=0.0, budget=1000), 50.0)
    >>> left.note(Snapshot(steps=600, tree=None, value=0.0, budget=1000), 55.0)
    >>> left.seconds(55.0), left.seconds(56.0)
    (4.0, 3.0)
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque()  # seconds and steps of recent snapshots
        self._budget: int | None = None

    def note(self, snapshot: Snapshot, seconds: float) -> None:
        """Take in a snapshot and the seconds that had passed by then."""
        self._budget = snapshot.budget
        self._recent.append((seconds, snapshot.steps))
        while seconds - self._recent[0][0] > SPEED_SECONDS and len(self._recent) > 2:
            self._recent.popleft()

    def seconds(self, passed: float) -> float | None:
        """Return the seconds left when so many have passed; None where that is not known."""
        recent = list(self._recent)  # another thread may note a snapshot meanwhile
        if not self._budget or len(recent) < 2 or recent[-1][1] >= self._budget:
            return None
        (begun, first), (noted, last) = recent[0], recent[-1]
        if noted <= begun or last <= first:
            return None
        left = (self._budget - last) * (noted - begun) / (last - first)
        return max(0.0, left - max(0.0, passed - noted))
