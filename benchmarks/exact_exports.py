"""Compare exports of trees with sums and linear leaves to the tree: `PYTHONPATH=. python benchmarks/exact_exports.py`.

Half of the points (a million by default, for every tree) are moved so that a sum equals a threshold or lies within two
units in the last place of it; some hold NaN and infinities. C is compiled with -O3 -march=native, in both layouts, for
double and float, Rust with target-cpu=native: fused multiply-adds would show. Python gets a hundredth of the points.
Prints one line per tree and format with the number of points that differ, and fails if there is one.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from custard import Tree
from custard.tree.export import export
from tests.tree.linear_trees import deep_linear_tree, observations_for, random_linear_tree, random_nonlinear_tree
from tests.tree.test_linear_export import run_batch

TREES = {
    "discrete, depth 3": random_linear_tree(2), "linear leaves, depth 4": random_linear_tree(3),
    "products, angles": random_nonlinear_tree(0), "linear leaves, depth 70": deep_linear_tree(0),
}  # fmt: skip


def from_c(tree: Tree, x: np.ndarray, layout: str, single: bool, folder: Path) -> np.ndarray:
    n, k = tree.features.n_raw, tree.actions.size
    end, one = ("_f", "float") if single else ("", "double")
    kind = "double" if tree.actions.kind == "box" else "long long"
    call = f"out[i] = custard_act{end}(x + i * {n})"
    if not tree.actions.discrete:
        call = f"custard_act{end}(x + i * {n}, out + i * {k})"
    batch = f"void batch(const {one} *x, unsigned long count, {kind} *out)"
    text = export(tree, "c", layout=layout) + f"{batch} {{ for (unsigned long i = 0; i < count; i++) {{ {call}; }} }}\n"  # type: ignore[operator]
    file = folder / f"{id(tree)}_{layout}{end}.c"
    file.write_text(text)
    flags = ["-std=c99", "-O3", "-march=native", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", file.with_suffix(".so"), file, "-lm"], check=True)
    return run_batch(file.with_suffix(".so"), "batch", x, tree)


def from_rust(tree: Tree, x: np.ndarray, folder: Path) -> np.ndarray:
    n, k = tree.features.n_raw, tree.actions.size
    kind = "f64" if tree.actions.kind == "box" else "i64"
    put = "*o = answer;" if tree.actions.discrete else f"for j in 0..{k} {{ *o.add(j) = answer[j]; }}"
    file = folder / f"{id(tree)}.rs"
    file.write_text(
        f"""{export(tree, "rust")}
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
    flags = ["--crate-type", "cdylib", "--edition", "2021", "-C", "opt-level=3", "-C", "target-cpu=native"]
    subprocess.run(["rustc", *flags, "-o", file.with_suffix(".so"), file], check=True)
    return run_batch(file.with_suffix(".so"), "batch", x, tree)


def from_python(tree: Tree, x: np.ndarray) -> np.ndarray:
    space: dict = {}
    exec(compile(export(tree, "python"), "tree.py", "exec"), space)
    return np.array([space["act"](row) for row in x.tolist()])


def from_onnx(tree: Tree, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(export(tree, "onnx"), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"obs": x})[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="trees whose name holds this text")
    points, only = (options := parser.parse_args()).points, options.only
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, tree in ((name, tree) for name, tree in TREES.items() if only in name):
            x = observations_for(tree, points, 0)
            full = tree.features.extend(x)
            equal = sum(
                int((full[:, tree.feature[k]] == tree.threshold[k]).sum()) for k in np.flatnonzero(tree.feature >= 0)
            )
            with np.errstate(over="ignore"):
                single = x.astype(np.float32)
            layouts = ("table",) if tree.depth > 60 else ("nested", "table")
            answers = {
                "predict": (tree.predict(x), x), "onnx": (from_onnx(tree, x), x),
                "rust": (from_rust(tree, x, folder), x),
                "python": (from_python(tree, x[: points // 100]), x[: points // 100]),
                "act": (np.array([tree.act(row) for row in x[: points // 100]]), x[: points // 100]),
                **{f"c {layout}": (from_c(tree, x, layout, False, folder), x) for layout in layouts},
                **{f"c {layout} float": (from_c(tree, single, layout, True, folder), single) for layout in layouts},
            }  # fmt: skip
            print(f"{name}: {points:,} points, {equal:,} comparisons of equal numbers")
            for what, (answer, given) in answers.items():
                expected = tree.predict(given, compiled=False)
                same = (answer.reshape(expected.shape) == expected) | (
                    np.isnan(answer.reshape(expected.shape)) & np.isnan(expected)
                )
                differing = int((~same.reshape(len(given), -1).all(axis=1)).sum())
                failed += differing
                print(f"  {what:16} {len(given):>9,} points, {differing} differ", flush=True)
    if failed:
        raise SystemExit("some exports differ from the tree")


if __name__ == "__main__":
    main()
