"""Neighbouring numbers on which proofs and exports rest."""

from __future__ import annotations

import math

import numpy as np
import pytest

from custard.tree.rounding import first_above, last_within, round_down

BOUNDS = [
    0.0,
    -0.0,
    0.3,
    -0.3,
    1.0,
    -1.0,
    2.5,
    -2.5,
    5e-324,
    -5e-324,
    2.0**52,
    2.0**53,
    -(2.0**53),
    2.0**60,
    1e300,
    -1e300,
]


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_first_number_above_and_the_last_within(bound: float) -> None:
    assert first_above(bound, False) == math.nextafter(bound, math.inf)
    assert last_within(bound, False) == bound
    first, last = float(first_above(bound, True)), float(last_within(bound, True))
    assert first > bound >= last
    assert first == math.floor(first)
    assert last == math.floor(last)
    # No whole number lies between: below 2**53 the next one is one further, beyond all floats are whole.
    assert first - last == 1.0 if abs(bound) < 2.0**53 else math.nextafter(last, math.inf) == first


def test_infinite_bounds_are_those_of_all_numbers() -> None:
    most = np.finfo(np.float64).max
    for whole in (False, True):
        assert first_above(-np.inf, whole) == -most
        assert first_above(np.inf, whole) == first_above(most, whole) == np.inf
        assert last_within(np.inf, whole) == np.inf


def test_float32_observations_decide_alike_beside_rounded_thresholds() -> None:
    rng = np.random.default_rng(0)
    thresholds = np.concatenate(
        [rng.normal(size=500) * 10.0 ** rng.integers(-40, 38, 500), [0.1, 0.5, 1e39, -1e39, 0.0]]
    )
    rounded = round_down(thresholds)
    assert rounded.dtype == np.float32
    with np.errstate(over="ignore"):
        near = thresholds.astype(np.float32)
    for x in (near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf)), rounded):
        assert ((x.astype(np.float64) <= thresholds) == (x <= rounded)).all()
    exact = np.array([0.5, -2.0, 0.0])  # which float32 holds: they stay
    assert (round_down(exact) == exact).all()
