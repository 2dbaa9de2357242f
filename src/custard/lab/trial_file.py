"""Store rows of trials in a CSV: one writer at a time, every row on the disk as soon as it is added.

A writer that is killed at any moment leaves every row it added; a last line that is not complete is dropped when the
file is read. Cells hold no line breaks, so that a line is a row.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from custard.core.errors import CustardError, one_line
from custard.core.files import make_directory, write_atomically
from custard.core.locks import Lock
from custard.lab.trials import COLUMNS, KEY_COLUMNS, NUMBER_COLUMNS, json_text
from custard.task.settings import present_names

__all__ = ["TrialFile", "read_rows", "with_numbers"]

Row = dict[str, str]
MAX_MESSAGE_CHARACTERS = 2000  # in the columns message and error


class TrialFile:
    """A CSV of trials that only this process writes; without a file, rows are held in memory."""

    def __init__(self, file: Path | None) -> None:
        file = file and Path(os.path.realpath(file))  # the file that a link points to is written and locked
        self.file, self.rows = file, list[Row]()
        self._lock: Lock | None = None
        if file is None:
            return
        if file.exists() and not file.is_file():
            raise CustardError(f"cannot write {file}: it is not a file")
        make_directory(file.parent)
        self._lock = Lock(file.with_name(f".{file.name}.lock"), str(file))
        try:
            self._load(file)
        except BaseException:
            self.close()
            raise

    def _load(self, file: Path) -> None:
        if not file.exists():
            return
        if file.stat().st_size == 0:
            write_atomically(file, _csv_header())
        whole = _complete_lines(file)
        header = next(csv.reader([whole.partition("\n")[0]]), [])
        self.rows = _parse_rows(file, whole)
        if tuple(header) != COLUMNS or len(whole.encode()) != file.stat().st_size:
            write_atomically(file, _csv_header() + "".join(map(_csv_line, self.rows)))

    def add(self, row: Mapping[str, Any]) -> Row:
        """Append a row; it is on the disk when this returns."""
        cells = {column: _cell_text(row.get(column, "")) for column in COLUMNS}
        cells |= {column: cells[column][:MAX_MESSAGE_CHARACTERS] for column in ("message", "error")}
        self.rows.append(cells)
        if self.file is not None:
            if not self.file.exists():
                write_atomically(self.file, _csv_header())
            try:
                handle = os.open(self.file, os.O_WRONLY | os.O_APPEND)
                try:
                    _write_all(handle, _csv_line(cells).encode())
                    os.fsync(handle)
                finally:
                    os.close(handle)
            except OSError as error:
                raise CustardError(f"cannot write {self.file}: {error.strerror}") from None
        return cells

    def replace(self, rows: Sequence[Row]) -> None:
        """Replace all rows."""
        if rows == self.rows:
            return
        self.rows = list(rows)
        if self.file is not None:
            write_atomically(self.file, _csv_header() + "".join(map(_csv_line, rows)))

    def close(self) -> None:
        """Let other processes write."""
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def __enter__(self) -> TrialFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file as text; columns that an older file lacks are empty."""
    return _parse_rows(file, _complete_lines(file))


def with_numbers(rows: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return rows with floats in the columns that hold numbers; empty cells stay empty."""
    try:
        return [
            {name: float(cell) if name in NUMBER_COLUMNS and cell != "" else cell for name, cell in row.items()}
            for row in rows
        ]
    except ValueError as error:
        raise CustardError(f"a row holds something else where a number should be: {error}") from None


def _complete_lines(file: Path) -> str:
    """Return a file's text up to the last line break; what follows it was being written when its writer died."""
    try:
        data = file.read_bytes()
        return data[: data.rfind(b"\n") + 1].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CustardError(f"cannot read {file}: {error}") from None


def _parse_rows(file: Path, text: str) -> list[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    names = set(reader.fieldnames or ())
    missing, unknown = set(KEY_COLUMNS) - names, names - set(COLUMNS)
    if missing or unknown:
        wrong = f"it has no column {sorted(missing)[0]!r}" if missing else f"column {sorted(unknown)[0]!r} is unknown"
        raise CustardError(f"{file} is not a CSV of trials: {wrong}")
    rows = []
    for row in _read_lines(file, reader):
        if None in row or None in row.values():
            raise CustardError(f"{file}: line {reader.line_num} does not have a cell for every column")
        _require_valid_cells(row, f"{file}: line {reader.line_num}")
        row |= {column: _by_present_names(row[column]) for column in ("settings", "full_settings") if row.get(column)}
        rows.append({column: row.get(column, "") for column in COLUMNS})
    return rows


def _by_present_names(text: str) -> str:
    """Return a row's settings by the names they have now."""
    stored = _parse_object(text)
    present = present_names(stored)
    return text if present == stored else json_text(present)


def _read_lines(file: Path, reader: Any) -> Iterator[Any]:
    try:
        yield from reader
    except csv.Error as error:
        raise CustardError(f"{file}: line {reader.line_num} cannot be read: {error}") from None


def _require_valid_cells(row: Row, where: str) -> None:
    """Raise if a cell of a column of numbers or JSON objects holds something else."""
    objects = ("env_args", "settings", "full_settings")
    kinds: dict[str, Callable[[str], Any]] = {"seed": int, "max_depth": int, **dict.fromkeys(objects, _parse_object)}
    for name, read in (kinds | dict.fromkeys(NUMBER_COLUMNS, float)).items():
        try:
            read(row.get(name) or ("{}" if read is _parse_object else "0"))
        except (ValueError, AttributeError):
            what = "a table of arguments" if read is _parse_object else "a number"
            raise CustardError(f"{where} has {row[name]!r} as {name}, which is not {what}") from None


def _parse_object(text: str) -> dict[str, Any]:
    return dict(json.loads(text).items())


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else one_line(value)


def _csv_header() -> str:
    return ",".join(COLUMNS) + "\n"


def _csv_line(row: Mapping[str, str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([row[column] for column in COLUMNS])
    return text.getvalue()


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]
