"""Explanations of trees with sums: nearest changes of the observation's own features."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from custard import Actions, Features, Tree
from custard.tree.explain import counterfactuals, explain, read_features, rule, usage
from tests.tree.linear_trees import observations_for, random_linear_tree, random_nonlinear_tree


def lean(low: float = -10.0, high: float = 10.0, kinds: tuple[str, ...] = ("real", "real")) -> Tree:
    features = Features(("x", "y", "z"), [low] * 3, [high] * 3, (*kinds, "real")).with_sums(
        [{0: 3.0, 1: 4.0}], ["lean"]
    )
    return Tree.stump(3, 5.0, 0, 1, features, Actions("discrete", ("left", "right")))


def test_the_nearest_change_is_the_foot_of_the_perpendicular():
    (change,) = counterfactuals(lean(), [3.0, 4.0, 7.0], scale=1.0)
    assert change.action == 0
    assert change.distance == pytest.approx(4.0)  # (3*3 + 4*4 - 5) / 5
    assert change.observation == pytest.approx([0.6, 0.8, 7.0])
    assert change.features == (0, 1)
    tree = lean()
    assert tree.act(change.observation) == 0


@pytest.mark.parametrize(("level", "distance"), [(5.5, 0.1), (6.0, 0.2), (7.0, 0.2), (7.5, 0.1)])
def test_of_two_leaves_of_one_action_the_nearer_one_is_named(level, distance):
    """Left at most 5 and above 8, right in between; the perpendicular is 5 long per unit of distance."""
    tree = Tree([3, -1, 3, -1, -1], [5.0, 0, 8.0, 0, 0], [1, -1, 3, -1, -1], [2, -1, 4, -1, -1], [0, 0, 0, 1, 0],
                lean().features, Actions("discrete", ("left", "right")))  # fmt: skip
    (change,) = counterfactuals(tree, [3 * level / 25, 4 * level / 25, 0.0], scale=1.0)
    assert change.distance == pytest.approx(distance)


def test_fixed_features_and_bounds_are_kept():
    (change,) = counterfactuals(lean(), [3.0, 4.0, 7.0], scale=1.0, fixed=["x"])
    assert change.observation == pytest.approx([3.0, -1.0, 7.0])
    (change,) = counterfactuals(lean(low=0.7), [3.0, 4.0, 7.0], scale=1.0)
    assert change.observation == pytest.approx([0.7, 0.725, 7.0])
    assert counterfactuals(lean(low=2.0), [3.0, 4.0, 7.0]) == []
    assert explain(lean(low=2.0), [3.0, 4.0, 7.0]).unreachable == (0,)


def test_whole_number_features_change_to_whole_numbers():
    tree = lean(kinds=("integer", "integer"))
    (change,) = counterfactuals(tree, [3.0, 4.0, 7.0], scale=1.0)
    assert tree.act(change.observation) == 0
    best = min(math.hypot(a - 3, b - 4) for a in range(-10, 11) for b in range(-10, 11) if 3 * a + 4 * b <= 5)
    assert change.distance == pytest.approx(best)


def test_not_a_number_changes_at_an_infinite_distance():
    (change,) = counterfactuals(lean(), [math.nan, 0.0, 0.0])
    assert change.distance == math.inf
    assert lean().act(change.observation) == 0


@pytest.mark.parametrize("seed", range(6))
def test_changes_reach_their_action_and_none_is_nearer(seed):
    tree = random_linear_tree(seed)
    x = observations_for(tree, 30, seed)[3]
    width = tree.features.raw.high - tree.features.raw.low
    for change in explain(tree, x).changes:
        assert tree.path(change.observation)[-1] == change.leaf
        assert np.array_equal(tree.act(change.observation), change.action)
        inside = (tree.features.raw.low <= x) & (x <= tree.features.raw.high)
        point = change.observation[inside]
        assert ((tree.features.raw.low[inside] <= point) & (point <= tree.features.raw.high[inside])).all()
        # Another solver finds no nearer point of this leaf.
        rows = []
        for c, (above, most) in tree.box(change.leaf).items():
            total = tree.features.sum_of(c)
            rows += [
                {"type": "ineq", "fun": lambda p, t=total, a=above, m=most: np.array(
                    [min(t.values(p) - a, 1e9), min(m - t.values(p), 1e9)])}
            ]  # fmt: skip
        bounds = [
            (lo, hi) if within else (None, None)
            for lo, hi, within in zip(tree.features.raw.low, tree.features.raw.high, inside, strict=True)
        ]
        found = minimize(
            lambda p: (((p - x) / width) ** 2).sum(),
            change.observation,
            constraints=rows,
            bounds=bounds,
            method="SLSQP",
        )
        if found.success:
            assert change.distance <= math.sqrt(max(found.fun, 0.0)) + 1e-5


def test_rules_and_usage_name_sums_and_what_they_read():
    tree = lean()
    assert explain(tree, [3.0, 4.0, 7.0]).rule == rule(tree, 2) == "lean > 5 → right"
    used = usage(tree, np.zeros((3, 3)))
    assert used.unused == used.never_matter == ("z",)


def test_linear_leaves_are_explained_by_what_they_compute():
    features, torque = Features(("angle",), [-1], [1]), Actions("box", ("torque",), low=[-2], high=[2])
    gains = [[[0.0]], [[-3.0]], [[0.0]]]
    tree = Tree(
        [0, -1, -1], [0.5, 0, 0], [1, -1, -1], [2, -1, -1], [[0.0], [0.5], [1.0]], features, torque, gains=gains
    )
    told = explain(tree, [0.0])
    assert told.rule == "angle ≤ 0.5 → torque=clip(0.5 - 3*angle, -2, 2)"
    assert told.action.tolist() == [0.5]
    assert [change.action.tolist() for change in told.changes] == [[1.0]]
    (back,) = explain(tree, [0.9]).changes  # to the bias and what the gain makes of the nearest observation
    assert (back.observation.tolist(), back.action.tolist()) == ([0.5], [-1.0])


def test_features_that_only_a_leaf_reads_are_read_and_matter():
    """The second feature by the second number of one leaf's action, the third by a test, the fourth by nothing."""
    features = Features(("a", "b", "c", "d"), [-1] * 4, [1] * 4)
    two = Actions("box", ("u", "w"), low=[-2, -2], high=[2, 2])
    gains = np.zeros((3, 2, 4))
    gains[2, 1, 1] = -3.0
    tree = Tree([2, -1, -1], [0.5, 0, 0], [1, -1, -1], [2, -1, -1], np.zeros((3, 2)), features, two, gains=gains)
    assert read_features(tree) == {1, 2}
    told = usage(tree, np.zeros((1, 4)))
    assert told.unused == told.never_matter == ("a", "d")


def test_leaves_behind_products_are_left_out_of_counterfactuals():
    tree = random_nonlinear_tree(0)
    assert explain(tree, [0.1, 0.2, 0.3]).changes == ()
