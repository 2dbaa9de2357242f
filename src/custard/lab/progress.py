"""Display progress while a tree is learned: one live line in a terminal or notebook, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import threading
import time
from types import TracebackType
from typing import Any

from custard.core.errors import CustardError
from custard.core.number_format import format_numbers, passed_time
from custard.lab.callbacks import COMPILING, judging_of
from custard.lab.time_left import TimeLeft
from custard.lab.trial_table import duration_text
from custard.task.problem import Snapshot
from custard.tree.text import plural

__all__ = ["Display", "is_shown", "waiting"]

PLAIN_LINE_SECONDS = 4.0  # between lines where there is no terminal; a busy processor makes them come later
FIRST_LINE_SHARE, WAITING_LINE_SHARE = 0.5, 0.75  # of that time, until the first line of a run and of what has no steps
MIN_SECONDS_LEFT = 0.5  # for a time left to be shown
NEAR_LIMIT = 1.2  # of the time expected: the most that is left is shown where it is more than that
NOTEBOOK_LINE_SECONDS = 0.5  # between updates of a notebook's line


def is_shown(progress: bool | str) -> bool:
    """Return whether progress is displayed: "auto" means in terminals and notebooks."""
    if progress == "auto":
        return _in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    if not isinstance(progress, bool):
        raise CustardError(f"progress={progress!r} must be True, False or 'auto'")
    return progress


def _in_notebook() -> bool:
    """Return whether this is a notebook's kernel; IPython is not imported for that."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookLine:
    """One line of a notebook's output, which the next replaces."""

    def __init__(self, is_shown: bool = True) -> None:
        """Begin a line; unless it `is_shown`, the output has none before the first text."""
        self._handle: Any = self._displayed("") if is_shown else None

    def _displayed(self, text: str) -> Any:
        from IPython.display import display

        return display({"text/plain": text}, raw=True, display_id=True)

    def write(self, text: str) -> None:
        """Show a text instead of the last one."""
        if self._handle is not None:
            self._handle.update({"text/plain": text}, raw=True)
        elif text:
            self._handle = self._displayed(text)


def waiting(title: str, doing: str, enabled: bool) -> Display:
    """Return a display of something that has no steps: it says what is being done and how long, and then vanishes.

    Lines outside terminals and notebooks stay, but there is none for what is done within three seconds.
    """
    return Display(title, enabled, doing=doing, vanishes=True)


class Display:
    """Shows steps, the best tree's return, depth and leaves, what is being done and the time left, on standard error.

    In a terminal or a notebook it is one live line. Elsewhere a thread of its own prints a line at least every five
    seconds. Until the first snapshot it shows what is being done (`doing`) and how long.
    """

    def __init__(
        self, title: str, enabled: bool, may_stop_early: bool = True, doing: str = COMPILING, vanishes: bool = False
    ) -> None:
        self.title, self.enabled, self.doing, self.vanishes = title, enabled, doing, vanishes
        self.live: Any = None
        self.notebook_line: NotebookLine | None = None
        self.started_at = self.shown_at = time.monotonic()
        self.printed_at = -PLAIN_LINE_SECONDS
        self.last: tuple[Snapshot, float] | None = None
        self.last_judged: Snapshot | None = None  # the last one whose tree's value is known
        self.last_printed: tuple[Snapshot, float] | None = None  # the last one that was printed
        self.time_left = TimeLeft(may_stop_early)
        self._over = threading.Event()
        self._printing = threading.Lock()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Display:
        if self.enabled:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            if _in_notebook():
                self.notebook_line = NotebookLine(is_shown=not self.vanishes)
            if self.notebook_line is None and console.is_terminal:
                picture = lambda: self._renderable(console.width)  # noqa: E731
                self.live = Live(console=console, get_renderable=picture, refresh_per_second=8, transient=self.vanishes)
                self.live.start()
            else:
                share = WAITING_LINE_SHARE if self.vanishes else FIRST_LINE_SHARE
                is_first_due = self.notebook_line is not None and not self.vanishes
                self.printed_at = 0.0 if is_first_due else time.monotonic() - (1.0 - share) * PLAIN_LINE_SECONDS
                self._thread = threading.Thread(target=self._print_regularly, daemon=True)
                self._thread.start()
        return self

    def say(self, doing: str) -> None:
        """Show what is being done now, where there are no snapshots."""
        self.doing = doing

    def show(self, snapshot: Snapshot, seconds: float) -> None:
        """Update the display."""
        self.time_left.note(snapshot, seconds)
        is_first = self.last is None
        self.last, self.shown_at = (snapshot, seconds), time.monotonic()
        if math.isfinite(snapshot.value):
            self.last_judged = snapshot
        if self.enabled and self.live is None and is_first:
            self._print_line(snapshot, seconds)

    def _print_regularly(self) -> None:
        interval = PLAIN_LINE_SECONDS if self.notebook_line is None else NOTEBOOK_LINE_SECONDS
        while not self._over.wait(interval / 10):
            if time.monotonic() - self.printed_at < interval:
                continue
            if self.last is None:
                self.printed_at = time.monotonic()
                passed = passed_time(self.printed_at - self.started_at, 0)
                self._write(f"{self.title}: {self.doing}, {passed}")
            else:
                since = time.monotonic() - self.shown_at
                self._print_line(self.last[0], self.last[1] + since)

    def _renderable(self, width: int) -> Any:
        """Return the live line; where it is too long, the least important facts are left out."""
        from rich.text import Text

        snapshot = self.last[0] if self.last is not None else None
        share = snapshot.steps / snapshot.budget if snapshot is not None and snapshot.budget else 0.0
        cells = 24 if width >= 110 else 10
        done = round(cells * min(1.0, share))
        bar = Text.assemble(("━" * done, "bar.complete"), ("━" * (cells - done), "bar.back"))
        fields = [(8, Text(self.title, "bold"))]  # each with a rank: the highest is left out first
        fields += [] if self.vanishes else [(3, bar)]
        facts = [(0, self.doing)] if snapshot is None else _ranked_facts(snapshot, self.last_judged, short=True)
        fields += [(rank, Text(fact)) for rank, fact in facts]
        fields.append((6, Text(passed_time(time.monotonic() - self.started_at, 0), "cyan")))
        since = time.monotonic() - self.shown_at
        if self.last is not None and (left := self._time_left_text(self.last[1] + since)):
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
            return
        if self.vanishes and self.notebook_line is not None:
            self.notebook_line.write("")
        has_news = self.last is not self.last_printed or self.notebook_line is not None  # which shows a time left
        if self.enabled and self.last is not None and kind is None and has_news:
            self._print_line(*self.last)

    def _print_line(self, snapshot: Snapshot, seconds: float) -> None:
        with self._printing:
            self.printed_at, self.last_printed = time.monotonic(), self.last
            left = self._time_left_text(seconds)
            said = [
                self.title + ": " + snapshot_text(snapshot, self.last_judged),
                passed_time(seconds),
                *([left] if left else []),
            ]
            self._write(", ".join(said))

    def _write(self, line: str) -> None:
        if self.notebook_line is not None:
            self.notebook_line.write(line)
        else:
            print(line, file=sys.stderr, flush=True)  # noqa: T201

    def _time_left_text(self, passed: float) -> str:
        """Return the time left, and the most it can be; an empty text where that is not known or the run is over."""
        if self._over.is_set():
            return ""
        limit, expected = self.time_left.seconds(passed), self.time_left.expected(passed)
        if limit is not None and limit < MIN_SECONDS_LEFT:  # it ends at once, or it takes longer than was foreseen
            return ""
        if expected is None:
            word = "at most" if self.time_left.may_stop_early else "about"
            return "" if limit is None else f"{word} {duration_text(limit)} left"
        is_far = limit is not None and limit > NEAR_LIMIT * expected
        most = f", at most {duration_text(limit)}" if limit is not None and is_far else ""
        return f"about {duration_text(expected)} left{most}"


def snapshot_text(snapshot: Snapshot, judged: Snapshot | None = None) -> str:
    """Return a snapshot in words; where its tree is not judged yet, with the value of an earlier tree that is.

    >>> snapshot_text(Snapshot(steps=1500, tree=None, value=float("nan")))
    '1,500 steps, no tree yet'
    """
    return ", ".join(fact for _, fact in _ranked_facts(snapshot, judged))


def _ranked_facts(snapshot: Snapshot, judged: Snapshot | None, short: bool = False) -> list[tuple[int, str]]:
    """Return what a snapshot shows, each fact with a rank: the highest is left out first."""
    plans = "bound" in snapshot.metrics  # exact planning takes no steps
    parts = [] if plans else [(0, f"{snapshot.steps:,} {plural('step', snapshot.steps)}")]
    if "return" in snapshot.metrics:
        parts.append((7, f"return {snapshot.metrics['return']:.1f}"))
    if snapshot.tree is None:
        parts.append((3, "no tree yet"))
    else:
        tree = snapshot.tree
        leaves = f"{tree.n_leaves} {plural('leaf', tree.n_leaves)}"
        if tree.is_linear:
            leaves += f", {tree.n_coefficients} {plural('coefficient', tree.n_coefficients)}"
        parts += [(1, _value_text(snapshot, judged)), (4, f"depth {tree.depth}"), (5, leaves)]
        if plans:
            bound, gap = format_numbers(snapshot.metrics["bound"], snapshot.metrics["gap"])
            parts[1:1] = [(2, f"bound {bound}"), (2, f"gap {gap}")]
    if snapshot.message and (not short or snapshot.tree is None):
        parts.append((3, snapshot.message))
    return parts


def _value_text(snapshot: Snapshot, judged: Snapshot | None) -> str:
    """Return the best tree's value; where it is not known yet, that of the last tree that was judged."""
    known = snapshot if math.isfinite(snapshot.value) else judged
    text = "" if known is None else f"{format_numbers(known.value)[0]}{_interval_text(known)}"
    if known is snapshot:
        return f"best tree {text}"
    return "best tree not judged yet" + (f", one before {text}" if text else "")


def _interval_text(snapshot: Snapshot) -> str:
    """Return the 95 % interval of the best tree's value and its number of episodes, where a method gives them.

    Episodes that all return the same have no spread, which is no interval: another one may still return less.
    """
    error, episodes = judging_of(snapshot)
    if not math.isfinite(error):
        return ""
    if error == 0.0:
        return f" in each of {episodes} episodes"
    return f" ± {format_numbers(1.96 * error)[0]} ({episodes} episodes)"
