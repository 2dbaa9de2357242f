"""Aggregate scores over runs and tasks: interquartile means, stratified bootstrap intervals, performance profiles.

The formulas of Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice". Scores
are [runs, tasks], each task's normalised so that tasks can be compared, such as shares of the optimum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["bootstrap_interval", "interquartile_mean", "performance_profile"]

TRIMMED_SHARE = 0.25  # at either end of an interquartile mean


def interquartile_mean(scores: np.ndarray) -> float:
    """Return the mean of the middle half of all scores, whichever run or task they are of.

    >>> interquartile_mean(np.array([[0.0, 1.0], [2.0, 100.0]]))
    1.5
    """
    flat = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    cut = int(TRIMMED_SHARE * len(flat))
    return float(flat[cut : len(flat) - cut].mean())


def bootstrap_interval(
    scores: np.ndarray,
    statistic: Callable[[np.ndarray], float] = interquartile_mean,
    *,
    samples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic when every task's runs are drawn anew, with replacement.

    `scores` are [runs, tasks]; `level` is the share of the `samples` drawn that lies within.
    """
    scores = np.asarray(scores, dtype=np.float64)
    runs, tasks = scores.shape
    rng = np.random.default_rng(seed)
    drawn = [
        statistic(scores[rng.integers(runs, size=(runs, tasks)), np.arange(tasks)]) for _ in range(samples)
    ]  # stratified: a task's scores are drawn from that task's alone
    low, high = np.quantile(drawn, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of scores above each threshold [T].

    >>> performance_profile(np.array([[0.0, 0.5, 1.0]]), np.array([0.25, 0.5])).round(2).tolist()
    [0.67, 0.33]
    """
    flat = np.asarray(scores, dtype=np.float64).ravel()
    return np.array([(flat > threshold).mean() for threshold in thresholds])
