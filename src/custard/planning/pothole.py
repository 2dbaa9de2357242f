"""PotholeWorld's limits: the best return for each number of leaves, by dynamic programming over intervals.

Every lane advances by the same random distance, so where an episode stops on its way is the same for every policy:
the best tree maximises the sum over positions of (how often it is visited) × (the expected reward of the lane chosen
there). With one feature a tree of depth D is a division into at most 2^D intervals.

Positions are a grid of width `step`; moves between grid points carry the weights that make integrals of functions
linear between grid points exact. Rewards are exact at grid points. The error this leaves is below `step`
(`docs/explanation/planning.md` has measured values).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features
from custard.core.mdp import FiniteMDP
from custard.core.numba_tools import njit
from custard.envs.pothole_world import MAX_MOVE, MIN_MOVE, POTHOLE_PENALTY, SLOW_LANE_LOSS
from custard.tree.shape import Shape, Split, build_tree
from custard.tree.tree import Tree

__all__ = ["Intervals", "best_intervals", "expected_rewards", "grid_model", "interval_tree", "position_visits"]

GRID_STEP = 0.002  # the width of a grid cell
MAX_INTERVALS = 64  # those of a tree of depth 6


@dataclass(frozen=True)
class Intervals:
    """The best division of the road into at most k intervals, for k = 1, 2, …"""

    values: np.ndarray  # [K], the best expected return with at most k + 1 intervals
    boundaries: tuple[tuple[float, ...], ...]  # K times, ascending
    lanes: tuple[tuple[int, ...], ...]  # K times, the lane of each interval

    def by_depth(self, max_depth: int) -> list[float]:
        """Return the best return for each depth limit from 0 to `max_depth`."""
        return [float(self.values[min(2**d, len(self.values)) - 1]) for d in range(max_depth + 1)]


def expected_rewards(env: Any, positions: np.ndarray) -> np.ndarray:
    """Return the exact expected reward of each lane at positions [P], [P, 3]."""
    room = env.length - positions
    reach = np.clip(room, MIN_MOVE, MAX_MOVE)
    width = MAX_MOVE - MIN_MOVE
    moved = ((reach**2 - MIN_MOVE**2) / 2 + (MAX_MOVE - reach) * room) / width
    moved = np.where(room <= MIN_MOVE, room, moved)
    rewards = np.stack([(1 - SLOW_LANE_LOSS) * moved, moved, moved], axis=1)
    for lane, holes in enumerate(env.potholes, start=1):
        padded = np.append(holes[np.isfinite(holes)], np.inf)
        ahead = padded[np.searchsorted(padded, positions, side="right")] - positions
        ahead[(positions == 0.0) & (padded[0] == 0.0)] = 0.0  # a hole at the very start counts on the first move
        rewards[:, lane] -= POTHOLE_PENALTY * np.clip((MAX_MOVE - ahead) / width, 0.0, 1.0)
    return rewards


def position_visits(length: float, step: float) -> np.ndarray:
    """Return how often an episode stops at each grid point 0, step, …, below the end: the same for every policy."""
    count = _cell_count(length, step)
    weights = _move_weights(step)
    first = round(MIN_MOVE / step)
    visits = np.zeros(count)
    visits[0] = 1.0
    _fill_visits(visits, weights, first)
    return visits


def best_intervals(env: Any, max_intervals: int, step: float = GRID_STEP) -> Intervals:
    """Return the best policies with at most 1, 2, …, `max_intervals` intervals.

    >>> import gymnasium as gym, custard
    >>> env = gym.make("custard/PotholeWorld-v0").unwrapped
    >>> [round(value, 1) for value in best_intervals(env, 8, step=0.01).by_depth(3)]
    [45.0, 45.2, 46.4, 47.8]
    """
    if max_intervals < 1:
        raise CustardError(f"max_intervals={max_intervals} must be at least 1")
    visits = position_visits(env.length, step)
    gain = visits[:, None] * expected_rewards(env, np.arange(len(visits)) * step)
    best, change = _best_changes(gain, max_intervals)
    values = np.maximum.accumulate(best.max(axis=1))
    boundaries, lanes = [], []
    for k in range(max_intervals):
        kk = int(np.argmax(best.max(axis=1)[: k + 1]))
        lane, used = int(best[kk].argmax()), kk
        cut, order = [], [lane]
        for cell in range(len(gain) - 1, 0, -1):
            came = change[cell, used, lane]
            if came >= 0:
                cut.append(_boundary(gain[:, int(came)] - gain[:, lane], cell, step, env.potholes))
                used, lane = used - 1, int(came)
                order.append(lane)
        boundaries.append(tuple(reversed(cut)))
        lanes.append(tuple(reversed(order)))
    return Intervals(values, tuple(boundaries), tuple(lanes))


def _boundary(lead: np.ndarray, cell: int, step: float, potholes: np.ndarray) -> float:
    """Return the threshold before a cell: amid cells where both lanes are worth the same, or else at the pothole.

    lead      [cells], what the lane before collects over the lane after
    cell      the first one of the lane after
    step      the width of a cell
    potholes  of all lanes
    """
    low = high = cell
    while low > 1 and abs(lead[low - 1]) < 1e-12:
        low -= 1
    while high < len(lead) - 1 and abs(lead[high]) < 1e-12:
        high += 1
    holes = potholes[(potholes > (cell - 1) * step) & (potholes <= cell * step)]
    if high - low <= 1 and len(holes):
        return float(holes[0])  # between grid points only the pothole makes a jump
    return float((low + high - 1) / 2 * step)


def interval_tree(boundaries: tuple[float, ...], lanes: tuple[int, ...], features: Features, actions: Actions) -> Tree:
    """Return a balanced tree over intervals of one feature."""

    def build(low: int, high: int) -> Shape:
        if high - low == 1:
            return lanes[low] + actions.start
        middle = (low + high) // 2
        return Split(0, boundaries[middle - 1], build(low, middle), build(middle, high))

    return build_tree(build(0, len(lanes)), features, actions)


def grid_model(env: Any, step: float = 0.01, gamma: float = 1.0) -> FiniteMDP:
    """Return PotholeWorld as a finite MDP over grid points; the last state is the end of the road."""
    count = _cell_count(env.length, step)
    weights, first = _move_weights(step), round(MIN_MOVE / step)
    rows, offsets = np.meshgrid(np.arange(count), first + np.arange(len(weights)), indexing="ij")
    columns = np.minimum(rows + offsets, count)
    data = np.broadcast_to(weights, rows.shape)
    cells = (np.append(rows.reshape(-1), count), np.append(columns.reshape(-1), count))
    matrix = sparse.csr_array(sparse.coo_array((np.append(data.reshape(-1), 1.0), cells), shape=(count + 1, count + 1)))
    matrix.sum_duplicates()
    positions = np.append(np.arange(count) * step, env.length)
    rewards = np.vstack([expected_rewards(env, positions[:-1]), np.zeros((1, 3))])
    return FiniteMDP(
        transitions=(matrix,) * 3,
        rewards=rewards,
        terminal=np.arange(count + 1) == count,
        start=(np.arange(count + 1) == 0).astype(float),
        gamma=gamma,
        x=positions[:, None],
        features=Features(tuple(env.feature_names), np.zeros(1), np.full(1, env.length)),
        actions=Actions("discrete", tuple(env.action_names)),
    )


def _cell_count(length: float, step: float) -> int:
    """Return how many grid cells a road has, refusing a step that does not divide it."""
    count = round(length / step)
    if step <= 0 or abs(count * step - length) > 1e-9 * length or abs(round(MIN_MOVE / step) * step - MIN_MOVE) > 1e-9:
        raise CustardError(f"step={step!r} must divide {MIN_MOVE} and the road's length {length}")
    return count


def _move_weights(step: float) -> np.ndarray:
    """Return the weight of each grid distance from MIN_MOVE to MAX_MOVE: the trapezoidal rule."""
    weights = np.full(round((MAX_MOVE - MIN_MOVE) / step) + 1, step / (MAX_MOVE - MIN_MOVE))
    weights[0] /= 2
    weights[-1] /= 2
    return weights / weights.sum()


@njit(cache=True)
def _fill_visits(visits: np.ndarray, weights: np.ndarray, first: int) -> None:
    """Fill in how often each cell is visited, from those `first` cells and more before it."""
    for i in range(1, len(visits)):
        total = 0.0
        for k in range(len(weights)):
            before = i - first - k
            if before < 0:
                break
            total += weights[k] * visits[before]
        visits[i] = total


@njit(cache=True)
def _best_changes(gain: np.ndarray, max_intervals: int) -> tuple[np.ndarray, np.ndarray]:
    """Return best[k, lane], the most that k + 1 intervals, the last in that lane, collect, and where they change."""
    cells, lanes = gain.shape
    best = np.full((max_intervals, lanes), -np.inf)
    change = np.full((cells, max_intervals, lanes), -1, dtype=np.int8)
    for lane in range(lanes):
        best[0, lane] = gain[0, lane]
    for cell in range(1, cells):
        for k in range(max_intervals - 1, -1, -1):
            top = -1
            if k > 0:
                top = 0
                for lane in range(1, lanes):
                    if best[k - 1, lane] > best[k - 1, top]:
                        top = lane
            for lane in range(lanes):
                if k > 0 and top != lane and best[k - 1, top] > best[k, lane] + 1e-12:
                    best[k, lane] = best[k - 1, top]
                    change[cell, k, lane] = top
                best[k, lane] += gain[cell, lane]
    return best, change
