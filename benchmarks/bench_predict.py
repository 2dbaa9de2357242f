"""`tree.predict` and `tree.act` on a depth-5 tree against scikit-learn's `predict` on the same tree and batch.

.venv/bin/python benchmarks/bench_predict.py
"""

import numpy as np
from sklearn.tree import DecisionTreeClassifier
from timing import best_of, row

from custard import Actions, Features, Tree


def same_tree(n, rng):
    """A depth-5 tree fitted to noise, so that every branch is a coin toss, in both libraries' forms."""
    x = rng.normal(size=(20_000, n)).astype(np.float32)
    theirs = DecisionTreeClassifier(max_depth=5, random_state=0).fit(x, rng.integers(3, size=len(x)))
    t = theirs.tree_
    features = Features(tuple(f"f{i}" for i in range(n)), np.full(n, -5.0), np.full(n, 5.0))
    ours = Tree(
        feature=np.where(t.children_left < 0, -1, t.feature), threshold=t.threshold, children_left=t.children_left,
        children_right=t.children_right, value=t.value[:, 0].argmax(axis=1), features=features,
        actions=Actions("discrete", ("a", "b", "c")),
    )  # fmt: skip
    return ours, theirs


def main():
    rng = np.random.default_rng(0)
    for n in (4, 8):
        ours, theirs = same_tree(n, rng)
        for dtype in (np.float32, np.float64):
            x = rng.normal(size=(1_000_000, n)).astype(dtype)
            assert (ours.predict(x) == theirs.predict(x.astype(np.float32))).mean() > 0.9999
            what = f"{n} features, {dtype.__name__}"
            for count, wanted, turns in ((1_000_000, 6, 1), (256, 25, 50)):
                batch = x[:count].copy()
                seconds = best_of(
                    9,
                    theirs=lambda b=batch, k=turns: [theirs.predict(b) for _ in range(k)],
                    ours=lambda b=batch, k=turns: [ours.predict(b) for _ in range(k)],
                )
                detail = f"{seconds['ours'] / turns * 1e6:,.1f} µs against {seconds['theirs'] / turns * 1e6:,.1f} µs"
                row(
                    f"{what}: predict {count:,} rows, times as fast",
                    seconds["theirs"] / seconds["ours"],
                    wanted,
                    detail,
                )
            one, single = x[0].copy(), x[:1].copy()
            seconds = best_of(
                9,
                theirs=lambda s=single: [theirs.predict(s) for _ in range(50)],
                ours=lambda o=one: [ours.act(o) for _ in range(1000)],
            )
            act = seconds["ours"] / 1000
            row(
                f"{what}: act on one, times as fast",
                seconds["theirs"] / 50 / act,
                100,
                f"{act * 1e6:.2f} µs (wanted 2)",
            )


if __name__ == "__main__":
    main()
