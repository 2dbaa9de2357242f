"""Display progress while a tree is learned: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from custard.core.number_format import format_numbers
from custard.lab.trial_table import duration_text
from custard.task.problem import Snapshot
from custard.tree.text import plural

__all__ = ["Display"]

PLAIN_LINE_SECONDS = 5.0  # between lines where there is no terminal


class Display:
    """Shows steps, return, the best tree's return, depth and leaves, and the time left, on standard error."""

    def __init__(self, title: str, enabled: bool) -> None:
        self.title, self.enabled = title, enabled
        self.live: Any = None
        self.started_at = time.monotonic()
        self.printed_at = -PLAIN_LINE_SECONDS
        self.last: tuple[Snapshot, float] | None = None
        self.last_printed: tuple[Snapshot, float] | None = None  # the last one that was printed

    def __enter__(self) -> Display:
        if self.enabled:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            if console.is_terminal:
                picture = lambda: self._renderable(console.width)  # noqa: E731
                self.live = Live(console=console, get_renderable=picture, refresh_per_second=8)
                self.live.start()
        return self

    def show(self, snapshot: Snapshot, seconds: float) -> None:
        """Update the display."""
        self.last = (snapshot, seconds)
        if self.enabled and self.live is None and time.monotonic() - self.printed_at >= PLAIN_LINE_SECONDS:
            self._print_line(snapshot, seconds)

    def _renderable(self, width: int) -> Any:
        """Return the live line; where it is too long, the least important facts are left out."""
        from rich.text import Text

        snapshot, seconds = self.last or (None, 0.0)
        share = snapshot.steps / snapshot.budget if snapshot is not None and snapshot.budget else 0.0
        cells = 24 if width >= 110 else 10
        done = round(cells * min(1.0, share))
        bar = Text.assemble(("━" * done, "bar.complete"), ("━" * (cells - done), "bar.back"))
        fields = [(8, Text(self.title, "bold")), (3, bar)]  # each with a rank: the highest is left out first
        facts = [(0, "compiling")] if snapshot is None else _ranked_facts(snapshot, short=True)
        fields += [(rank, Text(fact)) for rank, fact in facts]
        fields.append((6, Text(duration_text(time.monotonic() - self.started_at), "cyan")))
        if snapshot is not None and (left := _time_left_text(snapshot, seconds)):
            fields.append((2, Text(left, "cyan")))
        while len(fields) > 1 and sum(field.cell_len + 2 for _, field in fields) - 2 > width:
            fields.remove(max(fields, key=lambda field: field[0]))
        line = Text("  ").join(field for _, field in fields)
        line.truncate(width, overflow="ellipsis")
        return line

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()
        elif self.enabled and self.last is not None and kind is None and self.last is not self.last_printed:
            self._print_line(*self.last)

    def _print_line(self, snapshot: Snapshot, seconds: float) -> None:
        self.printed_at, self.last_printed = time.monotonic(), self.last
        left = _time_left_text(snapshot, seconds)
        said = [self.title + ": " + snapshot_text(snapshot), f"{seconds:.1f} s", *([left] if left else [])]
        print(", ".join(said), file=sys.stderr, flush=True)  # noqa: T201


def _time_left_text(snapshot: Snapshot, seconds: float) -> str:
    """Return the estimated time left in words, or an empty text where there is no budget to estimate it from."""
    if not snapshot.budget or not 0 < snapshot.steps < snapshot.budget or snapshot.message:
        return ""
    return f"about {duration_text(seconds * (snapshot.budget / snapshot.steps - 1))} left"


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
        parts += [(1, f"best tree {value}"), (4, f"depth {tree.depth}"), (5, leaves)]
        if plans:
            bound, gap = format_numbers(snapshot.metrics["bound"], snapshot.metrics["gap"])
            parts[1:1] = [(2, f"bound {bound}"), (2, f"gap {gap}")]
    if snapshot.message and (not short or snapshot.tree is None):
        parts.append((3, snapshot.message))
    return parts
