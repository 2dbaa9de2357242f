"""Continuous U-Tree (Uther and Veloso 1998): split leaves whose states differ in what follows, then plan over leaves.

Learning goes in phases. Each gathers transitions with the present policy. Then every remembered transition is worth its
reward and the discounted value of the leaf it led to, and a leaf is split where these values differ most from one side
to the other, until no leaf splits any more. The leaves are the states of a finite MDP whose model is counted, and value
iteration gives their action values.
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
    PhasedLearner,
    default_budget,
    evenly_spaced,
    find_leaf,
    halfway,
    ks_scale,
    ks_threshold,
    learn_compiled,
    make_growing_tree,
    may_split,
    remember,
    run_learner,
    split_leaf,
)
from custard.core.errors import CustardError, one_of, require_least, require_shares
from custard.core.numba_tools import njit
from custard.task.problem import Problem, Snapshot
from custard.tree.tree import LEAF

__all__ = [
    "PRESETS", "SPLIT_TESTS", "Settings", "best_ks_split", "best_variance_split", "ks_scale", "ks_statistic", "solve",
]  # fmt: skip

SPLIT_TESTS = ("ks", "variance")
DEFAULT_PHASES_PER_RUN = 40  # unless the length of a phase is given
MAX_VALUE_ITERATION_SWEEPS = 2000
VALUE_ITERATION_TOLERANCE = 1e-5  # share of the largest value by which the last sweep may change any
MAX_SPLIT_ROUNDS_PER_PHASE = 30


@dataclass(frozen=True)
class Settings:
    """Settings of continuous U-Tree."""

    budget: int | None = None  # environment steps, judging included; None: 5 million, a tenth where Python steps
    split_test: str = "ks"  # "ks": Kolmogorov-Smirnov; "variance": least squares
    max_p_value: float = 0.05  # probability below which the Kolmogorov-Smirnov test splits
    variance_gain: float = 0.1  # share of a leaf's squared error that a split by least squares must take away
    min_side: int = 10  # transitions of the tested action on each side of a split
    max_tested: int = 400  # transitions per leaf and action that a test looks at; evenly spaced if there are more
    phase_steps: int | None = None  # environment steps per phase; None: a fortieth of the budget
    memory: int = 50_000  # transitions remembered, the newest ones
    gamma: float = 0.99  # discount
    epsilon: float = 0.1  # share of random actions, at least
    epsilon_steps: int = 100_000  # learning steps over which that share sinks from 1; 0: it is constant
    max_leaves: int = DEFAULT_MAX_LEAVES  # of the tree while it grows; it is never pruned
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: a time limit is a termination
    keep_best: bool = True  # return the best tree judged; False: the last one

    def __post_init__(self) -> None:
        if self.split_test not in SPLIT_TESTS:
            raise CustardError(one_of("split test", self.split_test, SPLIT_TESTS))
        require_shares(self, "max_p_value", "variance_gain", "gamma", "epsilon")
        require_least(self, 0, "epsilon_steps")
        require_least(self, 1, "min_side", "phase_steps", "memory", "max_leaves")
        require_least(self, 2, "max_tested")


PRESETS: dict[str, dict[str, dict[str, Any]]] = {"tuned": {"": {}}, "paper": {"": {"keep_best": False}}}


class Tables(NamedTuple):
    """The tree and the remembered transitions: M of them, n features."""

    tree: GrowingTree
    x: np.ndarray  # [M, n] the states before
    action: np.ndarray  # [M] int64, numbered from 0
    reward: np.ndarray  # [M]
    after: np.ndarray  # [M, n] the states after
    terminated: np.ndarray  # [M] bool
    phase: np.ndarray  # [1] int64: steps of the present phase

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint stores: the arrays themselves, not copies."""
        changing = ("x", "action", "reward", "after", "terminated", "phase")
        return {**self.tree.arrays(), **{f"cutree.{name}": getattr(self, name) for name in changing}}


# -- split tests ------------------------------------------------------------------------------------------------------


@njit(cache=True)
def ks_statistic(is_left, q, order):
    """Return the largest distance between the distributions of q [K] left and right; `order` sorts q."""
    count, lefts = len(q), 0
    for i in range(count):
        lefts += is_left[i]
    left, right, largest = 0, 0, 0.0
    for k in range(count):
        i = order[k]
        if is_left[i]:
            left += 1
        else:
            right += 1
        if k + 1 < count and q[order[k + 1]] == q[i]:  # equal values count together
            continue
        largest = max(largest, abs(left / lefts - right / (count - lefts)))
    return largest


@njit(cache=True)
def best_ks_split(x, q, min_side, scale):
    """Return feature, threshold and D of the split with the largest D among those that the test accepts.

    x         [K, n] states of one leaf, in which one action was taken
    q         [K] their sampled action values
    min_side  states on each side, at least
    scale     what `ks_scale` returns for the test's probability

    Thresholds lie halfway between neighbouring values. The feature is -1 if no split is accepted.
    """
    count = len(q)
    order, is_left = np.argsort(q), np.zeros(count, np.bool_)
    best_feature, best_threshold, best_d = -1, 0.0, 0.0
    for c in range(x.shape[1]):
        by_value = np.argsort(x[:, c])
        is_left[:] = False
        for k in range(count - min_side):
            is_left[by_value[k]] = True
            below, above = x[by_value[k], c], x[by_value[k + 1], c]
            if k + 1 < min_side or not below < above:
                continue
            min_d = ks_threshold(scale, (k + 1.0) * (count - k - 1.0) / count)
            if min_d >= 1.0:
                continue
            d = ks_statistic(is_left, q, order)
            if d > min_d and d > best_d:
                best_feature, best_threshold, best_d = c, halfway(below, above), d
    return best_feature, best_threshold, best_d


@njit(cache=True)
def best_variance_split(x, q, min_side, min_gain):
    """Return feature, threshold and gain of the split with the least n_left var_left + n_right var_right.

    The gain is by how much that is less than n var without a split; the feature is -1 if it is less than the share
    `min_gain` of that. Other arguments as in `best_ks_split`.
    """
    count, mean = len(q), q.mean()
    squares = 0.0
    for i in range(count):
        squares += (q[i] - mean) ** 2
    best_feature, best_threshold, best_gain = -1, 0.0, min_gain * squares
    for c in range(x.shape[1]):
        by_value = np.argsort(x[:, c])
        total = 0.0
        for k in range(count - min_side):
            total += q[by_value[k]] - mean
            below, above = x[by_value[k], c], x[by_value[k + 1], c]
            if k + 1 < min_side or not below < above:
                continue
            gain = total * total / (k + 1) + total * total / (count - k - 1)
            if gain > best_gain:
                best_feature, best_threshold, best_gain = c, halfway(below, above), gain
    return best_feature, best_threshold, best_gain


# -- the finite MDP of the leaves -------------------------------------------------------------------------------------


@njit(cache=True)
def _find_leaves(tree, x):
    """Return the leaf of each state [M, n]."""
    leaves = np.zeros(len(x), np.int64)
    for i in range(len(x)):
        leaves[i] = find_leaf(tree, x[i])
    return leaves


def _run_value_iteration(tables: Tables, count: int, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Write the action values of the counted model into the leaves.

    An action never taken in a leaf is worth as much as the worst that was; a leaf without transitions keeps its values.
    Returns the leaf of each transition [M], and its sampled action value: reward + gamma * value of the next leaf.
    """
    tree = tables.tree
    n, n_actions = int(tree.size[0]), tree.q.shape[1]
    leaf_nodes = np.flatnonzero(tree.feature[:n] == LEAF)
    number = np.zeros(n, dtype=np.int64)
    number[leaf_nodes] = np.arange(len(leaf_nodes))
    before, after = _find_leaves(tree, tables.x[:count]), _find_leaves(tree, tables.after[:count])
    goes_on, reward = ~tables.terminated[:count], tables.reward[:count]
    pair = number[before] * n_actions + tables.action[:count]
    pairs = len(leaf_nodes) * n_actions
    visits = np.bincount(pair, minlength=pairs)
    tried, divisor = visits.reshape(-1, n_actions) > 0, np.maximum(visits, 1)
    rewards = np.bincount(pair, weights=reward, minlength=pairs) / divisor
    cells = pair[goes_on] * len(leaf_nodes) + number[after[goes_on]]
    model = np.bincount(cells, minlength=pairs * len(leaf_nodes)).reshape(pairs, -1) / divisor[:, None]
    has_transitions = np.asarray(tried.any(axis=1))
    q = tree.q[leaf_nodes].copy()
    value = q.max(axis=1)
    for _ in range(MAX_VALUE_ITERATION_SWEEPS):
        new_q = (rewards + gamma * (model @ value)).reshape(-1, n_actions)
        new_value = np.where(tried, new_q, -np.inf).max(axis=1)
        new_value = np.where(has_transitions, new_value, value)
        change, value = float(np.abs(new_value - value).max()), new_value
        if change <= VALUE_ITERATION_TOLERANCE * max(1.0, float(np.abs(value).max())):
            break
    new_q = (rewards + gamma * (model @ value)).reshape(-1, n_actions)
    worst = np.where(tried, new_q, np.inf).min(axis=1, keepdims=True)
    tree.q[leaf_nodes] = np.where(has_transitions[:, None], np.where(tried, new_q, worst), q)
    return before, reward + gamma * np.where(goes_on, value[number[after]], 0.0)


def _split_leaves(tables: Tables, before: np.ndarray, sampled_q: np.ndarray, settings: Settings) -> int:
    """Split every leaf that the test splits, at most once; return how many were split.

    `before` and `sampled_q` [M] are what `_run_value_iteration` returns.
    """
    tree, s, n_split = tables.tree, settings, 0
    scale = ks_scale(s.max_p_value) if s.split_test == "ks" else 0.0
    order = np.argsort(before, kind="stable")
    leaves, firsts = np.unique(before[order], return_index=True)
    for leaf, members in zip(leaves.tolist(), np.split(order, firsts[1:]), strict=True):
        if not may_split(tree, leaf):
            continue
        best_feature, best_threshold, best_score = -1, 0.0, 0.0
        for action in range(tree.q.shape[1]):
            tested = members[tables.action[members] == action]
            if len(tested) < 2 * s.min_side:
                continue
            tested = evenly_spaced(tested, s.max_tested)
            x, q = tables.x[tested], sampled_q[tested]
            if s.split_test == "ks":
                feature, threshold, score = best_ks_split(x, q, s.min_side, scale)
            else:
                feature, threshold, score = best_variance_split(x, q, s.min_side, float(s.variance_gain))
            if feature >= 0 and score > best_score:
                best_feature, best_threshold, best_score = feature, threshold, score
        if best_feature >= 0:
            split_leaf(tree, leaf, best_feature, best_threshold)
            n_split += 1
    return n_split


# -- transitions ------------------------------------------------------------------------------------------------------


@njit(cache=True)
def learn_step(tables, x, action, reward, after, terminated):
    """Remember a step; arguments as in `custard.baselines.growing_tree.remember`."""
    remember(tables, x, action, reward, after, terminated)
    tables.phase[0] += 1


@njit(cache=True)
def _learn_held_step(held, x, action, reward, after, terminated):
    learn_step(held.values, x, action, reward, after, terminated)


@njit(cache=True)
def _learn_compiled(tables, episodes, steps):
    learn_compiled(tables, episodes, steps, learn_step)


class _Learner(PhasedLearner):
    """Gathers transitions; splits and plans whenever a phase ends."""

    def __init__(self, problem: Problem, settings: Settings, budget: int) -> None:
        seed = problem.seeds("learner")["learner"]
        n, capacity = problem.base.features.n, settings.memory
        tables = Tables(
            make_growing_tree(problem, settings, settings.max_leaves, seed), np.zeros((capacity, n)),
            np.zeros(capacity, dtype=np.int64), np.zeros(capacity), np.zeros((capacity, n)),
            np.zeros(capacity, dtype=bool), np.zeros(1, dtype=np.int64),
        )  # fmt: skip
        super().__init__(problem, problem.base.features, tables, settings, budget, _learn_compiled, _learn_held_step)
        self.settings, self.steps_in_phase = settings, tables.phase
        self.phase_length = settings.phase_steps or max(1, budget // DEFAULT_PHASES_PER_RUN)

    def end_phase(self) -> None:
        """Split until no leaf splits any more, and plan."""
        count, gamma = int(min(self.tables.tree.size[1], len(self.tables.action))), self.settings.gamma
        before, sampled_q = _run_value_iteration(self.tables, count, gamma)
        for _ in range(MAX_SPLIT_ROUNDS_PER_PHASE):
            if not _split_leaves(self.tables, before, sampled_q, self.settings):
                break
            before, sampled_q = _run_value_iteration(self.tables, count, gamma)


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn until the budget is used; yield the best tree judged (with `keep_best=False` the last one) at intervals."""
    problem.require_discrete_actions("cutree")
    budget = default_budget(problem, settings.budget)
    learner = _Learner(problem, settings, budget)
    yield from run_learner(problem, learner, budget, problem.probe_steps, settings.keep_best, state)
