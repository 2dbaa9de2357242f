"""The optimal-tree engine against scikit-learn's CART at the same depth: value collected, and time.

CART is given what it can use: the best action of each state as the label, and what choosing wrongly costs as weight.

    .venv/bin/python benchmarks/bench_fit.py
"""

import numpy as np
from sklearn.tree import DecisionTreeClassifier
from timing import best_of, row

from custard import Actions, Features
from custard.tree.fit import fit_tree


def problem(n, count=2000, n_actions=3, seed=0):
    """Values that depend on two features jointly, with noise: the first question alone tells nothing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, n))
    value = rng.normal(size=(count, n_actions))
    value[:, 0] += np.where((x[:, 0] > 0) == (x[:, 1] > 0), 1.5, 0.0)
    value[:, 1] += np.where((x[:, 0] > 0) != (x[:, 1] > 0), 1.5, 0.0)
    return x, value


def main():
    for n in (4, 8, 16):
        x, value = problem(n)
        features = Features(tuple(f"f{i}" for i in range(n)), np.full(n, -5.0), np.full(n, 5.0))
        actions = Actions("discrete", ("a", "b", "c"))
        best, cost = value.argmax(axis=1), value.max(axis=1) - value.min(axis=1)
        for depth in (2, 3):
            cart = DecisionTreeClassifier(max_depth=depth, random_state=0).fit(x, best, sample_weight=cost)
            ours = fit_tree(x, value, features, actions, max_depth=depth)
            chosen = value[np.arange(len(x)), cart.predict(x).astype(int)].sum()
            seconds = best_of(
                3,
                cart=lambda d=depth: DecisionTreeClassifier(max_depth=d).fit(x, best, sample_weight=cost),
                ours=lambda d=depth: fit_tree(x, value, features, actions, max_depth=d),
            )
            detail = f"{seconds['ours'] * 1e3:.1f} ms against {seconds['cart'] * 1e3:.1f} ms"
            row(f"{n} features, depth {depth}: value collected / CART's", ours.total / chosen, 1, detail)


if __name__ == "__main__":
    main()
