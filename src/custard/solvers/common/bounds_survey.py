"""What is measured before learning: where features without bounds lie, and how finely to split them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from custard.core.features import Features
from custard.core.spaces import estimate_bounds
from custard.task.problem import Problem

__all__ = [
    "choose_bounds",
    "default_splits",
    "draw_bounds",
    "fill_missing_bounds",
    "replace_bounds",
    "survey_bounds",
]

MAX_SURVEY_STEPS = 10_000  # random steps that tell where real features lie
SURVEY_BUDGET_SHARE = 0.1
MAX_DECLARED_TO_SEEN_WIDTH = 4.0  # wider declared bounds are not used, but where random actions lead
DEFAULT_SPLITS_PER_REAL_FEATURE = 7  # p for real features
MIN_STATES_FOR_BOUNDS = 100  # that a feature's mean and deviation come from
BOUNDS_DEVIATIONS = 3.0  # standard deviations around the mean of states


def survey_bounds(problem: Problem, seed: int, budget: int) -> tuple[Features, int]:
    """Return the features with the range seen in random rollouts as bounds of real ones, and the steps taken."""
    features = problem.base.features
    real = ~features.integer | features.unbounded
    if not real.any():
        return features, 0
    steps = max(1, min(MAX_SURVEY_STEPS, int(budget * SURVEY_BUDGET_SHARE)))
    opened = replace(features, low=np.where(real, -np.inf, features.low), high=np.where(real, np.inf, features.high))
    base = replace(problem.base, features=opened)
    return estimate_bounds(problem.source.make(), base, seed=seed, steps=steps), steps


def replace_bounds(features: Features, seen: Features, where: np.ndarray) -> Features:
    """Return the features with the bounds of `seen` for those in `where` [n] bool."""
    low, high = np.where(where, seen.low, features.low), np.where(where, seen.high, features.high)
    return replace(features, low=low, high=high, origin=seen.origin)


def fill_missing_bounds(problem: Problem, budget: int) -> tuple[Features, int]:
    """Return the features with the range seen as bounds of those that have none, and the steps taken so far."""
    features = problem.base.features
    if not features.unbounded.any():
        return features, problem.probe_steps
    seen, steps = survey_bounds(problem, problem.seeds("bounds")["bounds"], budget)
    return replace_bounds(features, seen, features.unbounded), steps + problem.probe_steps


def choose_bounds(problem: Problem, seed: int, budget: int) -> tuple[Features, int]:
    """Return the features with finite bounds, and the steps taken to see them.

    Bounds are the features' own where they were given or are of the order of what random actions meet, otherwise the
    latter.
    """
    features = problem.base.features
    if features.origin.get("bounds") == "given" or features.integer.all():
        return features, 0
    seen, steps = survey_bounds(problem, seed, budget)
    span = np.maximum(seen.high - seen.low, 1e-6)
    too_wide = ~features.integer & (features.high - features.low > MAX_DECLARED_TO_SEEN_WIDTH * span)
    chosen = replace_bounds(features, seen, features.unbounded | too_wide)
    return replace(chosen, origin={"bounds": "estimate", "seed": problem.seed}), steps


def draw_bounds(wide: np.ndarray, moments: np.ndarray, may_move: np.ndarray, share: float) -> np.ndarray:
    """Return bounds [2, n] at a share of the way from where states were to the widest ones.

    `wide` [2, n] are the widest bounds, `moments` [3, n] the count, sum and sum of squares of the states' features;
    features not in `may_move` [n], or seen too rarely, keep the widest.
    """
    count, total, squares = moments
    count = np.maximum(count, 1.0)
    mean = total / count
    spread = BOUNDS_DEVIATIONS * np.sqrt(np.maximum(squares / count - mean * mean, 0.0))
    close = np.stack([np.maximum(mean - spread, wide[0]), np.minimum(mean + spread, wide[1])])
    is_movable = may_move & (close[1] > close[0]) & (count > MIN_STATES_FOR_BOUNDS)
    return np.where(is_movable, close + share * (wide - close), wide)


def default_splits(features: Features, max_depth: int | None = None) -> int:
    """Return p: as many as the widest whole-number feature has thresholds, at most 10; 7 if there are real features.

    Under a depth limit of four or less a threshold cannot be approached by splitting again: then 31 for one or two
    real features, 15 for four.

    >>> default_splits(Features(("a", "b"), [0, 0], [1, 3], ("binary", "integer")))
    3
    """
    real = ~features.integer
    fine = DEFAULT_SPLITS_PER_REAL_FEATURE
    if max_depth is not None and max_depth <= 4:
        fine = int(np.clip(64 // max(1, real.sum()) - 1, fine, 31))
    whole = (features.high - features.low)[~real]
    return int(max(np.clip(whole.max(initial=1), 1, 10), fine if real.any() else 1))
