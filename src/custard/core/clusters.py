"""Ray clusters: connect to one, or say in one line why not."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from custard.core.errors import CustardError, one_line, one_of

__all__ = ["ENGINES", "cluster_cores", "connected", "require_engine"]

ENGINES = ("local", "ray")


def require_engine(engine: str, address: str | None) -> None:
    """Raise for an engine that does not exist, or an address that it has no use for."""
    if engine not in ENGINES:
        raise CustardError(one_of("engine", engine, ENGINES))
    if engine != "ray" and address is not None:
        raise CustardError("an address goes with the engine ray")


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to the Ray cluster at an address, or to the one this machine belongs to; yields the module `ray`.

    A connection that exists already is used and kept.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise CustardError("the engine ray needs the extra 'ray': pip install 'custard-rl[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        try:
            _require_listener(address)
            ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises many kinds
            place = address or "this machine"
            raise CustardError(
                f"no Ray cluster at {place} ('ray start --head' starts one): {one_line(error)}"
            ) from None
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def cluster_cores(ray: Any) -> int:
    """Return how many cores the nodes of the connected cluster offer now."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _require_listener(address: str | None) -> None:
    """Raise at once if nothing listens at the address: Ray itself would keep trying for minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10.0).close()
