"""How long a decision of the exported C takes: `python benchmarks/bench_c_export.py [--json]`.

A complete tree of depth 5 (31 questions, 32 leaves) over four features. "random" observations take every branch with
equal chance, which a processor cannot foresee; "episode" observations follow each other as in an episode.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from custard import Actions, Features, Tree
from custard.lab.speed import c_nanoseconds


def depth_five(seed: int = 0) -> Tree:
    """A complete tree whose thresholds are medians, so that all leaves are equally likely under a normal law."""
    rng = np.random.default_rng(seed)
    probe = rng.standard_normal((1 << 16, 4))
    feature, threshold, left, right, value = [], [], [], [], []
    level = [np.arange(len(probe))]
    for depth in range(6):
        following = []
        for k, rows in enumerate(level):
            here = 2**depth - 1 + k
            leaf = depth == 5
            c = -1 if leaf else int(rng.integers(4))
            t = 0.0 if leaf else float(np.median(probe[rows, c]))
            feature.append(c)
            threshold.append(t)
            left.append(-1 if leaf else 2 * here + 1)
            right.append(-1 if leaf else 2 * here + 2)
            value.append(int(rng.integers(3)) if leaf else 0)
            if not leaf:
                below = probe[rows, c] <= t
                following += [rows[below], rows[~below]]
        level = following
    features = Features(("a", "b", "c", "d"), [-9] * 4, [9] * 4)
    return Tree(feature, threshold, left, right, value, features, Actions("discrete", ("x", "y", "z")))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    tree = depth_five()
    rng = np.random.default_rng(1)
    walk = np.cumsum(0.02 * rng.standard_normal((options.rows, 4)), axis=0)
    inputs = {"random": rng.standard_normal((options.rows, 4)), "episode": np.arctan(walk)}
    results = {name: c_nanoseconds(tree, x, options.repeats) for name, x in inputs.items()}
    if options.json:
        print(json.dumps({"depth": tree.depth, "leaves": tree.n_leaves, "ns_per_decision": results}))
    else:
        for name, value in results.items():
            print(f"{name:8} {value:6.2f} ns a decision (best of {options.repeats} passes over {options.rows:,} rows)")


if __name__ == "__main__":
    main()
