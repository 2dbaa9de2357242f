"""How long a decision of the exported C takes: `python benchmarks/bench_c_export.py [--json] [--csv FILE]`.

Complete trees of depths 3, 5, 8 and 12 over four features, both layouts of our C beside emlearn (inline), micromlgen
and m2cgen (those that are installed: `pip install emlearn micromlgen m2cgen`), all generated from the same tree,
compiled with the same options and called through a function that is not inlined, as from another file. "random"
observations take every branch with equal chance, which a processor cannot foresee; "episode" observations follow each
other as in a control loop. Rivals take turns, and each is judged by its best pass, so that other programs disturb all
alike. Each rival decides on the type it is written for (double; emlearn and micromlgen float; ours both), and its
decisions are compared with the tree's.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from custard import Actions, Features, Tree
from custard.lab.speed import TIMING_LOOP_C
from custard.tree.export.c import to_c
from custard.tree.export.sklearn import to_sklearn

DEPTHS = (3, 5, 8, 12)
FLAGS = ["-O2", "-w"]


def complete_tree(depth: int, seed: int = 0) -> Tree:
    """A complete tree whose thresholds are medians, so that all leaves are about equally likely under a normal law."""
    rng = np.random.default_rng(seed)
    probe = rng.standard_normal((1 << 18, 4)).astype(np.float32).astype(np.float64)
    feature, threshold, left, right, value = [], [], [], [], []
    level = [np.arange(len(probe))]
    for at in range(depth + 1):
        following = []
        for k, rows in enumerate(level):
            here = 2**at - 1 + k
            leaf = at == depth
            c = -1 if leaf else int(rng.integers(4))
            t = 0.0 if leaf else float(np.float32(np.median(probe[rows, c])))
            feature.append(c)
            threshold.append(t)
            left.append(-1 if leaf else 2 * here + 1)
            right.append(-1 if leaf else 2 * here + 2)
            value.append(k % 3 if leaf and k < 3 else int(rng.integers(3)) if leaf else 0)
            if not leaf:
                below = probe[rows, c] <= t
                following += [rows[below], rows[~below]]
        level = following
    features = Features(("a", "b", "c", "d"), [-9] * 4, [9] * 4)
    return Tree(feature, threshold, left, right, value, features, Actions("discrete", ("x", "y", "z")))


def ours(layout: str, kind: str = "double") -> Callable[[Tree], tuple[str, str, str, str]]:
    function = "custard_act" if kind == "double" else "custard_act_f"
    return lambda tree: (to_c(tree, layout), kind, f"{function}(X)", "c")


def emlearn(tree: Tree) -> tuple[str, str, str, str]:
    import emlearn as library

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.h"
        library.convert(to_sklearn(tree), method="inline", dtype="float").save(file=str(path), name="model")
        source = path.read_text()
    return source, "float", "model_predict(X, N)", f"c -I{library.includedir}"


def micromlgen(tree: Tree) -> tuple[str, str, str, str]:
    from micromlgen import port

    source = port(to_sklearn(tree)).replace("#pragma once", "")
    return f"{source}\nstatic Eloquent::ML::Port::DecisionTree model;\n", "float", "model.predict((float *)(X))", "c++"


def m2cgen(tree: Tree) -> tuple[str, str, str, str]:
    import sys

    import m2cgen as library

    sys.setrecursionlimit(100_000)
    source = library.export_to_c(to_sklearn(tree))
    best = (
        "static int most_likely(double *x) { double p[3]; score(x, p); int k = 0; "
        "for (int i = 1; i < 3; i++) if (p[i] > p[k]) k = i; return k; }\n"
    )
    return source + best, "double", "most_likely(X)", "c"


RIVALS: dict[str, Callable[[Tree], tuple[str, str, str, str]]] = {
    "nested": ours("nested"), "table": ours("table"), "nested float": ours("nested", "float"),
    "table float": ours("table", "float"), "emlearn": emlearn, "micromlgen": micromlgen, "m2cgen": m2cgen,
}  # fmt: skip


def build(name: str, tree: Tree, folder: Path) -> tuple[Path, str] | None:
    """Compile a rival; None where it is not installed."""
    try:
        source, kind, decide, how = RIVALS[name](tree)
    except ImportError:
        return None
    language, *options = how.split(" ")
    place = folder / f"{name.replace(' ', '_')}_{tree.depth}"
    head = "#define _POSIX_C_SOURCE 199309L\n#define N 4\n#define DECIDE(X) all += decided(X)\n"
    # Called as from another file, all alike: which rival the compiler inlines into the loop would decide otherwise.
    call = f"static __attribute__((noinline)) int decided({kind} *X) {{ return {decide}; }}\n"
    loop = TIMING_LOOP_C.replace("double *x = malloc(sizeof(double)", f"{kind} *x = ({kind} *)malloc(sizeof({kind})")
    loop = loop.replace("fread(x, sizeof(double)", f"fread(x, sizeof({kind})")
    file = place.with_suffix(".cpp" if language == "c++" else ".c")
    file.write_text(head + source + call + loop)
    compiler = "g++" if language == "c++" else "gcc"
    subprocess.run([compiler, *FLAGS, *options, "-o", place, file, "-lm"], check=True)
    return place, kind


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=10, help="passes per turn")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    walk = np.cumsum(0.02 * rng.standard_normal((options.rows, 4)), axis=0)
    inputs = {"random": rng.standard_normal((options.rows, 4)), "episode": np.arctan(walk)}
    # The same numbers for float and double.
    inputs = {name: x.astype(np.float32).astype(np.float64) for name, x in inputs.items()}
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, x in inputs.items():
            x.tofile(folder / f"{name}.double")
            x.astype(np.float32).tofile(folder / f"{name}.float")
        for depth in DEPTHS:
            tree = complete_tree(depth)
            with np.errstate():  # importing emlearn makes NumPy raise
                built = {name: program for name in RIVALS if (program := build(name, tree, folder)) is not None}
            best = {(name, given): float("inf") for name in built for given in inputs}
            expected = {given: float(tree.predict(x).sum()) for given, x in inputs.items()}
            for _ in range(options.turns):
                for name, given in best:
                    program, kind = built[name]
                    command = [program, folder / f"{given}.{kind}", str(options.rows), str(options.repeats)]
                    seconds, total = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                    if float(total) != expected[given]:
                        raise SystemExit(f"{name} decides otherwise than the tree at depth {depth}")
                    best[name, given] = min(best[name, given], float(seconds))
            for (name, given), ns in best.items():
                results.append({"depth": depth, "input": given, "rival": name, "ns_per_decision": ns})
            if not options.json:
                for given in inputs:
                    shown = "  ".join(f"{name} {best[name, given]:6.2f}" for name in built)
                    print(f"depth {depth:2} {given:8} {shown}  ns per decision", flush=True)
    if options.json:
        print(json.dumps(results))
    if options.csv is not None:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(results[0]))
            writer.writeheader()
            writer.writerows(results)


if __name__ == "__main__":
    main()
