"""Aggregates against numbers worked out by hand, and against rliable where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from custard.lab.aggregate import bootstrap_interval, interquartile_mean, performance_profile


def test_the_middle_half_by_hand() -> None:
    assert interquartile_mean(np.arange(8.0).reshape(2, 4)) == np.mean([2, 3, 4, 5])
    assert interquartile_mean(np.array([[-100.0, 1.0, 2.0, 3.0, 1e9]])) == 2.0  # one of five is cut at either end


def test_the_interval_of_scores_that_do_not_vary_within_a_task_is_a_point() -> None:
    scores = np.tile([0.0, 0.5, 1.0, 0.25], (6, 1))
    assert bootstrap_interval(scores) == (interquartile_mean(scores),) * 2
    wide = bootstrap_interval(np.random.default_rng(0).random((6, 4)))
    assert 0.2 < wide[0] < wide[1] < 0.8


def test_rliable_agrees() -> None:
    metrics = pytest.importorskip("rliable.metrics")
    library = pytest.importorskip("rliable.library")
    scores = np.random.default_rng(1).random((12, 5))
    assert interquartile_mean(scores) == pytest.approx(metrics.aggregate_iqm(scores))
    thresholds = np.linspace(0.0, 1.0, 9)
    profile, _ = library.create_performance_profile({"ours": scores}, thresholds, reps=10)
    assert performance_profile(scores, thresholds) == pytest.approx(profile["ours"])
    _, intervals = library.get_interval_estimates(
        {"ours": scores}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=4000,
        random_state=np.random.RandomState(0),
    )  # fmt: skip
    ours = bootstrap_interval(scores, samples=4000)
    assert ours == pytest.approx(intervals["ours"].ravel(), abs=0.01)  # both are drawn: standard error about 0.002
