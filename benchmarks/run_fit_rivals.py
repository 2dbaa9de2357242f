"""`fit_tree` beside CART (scikit-learn) and STreeD (pystreed) on data sets made here: what a tree collects, and CPU s.

python benchmarks/run_fit_rivals.py --depths 4 5 --out results/plan_fit.csv
python benchmarks/run_fit_rivals.py --sets blobs grid --depths 5         some of it, printed only; with --out these rows
                                                                         replace those of the CSV
python benchmarks/run_fit_rivals.py --page results/plan_fit.csv          the table of results/plan.md and what it shows

A data set is states and what each action is worth in each. Shares are of what lies between the best single action (0)
and the best action in every state (1). `quick` is `fit_tree` with effort=0, `proved` with effort=infinity. CART is
given the best action as label and what choosing wrongly costs as weight. `quick`, `proved`, STreeD and `cart` have 7
thresholds of each feature, at quantiles. `quick_all` is `fit_tree` as it is without `cuts`, `cart_all` CART with all
thresholds. STreeD stops after 100 s; without pystreed its columns stay empty. What takes less than a second is timed
three times and the fastest counts.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import omdt_models
from sklearn.tree import DecisionTreeClassifier
from timing import fastest

from custard import Actions, Features
from custard.planning.solve import value_iteration
from custard.tree.fit import Fitted, fit_tree, quantile_cuts

CUTS = 7  # thresholds of each feature where trees are proved the best
STREED_SECONDS = 100.0

COLUMNS = ("set", "states", "features", "actions", "max_depth", "quick", "quick_seconds", "proved", "proved_seconds",
           "is_proved", "streed", "streed_seconds", "streed_proved", "cart", "quick_all", "cart_all")  # fmt: skip

Data = tuple[np.ndarray, np.ndarray]


def labelled(x: np.ndarray, label: np.ndarray, rng: np.random.Generator, noise: float = 0.0) -> Data:
    """Return states and values: 1 for the label, 0 for others; some labels are drawn anew."""
    label = np.where(rng.random(len(x)) < noise, rng.integers(label.max() + 1, size=len(x)), label)
    return x, np.eye(int(label.max()) + 1)[label]


def joint(rng: np.random.Generator) -> Data:
    """Two features decide together, the first question alone tells nothing; noise everywhere."""
    x = rng.normal(size=(1500, 5))
    value = rng.normal(size=(1500, 3))
    same = (x[:, 0] > 0) == (x[:, 1] > 0)
    value[:, 0] += np.where(same, 1.5, 0.0)
    value[:, 1] += np.where(same, 0.0, 1.5)
    return x, value


def linear(rng: np.random.Generator) -> Data:
    """Action values that are linear in the features."""
    x = rng.normal(size=(1500, 4))
    return x, x @ rng.normal(size=(4, 3)) + rng.normal(size=3)


def waves(rng: np.random.Generator) -> Data:
    """Sums of sines."""
    x = rng.normal(size=(1000, 3))
    return labelled(x, (x @ rng.normal(size=(3, 3)) + np.sin(3 * x @ rng.normal(size=(3, 3)))).argmax(axis=1), rng)


def chequers(rng: np.random.Generator) -> Data:
    """A board of 4 by 4 fields among two more features."""
    x = rng.uniform(0, 4, size=(1500, 4))
    return labelled(x, (x[:, :2].astype(int).sum(axis=1)) % 2, rng, 0.05)


def blobs(rng: np.random.Generator) -> Data:
    """Twelve clouds of four classes."""
    centre = rng.normal(size=(12, 4)) * 2
    cloud = rng.integers(12, size=1200)
    return labelled(centre[cloud] + rng.normal(size=(1200, 4)), cloud % 4, rng)


def bits(rng: np.random.Generator) -> Data:
    """Twelve binary features; three conjunctions of three decide."""
    x = rng.integers(2, size=(800, 12)).astype(float)
    terms = [x[:, rng.choice(12, 3, replace=False)].all(axis=1) for _ in range(3)]
    return labelled(x, np.any(terms, axis=0).astype(int), rng, 0.05)


def hidden_tree(rng: np.random.Generator) -> Data:
    """A random tree of depth 6, a tenth of the labels drawn anew."""
    x = rng.uniform(size=(1500, 4))
    number = np.zeros(len(x), dtype=int)
    for _ in range(6):
        feature, cut = rng.integers(4, size=64), rng.uniform(0.2, 0.8, size=64)
        number = 2 * number + (x[np.arange(len(x)), feature[number % 64]] > cut[number % 64])
    return labelled(x, rng.integers(3, size=64)[number], rng, 0.1)


def rings(rng: np.random.Generator) -> Data:
    """Rings around the middle, few states in the small ones: values differ in size."""
    x = rng.normal(size=(1500, 3))
    radius = np.sqrt((x**2).sum(axis=1))
    label = (radius * 2).astype(int) % 3
    return x, np.eye(3)[label] * (0.2 + rng.exponential(size=(1500, 1)))


def steep(rng: np.random.Generator) -> Data:
    """Heavy tails: what matters lies within a narrow range of each feature."""
    x = rng.standard_t(1.2, size=(1500, 4))
    return labelled(x, (np.abs(x[:, 0]) < 0.3) * 1 + ((x[:, 1] > 0.05) & (x[:, 1] < 0.4)) * 1, rng)


def of_model(name: str) -> Callable[[np.random.Generator], Data]:
    """Return the best policy's action values in every state of a model."""

    def made(rng: np.random.Generator) -> Data:
        mdp = omdt_models.MODELS[name]()
        return mdp.x, value_iteration(mdp)[1] * rng.uniform(0.1, 1.0, size=(mdp.n_states, 1))

    made.__doc__ = f"Action values of {name}, states weighed at random."
    return made


SETS: dict[str, Callable[[np.random.Generator], Data]] = {
    "joint": joint, "linear": linear, "waves": waves, "chequers": chequers, "blobs": blobs, "bits": bits,
    "hidden_tree": hidden_tree, "rings": rings, "steep": steep, "frozenlake_12x12": of_model("frozenlake_12x12"),
    "sysadmin_2": of_model("sysadmin_2"), "tiger_vs_antelope": of_model("tiger_vs_antelope"),
}  # fmt: skip


def cart_total(x: np.ndarray, value: np.ndarray, depth: int) -> float:
    """Return what CART's tree collects."""
    cost = value.max(axis=1) - value.min(axis=1)
    cart = DecisionTreeClassifier(max_depth=depth, random_state=0).fit(x, value.argmax(axis=1), sample_weight=cost)
    return float(value[np.arange(len(x)), cart.predict(x)].sum())


def streed_total(x: np.ndarray, value: np.ndarray, cuts: list[np.ndarray], depth: int) -> tuple[float, float, bool]:
    """Return what STreeD's tree collects, its CPU seconds, and whether it is proved the best."""
    from pystreed import cstreed

    binary = np.concatenate([column[:, None] <= cut for cut, column in zip(cuts, x.T, strict=True)], axis=1)
    lost = value.max(axis=1, keepdims=True) - value
    given = cstreed.ParameterHandler()
    given.optimization_task, given.feature_ordering, given.verbose = "instance-cost-sensitive", "gini", False
    given.max_depth, given.max_num_nodes, given.num_extra_cols = depth, 2**depth - 1, value.shape[1]
    given.time_limit = STREED_SECONDS
    vectors = [cstreed.CostVector(row) for row in lost]
    label, binary = value.argmax(axis=1).astype(np.intc), binary.astype(np.intc)

    def solve() -> tuple[Any, Any]:
        solver = cstreed.initialize_streed_solver(given, cstreed.RandomEngine(0))
        return solver, solver._solve(binary, label, vectors)

    (solver, result), took = fastest(solve)
    chosen = np.asarray(solver._predict(result, binary, vectors)).astype(int)
    return float(value[np.arange(len(x)), chosen].sum()), took, bool(result.is_optimal())


def measured(name: str, depth: int, seed: int) -> dict[str, object]:
    """Return one row."""
    x, value = SETS[name](np.random.default_rng(seed))
    features = Features(tuple(f"f{i}" for i in range(x.shape[1])), x.min(axis=0), x.max(axis=0))
    actions = Actions("discrete", tuple(f"a{i}" for i in range(value.shape[1])))
    cuts = quantile_cuts(x, CUTS)
    codes = np.stack([np.searchsorted(cut, column) for cut, column in zip(cuts, x.T, strict=True)], axis=1)

    def fitted(effort: float, cuts: list[np.ndarray] | None) -> tuple[Fitted, float]:
        return fastest(lambda: fit_tree(x, value, features, actions, max_depth=depth, cuts=cuts, effort=effort))

    quick, quick_seconds = fitted(0, cuts)
    proved, proved_seconds = fitted(np.inf, cuts)
    quick_all, _ = fitted(0, None)
    try:
        streed = streed_total(x, value, cuts, depth)
    except ImportError:
        streed = None
    low, high = float(value.sum(axis=0).max()), float(value.max(axis=1).sum())

    def share(total: float) -> float:
        return round((total - low) / (high - low), 6)

    optimal = ("", "", "") if streed is None else (share(streed[0]), round(streed[1], 4), int(streed[2]))
    if streed is not None and streed[2] and proved.exact:
        assert abs(streed[0] - proved.total) <= 1e-6 * max(1.0, abs(streed[0])), "one of the two proofs is wrong"
    return dict(zip(COLUMNS, (
        name, *x.shape, value.shape[1], depth, share(quick.total), round(quick_seconds, 4), share(proved.total),
        round(proved_seconds, 4), int(proved.exact), *optimal, share(cart_total(codes, value, depth)),
        share(quick_all.total), share(cart_total(x, value, depth)),
    ), strict=True))  # fmt: skip


def line(row: dict[str, str]) -> str:
    """Return a row of the page's table."""
    shares = {key: f"{float(row[key]):.4f}" for key in ("quick", "proved", "cart", "quick_all", "cart_all")}
    streed = f"{float(row['streed']):.4f} | {float(row['streed_seconds']):.2f}" if row["streed"] else "– | –"
    times = [f"{float(row[key]):.2f}" for key in ("quick_seconds", "proved_seconds")]
    cells = [row["set"], row["max_depth"], shares["quick"], times[0], shares["proved"], times[1], streed]
    cells += [shares["cart"], shares["quick_all"], shares["cart_all"]]
    return "| " + " | ".join(cells) + " |"


def page(rows: list[dict[str, str]]) -> str:
    """Return the table and, in words, what it shows."""
    lines = ["| set | depth | effort 0 | s | proved | s | STreeD | s | CART | effort 0, all | CART, all |"]
    lines += ["|---" * 11 + "|", *(line(row) for row in rows), ""]
    for ours, theirs, words in (("quick", "cart", "on the same thresholds"), ("quick_all", "cart_all", "with all")):
        worse = [f"{row['set']} {row['max_depth']}" for row in rows if float(row[ours]) < float(row[theirs]) - 1e-6]
        lines.append(f"- effort 0 collects less than CART {words}: {', '.join(worse) or 'never'} ({len(rows)} rows).")
    both = [row for row in rows if row["streed"] and int(row["streed_proved"]) and int(row["is_proved"])]
    for depth in sorted({row["max_depth"] for row in both}):
        ratios = [float(r["proved_seconds"]) / float(r["streed_seconds"]) for r in both if r["max_depth"] == depth]
        lines.append(f"- Depth {depth}, CPU time of the proof over STreeD's, {len(ratios)} sets: median "
                     f"{statistics.median(ratios):.2f}, largest {max(ratios):.2f}.")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Measure, print a line per row, and write the CSV row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--depths", nargs="*", type=int, default=[4, 5])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    rows: dict[tuple[str, int], dict] = {}
    path = given.page or given.out
    if path is not None and path.exists():
        with path.open(newline="") as file:
            rows = {(row["set"], int(row["max_depth"])): row for row in csv.DictReader(file)}
    if given.page is not None:
        print(page(list(rows.values())))
        return
    measured("bits", 4, 1)  # compiles and imports
    for depth in given.depths:
        for name in given.sets:
            rows[name, depth] = measured(name, depth, given.seed)
            print(line({key: str(value) for key, value in rows[name, depth].items()}), flush=True)
            if given.out is not None:
                order = [(name, depth) for depth in range(20) for name in SETS]
                with given.out.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows[key] for key in order if key in rows)


if __name__ == "__main__":
    main()
