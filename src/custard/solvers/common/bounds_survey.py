"""What a learner looks at before it learns: where features lie that have no bounds, and how finely to split them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from custard.core.features import Features
from custard.core.spaces import estimate_bounds
from custard.task.problem import Problem

__all__ = ["bounded", "completed", "default_splits", "survey", "taken_over"]

SURVEY, SHARE = 10_000, 10  # random steps that tell where real features lie, and the part of a budget they may be


def survey(problem: Problem, seed: int, budget: int) -> tuple[Features, int]:
    """The features, with the range seen in random rollouts for the bounds of real ones, and the steps it took."""
    features = problem.base.features
    real = ~features.integer | features.unbounded
    if not real.any():
        return features, 0
    steps = max(1, min(SURVEY, budget // SHARE))
    opened = replace(features, low=np.where(real, -np.inf, features.low), high=np.where(real, np.inf, features.high))
    base = replace(problem.base, features=opened)
    return estimate_bounds(problem.source.make(), base, seed=seed, steps=steps), steps


def taken_over(features: Features, seen: Features, where: np.ndarray) -> Features:
    """The features, with the bounds that were seen for those in `where`."""
    low, high = np.where(where, seen.low, features.low), np.where(where, seen.high, features.high)
    return replace(features, low=low, high=high, origin=seen.origin)


def completed(problem: Problem, budget: int) -> tuple[Features, int]:
    """The features, with the range seen for the bounds of those that have none, and the steps it took to look."""
    features = problem.base.features
    if not features.unbounded.any():
        return features, problem.looked
    seen, steps = survey(problem, problem.seeds("bounds")["bounds"], budget)
    return taken_over(features, seen, features.unbounded), steps + problem.looked


def bounded(problem: Problem, seed: int, budget: int) -> tuple[Features, int]:
    """The features with finite bounds, and the steps it took to see them.

    Bounds are the features' own where given or of the order of what random actions meet, otherwise the latter.
    """
    features = problem.base.features
    if features.origin.get("bounds") == "given" or features.integer.all():
        return features, 0
    seen, steps = survey(problem, seed, budget)
    span = np.maximum(seen.high - seen.low, 1e-6)
    wide = features.unbounded | (~features.integer & (features.high - features.low > 4.0 * span))
    return replace(taken_over(features, seen, wide), origin={"bounds": "estimate", "seed": problem.seed}), steps


def default_splits(features: Features, max_depth: int | None = None) -> int:
    """p: as many as the widest whole-number feature has cuts, at most 10; 7 if there are real features.

    Under a depth limit of four or less a threshold cannot be approached by asking again: then 31 for one or two real
    features, 15 for four.

    >>> default_splits(Features(("a", "b"), [0, 0], [1, 3], ("binary", "integer")))
    3
    """
    real = ~features.integer
    fine = 7 if max_depth is None or max_depth > 4 else int(np.clip(64 // max(1, real.sum()) - 1, 7, 31))
    whole = (features.high - features.low)[~real]
    return int(max(np.clip(whole.max(initial=1), 1, 10), fine if real.any() else 1))
