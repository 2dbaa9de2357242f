"""Good trees of a discounted model: fits to action values, random changes, and climbing from both (`local_search`)."""

from __future__ import annotations

import time

import numpy as np

from custard.core.actions import Actions
from custard.core.features import Features
from custard.planning.local_search import (
    action_gains,
    best_stump,
    climb_heap,
    decide_heap,
    evaluate_choice,
    heap_of,
    perturb_heap,
    shape_of_heap,
)  # fmt: skip
from custard.planning.points import Points
from custard.tree.fit import fit_tree
from custard.tree.shape import Shape, Split, shape_of

__all__ = ["Climber"]

CHUNK_SECONDS = 0.05  # how long compiled climbing runs between looks at the clock
MAX_FIT_ADDITIONS = 5e7  # one fit: about 50 ms
VISIT_SWEEPS = 300  # steps after which what is visited is known well enough for a fit
FIRST_FITS = 3  # fits to the best policy's action values before random changes begin
MAX_CHANGES = 4  # random changes before climbing again


class Climber:
    """The best tree found so far, and where to go on from."""

    def __init__(self, points: Points, depth: int, tolerance: float, seed: int, target: float = np.inf) -> None:
        self.points, self.depth, self.tolerance = points, depth, tolerance
        self.target = target  # a tree that returns as much is not climbed from
        self.rng = np.random.default_rng(seed)
        self.state = np.array([int(self.rng.integers(1, 2**62)), 0])
        self.value, self.split, self.leaf = -np.inf, np.zeros(2**depth - 1, np.int64), np.zeros(2**depth, np.int64)
        self.values = points.top.copy()
        self.rounds, self.chunk = 0, 16
        self.split_number = {split: number for number, split in enumerate(points.splits)}
        self.features = Features(tuple(f"x{c}" for c in range(points.x.shape[1])), points.x.min(0), points.x.max(0))
        self.actions = Actions("discrete", tuple(f"a{a}" for a in range(points.model.reward.shape[1])))

    @property
    def shape(self) -> Shape:
        """The best tree."""
        return shape_of_heap(self.split, self.leaf, self.points.splits)

    def offer(self, shape: Shape, until: float) -> None:
        """Evaluate a tree, and climb from it if it is the best so far."""
        self._climb(*heap_of(shape, self.depth, self.split_number), until, only_if_best=True)

    def try_all_stumps(self, until: float) -> bool:
        """Evaluate every tree of depth 1; return whether there was time for all."""
        points = self.points
        for number, split in enumerate(points.splits):
            if time.monotonic() >= until:
                return False
            found = best_stump(points.model, points.goes_left, number, self.values, self.value)
            if found[0] > self.value:
                self.offer(Split(split[0], split[1], int(found[1]), int(found[2])), until)
        return True

    def run(self, until: float) -> bool:
        """Climb until a time on `time.monotonic`'s clock; return whether a better tree was found."""
        before = self.value
        while time.monotonic() < until and len(self.points.splits):
            if self.rounds < FIRST_FITS or self.rounds % 4 == 0:
                split, leaf = heap_of(self._fit(), self.depth, self.split_number)
            else:
                split, leaf = self.split.copy(), self.leaf.copy()
                changes = int(self.rng.integers(1, MAX_CHANGES + 1))
                perturb_heap(split, leaf, len(self.points.splits), self.actions.n, changes, self.state)
            self.rounds += 1
            self._climb(split, leaf, until)
        return self.value > before + self.tolerance

    def _climb(self, split: np.ndarray, leaf: np.ndarray, until: float, only_if_best: bool = False) -> None:
        """Climb from a tree, and keep where it ends if that is the best so far."""
        points = self.points
        choice = np.empty(points.count, dtype=np.int64)
        decide_heap(split, leaf, points.goes_left, choice)
        values = self.values.copy()
        cutoff = self.value if only_if_best else -np.inf
        value = float(evaluate_choice(points.model, choice, values, cutoff))
        if only_if_best and value <= self.value:
            return
        done = False
        while not done:
            if value > self.value:
                self.value, self.split, self.leaf, self.values = value, split.copy(), leaf.copy(), values.copy()
            if value >= self.target or time.monotonic() >= until:
                return
            began = time.monotonic()
            self.state[1] = 0
            value, done = climb_heap(
                points.model, points.goes_left, split, leaf, values, value, self.state, self.chunk, self.tolerance
            )
            took = time.monotonic() - began
            if not done:
                self.chunk = int(np.clip(self.chunk * CHUNK_SECONDS / max(took, 1e-4), 4, 4 * self.chunk))
        if value > self.value:
            self.value, self.split, self.leaf, self.values = value, split.copy(), leaf.copy(), values.copy()

    def _fit(self) -> Shape:
        """Return a tree fitted to action values: of the best policy at first, then of the best tree, with noise."""
        points = self.points
        if self.rounds < FIRST_FITS:
            values, visits = points.top, points.state_visits(points.greedy_choice, VISIT_SWEEPS)
        else:
            choice = np.empty(points.count, dtype=np.int64)
            decide_heap(self.split, self.leaf, points.goes_left, choice)
            values = self.values if self.rng.random() < 0.7 else points.top
            visits = points.state_visits(choice[points.model.point], VISIT_SWEEPS)
            visits = visits * self.rng.exponential(size=len(visits))
        share = (0.01, 0.3, 1.0)[self.rounds % 3]
        weight = visits + share * visits.mean()
        gains = action_gains(points.model, values, weight, points.count)
        fitted = fit_tree(
            points.x, gains, self.features, self.actions, max_depth=self.depth, cuts=points.thresholds,
            max_additions=MAX_FIT_ADDITIONS,
        )  # fmt: skip
        return shape_of(fitted.tree)
