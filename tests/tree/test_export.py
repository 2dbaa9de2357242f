"""Every format decides as the tree does, to the bit, and stays valid whatever the names are."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from custard import Actions, CustardError, Features, Tree
from custard.tree.export import FORMATS, export
from tests.strategies import hard_points

MILLION = 1_000_000
HOSTILE = (
    '"; system("rm"); //', "*/ int x; /*", "a\nb", "??/", "<img src=x onerror=alert(1)>", "while", "obs", "",
    "|x| \\N", "größe", "\u202edetsrever", "pole_angle", "POLE ANGLE", "{{7*7}}", '"""',
)  # fmt: skip


def random_tree(
    depth: int, n: int, actions: Actions, seed: int = 0, names: tuple[str, ...] = (), wild: bool = False
) -> Tree:
    """A complete tree with random questions; `wild` thresholds cover all magnitudes a float64 has."""
    rng = np.random.default_rng(seed)
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    feature = np.where(np.arange(count) < inner, rng.integers(n, size=count), -1)
    threshold = rng.standard_normal(count)
    if wild:
        threshold = rng.choice([-1, 1], count) * 10.0 ** rng.uniform(-320, 308, count)
        threshold[: min(3, count)] = (-1e300, 1e300, -0.0)[: min(3, count)]
    left = np.where(np.arange(count) < inner, 2 * np.arange(count) + 1, -1)
    right = np.where(np.arange(count) < inner, 2 * np.arange(count) + 2, -1)
    if actions.discrete:
        value = rng.integers(actions.start, actions.start + actions.n, count)
    elif actions.kind == "multi":
        value = rng.integers(-2, 4, (count, actions.size))
    else:
        value = rng.standard_normal((count, actions.size))
        value[-1, 0] = 1e308
    features = Features(names or tuple(f"f{i}" for i in range(n)), np.full(n, -np.inf), np.full(n, np.inf))
    return Tree(feature, threshold, left, right, value, features, actions)


def chain(length: int) -> Tree:
    """A tree far deeper than any language's nesting."""
    count = 2 * length + 1
    feature, left, right = np.full(count, -1), np.full(count, -1), np.full(count, -1)
    node = np.arange(length)
    feature[2 * node], left[2 * node], right[2 * node] = node % 3, 2 * node + 1, 2 * node + 2
    threshold = np.zeros(count)
    threshold[2 * node] = np.linspace(-3, 3, length)
    features = Features(("a", "b", "c"), [-1] * 3, [1] * 3)
    return Tree(feature, threshold, left, right, np.arange(count) % 4, features, FOUR)


FOUR = Actions("discrete", ("stay", "go", "jump", "go"))
BOX = Actions("box", ("torque", "brake"), low=[-np.inf] * 2, high=[np.inf] * 2)
MULTI = Actions("multi", ("x", "y", "z"), low=[-2] * 3, high=[3] * 3)
TREES = {
    "one leaf": Tree.leaf(2, Features(("a", "b"), [0, 0], [1, 1]), FOUR),
    "depth 5": random_tree(5, 4, FOUR),
    "wild": random_tree(6, 3, FOUR, 1, wild=True),
    "from five on": random_tree(3, 2, Actions("discrete", ("a", "b", "c"), start=5), 2),
    "hostile": random_tree(5, len(HOSTILE), Actions("discrete", HOSTILE), 3, HOSTILE),
    "box": random_tree(4, 3, BOX, 4),
    "multi": random_tree(4, 3, MULTI, 5),
    "deep": chain(300),
}
each_tree = pytest.mark.parametrize("tree", TREES.values(), ids=list(TREES))


def finite(tree: Tree) -> Tree:
    """The tree without infinite actions, which JSON and real arithmetic have no word for."""
    return replace(tree, value=np.nan_to_num(tree.value, posinf=1.0))


def points(tree: Tree, dtype: type = np.float64) -> np.ndarray:
    """A million points for the trees of ordinary shape, fewer for those whose point is something else."""
    ordinary = tree.depth in (5, 6) and tree.features.n <= 4
    x = hard_points(tree, MILLION if ordinary else MILLION // 20, dtype=dtype)
    inner = np.flatnonzero(tree.feature >= 0)
    if dtype is np.float64:
        for c in np.unique(tree.feature[inner]):  # every threshold itself is among the points
            assert np.isin(tree.threshold[inner[tree.feature[inner] == c]], x[:, c]).all()
    return x


def same(answer: np.ndarray, tree: Tree, x: np.ndarray) -> None:
    np.testing.assert_array_equal(answer, tree.predict(x, compiled=False))


def call(library: Path, name: str, x: np.ndarray, tree: Tree) -> np.ndarray:
    """Run a compiled batch function over rows."""
    function = getattr(ctypes.CDLL(str(library)), name)
    out = np.empty((len(x), tree.actions.size), dtype=np.float64 if tree.actions.kind == "box" else np.int64)
    x = np.ascontiguousarray(x)
    function(ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(len(x)), ctypes.c_void_p(out.ctypes.data))
    return out[:, 0] if tree.actions.discrete else out


@each_tree
def test_c(tree: Tree, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    source = export(tree, "c")
    kind = "double" if tree.actions.kind == "box" else "long long"
    loops = []
    for end, x in (("", "double"), ("_f", "float")):
        one = (
            "out[i] = custard_act{e}(x + i * {n})"
            if tree.actions.discrete
            else "custard_act{e}(x + i * {n}, out + i * {k})"
        )
        one = one.format(e=end, n=tree.features.n, k=tree.actions.size)
        loops.append(
            f"void batch{end}(const {x} *x, unsigned long count, {kind} *out) {{\n"
            f"    for (unsigned long i = 0; i < count; i++) {{ {one}; }}\n}}\n"
        )
    (tmp_path / "tree.c").write_text(source + "".join(loops))
    flags = ["-Wall", "-Wextra", "-Werror", "-std=c99", "-pedantic", "-O2", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", tmp_path / "tree.so", tmp_path / "tree.c"], check=True)
    for name, dtype in (("batch", np.float64), ("batch_f", np.float32)):
        x = points(tree, dtype)
        same(call(tmp_path / "tree.so", name, x, tree), tree, x)
    # Nothing is taken from a library, and nothing allocates.
    subprocess.run(["gcc", "-std=c99", "-c", "-O2", "-o", tmp_path / "tree.o", tmp_path / "tree.c"], check=True)
    if shutil.which("nm"):
        undefined = subprocess.run(["nm", "-u", tmp_path / "tree.o"], capture_output=True, text=True, check=True).stdout
        assert not undefined.replace("_GLOBAL_OFFSET_TABLE_", "").strip(" U\n")


def test_c_at_the_ends_of_its_numbers(tmp_path: Path) -> None:
    features = Features(("x",), [0], [1])
    for start in (2**33, 2**31 - 1, -(2**31) - 1):
        with pytest.raises(CustardError, match="does not hold actions numbered"):
            export(Tree.leaf(start, features, Actions("discrete", ("a", "b"), start=start)), "c")
    ends = Actions("multi", ("u",), low=[-np.inf], high=[np.inf])
    source = export(Tree.stump(0, 0.5, [-(2**63)], [2**63 - 1], features, ends), "c")
    assert "action[0] = (-9223372036854775807LL - 1);" in source
    assert "action[0] = 9223372036854775807LL;" in source


@each_tree
def test_rust(tree: Tree, tmp_path: Path) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    n, k = tree.features.n, tree.actions.size
    kind = "f64" if tree.actions.kind == "box" else "i64"
    put = "*o = answer;" if tree.actions.discrete else f"for j in 0..{k} {{ *o.add(j) = answer[j]; }}"
    (tmp_path / "tree.rs").write_text(
        "#![deny(warnings)]\n"
        + export(tree, "rust")
        + f"""
#[no_mangle]
pub unsafe extern "C" fn batch(x: *const f64, count: usize, out: *mut {kind}) {{
    for i in 0..count {{
        let answer = act(unsafe {{ &*(x.add(i * {n}) as *const [f64; {n}]) }});
        let o = unsafe {{ out.add(i * {k}) }};
        unsafe {{ {put} }}
    }}
}}
"""
    )
    flags = ["--crate-type", "cdylib", "--edition", "2021", "-C", "opt-level=1"]
    subprocess.run(["rustc", *flags, "-o", tmp_path / "tree.so", tmp_path / "tree.rs"], check=True)
    for dtype in (np.float64, np.float32):
        x = points(tree, dtype)
        same(call(tmp_path / "tree.so", "batch", x.astype(np.float64), tree), tree, x)


def run(source: str) -> dict:
    names: dict = {}
    exec(compile(source, "exported", "exec"), names)
    return names


@each_tree
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_python(tree: Tree, dtype: type) -> None:
    names = run(export(tree, "python"))
    assert names["FEATURES"] == tree.features.names
    x = points(tree, dtype)
    rows = list(x[:1000]) + x[1000:].tolist()  # NumPy scalars as well as Python floats
    act = names["act"]
    same(np.array([act(row) for row in rows]), tree, x)


@each_tree
def test_sklearn(tree: Tree) -> None:
    names = run(export(tree, "sklearn"))
    estimator = names["estimator"]()
    x = points(tree, np.float32)
    answer = estimator.predict(x, check_input=False)
    same(answer.reshape(-1, 1) if tree.actions.size == 1 and not tree.actions.discrete else answer, tree, x)
    # A float64 observation is decided as its nearest float32; predict refuses infinities only.
    with np.errstate(over="ignore"):
        wide = points(tree)
        wide = wide[~np.isinf(wide.astype(np.float32)).any(axis=1)][:10_000]
    same(estimator.predict(wide), tree, wide.astype(np.float32))


def test_sklearn_is_understood_by_its_own_tools() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from sklearn.base import is_classifier
    from sklearn.tree import export_text, plot_tree

    from custard.tree.export.sklearn import to_sklearn

    for name in ("depth 5", "box", "multi", "one leaf"):
        tree = TREES[name]
        estimator = to_sklearn(tree)
        assert is_classifier(estimator) == tree.actions.discrete
        assert export_text(estimator).count("\n") >= tree.n_leaves
        assert len(plot_tree(estimator)) >= tree.n_nodes
        assert estimator.get_depth() == tree.depth
        assert estimator.get_n_leaves() == tree.n_leaves
        assert len(estimator.feature_importances_) == tree.features.n
        x = hard_points(tree, 100, dtype=np.float32)
        x = np.nan_to_num(x, posinf=1, neginf=0)
        np.testing.assert_array_equal(estimator.apply(x), tree.apply(x))


def test_shap_reads_the_sklearn_tree() -> None:
    shap = pytest.importorskip("shap", reason="shap is not installed")
    from custard.tree.export.sklearn import to_sklearn

    tree = TREES["depth 5"]
    shap.TreeExplainer(to_sklearn(tree)).shap_values(np.zeros((2, tree.features.n)))


@each_tree
def test_back_from_sklearn(tree: Tree) -> None:
    from custard.tree.export.sklearn import to_sklearn

    assert Tree.from_sklearn(to_sklearn(tree), tree.features, tree.actions) == tree


def test_from_sklearn_of_fitted_estimators() -> None:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    from custard.tree.export.sklearn import from_sklearn

    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 4)).astype(np.float32)
    for y in (rng.integers(3, size=2000), np.where(x[:, 0] > 0, "right", "left"), 2 * rng.integers(2, size=2000) - 1.0):
        estimator = DecisionTreeClassifier(max_depth=7, random_state=0).fit(x, y)
        tree = from_sklearn(estimator)
        probe = hard_points(tree, 100_000, dtype=np.float32)
        probe = probe[np.isfinite(probe).all(axis=1)]
        answer = estimator.predict(probe)
        if y.dtype.kind == "U":
            answer = np.searchsorted(estimator.classes_, answer)
        np.testing.assert_array_equal(tree.predict(probe), answer)
        assert y.dtype.kind != "f" or tree.actions.names == ("action_-1", "action_0", "action_1")
    estimator = DecisionTreeRegressor(max_depth=5).fit(x, x[:, :2])
    np.testing.assert_array_equal(from_sklearn(estimator).predict(x), estimator.predict(x))
    with pytest.raises(CustardError, match="fitted DecisionTreeClassifier"):
        from_sklearn(DecisionTreeClassifier())
    with pytest.raises(CustardError, match="4 features, but 1"):
        from_sklearn(estimator, Features(("a",), [0], [1]))


def test_named_classes_are_matched_to_actions_by_name() -> None:
    from sklearn.tree import DecisionTreeClassifier

    estimator = DecisionTreeClassifier().fit([[0.0], [1.0]], ["left", "right"])
    tree = Tree.from_sklearn(estimator, actions=Actions("discrete", ("right", "stay", "left"), start=5))
    assert [tree.actions.name(tree.act([x])) for x in (0.0, 1.0)] == ["left", "right"]
    for names in (("right", "stay", "up"), ("left", "right", "left")):
        with pytest.raises(CustardError, match="matched to actions by name, and the class 'left'"):
            Tree.from_sklearn(estimator, actions=Actions("discrete", names))


@each_tree
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_onnx(tree: Tree, dtype: str) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    import onnx

    model = export(tree, "onnx", dtype=dtype)
    onnx.checker.check_model(onnx.load_from_string(model))
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    x = points(tree, np.dtype(dtype).type)
    (answer,) = session.run(["action"], {"obs": x})
    same(answer, tree, x)
    if dtype == "float64":
        narrow = points(tree, np.float32)
        same(session.run(["action"], {"obs": narrow.astype(np.float64)})[0], tree, narrow)
    same(session.run(["action"], {"obs": x[:1]})[0], tree, x[:1])


@each_tree
def test_smt2(tree: Tree) -> None:
    z3 = pytest.importorskip("z3", reason="z3-solver is not installed")
    solver = z3.Solver()
    tree = finite(tree)
    text = export(tree, "smt2")
    size = 0 if tree.actions.discrete else tree.actions.size
    results = ["action"] if not size else [f"action_{i}" for i in range(size)]
    # Make Z3 say what it read: equate each result with a fresh constant.
    sort = "Real" if tree.actions.kind == "box" else "Int"
    text = text.replace("(check-sat)\n", "")
    text += "".join(f"(declare-const result_{i} {sort})(assert (= result_{i} {r}))" for i, r in enumerate(results))
    solver.from_string(text)
    assert solver.check() == z3.sat
    x = points(tree)
    x = x[np.isfinite(x).all(axis=1)]
    from custard.tree.export.smt2 import symbols

    columns = {symbol.strip("|"): x[:, i] for i, symbol in enumerate(symbols(tree.features.names))}
    answers = [evaluate_z3(z3, assertion.arg(1), columns, len(x)) for assertion in solver.assertions()]
    same(answers[0] if tree.actions.discrete else np.stack(answers, axis=1), tree, x)


def evaluate_z3(z3, term, columns: dict[str, np.ndarray], count: int) -> np.ndarray:
    """A term as Z3 parsed it, over columns of numbers. Its fractions must be floats exactly."""
    out = np.zeros(count)
    stack = [(term, np.arange(count))]
    while stack:
        at, rows = stack.pop()
        if z3.is_app_of(at, z3.Z3_OP_ITE):
            question, yes, no = at.children()
            name, limit = str(question.arg(0).decl().name()), z3.simplify(question.arg(1)).as_fraction()
            assert question.decl().kind() == z3.Z3_OP_LE
            assert float(limit) == limit
            left = columns[name][rows] <= float(limit)
            stack += [(yes, rows[left]), (no, rows[~left])]
        else:
            number = z3.simplify(at)
            out[rows] = float(number.as_fraction()) if z3.is_rational_value(number) else number.as_long()
    return out


def read_nested(lines: list[str], tree: Tree) -> Tree:
    """A tree from the text export, for unambiguous names."""
    feature, threshold, left, right, value = [], [], [], [], []

    def node() -> int:
        line = lines.pop(0)
        content = re.sub(r"^(?:[│ ]  )*(?:├─ yes: |└─ no:  )?", "", line)
        here = len(feature)
        asked = re.fullmatch(r"(.*) ≤ (\S+)\?", content)
        feature.append(tree.features.names.index(asked[1]) if asked else -1)
        threshold.append(float(asked[2]) if asked else 0.0)
        value.append(0 if asked else tree.actions.names.index(content) + tree.actions.start)
        left.append(-1)
        right.append(-1)
        if asked:
            left[here], right[here] = node(), node()
        return here

    node()
    assert not lines
    return Tree(feature, threshold, left, right, value, tree.features, tree.actions)


def test_text_and_dot_hold_the_whole_tree() -> None:
    actions = Actions("discrete", ("a", "b", "c"))
    for seed in range(2):
        tree = random_tree(6, 3, actions, seed, wild=seed == 1)
        x = points(tree)
        same(read_nested(export(tree, "text").splitlines(), tree).predict(x, compiled=False), tree, x)
        dot = export(tree, "dot")
        labels = {int(node): text for node, text in re.findall(r'^ +(\d+) \[label="([^"]*)"', dot, re.M)}
        edges = re.findall(r'(\d+) -> (\d+) \[label="(yes|no)"\]', dot)
        assert len(labels) == tree.n_nodes
        arrays = [[-1] * tree.n_nodes for _ in range(3)]
        threshold, value = [0.0] * tree.n_nodes, [0] * tree.n_nodes
        for node, text in labels.items():
            if " ≤ " in text:
                name, limit = text.split(" ≤ ")
                arrays[0][node], threshold[node] = tree.features.names.index(name), float(limit)
            else:
                value[node] = actions.names.index(text)
        for parent, child, side in edges:
            arrays[1 if side == "yes" else 2][int(parent)] = int(child)
        back = Tree(arrays[0], threshold, arrays[1], arrays[2], value, tree.features, actions)
        same(back.predict(x, compiled=False), tree, x)


def test_text_is_one_line_a_node_whatever_the_names() -> None:
    tree = TREES["hostile"]
    assert len(export(tree, "text").splitlines()) == tree.n_nodes
    assert "\u202e" not in export(tree, "text")
    assert len(export(tree, "dot").splitlines()) == 4 + tree.n_nodes + 2 * (tree.n_leaves - 1)


@each_tree
def test_json(tree: Tree) -> None:
    tree = finite(tree)
    back = Tree.from_json(json.loads(export(tree, "json")))
    assert back == tree
    x = points(tree)
    np.testing.assert_array_equal(back.predict(x), tree.predict(x, compiled=False))


def test_a_small_c_file_in_full() -> None:
    features = Features(("pole angle", "speed"), [-1, -1], [1, 1])
    tree = Tree.stump(1, 0.1, 1, 0, features, Actions("discrete", ("left", "right")))
    assert export(tree, "c") == (
        """/* A decision tree of depth 1 with 2 leaves, written by custard.
 * It takes 2 features, in this order:
 *   obs[0]  pole angle
 *   obs[1]  speed
 * NaN goes right (the else branch) at every question. */

enum {
    CUSTARD_SPEED = 1
};

enum custard_action {
    CUSTARD_DO_LEFT = 0, CUSTARD_DO_RIGHT = 1
};

int custard_act(const double *obs)
{
    if (obs[CUSTARD_SPEED] <= 0x1.999999999999ap-4 /* 0.1 */) {
        return CUSTARD_DO_RIGHT;
    } else {
        return CUSTARD_DO_LEFT;
    }
}

int custard_act_f(const float *obs)
{
    if (obs[CUSTARD_SPEED] <= 0x1.9999980000000p-4f /* 0.1 */) {
        return CUSTARD_DO_RIGHT;
    } else {
        return CUSTARD_DO_LEFT;
    }
}
"""
    )


def test_bad_requests_are_one_line() -> None:
    with pytest.raises(CustardError, match=r"unknown format 'rustt'.*did you mean 'rust'"):
        export(TREES["depth 5"], "rustt")
    with pytest.raises(CustardError, match="discrete actions only"):
        export(TREES["box"], "prism")
    with pytest.raises(CustardError, match="name an environment"):
        export(TREES["depth 5"], "prism")
    assert set(FORMATS) == {"text", "json", "dot", "python", "c", "rust", "sklearn", "onnx", "smt2", "prism"}


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(CustardError, match=r'pip install "custard-rl\[onnx\]"'):
        export(TREES["depth 5"], "onnx")
