"""NumPy's PCG64 generator, compiled and stored one row per stream, so that thousands of environments can each own one.

A row holds the 128-bit state and increment as four 64-bit words. Streams continue NumPy's own bit for bit: a native
vector environment seeded with `seed` draws what Gymnasium's single environments seeded `seed + i` draw.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from custard.core.numba_tools import njit

__all__ = ["seeded", "streams", "uniform"]

MAX_UINT64 = (1 << 64) - 1
MULTIPLIER_HIGH = np.uint64(0x2360ED051FC65DA4)
MULTIPLIER_LOW = np.uint64(0x4385DF649FCCF645)
LOW_32_BITS = np.uint64(0xFFFFFFFF)
HASH_SHIFT, ONE = np.uint64(16), np.uint64(1)


def streams(seeds: Iterable[int | np.random.SeedSequence | None]) -> np.ndarray:
    """Return one row for each seed, [N, 4] uint64: state high, state low, increment high, increment low.

    >>> row, state = streams([7])[0].tolist(), np.random.PCG64(7).state["state"]
    >>> (row[0] << 64) + row[1] == state["state"], (row[2] << 64) + row[3] == state["inc"]
    (True, True)
    """
    listed = list(seeds)
    if all(isinstance(seed, (int, np.integer)) and 0 <= seed <= MAX_UINT64 for seed in listed):
        return seeded(np.array(listed, dtype=np.uint64))
    states: list[Any] = [tuple(np.random.PCG64(seed).state["state"].values()) for seed in listed]
    rows = [[word for number in state for word in (number >> 64, number & MAX_UINT64)] for state in states]
    return np.array(rows, dtype=np.uint64).reshape(-1, 4)


@njit(cache=True)
def _multiply_high(a: Any, b: Any) -> Any:
    """Return the upper 64 bits of a 64-bit product."""
    half = np.uint64(32)
    mask = np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (other >> half)


@njit(cache=True)
def _next_64_bits(row: np.ndarray) -> Any:
    """Advance one stream and return 64 random bits (PCG XSL RR 128/64)."""
    high, low = row[0], row[1]
    new_high = _multiply_high(low, MULTIPLIER_LOW) + high * MULTIPLIER_LOW + low * MULTIPLIER_HIGH + row[2]
    new_low = low * MULTIPLIER_LOW
    total = new_low + row[3]
    if total < new_low:
        new_high += np.uint64(1)
    row[0], row[1] = new_high, total
    mixed = new_high ^ total
    turn = new_high >> np.uint64(58)
    return (mixed >> turn) | (mixed << ((np.uint64(64) - turn) & np.uint64(63)))


@njit(cache=True)
def _hash_step(value: Any, before: Any, after: Any) -> Any:
    """Return 32 bits after one step of SeedSequence's hash."""
    value = ((value ^ before) * after) & LOW_32_BITS
    return value ^ (value >> HASH_SHIFT)


@njit(cache=True)
def seeded(seeds: np.ndarray) -> np.ndarray:
    """Return the streams of seeds [N] uint64: NumPy's `SeedSequence` hashes each, PCG64 starts from what comes out."""
    rows = np.empty((len(seeds), 4), np.uint64)
    pool = np.zeros(4, np.uint64)
    for i in range(len(seeds)):
        pool[0], pool[1], pool[2], pool[3] = seeds[i] & LOW_32_BITS, seeds[i] >> np.uint64(32), 0, 0
        factor = np.uint64(0x43B0D7E5)
        for k in range(4):
            after = (factor * np.uint64(0x931E8875)) & LOW_32_BITS
            pool[k], factor = _hash_step(pool[k], factor, after), after
        for source in range(4):
            for target in range(4):
                if source != target:
                    after = (factor * np.uint64(0x931E8875)) & LOW_32_BITS
                    other, factor = _hash_step(pool[source], factor, after), after
                    value = (pool[target] * np.uint64(0xCA01F9DD) - other * np.uint64(0x4973F715)) & LOW_32_BITS
                    pool[target] = value ^ (value >> HASH_SHIFT)
        factor = np.uint64(0x8B51F9DD)
        for k in range(8):
            after = (factor * np.uint64(0x58F38DED)) & LOW_32_BITS
            word, factor = _hash_step(pool[k % 4], factor, after), after
            if k % 2 == 0:
                rows[i, k // 2] = word
            else:
                rows[i, k // 2] |= word << np.uint64(32)
        row = rows[i]
        high, low = (row[2] << ONE) | (row[3] >> np.uint64(63)), (row[3] << ONE) | ONE
        total = row[1] + low
        row[0] += high + (ONE if total < low else np.uint64(0))
        row[1], row[2], row[3] = total, high, low
        _next_64_bits(row)
    return rows


@njit(cache=True)
def uniform(row: np.ndarray, low: float, high: float) -> float:
    """Return what `Generator.uniform(low, high)` draws next."""
    return low + (high - low) * (float(_next_64_bits(row) >> np.uint64(11)) * (1.0 / 9007199254740992.0))
