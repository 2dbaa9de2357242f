"""Rows of results in a CSV file, which a benchmark appends as they come, so that it can stop and go on."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["append_row", "rows_in"]


def rows_in(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file, none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, columns: Sequence[str], row: Mapping[str, Any]) -> None:
    """Add a row to a file, which gets a header first if it is new; and print it."""
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if not file.tell():
            writer.writeheader()
        writer.writerow(row)
    print(row, flush=True)
