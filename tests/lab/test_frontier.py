"""Return against size in one call."""

import pytest

import custard
from custard.lab.frontier import frontier


def test_each_point_is_better_than_the_ones_before():
    points = frontier("custard/PotholeWorld-v0", max_leaves=4, budget=2_000_000, episodes=500, seed=1)
    assert [point.leaves for point in points] == sorted({point.leaves for point in points})
    means = [point.mean for point in points]
    assert means == sorted(means)
    for point in points:
        assert (point.tree.n_leaves, point.tree.n_nodes, point.tree.depth) == (point.leaves, point.nodes, point.depth)
        assert point.ci95[0] <= point.mean <= point.ci95[1]
        assert point.gap == pytest.approx(50.0 - point.mean, abs=0.01)
    assert points[-1].leaves == 4
    assert points[-1].mean > 46.2  # four intervals give 46.43 at the most


def test_mistakes():
    with pytest.raises(custard.CustardError, match="max_leaves"):
        frontier("CartPole-v1", max_leaves=0)
    with pytest.raises(custard.CustardError, match="leave method out"):
        frontier("CartPole-v1", method="mfec")
