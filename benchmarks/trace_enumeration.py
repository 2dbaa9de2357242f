"""The published search that `plan` is compared with where there is no model: Broccoli's idea, none of its code.

Demirović, Schilling and Lukina, "In Search of Trees: Decision-Tree Policy Synthesis for Black-Box Systems via Search"
(AAAI 2025). Trees over a grid of thresholds are tried one after the other. Every node keeps the least distance of a
trace to its threshold: moving the threshold by less cannot change the trace, so those trees are skipped. So are other
features and actions of nodes that no trace came to, and a trace is given up once it cannot return more than the best.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numba import njit

from custard.planning.trace_world import TraceWorld, find_cell, take_step

__all__ = ["Enumerated", "enumerate_trees"]

SLICE = 200_000  # steps between looks at the clock


class Enumerated(NamedTuple):
    """What was found."""

    value: float  # the best return, the sum over starts
    is_finished: bool  # whether every tree was tried or skipped
    trees: int  # how many were tried


def enumerate_trees(world: TraceWorld, depth: int, seconds: float) -> Enumerated:
    """Try all trees of a depth over the world's thresholds."""
    inner, leaves = 2**depth - 1, 2**depth
    n_digits = 2 * inner + leaves  # thresholds, deepest first; actions; features
    digits, moves = np.zeros(n_digits, np.int64), np.full(n_digits, np.iinfo(np.int64).max)
    best, trees, deadline = -np.inf, 0, time.monotonic() + seconds
    tolerance = 1e-9
    while time.monotonic() < deadline:
        best, tried, finished = _try_trees(world, depth, digits, moves, best, tolerance, SLICE)
        trees += tried
        if finished:
            return Enumerated(best, True, trees)
    return Enumerated(best, False, trees)


@njit  # not kept: the tests import this file by another name
def _try_trees(world, depth, digits, moves, best, tolerance, max_steps):
    """Go on from the tree of these digits; `moves` is the least value of each that may change the trace."""
    kind, params, starts, cuts, sizes, n_actions, discounts, rest = world
    inner, never = 2**depth - 1, np.iinfo(np.int64).max
    first_leaf, first_feature = inner, 2 * inner + 1
    x, code, no_rng = np.zeros(len(cuts)), np.zeros(len(cuts), np.int32), np.zeros(4, np.uint64)
    steps, tried = 0, 0
    while steps < max_steps:
        tried += 1
        total, is_beaten = 0.0, False
        for k in range(len(starts)):
            state = starts[k].copy()
            for t in range(len(rest) - 1):
                find_cell(kind, params, n_actions, state, cuts, x, code)
                node = 0
                while node < inner:
                    feature = digits[first_feature + node]
                    moves[first_feature + node] = feature + 1
                    threshold = inner - 1 - node
                    if code[feature] <= digits[threshold]:
                        node = 2 * node + 1
                    else:
                        moves[threshold] = min(moves[threshold], code[feature])
                        node = 2 * node + 2
                leaf = first_leaf + node - inner
                moves[leaf] = digits[leaf] + 1
                reward, ended = take_step(kind, params, n_actions, state, digits[leaf], no_rng)
                total += discounts[t] * reward
                steps += 1
                follows = 0.0 if ended else rest[t + 1]
                if total + follows + (len(starts) - 1 - k) * rest[0] <= best + tolerance:
                    is_beaten = True
                if ended or is_beaten:
                    break
            if is_beaten:
                break
        if not is_beaten:
            best = total
        place = 0
        while place < len(digits):
            if place < first_leaf:
                count = max(1, sizes[digits[first_feature + inner - 1 - place]] - 1)
            elif place < first_feature:
                count = n_actions
            else:
                count = len(cuts)
            if moves[place] < count:
                digits[place], moves[place] = moves[place], never
                break
            digits[place], moves[place] = 0, never
            place += 1
        if place == len(digits):
            return best, tried, True
    return best, tried, False
