"""Files that are replaced whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import warnings
from pathlib import Path

import numpy as np

from custard.core.errors import CustardError

__all__ = ["load_arrays", "make_directory", "remove_leftovers", "require_possible_name", "write_atomically"]

_PART = ".custard-part"  # how the name of a file ends that is being written


def require_possible_name(path: str | Path) -> None:
    r"""Raise for a name that no file can have, which `open` refuses with an error that is no OSError.

    >>> require_possible_name("a\0b")
    Traceback (most recent call last):
    custard.core.errors.CustardError: no file can be named 'a\x00b'
    """
    try:
        is_possible = b"\0" not in os.fsencode(path)
    except (UnicodeEncodeError, TypeError):
        is_possible = False
    if is_possible:
        try:
            os.lstat(path)
        except OSError as error:
            is_possible = error.errno != errno.ENAMETOOLONG
    if not is_possible:
        raise CustardError(f"no file can be named {str(path)!a}")


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write beside the target and rename over it, so that a reader sees the old file or the new one, never a part."""
    path = Path(path)
    require_possible_name(path)
    data = content.encode() if isinstance(content, str) else content
    if path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir()):
        try:
            path.write_bytes(data)  # a terminal, a pipe: nothing to replace
        except OSError as error:
            raise CustardError(f"cannot write {path}: {error.strerror}") from None
        return
    path = Path(os.path.realpath(path))  # a link stays one
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=_PART)
    except OSError as error:
        raise CustardError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise CustardError(f"cannot write {path}: {error.strerror}") from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def make_directory(path: Path) -> None:
    """Make a directory and those above it, where there is none yet."""
    require_possible_name(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CustardError(f"cannot make the directory {path}: {error.strerror}") from None


def remove_leftovers(directory: Path) -> None:
    """Remove what writers that were killed left in a directory: nobody else may be writing there."""
    for file in directory.glob(f".*{_PART}"):
        with contextlib.suppress(OSError):
            file.unlink()


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file by name; a damaged file raises ValueError, a missing one OSError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what a damaged header says
            with np.load(path, allow_pickle=False) as data:
                if not isinstance(data, np.lib.npyio.NpzFile):
                    raise ValueError("it is not an npz file")
                return {key: data[key] for key in data.files}
    except OSError:
        raise
    except (Exception, MemoryError) as error:  # zipfile, zlib and NumPy raise many kinds for what is not an npz file
        raise ValueError(f"{type(error).__name__}: {error}") from None
