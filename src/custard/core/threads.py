"""Several threads: compiled loops and compilers let go of the interpreter lock, so that parts run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from numba import config
from threadpoolctl import ThreadpoolController

__all__ = ["in_parts", "meanwhile", "one_thread"]

N_THREADS: int = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
Result = TypeVar("Result")


def in_parts(work: Callable[[int, int], Result], count: int, parallel: bool = True) -> list[Result]:
    """Return what `work(start, stop)` returns for even parts of range(count), one per thread, or for all of it.

    >>> sum(in_parts(lambda start, stop: sum(range(start, stop)), 10))
    45
    """
    threads = min(N_THREADS, count)
    if threads <= 1 or not parallel:
        return [work(0, count)]
    edges = [count * k // threads for k in range(threads + 1)]
    others = [_pool().submit(work, start, stop) for start, stop in pairwise(edges[1:])]
    first = work(0, edges[1])  # here: one thread fewer to wake
    return [first, *(other.result() for other in others)]


@contextmanager
def meanwhile(work: Callable[..., Any], *given: Any) -> Iterator[None]:
    """Call `work` in another thread while the block runs, and wait for it at the end.

    JAX compiles the update so, while numba compiles the rollouts: what the call returns is of no use.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="custard") as pool:
        done = pool.submit(work, *given)
        yield
        done.result()


@cache
def _pool() -> ThreadPoolExecutor:
    """Return the one pool of threads, made when it is first needed."""
    return ThreadPoolExecutor(N_THREADS, thread_name_prefix="custard")


@cache
def _thread_pools() -> ThreadpoolController:
    """Return the thread pools of the process; looking for them takes longer than a small model."""
    import scipy.linalg  # noqa: F401  # loads the libraries of linear algebra, numpy's and the one that numba calls

    return ThreadpoolController()


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which linear algebra uses one thread: for small matrices more only wait for each other."""
    return _thread_pools().limit(limits=1, user_api="blas")
