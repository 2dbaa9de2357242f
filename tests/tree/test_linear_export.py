"""Exports of trees with sums and linear leaves: the same bits as the tree, sums that equal thresholds included."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from custard import Actions, Features, Tree
from custard.core.errors import CustardError
from custard.tree.export import export
from tests.tree.linear_trees import deep_linear_tree, observations_for, random_linear_tree, random_nonlinear_tree

POINTS = 20_000  # benchmarks/exact_exports.py does a million

TREES = {
    "discrete": random_linear_tree(2),
    "linear leaves": random_linear_tree(3),
    "stump": random_linear_tree(4, depth=1),
    "not linear": random_nonlinear_tree(0),
    "deep": deep_linear_tree(0),
    "one linear leaf": Tree(
        [-1], [0], [-1], [-1], [[0.0, 5.0]], Features(("x", "y"), [-1, -1], [1, 1]),
        Actions("box", ("u", "v"), low=[-1, -np.inf], high=[1, 2]), gains=[[[1.0, 0.0], [-0.1, 0.7]]],
    ),
}  # fmt: skip
each_tree = pytest.mark.parametrize("tree", list(TREES.values()), ids=list(TREES))


def same(answer: np.ndarray, tree: Tree, x: np.ndarray) -> None:
    expected = tree.predict(x, compiled=False)
    np.testing.assert_array_equal(answer.reshape(expected.shape), expected)


def test_the_points_reach_both_sides_of_a_threshold_and_the_threshold_itself() -> None:
    tree = TREES["discrete"]
    x = tree.features.extend(observations_for(tree, POINTS, 1))
    root = x[:, tree.feature[0]] - tree.threshold[0]
    assert (root == 0).sum() > 100
    assert ((np.abs(root) > 0) & (np.abs(root) < 1e-14)).sum() > 100


def run_batch(library: Path, name: str, x: np.ndarray, tree: Tree) -> np.ndarray:
    function = getattr(ctypes.CDLL(str(library)), name)
    out = np.empty((len(x), tree.actions.size), dtype=np.float64 if tree.actions.kind == "box" else np.int64)
    x = np.ascontiguousarray(x)
    function(ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(len(x)), ctypes.c_void_p(out.ctypes.data))
    return out


@each_tree
def test_c(tree: Tree, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    x = observations_for(tree, POINTS, 0) if tree.n_nodes > 1 else np.random.default_rng(0).normal(size=(POINTS, 2))
    kind = "double" if tree.actions.kind == "box" else "long long"
    n, k = tree.features.n_raw, tree.actions.size
    for layout in ("table",) if tree.depth > 60 else ("nested", "table"):
        text = export(tree, "c", layout=layout)
        assert "-ffp-contract=off" in text
        assert "#pragma STDC FP_CONTRACT OFF" in text
        for end, one in (("", "double"), ("_f", "float")):
            call = f"out[i] = custard_act{end}(x + i * {n})"
            if not tree.actions.discrete:
                call = f"custard_act{end}(x + i * {n}, out + i * {k})"
            text += (
                f"void batch{end}(const {one} *x, unsigned long count, {kind} *out) {{\n"
                f"    for (unsigned long i = 0; i < count; i++) {{ {call}; }}\n}}\n"
            )
        (tmp_path / f"{layout}.c").write_text(text)
        # With the machine's own instructions, which often include a fused multiply-add.
        flags = ["-Wall", "-Wextra", "-Werror", "-std=c99", "-pedantic", "-O3", "-march=native", "-shared", "-fPIC"]
        command = ["gcc", *flags, "-o", tmp_path / f"{layout}.so", tmp_path / f"{layout}.c", "-lm"]
        subprocess.run(command, check=True)
        same(run_batch(tmp_path / f"{layout}.so", "batch", x, tree), tree, x)
        with np.errstate(over="ignore"):
            single = x.astype(np.float32)
        same(run_batch(tmp_path / f"{layout}.so", "batch_f", single, tree), tree, single)


@pytest.mark.parametrize("name", ["discrete", "linear leaves", "not linear", "deep"])
def test_rust(name: str, tmp_path: Path) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    tree = TREES[name]
    n, k = tree.features.n_raw, tree.actions.size
    kind = "f64" if tree.actions.kind == "box" else "i64"
    put = "*o = answer;" if tree.actions.discrete else f"for j in 0..{k} {{ *o.add(j) = answer[j]; }}"
    (tmp_path / "tree.rs").write_text(
        f"""#![deny(warnings)]
{export(tree, "rust")}
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
    flags = ["--crate-type", "cdylib", "--edition", "2021", "-C", "opt-level=2", "-C", "target-cpu=native"]
    subprocess.run(["rustc", *flags, "-o", tmp_path / "tree.so", tmp_path / "tree.rs"], check=True)
    x = observations_for(tree, POINTS, 0)
    same(run_batch(tmp_path / "tree.so", "batch", x, tree), tree, x)


@each_tree
def test_python(tree: Tree) -> None:
    space: dict = {}
    exec(compile(export(tree, "python"), "tree.py", "exec"), space)
    x = observations_for(tree, 2000, 0) if tree.n_nodes > 1 else np.random.default_rng(0).normal(size=(2000, 2))
    same(np.array([space["act"](row) for row in x.tolist()]), tree, x)
    assert space["FEATURES"] == tree.features.raw.names


@each_tree
def test_onnx(tree: Tree) -> None:
    runtime = pytest.importorskip("onnxruntime")
    x = observations_for(tree, POINTS, 0) if tree.n_nodes > 1 else np.random.default_rng(0).normal(size=(POINTS, 2))
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    for dtype, given in (("float64", x), ("float32", single)):
        session = runtime.InferenceSession(export(tree, "onnx", dtype=dtype), providers=["CPUExecutionProvider"])
        (answer,) = session.run(None, {"obs": given})
        same(answer, tree, given)


@pytest.mark.parametrize("name", ["stump", "linear leaves", "not linear"])
def test_smt2_is_exact_in_floating_point(name: str) -> None:
    z3 = pytest.importorskip("z3")
    tree = TREES[name]
    text = export(tree, "smt2").replace("(check-sat)\n", "")
    results = ["action"] if tree.actions.discrete else [f"action_{k}" for k in range(tree.actions.size)]
    sort = z3.Float64() if tree.actions.kind == "box" else z3.IntSort()
    probes = "".join(f"(assert (= probe_{r} {r}))" for r in results)
    declared = "".join(
        f"(declare-const probe_{r} {'Float64' if tree.actions.kind == 'box' else 'Int'})" for r in results
    )
    formula = z3.And(*z3.parse_smt2_string(text + declared + probes))
    names = tree.features.raw.names
    for row in observations_for(tree, 12, 3):
        if not np.isfinite(row).all():
            continue
        known = [(z3.FP(n, z3.Float64()), z3.FPVal(v, z3.Float64())) for n, v in zip(names, row.tolist(), strict=True)]
        expected = np.atleast_1d(tree.act(row)).tolist()
        for r, value in zip(results, expected, strict=True):
            right = z3.FPVal(value, sort) if tree.actions.kind == "box" else z3.IntVal(value)
            known.append((z3.Const(f"probe_{r}", sort), right))
        assert z3.is_true(z3.simplify(z3.substitute(formula, *known)))


def test_formats_that_cannot_hold_sums_say_so() -> None:
    with pytest.raises(CustardError, match="scikit-learn's trees compare single features"):
        export(TREES["discrete"], "sklearn")
    with pytest.raises(CustardError, match="scikit-learn's trees hold constant leaves"):
        export(TREES["one linear leaf"], "sklearn")
    with pytest.raises(CustardError, match="choose table"):
        export(TREES["deep"], "c", layout="nested")
    with pytest.raises(CustardError, match="unknown layout 'row'"):
        export(TREES["discrete"], "c", layout="row")


def test_text_dot_and_json_hold_sums_and_gains() -> None:
    tree = TREES["one linear leaf"]
    assert export(tree, "text") == "u=clip(x, -1.0, 1.0), v=clip(5.0 - 0.1*x + 0.7*y, -inf, 2.0)\n"
    assert "clip(5 - 0.1*x + 0.7*y" in export(tree, "dot")
    for each in TREES.values():
        assert export(each, "text")
        import json

        assert Tree.from_json(json.loads(export(each, "json"))) == each
