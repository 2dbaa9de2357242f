"""CART on every state of PrereqWorld m = 7 but the goal's, labelled by backward induction with ties broken at random.

    python benchmarks/run_viper_all_states.py

One row per seed in results/viper_all_states.csv: depth, leaves and exact return of the tree, all states counting alike.
VIPER fits the states that rollouts visit instead.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from sklearn.tree import DecisionTreeClassifier

from custard.core.spaces import describe
from custard.planning.model import model_of
from custard.planning.solve import value_iteration
from custard.planning.yardstick import exact_return
from custard.task.source import source
from custard.tree.export.sklearn import from_sklearn
from custard.tree.simplify import simplify

OUT = Path(__file__).parents[1] / "results" / "viper_all_states.csv"
SEEDS = range(1000, 1050)
EQUAL = 1e-9  # actions whose values differ by less are ties


def main() -> None:
    """Fit one tree per seed."""
    where = source("custard/PrereqWorld-v0", {"m": 7})
    mdp, base = model_of(where, gamma=1.0), describe(where.make_vec(1))
    value, q = value_iteration(mdp)[:2]
    states = np.flatnonzero(mdp.x[:, 0] == 0)  # the goal is not made yet
    best = np.abs(q[states] - value[states, None]) < EQUAL
    rows = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        label = np.array([rng.choice(np.flatnonzero(row)) for row in best])
        cart = DecisionTreeClassifier(random_state=seed).fit(mdp.x[states], label)
        tree = simplify(from_sklearn(cart, base.features, base.actions))
        rows.append({"seed": seed, "states": len(states), "depth": tree.depth, "leaves": tree.n_leaves,
                     "return": exact_return(where, tree)})  # fmt: skip
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for name in ("depth", "leaves", "return"):
        column = np.array([row[name] for row in rows])
        print(f"{name} {column.mean():.2f} ({column.std(ddof=1):.2f})")


if __name__ == "__main__":
    main()
