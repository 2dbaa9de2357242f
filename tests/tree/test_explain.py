"""Explanations: counterfactuals against brute force, words against boxes."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from custard import Actions, CustardError, Features, Tree
from custard.tree.explain import counterfactuals, deciding_features, explain, node_visits, rule, scales, usage

ACTIONS = Actions("discrete", ("left", "stay", "right"))
TOP = float(np.nextafter(0.25, 1))


def grown(seed: int, leaves: int, n: int, whole: bool) -> Tree:
    """A random tree with thresholds on a coarse lattice, so that boxes touch, repeat and are sometimes empty."""
    rng = np.random.default_rng(seed)
    nodes, open_leaves = [[-1, 0.0, -1, -1, int(rng.integers(3))]], [0]
    while len(open_leaves) < leaves:
        at = open_leaves.pop(int(rng.integers(len(open_leaves))))
        first = len(nodes)
        threshold = float(rng.integers(-3, 4)) + (0.5 if whole else 0.0)
        nodes[at] = [int(rng.integers(n)), threshold, first, first + 1, 0]
        nodes += [[-1, 0.0, -1, -1, int(rng.integers(3))] for _ in range(2)]
        open_leaves += [first, first + 1]
    kinds = tuple("integer" if whole or c % 2 else "real" for c in range(n))
    features = Features(tuple(f"f{c}" for c in range(n)), [-4] * n, [4] * n, kinds)
    return Tree(*(np.array(column) for column in zip(*nodes, strict=True)), features, ACTIONS)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 3), st.booleans(), st.data())
def test_counterfactuals_are_the_nearest(seed: int, leaves: int, n: int, whole: bool, data: st.DataObject) -> None:
    tree = grown(seed, leaves, n, whole)
    x = np.array([float(data.draw(st.integers(-4, 4))) for _ in range(n)])
    fixed = [name for name in tree.features.names if data.draw(st.booleans())]
    got = {change.action: change for change in counterfactuals(tree, x, fixed=fixed)}
    # On the lattice of the thresholds and the points just above them every box has its nearest point.
    grid = []
    for c, name in enumerate(tree.features.names):
        if name in fixed:
            grid.append([x[c]])
            continue
        values = {float(v) for v in range(-4, 5)} | set(tree.threshold[tree.feature == c].tolist())
        if tree.features.integer[c]:
            values = {v for v in values if v == np.floor(v)}
        else:
            values |= {float(np.nextafter(v, np.inf)) for v in values if v < 4}
        grid.append(sorted(values))
    points = np.array(list(itertools.product(*grid)))
    actions = tree.predict(points, compiled=False)
    distance = np.sqrt((((points - x) / scales(tree)) ** 2).sum(axis=1))
    now = tree.act(x)
    for action in range(3):
        reached = distance[actions == action]
        if action == now or len(reached) == 0:
            assert action not in got
            continue
        assert got[action].distance == pytest.approx(reached.min(), rel=1e-12, abs=1e-15)
        assert tree.act(got[action].observation) == action


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 3), st.booleans())
def test_features_that_never_matter_never_matter(seed: int, leaves: int, n: int, whole: bool) -> None:
    """A feature matters where, of points that differ in nothing else, two are decided differently."""
    tree = grown(seed, leaves, n, whole)
    axes = [np.arange(-5.0, 6.0)] * n
    for c in np.flatnonzero(~tree.features.integer):
        axes[c] = np.sort(np.concatenate([axes[c], axes[c] + 0.25]))
    points = np.array(list(itertools.product(*axes)))
    decided = tree.predict(points, compiled=False).reshape([len(axis) for axis in axes])
    matter = {c for c in range(n) if (decided != np.take(decided, [0], axis=c)).any()}
    assert deciding_features(tree) == matter


@pytest.mark.parametrize(
    ("threshold", "observation", "reached"),
    [(1.0, 0.5, None), (1.0, 1.0, None), (-1.5, 0.5, None), (-1.0, 0.5, -1.0), (1.0, -1.0, None), (-1.5, -1.0, None),
     (0.99, 0.5, float(np.nextafter(0.99, 1))), (3.0, 2.0, float(np.nextafter(3.0, 4))), (-3.0, -2.0, -3.0)],
)  # fmt: skip
def test_changes_stay_within_bounds_where_the_observation_does(
    threshold: float, observation: float, reached: float | None
) -> None:
    tree = Tree.stump(0, threshold, 0, 2, Features(("x",), [-1], [1]), ACTIONS)
    assert [change.observation[0] for change in counterfactuals(tree, [observation])] == [reached] * (
        reached is not None
    )


def test_a_value_that_lies_in_the_box_stays_though_it_is_no_whole_number() -> None:
    features = Features(("k", "x"), [0, 0], [9, 1], ("integer", "real"))
    tree = Tree([0, 1, -1, -1, -1], [0.5, 0.5, 0, 0, 0], [1, 3, -1, -1, -1], [2, 4, -1, -1, -1], [0, 0, 2, 0, 1],
                features, ACTIONS)  # fmt: skip
    change = next(change for change in counterfactuals(tree, [0.5, 0.2]) if change.action == 1)
    assert (change.features, change.observation[0]) == ((1,), 0.5)


def test_a_change_within_small_bounds_is_measured_by_them() -> None:
    features = Features(("a", "b", "c"), [0, 0, -np.inf], [0.25, 1, np.inf])
    assert scales(Tree.leaf(0, features, ACTIONS)).tolist() == [0.25, 1.0, 1.0]
    two = Tree([2, 2, -1, -1, -1], [-3.0, -5.0, 0, 0, 0], [1, 3, -1, -1, -1], [2, 4, -1, -1, -1], [0, 0, 2, 0, 1],
               features, ACTIONS)  # fmt: skip
    assert scales(two)[2] == 2.0
    same = Tree([2, 2, -1, -1, -1], [-3.0, -3.0, 0, 0, 0], [1, 3, -1, -1, -1], [2, 4, -1, -1, -1], [0, 0, 2, 0, 1],
                features, ACTIONS)  # fmt: skip
    assert scales(same)[2] == 6.0


def test_one_observation_of_another_length_names_the_features() -> None:
    for n, told in ((9, "f0, f1, f2, f3, f4, f5, f6, f7, …"), (8, "f0, f1, f2, f3, f4, f5, f6, f7"), (2, "f0, f1")):
        tree = Tree.leaf(0, Features(tuple(f"f{c}" for c in range(n)), [0] * n, [1] * n), ACTIONS)
        with pytest.raises(CustardError, match=re.escape(f"{n} values ({told}), got 1")):
            explain(tree, [1.0])


def test_a_change_is_measured_by_the_width_of_the_bounds_or_of_the_thresholds() -> None:
    """Where a feature has no finite bounds: by what its thresholds span, else twice the only one, else one."""
    inf = np.inf
    features = Features(("a", "b", "c", "d", "e"), [-1, -inf, -inf, 0, -inf], [4, inf, inf, inf, inf])
    nodes = [(0, 0.5, 1, 2), (1, -3.0, 3, 4), (1, 7.0, 5, 6), (2, -2.5, 7, 8), (3, 0.0, 9, 10)]
    nodes += [(-1, 0.0, -1, -1)] * 6
    tree = Tree(*(np.array(column) for column in zip(*nodes, strict=True)), np.arange(11) % 3, features, ACTIONS)
    assert scales(tree).tolist() == [5.0, 10.0, 5.0, 1.0, 1.0]
    assert scales(tree, {"b": 2.0}).tolist() == [5.0, 2.0, 5.0, 1.0, 1.0]
    assert scales(tree, 3.0).tolist() == [3.0] * 5


def test_words() -> None:
    tree = grown(3, 6, 2, False)
    for leaf in tree.leaves():
        text = rule(tree, int(leaf))
        assert text.endswith(f"→ {tree.actions.name(tree.value[leaf])}")
        assert text.count("≤") + text.count("<") + text.count(">") >= len(tree.box(int(leaf)))
    assert rule(Tree.leaf(1, tree.features, ACTIONS), 0) == "always → stay"


def test_a_decision_explained() -> None:
    features = Features(("speed", "angle"), [-2, -1], [2, 1])
    tree = Tree(
        [0, -1, 1, -1, -1],
        [0.41, 0, 0.02, 0, 0],
        [1, -1, 3, -1, -1],
        [2, -1, 4, -1, -1],
        [0, 0, 0, 0, 2],
        features,
        ACTIONS,
    )
    told = explain(tree, [0.5, 0.0])
    assert told.rule == "speed > 0.41 and angle ≤ 0.02 → left"
    assert told.path == (0, 2, 3)
    assert [change.action for change in told.changes] == [2]
    assert told.changes[0].features == (1,)
    assert told.changes[0].observation[1] == np.nextafter(0.02, 1)
    assert told.unreachable == (1,)
    assert explain(tree, [0.5, 0.0], fixed=["angle"]).changes == ()
    assert explain(tree, [np.nan, np.nan]).action == 2
    assert not explain(tree, [np.nan, np.nan]).changes[0].distance < np.inf


def test_whole_numbers_between_which_nothing_lies_never_matter() -> None:
    features = Features(("i",), [0], [10], ("integer",))
    nodes = [0, -1, 0, -1, -1], [0.3, 0, 0.7, 0, 0], [1, -1, 3, -1, -1], [2, -1, 4, -1, -1], [0, 0, 0, 1, 0]
    tree = Tree(*(np.array(column) for column in nodes), features, ACTIONS)
    assert deciding_features(tree) == set()
    assert counterfactuals(tree, [0]) == []


def test_missing_values_change_to_the_threshold_or_stay() -> None:
    features = Features(("x", "y"), [-1, -1], [1, 1])
    tree = Tree(
        [0, 1, -1, -1, -1],
        [0.5, 0.25, 0, 0, 0],
        [1, 3, -1, -1, -1],
        [2, 4, -1, -1, -1],
        [0, 0, 2, 0, 1],
        features,
        ACTIONS,
    )
    told = counterfactuals(tree, [np.nan, 0.0])
    assert [(change.action, change.observation.tolist()) for change in told] == [(0, [0.5, 0.0]), (1, [0.5, TOP])]
    assert counterfactuals(tree, [np.nan, 0.0], fixed=["x"]) == []
    (change,) = counterfactuals(tree, [0.0, np.nan], fixed=["y"])
    assert change.action == 2
    assert change.features == (0,)


def test_names_stay_on_their_line() -> None:
    features = Features(("a\x1b[31m\n",), [-1], [1])
    words = rule(Tree.stump(0, 0.5, 0, 1, features, Actions("discrete", ("\u202el", "r"))), 1)
    assert words == "a [31m  ≤ 0.5 →  l"


def test_use_counts_states_not_questions() -> None:
    tree = grown(5, 7, 3, False)
    x = np.random.default_rng(0).uniform(-4, 4, (500, 3))
    used = usage(tree, x)
    assert used.visits[0] == 500
    assert used.visits[tree.leaves()].sum() == 500
    for c in range(3):
        share = np.mean([any(tree.feature[node] == c for node in tree.path(row)) for row in x])
        assert used.asked[c] == pytest.approx(share)
    np.testing.assert_array_equal(node_visits(tree, x), used.visits)
    wide = Features((*tree.features.names, "colour"), [-4] * 4, [4] * 4)
    extended = Tree(
        tree.feature, tree.threshold, tree.children_left, tree.children_right, tree.value, wide, tree.actions
    )
    assert "colour" in usage(extended, np.zeros((1, 4))).unused
    one = usage(extended, np.zeros((1, 4)))
    assert one.asked.tolist() == [float(c in {tree.feature[k] for k in tree.path(np.zeros(3))}) for c in range(4)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observation": [1.0]}, "2 values"),
        ({"observation": ["a", "b"]}, "2 numbers"),
        ({"observation": [0, 0], "fixed": ["f9"]}, "unknown feature 'f9'"),
        ({"observation": [0, 0], "scale": [1, 2, 3]}, "one number or 2 numbers"),
        ({"observation": [0, 0], "scale": [1, 0]}, "positive"),
    ],
)
def test_mistakes(arguments: dict, message: str) -> None:
    with pytest.raises(CustardError, match=message):
        explain(grown(0, 4, 2, False), **arguments)
