"""Bounded safety of a tree in CartPole: from every start in the ±0.05 box, does the pole stay up for k steps?

Sets of states are unions of boxes. A step splits each box exactly where the tree's answer changes (observations are
float32, so that the split lies at the last float64 that is rounded to at most the threshold), moves each part by the
environment's own dynamics in interval arithmetic, and puts the images into a grid over velocity, angle and angular
velocity, where each cell keeps the smallest box around what fell into it. Merging keeps the number of boxes bounded and
only ever enlarges the set: what is proved is true, what is not proved may still be.

Sound: every operation is rounded outwards by one float64, sine and cosine by 1e-15, and every image widened by 1e-13,
which is more than the environment's own float64 arithmetic can be off (some 20 operations a step on numbers below 20).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.envs.cartpole import (
    ANGLE_LIMIT,
    FORCE,
    GRAVITY,
    HALF_LENGTH,
    MASS_POLE,
    POLE_MOMENT,
    START_RADIUS,
    TAU,
    TOTAL_MASS,
    X_LIMIT,
    fallen,
    step_cartpole,
)  # fmt: skip
from custard.tree.linear import require_linear
from custard.tree.tree import LEAF, Tree

__all__ = ["Safety", "prove_safe"]

#: Cells of the grid (velocity, angle, angular velocity), coarse to fine: each where the one before proves too
#: little. A push changes the velocity by 0.2, so that states lie in layers which a cell of that height keeps apart.
GRID_CELLS = ((0.2, 0.01, 0.05), (0.2, 0.004, 0.02), (0.2, 0.001, 0.005), (0.2, 0.0005, 0.0025))
CARTPOLE_FEATURES = ("cart_position", "cart_velocity", "pole_angle", "pole_velocity")
IMAGE_MARGIN, TRIG_MARGIN = 1e-13, 1e-15  # added to images of boxes, and to sines and cosines
SUM_MARGIN = 2.0**-22  # share of a sum's terms that float32 (2^-24 each) and rounding may change

Boxes = tuple[np.ndarray, np.ndarray]  # lower and upper corners, [m, 4] each


@dataclass(frozen=True)
class Safety:
    """What is known about the pole."""

    steps: int  # how many were asked about
    proved: int  # from every start the pole stays up for this many steps
    failing_start: np.ndarray | None  # [4] a start from which it does not stay up for `steps`, found by simulation
    fails_at: int | None  # the step at which it falls from there
    simulated: int  # how many starts were tried
    boxes: int  # how many boxes the last proof ended with
    left: str  # why the proof stopped short of `steps`, "" if it did not
    seconds: float

    @property
    def verdict(self) -> str:
        """ "proved", "refuted" or "undecided"."""
        return "refuted" if self.failing_start is not None else "proved" if self.proved >= self.steps else "undecided"


def prove_safe(tree: Tree, steps: int = 50, *, seconds: float = 60.0, simulations: int = 2000, seed: int = 0) -> Safety:
    """Try to prove that a CartPole tree keeps the pole up for `steps` steps from every start, for at most `seconds`.

    >>> import custard
    >>> base = custard.describe(__import__("gymnasium").make("CartPole-v1"))
    >>> tree = custard.Tree.stump(3, 0.0, 0, 1, base.features, base.actions)
    >>> prove_safe(tree, 10).verdict
    'proved'
    """
    actions, names = tree.actions, ", ".join(CARTPOLE_FEATURES)
    tree = tree.keep_used_sums()
    if tree.features.raw.names != CARTPOLE_FEATURES or not actions.discrete or actions.n != 2 or actions.start != 0:
        raise CustardError(f"safety is proved for CartPole trees: features {names} and two actions")
    require_linear(tree, "safety is proved for tests of features and weighted sums")
    if steps < 1:
        raise CustardError(f"steps={steps} must be at least 1")
    began = time.perf_counter()
    start, fails_at = _first_to_fall(tree, steps, simulations, seed)
    goal = steps if fails_at is None else fails_at - 1
    best, boxes, left = 0, 1, ""
    for cell in GRID_CELLS:
        done, boxes, why = _prove_with_grid(tree, goal, np.array(cell), began + seconds)
        best, left = (done, why) if done > best or not left else (best, left)
        if best >= goal or time.perf_counter() - began > seconds:
            break
    left = left if best < steps else ""
    return Safety(steps, best, start, fails_at, simulations, boxes, left, time.perf_counter() - began)


def _first_to_fall(tree: Tree, steps: int, count: int, seed: int) -> tuple[np.ndarray | None, int | None]:
    """Return the start that falls soonest among random ones and the corners, by the real dynamics."""
    rng = np.random.default_rng(seed)
    corners = START_RADIUS * (2.0 * ((np.arange(16)[:, None] >> np.arange(4)) & 1) - 1.0)
    starts = np.concatenate([corners, rng.uniform(-START_RADIUS, START_RADIUS, (count, 4))])
    state, alive = starts.copy(), np.arange(len(starts))
    for step in range(1, steps + 1):
        actions = tree.predict(state[alive].astype(np.float32), compiled=False)
        for k, action in zip(alive.tolist(), actions.tolist(), strict=True):
            step_cartpole(state[k], action)
        down = [k for k in alive.tolist() if fallen(state[k])]
        if down:
            return starts[down[0]], step
    return None, None


def _prove_with_grid(tree: Tree, steps: int, cell: np.ndarray, deadline: float) -> tuple[int, int, str]:
    """Return how many steps are proved with one grid, with how many boxes, and why no more."""
    boxes: Boxes = (np.full((1, 4), -START_RADIUS), np.full((1, 4), START_RADIUS))
    for step in range(1, steps + 1):
        boxes = _merged_per_cell(_cut_along_grid(boxes, cell), cell)
        low, high, action = _divided_by_action(tree, boxes)
        boxes = _step_boxes(low, high, np.where(action == 1, FORCE, -FORCE))
        low, high = boxes
        bad = (low[:, 0] < -X_LIMIT) | (high[:, 0] > X_LIMIT) | (low[:, 2] < -ANGLE_LIMIT) | (high[:, 2] > ANGLE_LIMIT)
        if bad.any():
            return step - 1, len(low), f"{int(bad.sum())} of {len(low):,} boxes may have fallen at step {step}"
        if time.perf_counter() > deadline:
            return step, len(low), f"time was up after step {step}, with {len(low):,} boxes all safe"
    return steps, len(boxes[0]), ""


def last_left(threshold: float) -> float:
    """Return the largest float64 that, rounded to float32, is at most the threshold."""
    near = np.float32(threshold)
    if float(near) > threshold:
        near = np.nextafter(near, np.float32(-np.inf))
    middle = (float(near) + float(np.nextafter(near, np.float32(np.inf)))) / 2  # exact; rounds to the even neighbour
    return middle if float(np.float32(middle)) <= threshold else float(np.nextafter(middle, -np.inf))


def _divided_by_action(tree: Tree, boxes: Boxes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the boxes split where the tree's answer changes, and each part's action."""
    parts, stack = [], [(0, *boxes)]
    while stack:
        node, low, high = stack.pop()
        if len(low) == 0:
            continue
        if tree.feature[node] == LEAF:
            parts.append((low, high, np.full(len(low), tree.value[node])))
            continue
        if tree.feature[node] >= 4:
            left, right = _divided_by_sum(tree, node, low, high)
            stack += [(int(tree.children_left[node]), *left), (int(tree.children_right[node]), *right)]
            continue
        c, t = int(tree.feature[node]), last_left(float(tree.threshold[node]))
        goes = low[:, c] <= t
        left_low, left_high = low[goes], high[goes].copy()
        left_high[:, c] = np.minimum(left_high[:, c], t)
        goes = high[:, c] > t
        right_low, right_high = low[goes].copy(), high[goes]
        right_low[:, c] = np.maximum(right_low[:, c], np.nextafter(t, np.inf))
        stack += [
            (int(tree.children_left[node]), left_low, left_high),
            (int(tree.children_right[node]), right_low, right_high),
        ]
    low, high, action = (np.concatenate(column) for column in zip(*parts, strict=True))
    return low, high, action


def _divided_by_sum(tree: Tree, node: int, low: np.ndarray, high: np.ndarray) -> tuple[Boxes, Boxes]:
    """Return the boxes that may answer yes and those that may answer no at a test of a sum, cut as small as it allows.

    The tree rounds each value to float32 and each step of the sum: what that may change is added to the threshold on
    both sides. A box that both answers share goes both ways, each time cut to the bounds that the answer implies.
    """
    total, t = tree.features.sum_of(int(tree.feature[node])), float(tree.threshold[node])
    weights = np.zeros(4)
    for i, weight in total.terms:
        assert isinstance(i, int)
        weights[i] = weight
    size = np.abs(weights) * np.maximum(np.abs(low), np.abs(high))
    margin = SUM_MARGIN * (size.sum(axis=1) + abs(total.constant) + abs(t)) + 1e-30
    parts = []
    for sign in (1.0, -1.0):  # sign * (weights · x) <= limit
        limit = sign * (t - total.constant) + margin
        least = np.where(sign * weights > 0, sign * weights * low, sign * weights * high)
        room = limit - least.sum(axis=1) + margin  # how far the sum may rise from its least value
        goes = room >= 0.0
        part_low, part_high = low[goes].copy(), high[goes].copy()
        for c in np.flatnonzero(weights):
            reach = room[goes] / abs(weights[c]) + margin[goes] / abs(weights[c])
            if sign * weights[c] > 0:
                part_high[:, c] = np.minimum(part_high[:, c], _rounded_up(low[goes, c] + reach))
            else:
                part_low[:, c] = np.maximum(part_low[:, c], _rounded_down(high[goes, c] - reach))
        parts.append((part_low, part_high))
    return parts[0], parts[1]


def _cut_along_grid(boxes: Boxes, cell: np.ndarray) -> Boxes:
    """Return the boxes cut along the grid over dimensions 1 to 3."""
    low, high = boxes
    for c in (1, 2, 3):
        size = cell[c - 1]
        first = np.floor(low[:, c] / size)
        count = (np.floor(high[:, c] / size) - first).astype(np.int64) + 1
        of = np.repeat(np.arange(len(low)), count)
        within = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
        place = first[of] + within
        low, high = low[of], high[of]
        # The outermost parts keep their own ends, so that rounding of the grid lines loses nothing.
        low[:, c] = np.where(within == 0, low[:, c], place * size)
        high[:, c] = np.where(within == count[of] - 1, high[:, c], (place + 1) * size)
    return low, high


def _merged_per_cell(boxes: Boxes, cell: np.ndarray) -> Boxes:
    """Return one box per cell: the smallest around all boxes whose middle lies in it."""
    low, high = boxes
    place = np.floor((low[:, 1:] + high[:, 1:]) / 2 / cell).astype(np.int64)
    place -= place.min(axis=0)
    span = place.max(axis=0) + 1
    key = (place[:, 0] * span[1] + place[:, 1]) * span[2] + place[:, 2]
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    return np.minimum.reduceat(low[order], starts, axis=0), np.maximum.reduceat(high[order], starts, axis=0)


def _step_boxes(low: np.ndarray, high: np.ndarray, force: np.ndarray) -> Boxes:
    """Return the images of boxes under `custard.envs.cartpole.step_cartpole`, in intervals."""
    angle, speed = (low[:, 2], high[:, 2]), (low[:, 3], high[:, 3])
    sin = np.sin(angle[0]) - TRIG_MARGIN, np.sin(angle[1]) + TRIG_MARGIN  # increasing: angles are small
    ends = np.cos(angle[0]), np.cos(angle[1])
    flat = (angle[0] <= 0) & (angle[1] >= 0)
    cos = np.minimum(*ends) - TRIG_MARGIN, np.minimum(np.where(flat, 1.0, np.maximum(*ends) + TRIG_MARGIN), 1.0)
    push = _scaled(_sum((force, force), _scaled(_product(_square(speed), sin), POLE_MOMENT)), 1 / TOTAL_MASS)
    lift = _sum(_scaled(sin, GRAVITY), _negative(_product(cos, push)))
    inertia = _scaled(_sum((4.0 / 3.0, 4.0 / 3.0), _scaled(_square(cos), -MASS_POLE / TOTAL_MASS)), HALF_LENGTH)
    angle_acc = _product(lift, (_rounded_down(1.0 / inertia[1]), _rounded_up(1.0 / inertia[0])))
    cart_acc = _sum(push, _scaled(_product(angle_acc, cos), -POLE_MOMENT / TOTAL_MASS))
    rates = [(low[:, 1], high[:, 1]), cart_acc, speed, angle_acc]
    images = [_sum((low[:, c], high[:, c]), _scaled(rate, TAU)) for c, rate in enumerate(rates)]
    lower, upper = (np.stack([image[side] for image in images], axis=1) for side in (0, 1))
    return lower - IMAGE_MARGIN, upper + IMAGE_MARGIN


def _rounded_down(a: Any) -> Any:
    """Return the float64 below each number."""
    return np.nextafter(a, -np.inf)


def _rounded_up(a: Any) -> Any:
    """Return the float64 above each number."""
    return np.nextafter(a, np.inf)


def _sum(a: Any, b: Any) -> Any:
    """Return the sum of two intervals (lower ends, upper ends), rounded outwards."""
    return _rounded_down(a[0] + b[0]), _rounded_up(a[1] + b[1])


def _negative(a: Any) -> Any:
    """Return an interval's negative."""
    return -a[1], -a[0]


def _scaled(a: Any, factor: float) -> Any:
    """Return an interval times a constant that may itself be rounded by one float64: rounded outwards twice."""
    ends = (a[0] * factor, a[1] * factor) if factor > 0 else (a[1] * factor, a[0] * factor)
    return _rounded_down(_rounded_down(ends[0])), _rounded_up(_rounded_up(ends[1]))


def _product(a: Any, b: Any) -> Any:
    """Return the product of two intervals, rounded outwards."""
    products = np.stack([a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]])
    return _rounded_down(products.min(axis=0)), _rounded_up(products.max(axis=0))


def _square(a: Any) -> Any:
    """Return the square of an interval, rounded outwards."""
    ends = np.abs(a[0]), np.abs(a[1])
    least = np.where((a[0] <= 0) & (a[1] >= 0), 0.0, np.maximum(_rounded_down(np.minimum(*ends) ** 2), 0.0))
    return least, _rounded_up(np.maximum(*ends) ** 2)
