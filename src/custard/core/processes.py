"""Python processes that answer messages of plain data over a socket, and never outlive the process that started them.

A message is JSON whose arrays travel as raw bytes behind it. A worker is started as a new interpreter, not forked: a
fork of a process with threads (JAX, BLAS) may hang. It imports what it is told to, not the user's main script.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from typing import Any

import numpy as np

from custard.core.errors import one_line

__all__ = ["ONE_THREAD", "Worker", "cores", "find_function", "is_worker", "receive", "send"]

#: One native thread per process: workers that each use every core slow each other down.
ONE_THREAD = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "VECLIB_MAXIMUM", "NUMEXPR")},
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
WORKER_MARK = "CUSTARD_WORKER"  # environment variable of worker processes
LENGTHS = struct.Struct("<QQ")  # bytes of the JSON text, bytes of all arrays


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_worker() -> bool:
    """Return whether this process was started by `Worker`: it has a core of its own, not all of them."""
    return WORKER_MARK in os.environ


def find_function(name: str) -> Any:
    """Return what "module:qualified.name" names."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


# -- messages ---------------------------------------------------------------------------------------------------------


def send(link: socket.socket, message: Any) -> None:
    """Send plain data: dictionaries, lists, strings, numbers, None and NumPy arrays of numbers."""
    arrays: list[np.ndarray] = []

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(np.ascontiguousarray(value))
            return {"__array__": [len(arrays) - 1, value.dtype.str, list(value.shape)]}
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(entry) for entry in value]
        return value.item() if isinstance(value, np.generic) else value

    text = json.dumps([plain(message), [array.nbytes for array in arrays]]).encode()
    link.sendall(LENGTHS.pack(len(text), sum(array.nbytes for array in arrays)) + text)
    for array in arrays:
        link.sendall(array.data.cast("B") if array.nbytes else b"")


def receive(link: socket.socket) -> Any:
    """Return the next message; raises EOFError where the other side is gone."""
    n_text, n_bytes = LENGTHS.unpack(_read(link, LENGTHS.size))
    message, sizes = json.loads(bytes(_read(link, n_text)))
    data = _read(link, n_bytes)
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    def rebuild(value: Any) -> Any:
        if isinstance(value, dict):
            if "__array__" in value:
                number, dtype, shape = value["__array__"]
                part = data[starts[number] : starts[number + 1]]
                return np.frombuffer(part, dtype=np.dtype(dtype)).reshape(shape).copy()
            return {key: rebuild(entry) for key, entry in value.items()}
        return [rebuild(entry) for entry in value] if isinstance(value, list) else value

    return rebuild(message)


def _read(link: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        got = link.recv_into(view[done:])
        if got == 0:
            raise EOFError("the other process is gone")
        done += got
    return data


# -- the parent's side ------------------------------------------------------------------------------------------------


class Worker:
    """A process that calls `target` ("module:function") once with the setup, then the result with each request.

    `target(setup, tick)` returns a function from a request to an answer; calling `tick()` there shows that it is alive.
    An exception in either is answered as {"error": …}.
    """

    def __init__(self, target: str, setup: Any) -> None:
        self.link, theirs = socket.socketpair()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  # its last line may tell why it died
        self._ticks_file = tempfile.TemporaryFile()  # noqa: SIM115
        self._ticks_file.truncate(mmap.PAGESIZE)
        self._ticks = memoryview(mmap.mmap(self._ticks_file.fileno(), mmap.PAGESIZE)).cast("Q")
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        handles = theirs.fileno(), self._ticks_file.fileno()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, *map(str, handles), target],
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, pass_fds=handles,
            start_new_session=True,  # an interrupt at the terminal is the parent's to handle
            # With -P, PYTHONPATH alone says where modules are.
            env={**os.environ, **ONE_THREAD, WORKER_MARK: "1", "PYTHONPATH": path},
        )  # fmt: skip
        theirs.close()
        self.send(setup)

    def send(self, message: Any) -> None:
        """Give the worker a request; a worker that died is noticed when its answer is read."""
        with contextlib.suppress(OSError):
            send(self.link, message)

    def receive(self) -> Any:
        """Return the worker's next answer, or None if it died."""
        try:
            return receive(self.link)
        except (OSError, EOFError, ValueError):
            return None

    @property
    def ticks(self) -> int:
        """How often the worker has shown that it is alive."""
        return int(self._ticks[0])

    def fileno(self) -> int:
        """Return the socket's number, for `selectors`."""
        return self.link.fileno()

    def cause_of_death(self) -> str:
        """Say how a dead process ended, with the last line it printed."""
        code = self.process.wait()
        how = f"ended with code {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
        self.output.seek(0)
        lines = [line for line in self.output.read().decode(errors="replace").splitlines() if line.strip()]
        return f"the process {how}" + (f": {one_line(lines[-1])[:200]}" if lines else "")

    def end(self) -> None:
        """Kill the process and whatever its environments have started."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.link.close()
        self.output.close()
        self._ticks_file.close()


# -- the worker's side ------------------------------------------------------------------------------------------------


def _serve(link_handle: int, ticks_handle: int, target: str) -> None:
    """Answer requests until the socket closes; then end at once, even in the middle of a request."""
    import queue

    link = socket.socket(fileno=link_handle)
    ticks = memoryview(mmap.mmap(ticks_handle, mmap.PAGESIZE)).cast("Q")
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                requests.put(receive(link))
        os.killpg(0, signal.SIGKILL)  # itself, and whatever its environments have started

    def tick() -> None:
        ticks[0] += 1

    threading.Thread(target=read, daemon=True).start()
    answer: Any = None
    while True:
        request = requests.get()
        try:
            if answer is None:
                answer = find_function(target)(request, tick)
                continue
            reply = answer(request)
        except (Exception, SystemExit) as error:
            kind = "" if type(error).__name__ == "CustardError" else f"{type(error).__name__}: "
            reply = {"error": kind + one_line(error)}
        send(link, reply)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
