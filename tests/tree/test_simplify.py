import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from custard import Actions, Features, Tree, prune_unvisited, simplify
from custard.tree.simplify import centre_integer_thresholds
from tests.strategies import probing_points, random_tree, seeds

AB = Actions("discrete", ("a", "b"))


def whole(tree: Tree, x: np.ndarray) -> np.ndarray:
    """Observations whose integer features hold integers (or are not numbers at all)."""
    x = x.copy()
    columns = tree.features.integer
    x[:, columns] = np.round(x[:, columns])
    return x


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_simplify_changes_no_decision(seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(
        rng, n=int(rng.integers(1, 4)), splits=int(rng.integers(0, 40)), kind=("discrete", "box")[seed % 2]
    )
    small = simplify(tree)
    x = whole(tree, probing_points(tree, rng, 100))
    np.testing.assert_array_equal(small.predict(x, compiled=False), tree.predict(x, compiled=False))
    assert small.n_nodes <= tree.n_nodes
    assert simplify(small) == small


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_with_bounds_only_states_within_them_count(seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, n=2, splits=20)
    small = simplify(tree, use_bounds=True)
    f = tree.features
    x = whole(tree, rng.uniform(f.low, f.high, size=(200, 2)))
    x = np.concatenate([x, f.low[None], f.high[None], np.clip(probing_points(tree, rng, 50), f.low, f.high)])
    x = whole(tree, x[~np.isnan(x).any(axis=1)])
    np.testing.assert_array_equal(small.predict(x, compiled=False), tree.predict(x, compiled=False))
    assert small.n_nodes <= simplify(tree).n_nodes


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_every_branch_that_is_left_can_be_reached(seed):
    rng = np.random.default_rng(seed)
    tree = simplify(random_tree(rng, n=2, splits=25))
    for _leaf, box in tree.boxes():
        for c, (above, most) in box.items():
            if tree.features.integer[c]:
                assert np.floor(most) > np.floor(above)
            else:
                assert most > above


def test_equal_siblings_merge_all_the_way_up():
    f = Features(("x", "y"), np.zeros(2), np.ones(2))
    tree = Tree(
        feature=[0, 1, 1, -1, -1, -1, -1], threshold=[0.5, 0.3, 0.3, 0, 0, 0, 0],
        children_left=[1, 3, 5, -1, -1, -1, -1], children_right=[2, 4, 6, -1, -1, -1, -1],
        value=[0, 0, 0, 0, 1, 0, 1], features=f, actions=AB,
    )  # fmt: skip
    assert simplify(tree) == Tree.stump(1, 0.3, 0, 1, f, AB)


def test_a_decided_binary_feature_is_not_asked_again():
    f = Features(("flag",), np.zeros(1), np.ones(1), ("binary",))
    tree = Tree(
        feature=[0, 0, -1, -1, -1], threshold=[0.5, 0.25, 0, 0, 0], children_left=[1, 3, -1, -1, -1],
        children_right=[2, 4, -1, -1, -1], value=[0, 0, 1, 0, 1], features=f, actions=AB,
    )  # fmt: skip
    # Below 0.5 lies only 0 (and lower numbers), for which the second question has one answer.
    assert simplify(tree) == Tree.stump(0, 0.5, 0, 1, f, AB)


def test_pruning_by_visits_says_what_it_could_change():
    f = Features(("x",), np.zeros(1), np.ones(1))
    tree = Tree(
        feature=[0, 0, 0, -1, -1, -1, -1], threshold=[0.5, 0.25, 0.75, 0, 0, 0, 0],
        children_left=[1, 3, 5, -1, -1, -1, -1], children_right=[2, 4, 6, -1, -1, -1, -1],
        value=[0, 0, 0, 0, 1, 0, 0], features=f, actions=AB,
    )  # fmt: skip
    pruned = prune_unvisited(tree, np.array([[0.1], [0.6], [0.9]]))
    assert pruned.leaves == 1
    assert pruned.branches == 1
    assert pruned.could_change == 1  # the leaf at (0.25, 0.5] held the other action
    assert pruned.tree == Tree.leaf(0, f, AB)
    nothing = prune_unvisited(tree, np.array([[0.1], [0.3], [0.6], [0.9]]))
    assert nothing.branches == nothing.could_change == 0
    assert nothing.tree == simplify(tree)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 4))
def test_what_pruning_could_change_is_what_other_leaves_replace(seed, at_least):
    """By its definition: a removed leaf counts if some leaf that stands in its place holds another action."""
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, n=2, splits=12)
    x = rng.uniform(tree.features.low, tree.features.high, size=(12, 2))
    paths = [tree.path(row) for row in x]
    visits = [sum(node in path for path in paths) for node in range(tree.n_nodes)]
    kids = list(zip(tree.children_left.tolist(), tree.children_right.tolist(), strict=True))

    def stand_in(node):
        if tree.feature[node] == -1:
            return node
        seen = [kid for kid in kids[node] if visits[kid] >= at_least]
        if len(seen) == 2 or visits[node] < at_least:
            return node
        return stand_in(seen[0] if seen else max(kids[node], key=lambda kid: visits[kid]))

    def leaves(node):
        at = stand_in(node)
        return [at] if tree.feature[at] == -1 else leaves(kids[at][0]) + leaves(kids[at][1])

    lost = [leaf for leaf in tree.leaves().tolist() if visits[leaf] < at_least]
    changed = 0
    for leaf in lost:
        path = [leaf]
        while path[0] != 0:
            path.insert(0, int(tree.parent[path[0]]))
        at = stand_in(0)
        while at in path and at != leaf:
            at = stand_in(path[path.index(at) + 1])
        if at != leaf:
            changed += {tree.leaf_key(other) for other in leaves(at)} != {tree.leaf_key(leaf)}
    pruned = prune_unvisited(tree, x, at_least=at_least)
    assert (pruned.leaves, pruned.could_change) == (len(lost), changed)
    assert {tree.leaf_key(leaf) for leaf in leaves(0)} == {pruned.tree.leaf_key(int(k)) for k in pruned.tree.leaves()}


def test_a_leaf_is_compared_with_what_replaced_it_not_with_the_rest_of_the_tree():
    """The right half is removed, and within the left one a leaf whose sibling holds the same action."""
    f = Features(("x",), np.zeros(1), np.ones(1))
    tree = Tree(
        feature=[0, 0, -1, 0, -1, -1, -1], threshold=[0.75, 0.5, 0, 0.25, 0, 0, 0],
        children_left=[1, 3, -1, 5, -1, -1, -1], children_right=[2, 4, -1, 6, -1, -1, -1],
        value=[0, 0, 0, 0, 1, 0, 0], features=f, actions=AB,
    )  # fmt: skip
    pruned = prune_unvisited(tree, np.array([[0.1], [0.6]]))
    assert pruned.tree == Tree.stump(0, 0.5, 0, 1, f, AB)
    assert (pruned.leaves, pruned.branches) == (2, 2)
    assert pruned.could_change == 1  # above 0.75, where 1 replaces 0; between 0.25 and 0.5 nothing changes


@pytest.mark.parametrize(
    ("feature", "threshold", "reachable"),
    [("x", -0.1, [1]), ("x", 0.0, [0, 1]), ("x", 0.99, [0, 1]), ("x", 1.0, [0]), ("x", 9.0, [0]), ("k", -1.0, [1]),
     ("k", -0.5, [1]), ("k", 0.0, [0, 1]), ("k", 2.9, [0, 1]), ("k", 3.0, [0]), ("k", 3.5, [0]),
     ("open", 1e300, [0, 1])],
)  # fmt: skip
def test_thresholds_outside_the_bounds_matter_only_with_bounds(feature, threshold, reachable):
    f = Features(("x", "k", "open"), [0, 0, -np.inf], [1, 3, np.inf], ("real", "integer", "real"))
    tree = Tree.stump(f.index(feature), threshold, 0, 1, f, AB)
    assert simplify(tree) == tree
    small = simplify(tree, use_bounds=True)
    assert small.value[small.leaves()].tolist() == reachable


@pytest.mark.parametrize("use_bounds", [False, True])
def test_the_right_side_is_searched_with_its_own_bounds(use_bounds):
    """Above 0.5 the question about 0.3 has one answer, and it has two again in the next branch."""
    f = Features(("x", "y"), np.zeros(2), np.ones(2))
    tree = Tree(
        feature=[1, 0, 0, -1, 0, -1, -1, -1, -1], threshold=[0.5, 0.5, 0.3, 0, 0.3, 0, 0, 0, 0],
        children_left=[1, 3, 5, -1, 7, -1, -1, -1, -1], children_right=[2, 4, 6, -1, 8, -1, -1, -1, -1],
        value=[0, 0, 0, 0, 0, 0, 1, 0, 1], features=f, actions=AB,
    )  # fmt: skip
    small = simplify(tree, use_bounds=use_bounds)
    assert small.n_leaves == 4
    grid = np.array([[x, y] for x in (0.1, 0.3, 0.4, 0.5, 0.6) for y in (0.2, 0.8)])
    assert small.predict(grid).tolist() == tree.predict(grid).tolist()


@pytest.mark.parametrize("at_least", [1, 3])
def test_pruning_keeps_decisions_on_the_states_given(at_least):
    rng = np.random.default_rng(5)
    tree = random_tree(rng, n=3, splits=30)
    x = np.repeat(rng.uniform(tree.features.low, tree.features.high, size=(10, 3)), at_least, axis=0)
    pruned = prune_unvisited(tree, x, at_least=at_least)
    np.testing.assert_array_equal(pruned.tree.predict(x), tree.predict(x))
    assert pruned.tree.n_leaves <= min(tree.n_leaves, 10)


def test_a_question_whose_sides_are_both_rare_is_dropped_only_if_it_is_visited():
    tree = Tree.stump(0, 0.5, 0, 1, Features(("x",), [0], [1]), Actions("discrete", ("a", "b")))
    pruned = prune_unvisited(tree, np.array([[0.2], [0.8], [0.9]]), at_least=3)
    assert (pruned.tree.n_leaves, pruned.branches, pruned.tree.act([0.0])) == (1, 1, 1)
    assert prune_unvisited(tree, np.array([[0.2], [0.8]]), at_least=3).tree == tree


def test_only_thresholds_of_whole_numbers_are_centred():
    features = Features(("x", "k"), [0, 0], [9, 9], ("real", "integer"))
    tree = Tree.stump(0, 3.2, 0, 1, features, Actions("discrete", ("a", "b")))
    assert centre_integer_thresholds(tree).threshold[0] == 3.2
    assert centre_integer_thresholds(Tree.stump(1, 3.2, 0, 1, features, tree.actions)).threshold.tolist() == [3.5, 0, 0]
