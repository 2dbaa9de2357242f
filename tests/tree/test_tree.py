import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from custard import Actions, CustardError, Features, Tree
from custard.core.files import make_directory
from custard.tree.compiled import round_down
from custard.tree.loading import load
from tests.strategies import probing_points, random_tree, seeds

ONE = Features(("x",), np.zeros(1), np.ones(1))
AB = Actions("discrete", ("a", "b"))


def walk(tree: Tree, x: np.ndarray) -> int:
    """The definition of a decision, spelt out."""
    node = 0
    while tree.feature[node] >= 0:
        left = float(x[tree.feature[node]]) <= float(tree.threshold[node])
        node = int(tree.children_left[node] if left else tree.children_right[node])
    return node


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_all_forms_of_deciding_agree(seed):
    rng = np.random.default_rng(seed)
    kind = ("discrete", "box", "multi")[seed % 3]
    tree = random_tree(rng, n=int(rng.integers(1, 7)), splits=int(rng.integers(0, 90)), kind=kind)
    wide = probing_points(tree, rng, 60)
    for x in (wide, wide.astype(np.float32), np.asfortranarray(wide), np.nan_to_num(wide, posinf=9, neginf=-9).round()):
        leaves = np.array([walk(tree, row.astype(np.float64)) for row in x])
        expected = tree.value[leaves]
        np.testing.assert_array_equal(tree.apply(x), leaves)
        np.testing.assert_array_equal(tree.predict(x), expected)
        np.testing.assert_array_equal(tree.predict(x, compiled=False), expected)
        for row, answer, leaf in zip(x, expected, leaves, strict=True):
            np.testing.assert_array_equal(tree.act(row), answer)
            assert tree.path(row)[-1] == leaf


def test_many_rows_use_threads_and_decide_the_same():
    rng = np.random.default_rng(0)
    tree = random_tree(rng, n=4, splits=20)
    x = np.tile(probing_points(tree, rng, 5000), (30, 1))
    np.testing.assert_array_equal(tree.predict(x), tree.predict(x, compiled=False))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "splits"), [(1, 40), (2, 63), (3, 31), (4, 32), (5, 1), (8, 31), (19, 64), (150, 20)])
def test_batches_of_any_length_decide_as_plain_numpy(n, splits, dtype):
    rng = np.random.default_rng(n)
    tree = random_tree(rng, n=n, splits=splits)
    x = probing_points(tree, rng, 300).astype(dtype)
    x = np.tile(x, (2, 1))[rng.permutation(2 * len(x))]
    expected = tree.predict(x, compiled=False)
    for rows in (*range(20), 47, 48, 49, 63, 127, 128, 129, 131, 255, 256, 257, len(x)):
        np.testing.assert_array_equal(tree.predict(x[len(x) - rows :]), expected[len(x) - rows :])


def test_integer_and_boolean_observations():
    tree = Tree.stump(0, 0.5, 0, 1, ONE, AB)
    assert tree.predict(np.array([[0], [1]])).tolist() == [0, 1]
    assert tree.predict(np.array([[False], [True]])).tolist() == [0, 1]
    assert tree.act(np.array([1])) == 1
    assert tree.act([0.25]) == 0


def test_float32_is_widened_before_comparing():
    threshold = 0.1  # float32(0.1) is greater than 0.1
    tree = Tree.stump(0, threshold, 0, 1, ONE, AB)
    x = np.array([0.1], dtype=np.float32)
    assert float(x[0]) > threshold
    assert tree.act(x) == 1
    assert tree.predict(x[None]).tolist() == [1]
    assert tree.predict(x[None], compiled=False).tolist() == [1]


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_round_down_decides_like_float64(seed):
    rng = np.random.default_rng(seed)
    t = np.concatenate([rng.normal(size=50) * 10.0 ** rng.integers(-50, 50, size=50), [1e39, -1e39, 3.4028235e38, 0.0]])
    with np.errstate(over="ignore"):
        x = np.concatenate([t.astype(np.float32), np.nextafter(t.astype(np.float32), np.float32(np.inf))])
        x = np.concatenate([x, -x, np.array([np.inf, -np.inf, np.nan], dtype=np.float32)])
    np.testing.assert_array_equal(x[:, None].astype(float) <= t, x[:, None] <= round_down(t))


def test_shape_of_a_tree():
    tree = random_tree(np.random.default_rng(3), splits=10)
    assert tree.n_leaves == 11
    assert tree.n_nodes == 21
    assert tree.node_depth[tree.children_left[0]] == 1
    assert tree.parent[tree.children_right[0]] == 0
    assert len(list(tree.boxes())) == 11
    assert all(tree.box(leaf) == box for leaf, box in tree.boxes())
    assert Tree.leaf(1, ONE, AB).depth == 0


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_boxes_are_what_reaches_a_leaf(seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, splits=12)
    x = probing_points(tree, rng, 50)
    x = x[~np.isnan(x).any(axis=1)]
    boxes = dict(tree.boxes())
    for row, leaf in zip(x, tree.apply(x), strict=True):
        inside = [
            k
            for k, box in boxes.items()
            if all(lo < row[c] <= hi or lo == row[c] == -np.inf for c, (lo, hi) in box.items())
        ]
        assert inside == [leaf]


def test_arrays_are_frozen():
    tree = Tree.stump(0, 0.5, 0, 1, ONE, AB)
    with pytest.raises(ValueError, match="read-only"):
        tree.threshold[0] = 3
    with pytest.raises(AttributeError):
        tree.threshold = np.zeros(3)


@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_save_then_load_is_identity(tmp_path_factory, seed):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, splits=int(rng.integers(0, 30)), kind=("discrete", "box", "multi")[seed % 3])
    tree = tree.with_origin(method="test", seed=seed)
    path = tmp_path_factory.mktemp("trees") / "tree.json"
    tree.save(path)
    again = Tree.load(path)
    assert again == tree
    assert again.origin == tree.origin
    assert again.threshold.tobytes() == tree.threshold.tobytes()
    json.loads(path.read_text())


def test_equality_looks_at_nodes_names_and_bounds():
    tree = Tree.stump(0, 0.5, 0, 1, ONE, AB)
    assert tree == Tree.stump(0, 0.5, 0, 1, ONE, AB).with_origin(seed=9)
    assert tree != Tree.stump(0, 0.25, 0, 1, ONE, AB)
    assert tree != Tree.stump(0, 0.5, 0, 1, Features(("y",), np.zeros(1), np.ones(1)), AB)
    assert tree != Tree.stump(0, 0.5, 0, 1, Features(("x",), np.zeros(1), np.ones(1) * 2), AB)
    assert tree != "tree"


def chain(depth: int) -> Tree:
    """A tree that is one long path."""
    inner, count = np.arange(depth), 2 * depth + 1
    feature, threshold = np.full(count, -1), np.zeros(count)
    left, right = np.full(count, -1), np.full(count, -1)
    feature[2 * inner], threshold[2 * inner] = 0, (inner + 1) / (depth + 1)
    left[2 * inner], right[2 * inner] = 2 * inner + 1, 2 * inner + 2
    return Tree(feature, threshold, left, right, np.arange(count) % 2, ONE, AB)


def complete(depth: int) -> Tree:
    """A tree with all nodes down to a depth, thresholds halving."""
    count = 2 ** (depth + 1) - 1
    node = np.arange(count)
    inner = node < 2**depth - 1
    level = np.floor(np.log2(node + 1))
    threshold = (2 * (node + 1 - 2**level) + 1) / 2 ** (level + 1)
    left, right = np.where(inner, 2 * node + 1, -1), np.where(inner, 2 * node + 2, -1)
    return Tree(np.where(inner, 0, -1), threshold, left, right, node % 2, ONE, AB)


@pytest.mark.parametrize("make", [lambda: chain(10_000), lambda: complete(19)], ids=["depth 10,000", "a million nodes"])
def test_very_large_trees(make, tmp_path):
    from custard import simplify

    tree = make()
    x = np.random.default_rng(0).uniform(size=(1000, 1))
    expected = tree.predict(x, compiled=False)
    np.testing.assert_array_equal(tree.predict(x), expected)
    assert [tree.act(row) for row in x[:10]] == expected[:10].tolist()
    tree.save(tmp_path / "big.json")
    assert Tree.load(tmp_path / "big.json") == tree
    small = simplify(tree)
    np.testing.assert_array_equal(small.predict(x), expected)
    assert small.n_nodes <= tree.n_nodes
    assert len(str(tree).splitlines()) <= 1001
    assert copy.deepcopy(tree) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "not a custard tree"),
        (lambda d: d.update(version=99), "upgrade custard-rl"),
        (lambda d: d.update(version="1"), "version"),
        (lambda d: d.pop("nodes"), "lacks nodes"),
        (lambda d: d["nodes"].pop("threshold"), "lacks threshold"),
        (lambda d: d["nodes"]["value"].__setitem__(-1, 0.7), "value must hold whole numbers only"),
        (lambda d: d["nodes"]["value"].__setitem__(-1, "1"), "value must hold whole numbers only"),
        (lambda d: d["nodes"]["value"].__setitem__(-1, True), "value must hold whole numbers only"),
        (lambda d: d["actions"].update(start=0.5), "actions must be numbered from a whole number"),
        (lambda d: d["features"][0].update(low=-(10**400)), "features must be"),
        (lambda d: d["actions"].update(start=float("inf")), "actions must be"),
        (lambda d: d["nodes"].update(threshold=[None, 0, 0]), "numbers only"),
        (lambda d: d["nodes"].update(threshold=[float("nan"), 0, 0]), "finite"),
        (lambda d: d["nodes"].update(threshold=[0.5, 0]), "shape"),
        (lambda d: d["nodes"].update(children_left=[0, -1, -1]), "cycle"),
        (lambda d: d["nodes"].update(children_left=[2, -1, -1]), "no parent|several parents"),
        (lambda d: d["nodes"].update(children_left=[7, -1, -1]), "does not come after"),
        (lambda d: d["nodes"].update(feature=[5, -1, -1]), "feature 5"),
        (lambda d: d["nodes"].update(feature=[0, -2, -1]), "neither a leaf"),
        (lambda d: d["nodes"].update(feature=[0.5, -1, -1]), "whole numbers"),
        (lambda d: d["nodes"].update(value=[0, 0, 9]), "outside"),
        (lambda d: d["nodes"].update(value=[0, "x", 1]), "numbers"),
        (lambda d: d["nodes"].update({k: [] for k in d["nodes"]}), "at least one node"),
        (lambda d: d.update(features=3), "features must be"),
        (lambda d: d.update(features=[{"name": "x"}]), "features must be"),
        (lambda d: d.update(actions={"kind": "strange", "names": ["a"]}), "actions must be|unknown kind"),
        (lambda d: d.update(origin=3), "objects"),
    ],
)
def test_bad_files_are_refused_in_one_line(change, message, tmp_path):
    data = Tree.stump(0, 0.5, 0, 1, ONE, AB).to_json()
    change(data)
    path = tmp_path / "tree.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CustardError, match=message) as caught:
        Tree.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2", b"\xff\xfe\x00", b"null", b"[]", b'"tree"', b"[" * 100_000])
def test_files_that_are_no_trees(content, tmp_path):
    path = tmp_path / "tree.json"
    path.write_bytes(content)
    with pytest.raises(CustardError):
        Tree.load(path)
    with pytest.raises(CustardError, match="cannot read"):
        Tree.load(tmp_path / "missing.json")


@pytest.mark.parametrize("name", ["a\0b.json", "\ud800.json"])
def test_names_that_no_file_can_have_are_refused_in_one_line(name, tmp_path):
    tree = random_tree(np.random.default_rng(0))
    for use in (tree.save, Tree.load, load, lambda path: make_directory(Path(path))):
        with pytest.raises(CustardError, match="no file can be named"):
            use(str(tmp_path / name))
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_nothing_behind(tmp_path):
    tree = Tree.stump(0, 0.5, 0, 1, ONE, AB)
    with pytest.raises(CustardError, match="cannot write"):
        tree.save(tmp_path / "nowhere" / "tree.json")
    tree.save(tmp_path / "tree.json")
    broken = tree.with_origin(note=object())
    with pytest.raises(TypeError):
        broken.save(tmp_path / "tree.json")
    assert Tree.load(tmp_path / "tree.json") == tree
    assert [path.name for path in tmp_path.iterdir()] == ["tree.json"]


@pytest.mark.parametrize(
    "observations",
    [
        np.zeros(2),
        np.zeros((3, 2)),
        np.zeros((2, 2, 2)),
        np.array([["a"]]),
        np.array([[object()]]),
        np.array([[1 + 2j]]),
    ],
)
def test_wrong_observations_are_refused(observations):
    tree = Tree.stump(0, 0.5, 0, 1, ONE, AB)
    with pytest.raises(CustardError):
        tree.predict(observations)


@pytest.mark.parametrize("observation", [np.zeros(2), np.zeros((1, 1)), [1.0, 2.0], np.float64(1.0)])
def test_wrong_single_observations_are_refused(observation):
    with pytest.raises(CustardError, match="1 features"):
        Tree.stump(0, 0.5, 0, 1, ONE, AB).act(observation)


def test_text_and_html_escape_names():
    hostile = Features(("<img onerror=x>",), np.zeros(1), np.ones(1))
    tree = Tree.stump(0, 0.5, 0, 1, hostile, AB)
    assert "<img" in str(tree)
    assert "<img" not in tree._repr_html_()
    assert "Tree(depth=1" in repr(tree)


def test_act_says_what_it_takes():
    tree = Tree.stump(0, 0.5, 0, 1, Features(("a", "b"), [0, 0], [1, 1]), Actions("discrete", ("l", "r")))
    for wrong in ({"a": 1.0, "b": 2.0}, [1.0, "much"]):
        with pytest.raises(CustardError, match=r"takes 2 numbers \(a, b\), not a (dict|list)"):
            tree.act(wrong)


def test_nothing_is_cut_to_whole_numbers():
    tree = Tree.stump(0, 0.5, 0.0, 1.0, ONE, AB)  # whole, if written as reals
    assert tree.value.tolist() == [0, 0, 1]
    multi = Actions("multi", ("u",), low=[0], high=[3])
    for make in (
        lambda: Tree.stump(0, 0.5, 0.9, 1.7, ONE, AB),
        lambda: Tree.stump(0, 0.5, [1.7], [1.0], ONE, multi),
        lambda: Tree([0.9, -1, -1], [0, 0, 0], [1, -1, -1], [2, -1, -1], [0, 0, 1], ONE, AB),
        lambda: Tree(np.array([2**32, -1, -1]), [0, 0, 0], [1, -1, -1], [2, -1, -1], [0, 0, 1], ONE, AB),
        lambda: Tree([0, -1, -1], [0, 0, 0], [1, -1, -1], [2, -1, -1], [0, 0, np.nan], ONE, AB),
    ):
        with pytest.raises(CustardError, match="must hold whole numbers"):
            make()
    data = Tree.stump(0, 0.5, [1], [2], ONE, multi).to_json()
    data["nodes"]["value"][1] = [1.7]
    with pytest.raises(CustardError, match="value must hold whole numbers"):
        Tree.from_json(data)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.longdouble, np.float16, bool, object])
def test_act_compares_as_predict_does(dtype):
    tree = Tree.stump(0, 2.0**53, 0, 1, ONE, AB)
    x = np.array([2**53 + 1 if dtype is not np.float16 else 1], dtype=dtype)
    assert tree.act(x) == tree.predict(x[None].astype(np.float64))[0] == 0


def test_act_takes_what_turns_into_numbers():
    class Tensor:
        """As PyTorch's: an item without a number, a dtype of its own."""

        shape, dtype = (1,), "torch.float32"

        def item(self):
            return 0.7

        def __array__(self, dtype=None, copy=None):
            return np.array([0.7], dtype=dtype)

    tree = Tree.stump(0, 0.5, 0, 1, ONE, AB)
    assert tree.act(Tensor()) == tree.predict(Tensor().__array__()[None])[0] == 1
    for wrong in (["0.7"], np.array(["0.7"]), np.array([0.7j])):
        with pytest.raises(CustardError, match="takes 1 numbers"):
            tree.act(wrong)


def test_vector_actions_are_handed_out_fresh():
    tree = Tree.leaf([0.5], ONE, Actions("box", ("u",), low=[-1], high=[1]))
    action = tree.act([0.0])
    action += 1.0
    assert tree.act([0.0]).tolist() == [0.5]


def test_ragged_observations_are_refused():
    tree = Tree.stump(0, 0.5, 0, 1, Features(("a", "b"), [0, 0], [1, 1]), AB)
    for ask in (tree.predict, tree.apply):
        with pytest.raises(CustardError, match="2 numbers each"):
            ask([[1.0, 2.0], [1.0]])
    with pytest.raises(CustardError, match="2 numbers each"):
        tree.path([[1.0], [1.0, 2.0]])


def test_origins_are_stored_as_plain_data(tmp_path):
    tree = Tree.stump(0, 0.5, 0, 1, ONE, Actions("discrete", ("a", "b"), start=np.int64(0)))
    told = {"a": np.int64(3), "b": [np.float32(0.5), float("nan")], "c": np.array([1, 2]), "d": {"e": np.inf}}
    tree.with_origin(**told).save(tmp_path / "tree.json")
    assert Tree.load(tmp_path / "tree.json").origin == {"a": 3, "b": [0.5, None], "c": [1, 2], "d": {"e": None}}


@pytest.mark.parametrize(("low", "high"), [([1], [0]), ([np.nan], [0]), ([0], [np.nan])])
def test_bounds_of_actions_must_hold_something(low, high):
    with pytest.raises(CustardError, match="'u' has bounds"):
        Actions("box", ("u",), low=low, high=high)
