"""Conservative Q-Improvement (Roth, Topin, Jamshidi and Veloso 2019): split a leaf only where a split pays enough.

Q-learning in the leaves of a tree. Every leaf also learns the action values of both sides of some candidate splits. A
candidate's gain is what acting differently on its two sides would add to the value, weighted by how often the leaf and
the sides are visited. The best one of the visited leaf replaces it once its gain exceeds a bar, which rises to its
start at every split and sinks at every other step.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from custard.baselines.growing_tree import (
    DEFAULT_MAX_LEAVES,
    GrowingTree,
    TreeLearner,
    default_budget,
    find_leaf,
    greedy_action,
    learn_compiled,
    make_growing_tree,
    may_split,
    run_learner,
    split_leaf,
)
from custard.core.errors import require_least, require_shares
from custard.core.features import Features
from custard.core.numba_tools import njit
from custard.ibmdp.kernels import project, separates
from custard.ibmdp.splits import fractions
from custard.solvers.common.bounds_survey import choose_bounds
from custard.task.problem import Problem, Snapshot

__all__ = ["PRESETS", "Settings", "Tables", "learn_step", "make_tables", "solve"]


@dataclass(frozen=True)
class Settings:
    """Settings of Conservative Q-Improvement; the comments name the paper's symbols."""

    budget: int | None = None  # environment steps, judging included; None: 5 million, a tenth where Python steps
    gamma: float = 0.99  # discount
    alpha: float = 0.05  # learning rate
    visit_decay: float = 0.999  # d, of the shares of visits
    min_split_gain: float = 0.1  # H_s, the gain that a split needs at first and after each split
    min_split_gain_decay: float = 0.9999  # D, by which that gain sinks at every step without a split
    thresholds_per_feature: int = 3  # thresholds per feature that every leaf considers
    epsilon: float = 0.05  # share of random actions, at least
    epsilon_steps: int = 100_000  # learning steps over which that share sinks from 1
    max_leaves: int = DEFAULT_MAX_LEAVES  # of the tree while it grows; it is never pruned
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: a time limit is a termination
    keep_best: bool = True  # return the best tree judged; False: the last one

    def __post_init__(self) -> None:
        require_shares(self, "gamma", "alpha", "visit_decay", "min_split_gain_decay", "epsilon")
        require_least(self, 0, "min_split_gain", "epsilon_steps")
        require_least(self, 1, "thresholds_per_feature", "max_leaves")


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {"": {}},
    "paper": {"": {"alpha": 0.01, "min_split_gain_decay": 0.99, "keep_best": False}},
}


class Numbers(NamedTuple):
    """The settings that compiled code reads, by the same names."""

    gamma: float
    alpha: float
    visit_decay: float
    min_split_gain: float
    min_split_gain_decay: float


class Tables(NamedTuple):
    """All that is learned: N nodes, n features, m thresholds per feature, C = n * m candidates per leaf, A actions."""

    tree: GrowingTree
    visits: np.ndarray  # [N] v: share of the parent's visits
    lower: np.ndarray  # [N, n] bounds of each node's box
    upper: np.ndarray  # [N, n]
    threshold: np.ndarray  # [N, C] of the candidates, feature by feature; NaN where one separates nothing
    side_q: np.ndarray  # [N, C, 2, A] action values of both sides
    side_visits: np.ndarray  # [N, C, 2] shares of visits of both sides
    bar: np.ndarray  # [1] H
    low: np.ndarray  # [n]
    integer: np.ndarray  # [n] bool
    fractions: np.ndarray  # [m]
    numbers: Numbers

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint stores: the arrays themselves, not copies."""
        changing = ("visits", "lower", "upper", "threshold", "side_q", "side_visits", "bar")
        return {**self.tree.arrays(), **{f"cqi.{name}": getattr(self, name) for name in changing}}


def make_tables(problem: Problem, features: Features, settings: Settings, seed: int) -> Tables:
    """Return the tables of a single leaf whose box is the features' bounds."""
    tree, s = make_growing_tree(problem, settings, settings.max_leaves, seed), settings
    nodes, actions = tree.q.shape
    count = features.n * settings.thresholds_per_feature
    # As floats: compiled code would cut a bar that is a whole number to whole numbers.
    numbers = Numbers(*(float(getattr(s, name)) for name in Numbers._fields))
    sides = fractions(settings.thresholds_per_feature)
    tables = Tables(
        tree, np.ones(nodes), np.tile(features.low, (nodes, 1)), np.tile(features.high, (nodes, 1)),
        np.full((nodes, count), np.nan), np.zeros((nodes, count, 2, actions)), np.full((nodes, count, 2), 0.5),
        np.array([numbers.min_split_gain]), np.array(features.low), features.integer, sides, numbers,
    )  # fmt: skip
    _give_candidate_splits(tables, 0)
    return tables


@njit(cache=True)
def _give_candidate_splits(tables, leaf):
    """Give a leaf candidate splits of its box; both sides of each begin with the leaf's action values."""
    m = len(tables.fractions)
    for k in range(tables.threshold.shape[1]):
        c = k // m
        lower, upper = tables.lower[leaf, c], tables.upper[leaf, c]
        threshold = project(lower, upper, tables.fractions[k % m])
        useful = separates(tables.integer[c], tables.low[c], lower, upper, threshold)
        tables.threshold[leaf, k] = threshold if useful else np.nan
        for side in range(2):
            tables.side_visits[leaf, k, side] = 0.5
            for a in range(tables.tree.q.shape[1]):
                tables.side_q[leaf, k, side, a] = tables.tree.q[leaf, a]


@njit(cache=True)
def _count_visit(tables, leaf):
    """Count a visit of a leaf along its path; return the share of all visits that the leaf has."""
    tree, d, node, share = tables.tree, tables.numbers.visit_decay, leaf, 1.0
    while tree.parent[node] >= 0:
        parent = tree.parent[node]
        sibling = tree.left[parent] + tree.right[parent] - node
        tables.visits[node] = d * tables.visits[node] + (1.0 - d)
        tables.visits[sibling] *= d
        share *= tables.visits[node]
        node = parent
    return share


@njit(cache=True)
def learn_step(tables, x, action, reward, after, terminated):
    """Learn from one step: action values, shares of visits, the candidates of the leaf; split it if one gains enough.

    `tables` are changed in place; other arguments as in `custard.baselines.growing_tree.remember`.
    """
    tree, numbers = tables.tree, tables.numbers
    tree.size[1] += 1
    target = reward
    if not terminated:
        target += numbers.gamma * tree.q[find_leaf(tree, after)].max()
    leaf = find_leaf(tree, x)
    share = _count_visit(tables, leaf)
    q, alpha, d = tree.q[leaf], numbers.alpha, numbers.visit_decay
    q[action] = (1.0 - alpha) * q[action] + alpha * target
    m, best, best_gain, greedy = len(tables.fractions), -1, 0.0, greedy_action(q)
    for k in range(tables.threshold.shape[1]):
        threshold = tables.threshold[leaf, k]
        if np.isnan(threshold):
            continue
        hit = 0 if x[k // m] <= threshold else 1
        side_q, side_visits = tables.side_q[leaf, k], tables.side_visits[leaf, k]
        side_q[hit, action] = (1.0 - alpha) * side_q[hit, action] + alpha * target
        side_visits[0] *= d
        side_visits[1] *= d
        side_visits[hit] += 1.0 - d
        gain = 0.0
        for side in range(2):
            gain += side_visits[side] * (side_q[side].max() - side_q[side, greedy])
        if best < 0 or gain > best_gain:
            best, best_gain = k, gain
    if best < 0 or best_gain * share <= tables.bar[0] or not may_split(tree, leaf):
        tables.bar[0] *= numbers.min_split_gain_decay
        return
    _split_leaf(tables, leaf, best)
    tables.bar[0] = numbers.min_split_gain


@njit(cache=True)
def _split_leaf(tables, leaf, k):
    """Make the k-th candidate of a leaf a split; its sides become leaves with candidates of their own."""
    c, threshold = k // len(tables.fractions), tables.threshold[leaf, k]
    first = split_leaf(tables.tree, leaf, c, threshold)
    for side in range(2):
        child = first + side
        for a in range(tables.tree.q.shape[1]):
            tables.tree.q[child, a] = tables.side_q[leaf, k, side, a]
        tables.visits[child] = tables.side_visits[leaf, k, side]
        for i in range(tables.lower.shape[1]):
            tables.lower[child, i], tables.upper[child, i] = tables.lower[leaf, i], tables.upper[leaf, i]
    tables.upper[first, c] = tables.lower[first + 1, c] = threshold
    _give_candidate_splits(tables, first)
    _give_candidate_splits(tables, first + 1)


@njit(cache=True)
def _learn_held_step(held, x, action, reward, after, terminated):
    learn_step(held.values, x, action, reward, after, terminated)


@njit(cache=True)
def _learn_compiled(tables, episodes, steps):
    learn_compiled(tables, episodes, steps, learn_step)


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn until the budget is used; yield the best tree judged (with `keep_best=False` the last one) at intervals."""
    problem.require_discrete_actions("cqi")
    budget = default_budget(problem, settings.budget)
    features, steps = choose_bounds(problem, problem.seeds("bounds")["bounds"], budget)
    features.require_bounded()
    tables = make_tables(problem, features, settings, problem.seeds("learner")["learner"])
    learner = TreeLearner(problem, features, tables, settings, budget, _learn_compiled, _learn_held_step)
    yield from run_learner(problem, learner, budget, steps + problem.probe_steps, settings.keep_best, state)
