"""Display progress while a tree is learned: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from custard.core.number_format import format_numbers
from custard.lab.trial_table import duration_text
from custard.task.problem import Snapshot
from custard.tree.text import plural

__all__ = ["Display"]

PLAIN_LINE_SECONDS = 5.0  # between lines where there is no terminal
SPEED_SECONDS = 20.0  # over which the speed is measured that tells the time left
COMPILING = "compiling (once, about 20 s)"


class Display:
    """Shows steps, the best tree's return, depth and leaves, what is being done and the time left, on standard error.

    In a terminal it is one live line. Elsewhere a line is printed at least every five seconds, by a thread of its own.
    """

    def __init__(self, title: str, enabled: bool) -> None:
        self.title, self.enabled = title, enabled
        self.live: Any = None
        self.started_at = time.monotonic()
        self.printed_at = -PLAIN_LINE_SECONDS
        self.last: tuple[Snapshot, float] | None = None
        self.last_printed: tuple[Snapshot, float] | None = None  # the last one that was printed
        self.speeds: deque[tuple[float, int]] = deque()  # seconds and steps of recent snapshots
        self._over = threading.Event()
        self._printing = threading.Lock()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Display:
        if self.enabled:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            if console.is_terminal:
                picture = lambda: self._renderable(console.width)  # noqa: E731
                self.live = Live(console=console, get_renderable=picture, refresh_per_second=8)
                self.live.start()
            else:
                self.printed_at = time.monotonic()
                self._thread = threading.Thread(target=self._print_regularly, daemon=True)
                self._thread.start()
        return self

    def show(self, snapshot: Snapshot, seconds: float) -> None:
        """Update the display."""
        self.speeds.append((seconds, snapshot.steps))
        while seconds - self.speeds[0][0] > SPEED_SECONDS and len(self.speeds) > 2:
            self.speeds.popleft()
        is_first = self.last is None
        self.last = (snapshot, seconds)
        if self.enabled and self.live is None and is_first:
            self._print_line(snapshot, seconds)

    def _print_regularly(self) -> None:
        while not self._over.wait(PLAIN_LINE_SECONDS / 10):
            if time.monotonic() - self.printed_at < PLAIN_LINE_SECONDS:
                continue
            if self.last is None:
                self.printed_at = time.monotonic()
                passed = duration_text(self.printed_at - self.started_at)
                print(f"{self.title}: {COMPILING}, {passed}", file=sys.stderr, flush=True)  # noqa: T201
            else:
                self._print_line(*self.last)

    def _renderable(self, width: int) -> Any:
        """Return the live line; where it is too long, the least important facts are left out."""
        from rich.text import Text

        snapshot = self.last[0] if self.last is not None else None
        share = snapshot.steps / snapshot.budget if snapshot is not None and snapshot.budget else 0.0
        cells = 24 if width >= 110 else 10
        done = round(cells * min(1.0, share))
        bar = Text.assemble(("━" * done, "bar.complete"), ("━" * (cells - done), "bar.back"))
        fields = [(8, Text(self.title, "bold")), (3, bar)]  # each with a rank: the highest is left out first
        facts = [(0, COMPILING)] if snapshot is None else _ranked_facts(snapshot, short=True)
        fields += [(rank, Text(fact)) for rank, fact in facts]
        fields.append((6, Text(duration_text(time.monotonic() - self.started_at), "cyan")))
        if snapshot is not None and (left := _time_left_text(snapshot, self.speeds)):
            fields.append((2, Text(left, "cyan")))
        while len(fields) > 1 and sum(field.cell_len + 2 for _, field in fields) - 2 > width:
            fields.remove(max(fields, key=lambda field: field[0]))
        line = Text("  ").join(field for _, field in fields)
        line.truncate(width, overflow="ellipsis")
        return line

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self.live is not None:
            self.live.stop()
        elif self.enabled and self.last is not None and kind is None and self.last is not self.last_printed:
            self._print_line(*self.last)

    def _print_line(self, snapshot: Snapshot, seconds: float) -> None:
        with self._printing:
            self.printed_at, self.last_printed = time.monotonic(), self.last
            left = _time_left_text(snapshot, self.speeds)
            said = [self.title + ": " + snapshot_text(snapshot), f"{seconds:.1f} s", *([left] if left else [])]
            print(", ".join(said), file=sys.stderr, flush=True)  # noqa: T201


def _time_left_text(snapshot: Snapshot, speeds: Sequence[tuple[float, int]]) -> str:
    """Return the time left at most, by the speed of late; an empty text where that is not known.

    A method may stop before its budget is used. The first snapshot is no measure: code was compiled before it.

    >>> _time_left_text(Snapshot(steps=600, tree=None, value=0.0, budget=1000), [(50.0, 100), (55.0, 600)])
    'at most 4 s left'
    """
    if not snapshot.budget or snapshot.steps >= snapshot.budget or len(speeds) < 2:
        return ""
    seconds, steps = speeds[-1][0] - speeds[0][0], speeds[-1][1] - speeds[0][1]
    if seconds <= 0 or steps <= 0:
        return ""
    return f"at most {duration_text((snapshot.budget - snapshot.steps) * seconds / steps)} left"


def snapshot_text(snapshot: Snapshot) -> str:
    """Return a snapshot in words.

    >>> snapshot_text(Snapshot(steps=1500, tree=None, value=float("nan")))
    '1,500 steps, no tree yet'
    """
    return ", ".join(fact for _, fact in _ranked_facts(snapshot))


def _ranked_facts(snapshot: Snapshot, short: bool = False) -> list[tuple[int, str]]:
    """Return what a snapshot shows, each fact with a rank: the highest is left out first."""
    plans = "bound" in snapshot.metrics  # exact planning takes no steps
    parts = [] if plans else [(0, f"{snapshot.steps:,} {plural('step', snapshot.steps)}")]
    if "return" in snapshot.metrics:
        parts.append((7, f"return {snapshot.metrics['return']:.1f}"))
    if snapshot.tree is None:
        parts.append((3, "no tree yet"))
    else:
        (value,), tree = format_numbers(snapshot.value), snapshot.tree
        leaves = f"{tree.n_leaves} {plural('leaf', tree.n_leaves)}"
        if tree.is_linear:
            leaves += f", {tree.n_coefficients} {plural('coefficient', tree.n_coefficients)}"
        parts += [(1, f"best tree {value}{_interval_text(snapshot)}"), (4, f"depth {tree.depth}"), (5, leaves)]
        if plans:
            bound, gap = format_numbers(snapshot.metrics["bound"], snapshot.metrics["gap"])
            parts[1:1] = [(2, f"bound {bound}"), (2, f"gap {gap}")]
    if snapshot.message and (not short or snapshot.tree is None):
        parts.append((3, snapshot.message))
    return parts


def _interval_text(snapshot: Snapshot) -> str:
    """Return the 95 % interval of the best tree's value and of how many episodes, where a method tells them."""
    error, episodes = snapshot.metrics.get("error", math.nan), snapshot.metrics.get("judged", 0.0)
    if not math.isfinite(error) or not episodes:
        return ""
    return f" ± {format_numbers(1.96 * error)[0]} ({int(episodes)} episodes)"
