"""What a person sees while a tree is learned: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from custard.lab.readable import readable
from custard.solvers.api import Snapshot
from custard.tree.text import plural

__all__ = ["Display"]

PLAIN_SECONDS = 5.0  # how often a line is printed where there is no terminal


class Display:
    """Steps, return, the best tree's return, depth and leaves, time left."""

    def __init__(self, title: str, enabled: bool) -> None:
        self.title, self.enabled = title, enabled
        self.live: Any = None
        self.printed = -PLAIN_SECONDS
        self.last: tuple[Snapshot, float] | None = None
        self.said: tuple[Snapshot, float] | None = None  # the last one that was printed

    def __enter__(self) -> Display:
        if self.enabled:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            console = Console(stderr=True)
            if console.is_terminal:
                self.live = Progress(
                    TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[facts]}"),
                    TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
                    console=console, refresh_per_second=8,
                )  # fmt: skip
                self.live.start()
                self.task = self.live.add_task(self.title, total=None, facts="compiling")
        return self

    def show(self, snapshot: Snapshot, seconds: float) -> None:
        """Bring the display up to date."""
        self.last = (snapshot, seconds)
        if not self.enabled:
            return
        if self.live is not None:
            self.live.update(
                self.task, completed=snapshot.steps, total=snapshot.budget, facts=facts(snapshot, short=True)
            )
        elif time.monotonic() - self.printed >= PLAIN_SECONDS:
            self._line(snapshot, seconds)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()
        elif self.enabled and self.last is not None and kind is None and self.last is not self.said:
            self._line(*self.last)

    def _line(self, snapshot: Snapshot, seconds: float) -> None:
        self.printed, self.said = time.monotonic(), self.last
        left = ""
        if snapshot.budget and 0 < snapshot.steps < snapshot.budget and not snapshot.message:
            left = f", about {seconds * (snapshot.budget / snapshot.steps - 1):.0f} s left"
        print(f"{self.title}: {facts(snapshot)}, {seconds:.1f} s{left}", file=sys.stderr, flush=True)  # noqa: T201


def facts(snapshot: Snapshot, short: bool = False) -> str:
    """A snapshot in words.

    >>> facts(Snapshot(steps=1500, tree=None, value=float("nan")))
    '1,500 steps, no tree yet'
    """
    parts = [f"{snapshot.steps:,} {plural('step', snapshot.steps)}"]
    if "return" in snapshot.metrics:
        parts.append(f"return {snapshot.metrics['return']:.1f}")
    if snapshot.tree is None:
        parts.append("no tree yet")
    else:
        (value,), tree = readable(snapshot.value), snapshot.tree
        parts.append(f"best tree {value}, depth {tree.depth}, {tree.n_leaves} {plural('leaf', tree.n_leaves)}")
    if snapshot.message and (not short or snapshot.tree is None):
        parts.append(snapshot.message)
    return ", ".join(parts)
