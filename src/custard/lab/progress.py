"""What a person sees while a tree is learned: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from custard.core.number_format import format_numbers
from custard.lab.overview import duration
from custard.task.problem import Snapshot
from custard.tree.text import plural

__all__ = ["Display"]

PLAIN_SECONDS = 5.0  # how often a line is printed where there is no terminal


class Display:
    """Steps, return, the best tree's return, depth and leaves, time left."""

    def __init__(self, title: str, enabled: bool) -> None:
        self.title, self.enabled = title, enabled
        self.live: Any = None
        self.begun = time.monotonic()
        self.printed = -PLAIN_SECONDS
        self.last: tuple[Snapshot, float] | None = None
        self.said: tuple[Snapshot, float] | None = None  # the last one that was printed

    def __enter__(self) -> Display:
        if self.enabled:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            if console.is_terminal:
                picture = lambda: self._picture(console.width)  # noqa: E731
                self.live = Live(console=console, get_renderable=picture, refresh_per_second=8)
                self.live.start()
        return self

    def show(self, snapshot: Snapshot, seconds: float) -> None:
        """Bring the display up to date."""
        self.last = (snapshot, seconds)
        if self.enabled and self.live is None and time.monotonic() - self.printed >= PLAIN_SECONDS:
            self._line(snapshot, seconds)

    def _picture(self, width: int) -> Any:
        """The live line: what matters least is left out where there is no room for it."""
        from rich.text import Text

        snapshot, seconds = self.last or (None, 0.0)
        share = snapshot.steps / snapshot.budget if snapshot is not None and snapshot.budget else 0.0
        cells = 24 if width >= 110 else 10
        done = round(cells * min(1.0, share))
        bar = Text.assemble(("━" * done, "bar.complete"), ("━" * (cells - done), "bar.back"))
        fields = [(8, Text(self.title, "bold")), (3, bar)]  # how soon each may go, and what it is
        facts = [(0, "compiling")] if snapshot is None else _parts(snapshot, short=True)
        fields += [(rank, Text(fact)) for rank, fact in facts]
        fields.append((6, Text(duration(time.monotonic() - self.begun), "cyan")))
        if snapshot is not None and (left := _left(snapshot, seconds)):
            fields.append((2, Text(left, "cyan")))
        while len(fields) > 1 and sum(field.cell_len + 2 for _, field in fields) - 2 > width:
            fields.remove(max(fields, key=lambda field: field[0]))
        line = Text("  ").join(field for _, field in fields)
        line.truncate(width, overflow="ellipsis")
        return line

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()
        elif self.enabled and self.last is not None and kind is None and self.last is not self.said:
            self._line(*self.last)

    def _line(self, snapshot: Snapshot, seconds: float) -> None:
        self.printed, self.said = time.monotonic(), self.last
        left = _left(snapshot, seconds)
        said = [self.title + ": " + facts(snapshot), f"{seconds:.1f} s", *([left] if left else [])]
        print(", ".join(said), file=sys.stderr, flush=True)  # noqa: T201


def _left(snapshot: Snapshot, seconds: float) -> str:
    """How long it may take yet; nothing where that is not known."""
    if not snapshot.budget or not 0 < snapshot.steps < snapshot.budget or snapshot.message:
        return ""
    return f"about {duration(seconds * (snapshot.budget / snapshot.steps - 1))} left"


def facts(snapshot: Snapshot) -> str:
    """A snapshot in words.

    >>> facts(Snapshot(steps=1500, tree=None, value=float("nan")))
    '1,500 steps, no tree yet'
    """
    return ", ".join(fact for _, fact in _parts(snapshot))


def _parts(snapshot: Snapshot, short: bool = False) -> list[tuple[int, str]]:
    """What there is to say, each with how soon it may be left out: the lowest number stays longest."""
    parts = [(0, f"{snapshot.steps:,} {plural('step', snapshot.steps)}")]
    if "return" in snapshot.metrics:
        parts.append((7, f"return {snapshot.metrics['return']:.1f}"))
    if snapshot.tree is None:
        parts.append((3, "no tree yet"))
    else:
        (value,), tree = format_numbers(snapshot.value), snapshot.tree
        leaves = f"{tree.n_leaves} {plural('leaf', tree.n_leaves)}"
        parts += [(1, f"best tree {value}"), (4, f"depth {tree.depth}"), (5, leaves)]
    if snapshot.message and (not short or snapshot.tree is None):
        parts.append((3, snapshot.message))
    return parts
