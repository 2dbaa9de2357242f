"""How much memory is left: asked before something large is built, so that too large a model is an error in one line."""

from __future__ import annotations

import os
from pathlib import Path

from custard.core.errors import CustardError

__all__ = ["available_memory", "require_memory"]

GIB = 2**30


def available_memory() -> int | None:
    """Return how many bytes this process may still use, or None where the system does not say."""
    found = [free for free in (_of_machine(), _of_group()) if free is not None]
    return min(found) if found else None


def require_memory(needed: float, what: str) -> None:
    """Raise a CustardError if so many bytes are not there.

    >>> require_memory(1e18, "a model of 10^15 states")
    Traceback (most recent call last):
    ...
    custard.core.errors.CustardError: a model of 10^15 states needs about 931,322,574.6 GiB of memory, more than is free
    """
    free = available_memory()
    if free is not None and needed > free:
        raise CustardError(f"{what} needs about {needed / GIB:,.1f} GiB of memory, more than is free")


def _of_machine() -> int | None:
    """Return what the machine has free."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _of_group() -> int | None:
    """Return what is left of the limit of a container."""
    root = Path("/sys/fs/cgroup")
    try:
        return int((root / "memory.max").read_text()) - int((root / "memory.current").read_text())
    except (OSError, ValueError):
        return None
