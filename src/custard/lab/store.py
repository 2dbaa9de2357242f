"""Rows of trials in a CSV: each appended whole and at once, a torn last line tolerated, one writer at a time.

Killed at any moment, a writer leaves every row it finished. Cells hold no line breaks, so that a line is a row.
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
from custard.core.files import write_atomically
from custard.lab.trials import COLUMNS, KEY, NUMBERS

__all__ = ["Store", "numbered", "read_rows"]

Row = dict[str, str]
LONGEST = 2000  # characters of a message


class Store:
    """The rows of a file that this process, and no other, adds to; without a file they are kept in memory."""

    def __init__(self, file: Path | None) -> None:
        file = file and Path(os.path.realpath(file))  # rows go to, and the lock belongs to, what a link points to
        self.file, self.rows = file, list[Row]()
        self._lock = -1
        if file is None:
            return
        if file.exists() and not file.is_file():
            raise CustardError(f"cannot write {file}: it is not a file")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CustardError(f"cannot make the directory {file.parent}: {error.strerror}") from None
        self._lock = _lock(file)
        try:
            self._open(file)
        except BaseException:
            self.close()
            raise

    def _open(self, file: Path) -> None:
        if not file.exists():
            return
        if file.stat().st_size == 0:  # as good as none
            write_atomically(file, _header())
        whole = _whole_lines(file)
        header = next(csv.reader([whole.partition("\n")[0]]), [])
        self.rows = _parse(file, whole)
        if tuple(header) != COLUMNS or len(whole.encode()) != file.stat().st_size:
            write_atomically(file, _header() + "".join(map(_line, self.rows)))

    def add(self, row: Mapping[str, Any]) -> Row:
        """Append a row; it is on the disk when this returns."""
        cells = {column: _cell(row.get(column, "")) for column in COLUMNS}
        cells |= {column: cells[column][:LONGEST] for column in ("message", "error")}
        self.rows.append(cells)
        if self.file is not None:
            if not self.file.exists():
                write_atomically(self.file, _header())
            try:
                handle = os.open(self.file, os.O_WRONLY | os.O_APPEND)
                try:
                    _write_all(handle, _line(cells).encode())
                    os.fsync(handle)
                finally:
                    os.close(handle)
            except OSError as error:
                raise CustardError(f"cannot write {self.file}: {error.strerror}") from None
        return cells

    def replace(self, rows: Sequence[Row]) -> None:
        """Put these rows in place of all."""
        if rows == self.rows:
            return
        self.rows = list(rows)
        if self.file is not None:
            write_atomically(self.file, _header() + "".join(map(_line, rows)))

    def close(self) -> None:
        """Let others write."""
        if self._lock >= 0 and self.file is not None:
            _lock_name(self.file).unlink(missing_ok=True)
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_rows(file: Path) -> list[Row]:
    """The rows of a file as text; columns that an older file lacks are empty."""
    return _parse(file, _whole_lines(file))


def numbered(rows: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Rows with numbers where numbers stand; what is empty stays so."""
    try:
        return [
            {name: float(cell) if name in NUMBERS and cell != "" else cell for name, cell in row.items()}
            for row in rows
        ]
    except ValueError as error:
        raise CustardError(f"a row holds something else where a number should be: {error}") from None


def _whole_lines(file: Path) -> str:
    """The text up to the last line break: what comes after it was being written when its writer died."""
    try:
        data = file.read_bytes()
        return data[: data.rfind(b"\n") + 1].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CustardError(f"cannot read {file}: {error}") from None


def _parse(file: Path, text: str) -> list[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    names = set(reader.fieldnames or ())
    missing, unknown = set(KEY) - names, names - set(COLUMNS)
    if missing or unknown:
        wrong = f"it has no column {sorted(missing)[0]!r}" if missing else f"column {sorted(unknown)[0]!r} is unknown"
        raise CustardError(f"{file} is not a CSV of trials: {wrong}")
    rows = []
    for row in _lines(file, reader):
        if None in row or None in row.values():
            raise CustardError(f"{file}: line {reader.line_num} does not have a cell for every column")
        _check(row, f"{file}: line {reader.line_num}")
        rows.append({column: row.get(column, "") for column in COLUMNS})
    return rows


def _lines(file: Path, reader: Any) -> Iterator[Any]:
    try:
        yield from reader
    except csv.Error as error:
        raise CustardError(f"{file}: line {reader.line_num} cannot be read: {error}") from None


def _check(row: Row, where: str) -> None:
    """Raise if a cell that orders or counts holds something else."""
    objects = ("env_args", "settings", "full_settings")
    kinds: dict[str, Callable[[str], Any]] = {"seed": int, "max_depth": int, **dict.fromkeys(objects, _object)}
    for name, read in (kinds | dict.fromkeys(NUMBERS, float)).items():
        try:
            read(row.get(name) or ("{}" if read is _object else "0"))
        except (ValueError, AttributeError):
            what = "a table of arguments" if read is _object else "a number"
            raise CustardError(f"{where} has {row[name]!r} as {name}, which is not {what}") from None


def _object(text: str) -> dict[str, Any]:
    return dict(json.loads(text).items())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else one_line(value)


def _header() -> str:
    return ",".join(COLUMNS) + "\n"


def _line(row: Mapping[str, str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([row[column] for column in COLUMNS])
    return text.getvalue()


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _lock_name(file: Path) -> Path:
    return file.with_name(f".{file.name}.lock")


def _lock(file: Path) -> int:
    """A lock that ends with the process, however it ends; -1 where the system has none."""
    try:
        import fcntl
    except ImportError:
        return -1
    name = _lock_name(file)
    while True:
        try:
            handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CustardError(f"cannot write {file}: {error.strerror}") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise CustardError(f"{file} is being written by another process: wait for it, or end it") from None
        # Between open and lock the last holder may have removed the name: then the lock is worth nothing.
        if name.exists() and os.path.samestat(os.fstat(handle), name.stat()):
            return handle
        os.close(handle)
