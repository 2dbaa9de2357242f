"""Locks: one process at a time writes a file or a directory. A lock ends with its process, however that ends."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from filelock import FileLock, Timeout

from custard.core.errors import CustardError, one_line

__all__ = ["Lock"]


class Lock:
    """A lock that says who holds it.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / ".lock"
    >>> lock = Lock(file, "the run")
    >>> Lock(file, "the run")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    custard.core.errors.CustardError: the run is being written by process ...: wait for it, or end it
    >>> lock.release()
    """

    def __init__(self, file: Path, what: str) -> None:
        """Take the lock at once, or raise one line that names the holder of `what`."""
        self._lock = FileLock(file, timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise CustardError(f"{what} is being written by {_holder(file)}: wait for it, or end it") from None
        except OSError as error:
            raise CustardError(f"cannot write {what}: {error.strerror}") from None
        holder = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        try:
            file.write_text(holder)
        except OSError as error:
            self.release()
            raise CustardError(f"cannot write {what}: {error.strerror}") from None

    def release(self) -> None:
        """Let other processes write."""
        if self._lock.is_locked:
            Path(self._lock.lock_file).unlink(missing_ok=True)  # while it is held, so that no other holds this name
            self._lock.release()


def _holder(file: Path) -> str:
    """Return who holds a lock, in words."""
    try:
        return one_line(file.read_text()[:200]) or "another process"
    except (OSError, UnicodeDecodeError):
        return "another process"
