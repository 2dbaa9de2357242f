"""Random trees with sums and linear leaves, and observations that make sums equal to thresholds."""

from __future__ import annotations

import numpy as np

from custard import Actions, Features, Tree
from custard.core.sums import Part, Sum

__all__ = ["deep_linear_tree", "observations_for", "random_linear_tree", "random_nonlinear_tree"]


def random_linear_tree(seed: int, n: int = 5, depth: int | None = None) -> Tree:
    """Return a tree over sums: discrete actions for even seeds, linear leaves for odd ones."""
    rng = np.random.default_rng(seed)
    depth = 1 + seed % 4 if depth is None else depth
    features = Features(tuple(f"x{i}" for i in range(n)), [-3.0] * n, [3.0] * n)
    sums = [rng.normal(size=n), {1: 0.1, 3: -0.7}, {0: 1.0, 4: -1.0}, rng.normal(size=n) * (rng.random(n) < 0.6) + 1e-3]
    features = features.with_sums(sums)
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    node = np.arange(count)
    feature = np.where(node < inner, rng.integers(0, features.n, count), -1)
    feature[0] = n  # a sum at the root
    left, right = np.where(node < inner, 2 * node + 1, -1), np.where(node < inner, 2 * node + 2, -1)
    threshold = np.round(rng.normal(size=count), 2)
    if seed % 2 == 0:
        actions = Actions("discrete", ("left", "stay", "right"))
        return Tree(feature, threshold, left, right, rng.integers(0, 3, count), features, actions)
    actions = Actions("box", ("main", "side"), low=[-1.0, 0.0], high=[1.0, 2.0])
    gains = rng.normal(size=(count, 2, n)) * (rng.random((count, 2, n)) < 0.5)
    gains[-1, 1] = 0.0
    value = rng.uniform([-1.0, 0.0], [1.0, 2.0], size=(count, 2))
    return Tree(feature, threshold, left, right, value, features, actions, gains=gains)


def observations_for(tree: Tree, count: int, seed: int) -> np.ndarray:
    """Return observations [count, n_raw], half of them moved so that a sum of the tree is at its threshold or beside.

    One feature of the sum is solved for and moved by up to two units in the last place either way, so that the computed
    sum often equals the threshold. A few hold infinities and NaN.
    """
    rng = np.random.default_rng(seed)
    n = tree.features.n_raw
    x = rng.normal(size=(count, n)) * rng.choice([0.1, 1.0, 10.0], size=(count, 1))
    inner = np.flatnonzero(tree.feature >= 0)
    for i in range(0, count, 2):
        node = int(rng.choice(inner))
        total = tree.features.sum_of(int(tree.feature[node]))
        atom, weight = total.terms[int(rng.integers(len(total.terms)))]
        if not total.is_linear:  # the tree knows a point where this feature equals its threshold
            x[i] = tree.origin["points"][node]
            if rng.random() < 0.5:
                c = int(rng.integers(n))
                x[i, c] = np.nextafter(x[i, c], rng.choice([-np.inf, np.inf]))
            continue
        assert isinstance(atom, int)
        rest = float(total.values(np.where(np.arange(n) == atom, 0.0, x[i])))
        x[i, atom] = (float(tree.threshold[node]) - rest) / weight
        for _ in range(int(rng.integers(3))):
            x[i, atom] = np.nextafter(x[i, atom], rng.choice([-np.inf, np.inf]))
    x[1 : min(count, 40) : 8, int(rng.integers(n))] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e300])
    return x


def random_nonlinear_tree(seed: int) -> Tree:
    """Return a tree that asks about products, absolute values and differences of angles."""
    rng = np.random.default_rng(seed)
    x, y, angle = (Sum(((i, 1.0),)) for i in range(3))
    apart = Part("wrap", (Sum(((0, 1.0), (2, -1.0)), 0.5),))
    derived = [
        Sum(((0, 0.5), (Part("product", (x, Sum(((1, 2.0),), -0.25))), -1.5)), 0.1),
        Sum(((Part("abs", (Sum(((1, 1.0), (2, -0.3))),)), 1.0),)),
        Sum(((apart, 1.0), (Part("abs", (Sum(((apart, -0.7),)),)), 0.2), (Part("product", (y, angle)), 3.0))),
    ]
    features = Features(("x", "y", "angle"), [-3.0] * 3, [3.0] * 3).with_sums(derived, ["curve", "far", "turned"])
    feature = np.concatenate([[3, 4, 5], rng.integers(0, 6, 4), np.full(8, -1)])
    points = rng.normal(size=(7, 3))
    reached = features.extend(points)[np.arange(7), feature[:7]]  # every test has a point that meets its threshold
    threshold = np.concatenate([reached, np.zeros(8)])
    left, right = (np.concatenate([2 * np.arange(7) + side, np.full(8, -1)]) for side in (1, 2))
    actions = Actions("discrete", ("a", "b", "c"))
    origin = {"points": points.tolist()}
    return Tree(feature, threshold, left, right, rng.integers(0, 3, 15), features, actions, origin)


def deep_linear_tree(seed: int, depth: int = 70) -> Tree:
    """Return a chain that is too deep for nested ifs, with linear leaves."""
    rng = np.random.default_rng(seed)
    features = Features(("x", "y"), [-3.0] * 2, [3.0] * 2).with_sums([{0: 0.3, 1: -1.7}, {1: 2.0}], ["lean", "twice"])
    count = 2 * depth + 1
    inner = np.arange(count) % 2 == 0
    inner[-1] = False
    node = np.arange(count)
    left, right = np.where(inner, node + 1, -1), np.where(inner, node + 2, -1)
    feature = np.where(inner, rng.integers(0, 4, count), -1)
    threshold = np.where(inner, -3.0 + 0.05 * node, 0.0)
    gains = np.zeros((count, 1, 2))
    gains[::4, 0, 0] = 0.1
    gains[1::4, 0, 1] = -0.37
    actions = Actions("box", ("push",), low=[-1.0], high=[np.inf])
    return Tree(feature, threshold, left, right, rng.uniform(0, 1, (count, 1)), features, actions, gains=gains)
