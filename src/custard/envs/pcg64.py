"""NumPy's PCG64 generator, compiled and stored one row a stream, so that thousands of environments can each own one.

A row holds the 128-bit state and increment as four 64-bit words. Streams continue NumPy's own bit for bit: a native
vector environment seeded with `seed` draws what Gymnasium's single environments seeded `seed + i` draw.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numba import njit

__all__ = ["streams", "uniform"]

_WORD = (1 << 64) - 1
_MULTIPLIER_HIGH = np.uint64(0x2360ED051FC65DA4)
_MULTIPLIER_LOW = np.uint64(0x4385DF649FCCF645)


def streams(seeds: Iterable[int | np.random.SeedSequence | None]) -> np.ndarray:
    """One row for each seed, [N, 4] uint64: state high, state low, increment high, increment low."""
    rows = []
    for seed in seeds:
        state = np.random.PCG64(seed).state["state"]
        rows.append([word for part in ("state", "inc") for word in (state[part] >> 64, state[part] & _WORD)])
    return np.array(rows, dtype=np.uint64).reshape(-1, 4)


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
