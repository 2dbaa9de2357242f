"""A place for compiled code where numba finds none: a read-only installation under a home that cannot be written."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path

__all__ = ["settle_cache"]


def settle_cache() -> None:
    """Point numba to a private temporary directory if neither the package nor the user's cache can be written."""
    if os.environ.get("NUMBA_CACHE_DIR") or _is_writable(Path(__file__).parent / "__pycache__"):
        return
    if _is_writable(Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())):
        return
    os.environ["NUMBA_CACHE_DIR"] = place = _private_directory()
    if "numba" in sys.modules:  # it has read its settings already
        sys.modules["numba"].config.CACHE_DIR = place


def _is_writable(place: Path) -> bool:
    """Return whether a directory can be written, or made."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return os.access(place, os.W_OK)


def _private_directory() -> str:
    """Return a directory of this user's alone: what is read from a cache is run, so nobody else may have filled it."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    place = Path(tempfile.gettempdir()) / f"custard-{user}"
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        about = place.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == user and not about.st_mode & 0o077:
            return str(place)
    return tempfile.mkdtemp(prefix="custard-")
