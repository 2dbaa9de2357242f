"""Display running trials: how many are done, running and failed, the time left, and the table so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from custard.core.number_format import format_numbers
from custard.lab.summary import summary, table, trial_label
from custard.lab.trial_file import Row, with_numbers
from custard.tree.text import plural

__all__ = ["TrialTable", "duration_text"]


class TrialTable:
    """A live table in a terminal, one line per trial elsewhere, on standard error."""

    def __init__(
        self, title: str, waiting: Sequence[Row], rows: Sequence[Row], workers: int, notes: Sequence[str], enabled: bool
    ) -> None:
        """Begin a display.

        title    what it is called
        waiting  what is known of the trials to run
        rows     those of trials that were run before
        workers  trials at a time
        notes    lines for the end
        enabled  whether anything is displayed
        """
        self.title, self.waiting, self.rows = title, {row["trial"]: row for row in waiting}, list(rows)
        self.workers, self.notes, self.enabled = workers, notes, enabled
        self.total, self.ended, self.running = len(rows) + len(waiting), 0, dict[str, float]()
        self.live: Any = None
        self.over = False

    def __enter__(self) -> TrialTable:
        if self.enabled:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            if console.is_terminal and not console.is_dumb_terminal:
                picture = lambda: self._renderable(*console.size)  # noqa: E731
                self.live = Live(console=console, get_renderable=picture, refresh_per_second=2, transient=True)
                self.live.start()
            elif self.waiting:
                count = len(self.waiting)
                had = f", {len(self.rows)} done before" if self.rows else ""
                self._print_line(
                    f"{self.title + ': ' if self.title else ''}{count} {plural('trial', count)} to run{had}"
                )
        return self

    def started(self, name: str) -> None:
        """Note that a trial has started."""
        self.running[name] = time.monotonic()

    def finished(self, row: Row) -> None:
        """Note that a trial's row is stored."""
        self.running.pop(row["trial"], None)
        self.waiting.pop(row["trial"], None)
        self.rows.append(row)
        self.ended += 1
        if self.enabled and self.live is None:
            self._print_line(f"[{len(self.rows)}/{self.total}] {row_text(row)}{self._time_left_text()}")

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            # Live draws everything once more as it stops: lines beyond the terminal's height would stay there.
            self.over = True
            self.live.stop()
            errors = {row["error"]: row for row in self.rows if row["error"]}
            for text, row in list(errors.items())[:5]:
                self._print_line(f"{trial_label(row)} seed {row['seed']} failed: {text}")
        for note in self.notes if self.enabled else ():
            self._print_line(f"note: {note}")

    def _time_left_text(self) -> str:
        seconds = seconds_left(self.rows, list(self.waiting.values()), self.workers)
        return f"; about {duration_text(seconds)} left" if self.waiting and seconds is not None else ""

    def _renderable(self, width: int = 100, height: int = 50) -> Any:
        """Return the counts, the running trials and the table so far, as far as the terminal has room."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        if self.over:
            return ""
        wrong = sum(row["error"] != "" for row in self.rows)
        head = (
            f"{self.title or 'trials'}: {len(self.rows)} of {self.total} done, {len(self.running)} running, "
            f"{wrong} failed{self._time_left_text()}"
        )
        now = time.monotonic()
        running = [
            f"  {trial_label(self.waiting[name])} seed {self.waiting[name]['seed']}, {duration_text(now - since)}"
            for name, since in list(self.running.items())[: min(8, max(0, height - 6))]
            if name in self.waiting
        ]
        lines = [Text(head, style="bold"), *(Text(line, style="dim") for line in running)]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        header, *body = table(summary(with_numbers(self.rows))) if self.rows else [("no trial finished yet",)]
        kept = columns_that_fit([header, *body], width)
        shown = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
        for i in kept:
            shown.add_column(header[i], no_wrap=True)
        for row in body[-min(30, max(1, height - len(lines) - 2)) :]:
            shown.add_row(*(row[i] for i in kept))
        return Group(*lines, shown)

    def _print_line(self, line: str) -> None:
        with suppress(OSError):  # standard error was closed: the trials go on
            print(line, file=sys.stderr, flush=True)  # noqa: T201


def columns_that_fit(lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return which columns of a table to show in `width` characters; the least telling are left out first.

    >>> columns_that_fit([("method", "return", "nodes", "seconds"), ("tpi", "500.00", "5", "0.4")], 15)
    [0, 1]
    """
    kept = [i for i, name in enumerate(lines[0]) if name not in ("min … max", "nodes", "gap")]
    for name in ("seconds", "optimal", "leaves", "depth", "failed", "trials"):
        if sum(max(len(line[i]) for line in lines) + 1 for i in kept) > width:
            kept = [i for i in kept if lines[0][i] != name]
    return kept


def row_text(row: Mapping[str, Any]) -> str:
    """Return a row in words."""
    head = f"{trial_label(row)} seed {row['seed']}:"
    if row["error"] != "":
        return f"{head} failed: {row['error']}"
    leaves = int(float(row["leaves"]))
    return (
        f"{head} return {format_numbers(float(row['return']))[0]}, depth {int(float(row['depth']))}, "
        f"{leaves} {plural('leaf', leaves)}, {float(row['seconds']):.1f} s"
    )


def seconds_left(rows: Sequence[Row], waiting: Sequence[Row], workers: int) -> float | None:
    """Estimate the seconds for the trials still to run, by the mean of finished ones of their method and environment.

    >>> done = {"method": "plan", "env": "e", "seconds": "3.0"}
    >>> seconds_left([done], [{"method": "plan", "env": "e"}] * 4, workers=2)
    6.0
    """
    took: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row["seconds"]:
            for group in ((row["method"], row["env"]), (row["method"],), ()):
                took.setdefault(group, []).append(float(row["seconds"]))
    if () not in took:
        return None
    means = {group: sum(times) / len(times) for group, times in took.items()}
    groups = (((row["method"], row["env"]), (row["method"],), ()) for row in waiting)
    return sum(means[next(group for group in options if group in means)] for options in groups) / max(1, workers)


def duration_text(seconds: float) -> str:
    """Return seconds in words.

    >>> duration_text(42), duration_text(600), duration_text(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
