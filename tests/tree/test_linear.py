"""Sums in tests and linear leaves: one order of summation, the same bits everywhere."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from custard import Actions, Features, Tree
from custard.core.errors import CustardError
from custard.core.sums import Sum
from custard.task.policies import policy_data, policy_from_data
from custard.tree.balance import balance
from custard.tree.shape import shape_of, tree_of
from custard.tree.simplify import simplify
from tests.tree.linear_trees import observations_for, random_linear_tree


def plane(names: tuple[str, ...] = ("x", "vx")) -> Features:
    return Features(names, [-1.0] * len(names), [2.0] * len(names))


def test_sums_come_after_the_observations_own_features_with_bounds_by_intervals():
    features = plane().with_sums([{0: 0.25, 1: -0.5}, np.array([0.0, 3.0])], ["lean", "fast"])
    assert features.names == ("x", "vx", "lean", "fast")
    assert (features.n, features.n_raw) == (4, 2)
    assert features.low.tolist() == [-1.0, -1.0, -1.25, -3.0]
    assert features.high.tolist() == [2.0, 2.0, 1.0, 6.0]
    assert features.extend([2.0, 1.0]).tolist() == [2.0, 1.0, 0.0, 3.0]
    assert features.raw.names == ("x", "vx")
    assert Features.from_json(features.to_json()).same_as(features)
    assert not features.same_as(plane().with_sums([{0: 0.25, 1: -0.25}, {1: 3.0}], ["lean", "fast"]))


def test_a_sum_without_a_name_is_called_what_it_is():
    features = plane().with_sums([{0: 0.25, 1: -1.0}, {0: 0.25000001, 1: -1.0}, {0: 0.25, 1: -1.0}])
    assert features.names[2:] == ("0.25*x - vx", "0.25000001*x - vx", "0.25*x - vx (2)")


def test_bounds_of_sums_follow_the_observations_unless_they_are_given():
    features = plane().with_sums([{0: 1.0, 1: 1.0}], ["both"])
    assert features.with_bounds(low=-5.0).low.tolist() == [-5.0, -5.0, -10.0]
    assert features.with_bounds(high={"x": 1.0, "both": 9.0}).high.tolist() == [1.0, 2.0, 9.0]
    assert features.with_bounds(high=[1.0, 2.0, 3.0]).high.tolist() == [1.0, 2.0, 3.0]
    wide = Features(("x", "y"), [-3.4e38, 0], [3.4e38, 1]).with_sums([{0: 1e-20, 1: 1.0}])
    assert wide.unbounded.tolist() == [True, False, True]


def test_whole_numbers_with_whole_weights_make_whole_sums():
    features = Features(("row", "column", "speed"), [0, 0, 0], [3, 3, 1], ("integer", "integer", "real"))
    kinds = features.with_sums([{0: 1.0, 1: -1.0}, {0: 0.5}, {0: 1.0, 2: 1.0}]).kinds
    assert kinds[3:] == ("integer", "real", "real")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({0: math.nan}, "a weight of a sum must be a finite number"),
        ({1: math.inf}, "a weight of a sum must be a finite number"),
        ({5: 1.0}, "a sum weighs feature 5, but the observation has 2 features"),
        ({}, "a sum needs at least one weight other than zero"),
        ([1.0, 2.0, 3.0], "needs 2 weights or a mapping"),
        ({"x": 1.0}, "numbers by feature index"),
    ],
)
def test_bad_weights_are_one_clear_line(weights, message):
    with pytest.raises(CustardError, match=message):
        plane().with_sums([weights])


def test_sums_are_added_in_ascending_order_and_every_product_is_rounded():
    features = Features(("a", "b", "c"), [-1e300] * 3, [1e300] * 3).with_sums([{2: 1.0, 0: 1.0, 1: 1.0}])
    assert features.extend([1e16, 1.0, -1e16])[3] == 0.0  # (1e16 + 1) - 1e16, and not 1e16 - 1e16 + 1
    # A fused multiply-add would give the product's rounding error instead of zero.
    x = 1.0 + 2.0**-30
    fused = Features(("a", "b"), [0, 0], [2, 2]).with_sums([{0: x, 1: -1.0}])
    tree = Tree.stump(2, 0.0, 0, 1, fused, Actions("discrete", ("low", "high")))
    point = np.array([x, x * x])
    assert fused.extend(point)[2] == 0.0
    assert tree.act(point) == tree.predict(point[None])[0] == tree.predict(point[None], compiled=False)[0] == 0


@pytest.mark.parametrize("seed", range(8))
def test_predict_act_and_apply_agree(seed):
    tree = random_linear_tree(seed)
    x = observations_for(tree, 400, seed)
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    for observations in (x, single):
        expected = tree.predict(observations, compiled=False)
        np.testing.assert_array_equal(tree.predict(observations), expected)
        np.testing.assert_array_equal(np.array([tree.act(row) for row in observations]), expected)
        np.testing.assert_array_equal(tree.predict(tree.features.extend(observations)), expected)
    assert [tree.path(row)[-1] for row in x[:50]] == tree.apply(x[:50]).tolist()


@pytest.mark.parametrize("seed", range(6))
def test_simplify_balance_shapes_files_and_processes_keep_sums_and_gains(seed):
    tree = random_linear_tree(seed)
    x = observations_for(tree, 300, seed)
    expected = tree.predict(x)
    for same in (simplify(tree), balance(tree), tree_of(shape_of(tree), tree), tree.keep_used_sums()):
        np.testing.assert_array_equal(same.predict(x), expected)
        assert same.n_leaves <= tree.n_leaves
    assert Tree.from_json(json.loads(json.dumps(tree.to_json()))) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert policy_from_data(policy_data(tree), tree.features.raw, tree.actions) == tree


def test_simplify_with_bounds_keeps_what_states_within_them_get():
    tree = random_linear_tree(3)
    small = simplify(tree, use_bounds=True)
    rng = np.random.default_rng(0)
    low, high = tree.features.raw.low, tree.features.raw.high
    x = low + rng.random((2000, len(low))) * (high - low)
    x[:64] = np.where(rng.random((64, len(low))) < 0.5, low, high)  # corners
    np.testing.assert_array_equal(small.predict(x), tree.predict(x))


def test_leaves_that_differ_in_gains_only_are_not_merged():
    features, torque = plane(), Actions("box", ("torque",), low=[-2], high=[2])
    nodes = [[0, -1, -1], [0.5, 0, 0], [1, -1, -1], [2, -1, -1], [[0.0], [0.5], [0.5]]]
    gains = np.zeros((3, 1, 2))
    gains[2, 0, 1] = 1.0
    tree = Tree(*map(np.array, nodes), features=features, actions=torque, gains=gains)
    assert simplify(tree).n_leaves == balance(tree).n_leaves == 2
    assert simplify(Tree(*map(np.array, nodes), features=features, actions=torque)).n_leaves == 1


def test_a_linear_leaf_is_clipped_and_a_zero_gain_does_not_read_its_feature():
    features, torque = plane(), Actions("box", ("torque",), low=[-2], high=[2])
    tree = Tree([-1], [0], [-1], [-1], [[5.0]], features, torque, gains=[[[0.0, -3.0]]])
    assert tree.n_coefficients == 1
    x = np.array([[np.nan, 2.0], [np.inf, 0.5], [0.0, 9.0]])
    assert tree.predict(x).tolist() == [[-1.0], [2.0], [-2.0]]
    assert [tree.act(row).tolist() for row in x] == [[-1.0], [2.0], [-2.0]]
    assert str(tree) == "torque=clip(5 - 3*vx, -2, 2)"
    assert Tree([-1], [0], [-1], [-1], [[1.0]], features, torque, gains=[[[0.0, 0.0]]]).gains is None


def test_bad_gains_are_one_clear_line():
    features, torque = plane(), Actions("box", ("torque",), low=[-2], high=[2])
    leaf = ([-1], [0], [-1], [-1])
    with pytest.raises(CustardError, match=r"a linear leaf needs real-valued \(Box\) actions"):
        Tree(*leaf, [0], features, Actions("discrete", ("a", "b")), gains=[[[1.0, 0.0]]])
    with pytest.raises(CustardError, match=r"needs gains of shape \(1, 1, 2\), got \(1, 2\)"):
        Tree(*leaf, [[0.0]], features, torque, gains=[[1.0, 0.0]])
    with pytest.raises(CustardError, match="gains must be finite"):
        Tree(*leaf, [[0.0]], features, torque, gains=[[[math.nan, 0.0]]])
    data = Tree(*leaf, [[0.0]], features, torque, gains=[[[1.0, 0.0]]]).to_json()
    data["nodes"]["gains"] = [[0, 0, 7, 1.0]]
    with pytest.raises(CustardError, match="feature 7: not there"):
        Tree.from_json(data)


def test_coefficients_count_each_sum_once_and_only_if_it_is_asked_about():
    features = plane().with_sums([{0: 1.0, 1: 2.0}, {0: 3.0}])
    discrete = Actions("discrete", ("a", "b"))
    tree = Tree([2, 2, -1, -1, -1], [0.5, 0.1, 0, 0, 0], [1, 3, -1, -1, -1], [2, 4, -1, -1, -1], [0, 0, 1, 0, 1],
                features, discrete)  # fmt: skip
    assert (tree.n_coefficients, tree.is_linear) == (2, True)
    assert tree.keep_used_sums().features.n == 3
    plain = Tree.stump(0, 0.5, 0, 1, features, discrete)
    assert (plain.n_coefficients, plain.is_linear) == (0, False)


def test_trees_without_sums_and_gains_are_written_as_version_1():
    discrete = Actions("discrete", ("a", "b"))
    assert Tree.stump(0, 0.5, 0, 1, plane(), discrete).to_json()["version"] == 1
    assert Tree.stump(2, 0.5, 0, 1, plane().with_sums([{0: 1.0}]), discrete).to_json()["version"] == 2


finite = st.floats(-1e6, 1e6)


@settings(max_examples=60, deadline=None)
@given(st.lists(finite.filter(bool), min_size=3, max_size=3), st.lists(finite, min_size=6, max_size=6), finite)
def test_bounds_hold_for_the_computed_sum(weights, ends, constant):
    low, high = np.minimum(ends[:3], ends[3:]), np.maximum(ends[:3], ends[3:])
    total = Sum(tuple(enumerate(weights)), constant)
    least, most = total.interval(low, high)
    share = np.random.default_rng(0).random((100, 3))
    x = np.clip(low + share * (high - low), low, high)
    values = total.values(np.concatenate([x, low[None], high[None]]))
    assert least <= values.min()
    assert values.max() <= most
    assert [total.value(row.tolist().__getitem__) for row in x] == values[:-2].tolist()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (3, "a sum must be an object with terms"),
        ({"terms": [[0, True]]}, "a weight is True"),
        ({"terms": [[0, "1"]]}, "a weight is '1'"),
        ({"terms": [[0, None]]}, "a sum must be an object with terms"),
        ({"terms": [[-1, 1.0]]}, "a term's feature is -1"),
        ({"terms": [[0.5, 1.0]]}, "a term's feature is 0.5"),
        ({"terms": [[9, 1.0]]}, "a sum weighs feature 9"),
        ({"terms": [[1, 1.0], [0, 1.0]]}, "in ascending order"),
        ({"terms": [[0, 1e400]]}, "finite number other than zero"),
        ({"terms": [[0, 1.0]], "constant": "1"}, "a constant is '1'"),
        ({"terms": [[{"operation": "exec", "arguments": []}, 1.0]]}, "cannot be computed by 'exec'"),
        ({"terms": [[{"operation": ["abs"], "arguments": [{"terms": [[0, 1.0]]}]}, 1.0]]}, "cannot be computed by"),
        ({"terms": []}, "a sum needs at least one weight"),
    ],
)
def test_a_broken_file_is_one_clear_line(broken, message):
    data = Tree.stump(2, 0.5, 0, 1, plane().with_sums([{0: 1.0}]), Actions("discrete", ("a", "b"))).to_json()
    data["features"][2]["sum"] = broken
    with pytest.raises(CustardError, match=message):
        Tree.from_json(data)


def test_sums_nested_too_deeply_are_refused():
    inner: dict = {"terms": [[0, 1.0]]}
    for _ in range(400):
        inner = {"terms": [[{"operation": "abs", "arguments": [inner]}, 1.0]]}
    with pytest.raises(CustardError, match="at most 50 products"):
        Sum.from_json(inner)


def test_the_plain_path_of_act_has_no_extra_steps():
    tree = Tree.stump(0, 0.5, 0, 1, plane(), Actions("discrete", ("a", "b")))
    assert tree._nested == (0, 0.5, (0,), (1,))
