"""NumPy's PCG64 generator, compiled and stored one row a stream, so that thousands of environments can each own one.

A row holds the 128-bit state and increment as four 64-bit words. Streams continue NumPy's own bit for bit: a native
vector environment seeded with `seed` draws what Gymnasium's single environments seeded `seed + i` draw.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit

__all__ = ["streams", "uniform"]

_WORD, _WIDE = (1 << 64) - 1, (1 << 128) - 1
_MULTIPLIER_HIGH = np.uint64(0x2360ED051FC65DA4)
_MULTIPLIER_LOW = np.uint64(0x4385DF649FCCF645)
_MULTIPLIER = (int(_MULTIPLIER_HIGH) << 64) + int(_MULTIPLIER_LOW)


def streams(seeds: Iterable[int | np.random.SeedSequence | None]) -> np.ndarray:
    """One row for each seed, [N, 4] uint64: state high, state low, increment high, increment low.

    >>> row, state = streams([7])[0].tolist(), np.random.PCG64(7).state["state"]
    >>> (row[0] << 64) + row[1] == state["state"], (row[2] << 64) + row[3] == state["inc"]
    (True, True)
    """
    listed = list(seeds)
    if all(isinstance(seed, (int, np.integer)) and 0 <= seed <= _WORD for seed in listed):
        numbers = _hashed(np.array(listed, dtype=np.uint64)).tolist()
        states = [_started((a << 64) + b, (c << 64) + d) for a, b, c, d in numbers]
    else:
        states = [tuple(np.random.PCG64(seed).state["state"].values()) for seed in listed]
    rows = [[word for number in state for word in (number >> 64, number & _WORD)] for state in states]
    return np.array(rows, dtype=np.uint64).reshape(-1, 4)


def _started(start: int, sequence: int) -> tuple[int, int]:
    """State and increment of a PCG64 that was seeded with two numbers of 128 bits."""
    increment = (2 * sequence + 1) & _WIDE
    return ((start + increment) * _MULTIPLIER + increment) & _WIDE, increment


def _hashed(seeds: np.ndarray) -> np.ndarray:
    """What NumPy's `SeedSequence` makes of each seed, [N, 4] uint64: of all at once, it being slow one by one."""
    word = np.uint64(0xFFFFFFFF)

    def scrambled(value: Any, before: int, after: int) -> Any:
        value = ((value ^ np.uint64(before)) * np.uint64(after)) & word
        return value ^ (value >> np.uint64(16))

    pool: list[Any] = [seeds & word, seeds >> np.uint64(32), np.zeros_like(seeds), np.zeros_like(seeds)]
    factors = [0x43B0D7E5]
    for _ in range(16):
        factors.append(factors[-1] * 0x931E8875 & 0xFFFFFFFF)
    at = iter(pairwise(factors))
    pool = [scrambled(value, *next(at)) for value in pool]
    for source in range(4):
        for target in range(4):
            if source != target:
                other = scrambled(pool[source], *next(at))
                value = (pool[target] * np.uint64(0xCA01F9DD) - other * np.uint64(0x4973F715)) & word
                pool[target] = value ^ (value >> np.uint64(16))
    factor, words = 0x8B51F9DD, []
    for i in range(8):
        words.append(scrambled(pool[i % 4], factor, factor := factor * 0x58F38DED & 0xFFFFFFFF))
    return np.stack([words[2 * i] | (words[2 * i + 1] << np.uint64(32)) for i in range(4)], axis=1)


@njit(cache=True)
def _multiply_high(a: Any, b: Any) -> Any:
    """The upper 64 bits of a 64-bit product."""
    half = np.uint64(32)
    mask = np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (other >> half)


@njit(cache=True)
def _next(row: np.ndarray) -> Any:
    """Advance one stream: 64 random bits (PCG XSL RR 128/64)."""
    high, low = row[0], row[1]
    new_high = _multiply_high(low, _MULTIPLIER_LOW) + high * _MULTIPLIER_LOW + low * _MULTIPLIER_HIGH + row[2]
    new_low = low * _MULTIPLIER_LOW
    total = new_low + row[3]
    if total < new_low:
        new_high += np.uint64(1)
    row[0], row[1] = new_high, total
    mixed = new_high ^ total
    turn = new_high >> np.uint64(58)
    return (mixed >> turn) | (mixed << ((np.uint64(64) - turn) & np.uint64(63)))


@njit(cache=True)
def uniform(row: np.ndarray, low: float, high: float) -> float:
    """What `Generator.uniform(low, high)` draws next."""
    return low + (high - low) * (float(_next(row) >> np.uint64(11)) * (1.0 / 9007199254740992.0))
