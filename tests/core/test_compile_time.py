"""What is compiled is timed once, whoever compiles and however calls nest."""

import time

import pytest

from custard.core import compile_time
from custard.core.compile_time import CompileTimer, seconds_compiled


def test_numba_is_timed_and_what_is_compiled_already_is_not():
    from numba import njit

    before = seconds_compiled()

    @njit
    def inner(x):
        return x + 1.0

    @njit
    def outer(x):
        return inner(x) * 2.0

    begun = time.perf_counter()
    assert outer(1.0) == 4.0
    passed, compiled = time.perf_counter() - begun, seconds_compiled()
    assert 0.5 * passed < compiled - before <= passed
    outer(2.0)
    assert seconds_compiled() == compiled


def test_jax_is_timed():
    jax = pytest.importorskip("jax")
    before = seconds_compiled()
    begun = time.perf_counter()
    jax.jit(lambda x: (x * 3.0 + 1.0).sum())(jax.numpy.ones(17)).block_until_ready()
    assert 0.0 < seconds_compiled() - before <= time.perf_counter() - begun


def test_nested_and_simultaneous_compiling_counts_once(monkeypatch):
    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(compile_time, "time", clock)
    timer = CompileTimer()
    clock.now = 1.0
    timer.start()
    clock.now = 2.0
    timer.start()  # a function that the first one calls
    clock.now = 4.0
    timer.add(1.5)  # another thread, from 2.5 to 4
    timer.end()
    clock.now = 5.0
    timer.end()
    assert timer.seconds == 4.0
    clock.now = 10.0
    timer.add(2.0)
    assert timer.seconds == 6.0
