"""The options of every command that runs trials, and how their results are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from custard.commands.arguments import Flag, Whole

if TYPE_CHECKING:
    from custard.lab.trials import Trial

__all__ = ["Engine", "method_settings", "print_table", "run_and_print", "split_names", "with_history_setting"]


@dataclass(frozen=True)
class Engine:
    """Where trials run."""

    engine: Literal["local", "ray"] = "local"
    """Processes on this machine, or tasks on a Ray cluster."""

    workers: Whole = None
    """Trials at a time: one per core unless given; 0 runs them in this process."""

    address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    """The Ray cluster's address; the one this machine belongs to unless given."""

    retry: Flag = False
    """Run failed trials again."""

    def sweep_arguments(self) -> dict[str, Any]:
        """Return the options as arguments of `custard.lab.sweep.sweep`."""
        return {"engine": self.engine, "workers": self.workers, "address": self.address, "retry": self.retry}


def split_names(text: str) -> list[str]:
    """Return names that are separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def method_settings(texts: Sequence[str], methods: Sequence[str], option: str) -> dict[str, dict[str, Any]]:
    """Parse key=value for every method ("") or method.key=value for one, and return the settings by method."""
    from custard.commands.common import assignments
    from custard.core.errors import CustardError
    from custard.lab.trials import method_and_setting

    settings: dict[str, dict[str, Any]] = {}
    for key, value in assignments(texts, option).items():
        owner, name = method_and_setting(key)
        if owner and owner not in methods:
            raise CustardError(f"{option} {key}: {owner!r} is not among the methods {', '.join(methods)}")
        settings.setdefault(owner, {})[name] = value
    return settings


def with_history_setting(settings: dict[str, dict[str, Any]], history: int | None) -> dict[str, dict[str, Any]]:
    """Return settings by method with the --history that all methods share."""
    from custard.core.history import require_history

    require_history(history)
    return settings if history is None else {**settings, "": {**settings.get("", {}), "history": history}}


def print_table(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a summary in columns."""
    from custard.lab.summary import table

    lines = table(entries)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        cells = (cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(line, widths)))
        print("  ".join(cells))


def run_and_print(
    trials: Sequence[Trial], out: Path | None, engine: Engine, picture: Path | None, as_json: bool
) -> int:
    """Run trials, print their summary, draw it; the exit code is 1 if every trial failed."""
    from custard.commands.common import print_json
    from custard.core.errors import CustardError
    from custard.core.files import make_directory
    from custard.lab.summary import plot, summary
    from custard.lab.sweep import sweep

    if picture is not None and picture.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise CustardError(f"cannot draw {picture}: choose a name that ends in .png, .svg or .pdf")
    if picture is not None:
        if picture.is_dir():
            raise CustardError(f"cannot draw {picture}: it is a directory")
        make_directory(picture.parent)
    rows = sweep(trials, out, show=not as_json, title=trials[0].experiment, **engine.sweep_arguments())
    entries = summary(rows)
    if as_json:
        print_json({"rows": rows, "summary": entries})
    else:
        print_table(entries)
    failed = all(entry["failures"] == entry["trials"] for entry in entries)
    if picture is not None and not failed:
        plot(rows, picture)
    return int(failed)
