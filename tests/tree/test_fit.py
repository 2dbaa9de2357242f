"""The optimal-tree engine against trying every tree."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from custard import Actions, CustardError, Features
from custard.tree.fit import fit_tree, quantile_cuts
from custard.tree.lookahead import best_first_split, purest_split
from custard.tree.three_splits import best_three
from tests.strategies import seeds


def every_tree(x, value, depth, price, cuts):
    """The largest total by plain recursion over all questions."""
    leaf = value.sum(axis=0).max() if len(x) else 0.0
    if depth == 0 or len(x) < 2:
        return leaf
    best = leaf
    for c, own in enumerate(cuts):
        for t in own:
            left = x[:, c] <= t
            if left.any() and not left.all():
                below = every_tree(x[left], value[left], depth - 1, price, cuts)
                above = every_tree(x[~left], value[~left], depth - 1, price, cuts)
                best = max(best, below + above - price * len(x))
    return best


def problem(seed, most=3):
    rng = np.random.default_rng(seed)
    n, n_actions = int(rng.integers(1, most + 1)), int(rng.integers(2, 4))
    x = rng.integers(0, 4, size=(int(rng.integers(1, 25)), n)).astype(float)
    value = rng.normal(size=(len(x), n_actions)).round(2)
    features = Features(tuple(f"f{i}" for i in range(n)), np.zeros(n), np.full(n, 4.0))
    return x, value, features, Actions("discrete", tuple("abc"[:n_actions]))


@settings(max_examples=120, deadline=None)
@given(seeds)
def test_up_to_three_questions_nothing_is_better(seed):
    x, value, features, actions = problem(seed)
    depth, price = seed % 4, (0.0, 0.05, 0.3)[seed % 3]
    fitted = fit_tree(x, value, features, actions, max_depth=depth, price=price)
    assert fitted.total == pytest.approx(every_tree(x, value, depth, price, quantile_cuts(x)), abs=1e-9)
    collected = value[np.arange(len(x)), fitted.tree.predict(x, compiled=False)].sum()
    asked = price * fitted.tree.node_depth[fitted.tree.apply(x)].sum()
    assert fitted.total == pytest.approx(collected - asked, abs=1e-9)
    assert fitted.tree.depth <= depth
    assert fitted.exact


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_without_end_the_search_proves_deep_trees_best(seed):
    x, value, features, actions = problem(seed, most=2)
    price = (0.0, 0.05, 0.3)[seed % 3]
    fitted = fit_tree(x, value, features, actions, max_depth=4, price=price, effort=np.inf)
    assert fitted.total == pytest.approx(every_tree(x, value, 4, price, quantile_cuts(x)), abs=1e-9)
    assert fitted.exact or features.n == 1
    collected = value[np.arange(len(x)), fitted.tree.predict(x, compiled=False)].sum()
    asked = price * fitted.tree.node_depth[fitted.tree.apply(x)].sum()
    assert fitted.total == pytest.approx(collected - asked, abs=1e-9)


def test_more_effort_gives_better_trees_and_lower_bounds():
    rng = np.random.default_rng(0)
    x, value = rng.normal(size=(200, 3)), rng.normal(size=(200, 2))
    value[:, 0] += 2.0 * ((x > 0).sum(axis=1) % 2)  # no question tells anything before the third
    features, actions = Features(("a", "b", "c"), np.full(3, -5.0), np.full(3, 5.0)), Actions("discrete", ("l", "r"))
    found = [
        fit_tree(x, value, features, actions, max_depth=5, price=0.01, cuts=6, effort=effort)
        for effort in (0, 50, 500, 5000)
    ]
    assert all(a.total <= b.total + 1e-9 for a, b in pairwise(found))
    assert all(a.bound >= b.bound - 1e-9 for a, b in pairwise(found))
    assert found[-1].bound < found[0].bound
    assert found[-1].total > found[0].total
    assert all(one.total <= one.bound + 1e-9 for one in found)


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_deeper_trees_stay_below_their_bound(seed):
    x, value, features, actions = problem(seed)
    shallow = fit_tree(x, value, features, actions, max_depth=3)
    deep = fit_tree(x, value, features, actions, max_depth=6)
    assert shallow.total - 1e-9 <= deep.total <= deep.bound + 1e-9
    assert deep.tree.depth <= 6


def test_given_thresholds_are_used():
    x, value, features, actions = problem(1, most=1)
    fitted = fit_tree(x, value, features, actions, cuts=[np.array([1.25])])
    assert set(fitted.tree.threshold[fitted.tree.feature >= 0]) <= {1.25}


def test_no_more_cuts_than_asked():
    x = np.random.default_rng(0).normal(size=(1000, 2))
    assert all(0 < len(cut) <= 7 for cut in quantile_cuts(x, 7))


def test_mistakes():
    x, value, features, actions = problem(0)
    with pytest.raises(CustardError, match="states"):
        fit_tree(x[:0], value[:0], features, actions)
    with pytest.raises(CustardError, match="one column"):
        fit_tree(x, value[:, :1], features, actions)


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_with_one_feature_any_depth_is_exact(seed):
    x, value, features, actions = problem(seed, most=1)
    depth = 1 + seed % 5
    fitted = fit_tree(x, value, features, actions, max_depth=depth)
    assert fitted.exact
    assert fitted.total == pytest.approx(every_tree(x, value, depth, 0.0, quantile_cuts(x)), abs=1e-9)
    assert fitted.tree.depth <= depth


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_leaf_limits(seed):
    x, value, features, actions = problem(seed)
    most = 1 + seed % 5
    fitted = fit_tree(x, value, features, actions, max_depth=3, price=(0.0, 0.05)[seed % 2], max_leaves=most)
    assert fitted.tree.n_leaves <= most
    collected = value[np.arange(len(x)), fitted.tree.predict(x, compiled=False)].sum()
    asked = (0.0, 0.05)[seed % 2] * fitted.tree.node_depth[fitted.tree.apply(x)].sum()
    assert fitted.total == pytest.approx(collected - asked, abs=1e-9)
    assert fitted.total <= fitted.bound + 1e-9


def test_many_features_are_fitted_in_time():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 64))
    value = np.stack([np.where(x[:, 7] > 0.2, x[:, 50] > 0, x[:, 3] > 0), np.full(1500, 0.5)], axis=1).astype(float)
    features = Features(tuple(f"f{i}" for i in range(64)), np.full(64, -9.0), np.full(64, 9.0))
    fitted = fit_tree(x, value, features, Actions("discrete", ("a", "b")), max_depth=2)
    assert set(fitted.tree.feature.tolist()) == {7, 50, 3, -1}


@pytest.mark.parametrize("seed", range(4))
def test_deep_trees_are_never_worse_than_cart_on_the_same_thresholds(seed: int) -> None:
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(200, 3))
    label = ((x @ rng.normal(size=(3, 3))) + np.sin(3 * x @ rng.normal(size=(3, 3)))).argmax(axis=1)
    cuts = quantile_cuts(x, 7)
    codes = np.stack([np.searchsorted(cut, column) for cut, column in zip(cuts, x.T, strict=True)], axis=1)
    features, actions = Features(("a", "b", "c"), x.min(axis=0), x.max(axis=0)), Actions("discrete", ("u", "v", "w"))
    fitted = fit_tree(x, np.eye(3)[label], features, actions, max_depth=5, cuts=cuts)
    cart = DecisionTreeClassifier(max_depth=5, random_state=0).fit(codes, label)
    assert fitted.total >= cart.score(codes, label) * len(x) - 1e-9
    assert (fitted.tree.predict(x) == label).sum() == pytest.approx(fitted.total)


def test_the_purest_split_is_found() -> None:
    codes = np.array([[0, 1], [1, 0], [2, 1], [3, 0]], dtype=np.int32)
    label, weight = np.array([0, 0, 1, 1]), np.ones(4)
    found = purest_split(codes, label, weight, np.array([4, 2]), np.arange(4), 2)
    assert found == (0, 1)


@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_trees_are_never_worse_than_cart_with_all_thresholds(seed: int, depth: int) -> None:
    """What decides lies in a narrow range of heavy-tailed features: quantiles of the states miss its edges."""
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(seed)
    x = rng.standard_t(1.2, size=(400, 2 + seed % 3))
    inside = (x[:, 0] > 0.05) & (x[:, 0] < 0.09 + 0.05 * seed)
    value = np.eye(3)[np.where(inside, 1, np.where(np.abs(x[:, 1]) < 0.03, 2, 0))] * rng.exponential(size=(400, 1))
    cost = value.max(axis=1) - value.min(axis=1)
    cart = DecisionTreeClassifier(max_depth=depth, random_state=seed).fit(x, value.argmax(axis=1), sample_weight=cost)
    features = Features(tuple("abcd"[: x.shape[1]]), x.min(axis=0), x.max(axis=0))
    fitted = fit_tree(x, value, features, Actions("discrete", ("u", "v", "w")), max_depth=depth)
    chosen = value[np.arange(len(x)), fitted.tree.predict(x)].sum()
    assert fitted.total == pytest.approx(chosen)
    assert fitted.total <= fitted.bound + 1e-9
    assert fitted.total >= value[np.arange(len(x)), cart.predict(x)].sum() - 1e-9
    limited = fit_tree(x, value, features, Actions("discrete", ("u", "v", "w")), max_depth=depth, max_leaves=3)
    assert limited.tree.n_leaves <= 3


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_three_splits_by_histograms_collect_as_much_as_by_trying(seed):
    rng = np.random.default_rng(seed)
    n, n_actions, count = int(rng.integers(1, 6)), int(rng.integers(1, 5)), int(rng.integers(1, 50))
    sizes = rng.integers(1, 3 if seed % 2 else 6, size=n)
    codes = np.stack([rng.integers(size, size=count) for size in sizes], axis=1).astype(np.int32)
    value = rng.normal(size=(count, n_actions)).round(1)
    index = np.sort(rng.permutation(count)[: rng.integers(1, count + 1)])
    leaf = value[index].sum(axis=0).max()
    total, feature, cut = best_three(codes, value, sizes, index)
    expected = best_first_split(codes, value, sizes, index, 3, 0.0)[0]
    assert max(leaf, total) == pytest.approx(max(leaf, expected), abs=1e-9)
    if feature >= 0:  # the split is the first one of such a tree
        left = codes[index, feature] <= cut
        assert 0 < left.sum() < len(index)
        sides = [index[left], index[~left]]
        below = [max(value[s].sum(axis=0).max(), best_first_split(codes, value, sizes, s, 2, 0.0)[0]) for s in sides]
        assert sum(below) == pytest.approx(total, abs=1e-9)


def test_states_that_no_split_tells_apart_do_not_keep_the_bound_up():
    rng = np.random.default_rng(0)
    x = rng.integers(2, size=(400, 6)).astype(float)
    value = rng.normal(size=(400, 2))
    features, actions = Features(tuple("abcdef"), np.zeros(6), np.ones(6)), Actions("discrete", ("u", "v"))
    fitted = fit_tree(x, value, features, actions, max_depth=6, effort=np.inf)
    cells, cell = np.unique(x, axis=0, return_inverse=True)
    summed = np.zeros((len(cells), 2))
    np.add.at(summed, cell.reshape(-1), value)
    assert fitted.exact
    assert fitted.total == pytest.approx(summed.max(axis=1).sum())
    assert fitted.total < value.max(axis=1).sum()
