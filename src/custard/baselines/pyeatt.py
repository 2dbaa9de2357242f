"""The tree learner of Pyeatt and Howe (2001): split a leaf whose action values keep changing in different directions.

Q-learning in the leaves of a tree. A leaf remembers where its last greedy steps were taken and by how much each changed
the action value. If the changes spread widely around their mean, the leaf mixes states that should be told apart, and
it is split where a test separates the changes best.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
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
    halfway,
    learn_compiled,
    make_growing_tree,
    may_split,
    run_learner,
    split_leaf,
)
from custard.core.errors import CustardError, one_of, require_least, require_shares
from custard.core.numba_tools import njit
from custard.task.problem import Problem, Snapshot

__all__ = ["PRESETS", "SPLIT_TESTS", "Settings", "Tables", "best_split", "learn_step", "make_tables", "solve"]

SPLIT_TESTS = ("t", "information", "squares")
T_TEST, INFORMATION_GAIN, SUM_OF_SQUARES = range(3)  # their numbers in compiled code
MIN_SIDE_HISTORY_SHARE = 0.05  # on each side of a split: Welch's t of a few equal changes is arbitrarily large
MAX_MEAN_IN_DEVIATIONS_TO_SPLIT = 2.0  # a leaf whose mean change is fewer standard deviations is split
MAX_NUMBERS_IN_HISTORIES = 2**26  # 512 MiB; fewer leaves where histories would need more


@dataclass(frozen=True)
class Settings:
    """Settings of the learner of Pyeatt and Howe."""

    budget: int | None = None  # environment steps, judging included; None: 5 million, a tenth where Python steps
    split_test: str = "t"  # "t": Welch's t; "information": gain about the sign of a change; "squares": least squares
    leaf_history: int = 1000  # n, greedy steps that a leaf remembers, and needs before it is split
    gamma: float = 0.99  # discount
    alpha: float = 0.1  # learning rate
    epsilon: float = 0.05  # share of random actions, at least
    epsilon_steps: int = 100_000  # learning steps over which that share sinks from 1; 0: it is constant
    max_leaves: int = DEFAULT_MAX_LEAVES  # of the tree while it grows; it is never pruned
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: a time limit is a termination
    keep_best: bool = True  # return the best tree judged; False: the last one

    def __post_init__(self) -> None:
        if self.split_test not in SPLIT_TESTS:
            raise CustardError(one_of("split test", self.split_test, SPLIT_TESTS))
        require_shares(self, "gamma", "alpha", "epsilon")
        require_least(self, 0, "epsilon_steps")
        require_least(self, 1, "max_leaves")
        require_least(self, 4, "leaf_history")


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {"": {}},
    # The numbers of a published run of this learner, for comparison with Conservative Q-Improvement.
    "paper": {
        "": {"leaf_history": 3000, "gamma": 0.8, "alpha": 0.3, "epsilon": 0.5, "epsilon_steps": 0, "keep_best": False},
    },
}


class Numbers(NamedTuple):
    """The settings that compiled code reads."""

    gamma: float
    alpha: float
    split_test: int


class Tables(NamedTuple):
    """All that is learned: N nodes, S leaves with a history of H steps each, n features."""

    tree: GrowingTree
    slot: np.ndarray  # [N] int64: which history a leaf has
    length: np.ndarray  # [S] int64: steps ever put into a history; the last H are in it, the oldest is replaced
    x: np.ndarray  # [S, H, n] states
    change: np.ndarray  # [S, H] changes of the action value
    numbers: Numbers

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint stores: the arrays themselves, not copies."""
        return {
            **self.tree.arrays(),
            **{f"pyeatt.{name}": getattr(self, name) for name in ("slot", "length", "x", "change")},
        }


def make_tables(problem: Problem, settings: Settings, seed: int) -> Tables:
    """Return the tables of a single leaf without a history."""
    n, s = problem.base.features.n, settings
    affordable = max(1, MAX_NUMBERS_IN_HISTORIES // (s.leaf_history * (n + 1)))
    tree = make_growing_tree(problem, s, min(s.max_leaves, affordable), seed)
    nodes = len(tree.feature)
    leaves = (nodes + 1) // 2
    numbers = Numbers(float(s.gamma), float(s.alpha), SPLIT_TESTS.index(s.split_test))
    return Tables(
        tree, np.zeros(nodes, dtype=np.int64), np.zeros(leaves, dtype=np.int64), np.zeros((leaves, s.leaf_history, n)),
        np.zeros((leaves, s.leaf_history)), numbers,
    )  # fmt: skip


@njit(cache=True)
def _sign_entropy(positive, count):
    """Return the entropy, in bits, of the sign of `count` changes."""
    share = positive / count
    if share <= 0.0 or share >= 1.0:
        return 0.0
    return -share * math.log2(share) - (1.0 - share) * math.log2(1.0 - share)


@njit(cache=True)
def best_split(x, change, split_test):
    """Return feature, threshold and score of the split that separates changes [K] at states [K, n] best.

    Thresholds lie halfway between neighbouring values. Scores by test: Welch's |t| of the changes left against right,
    the information gained about their sign, the sum of squares around the mean that the split takes away. The feature
    is -1 if there is no split with enough states on both sides.
    """
    count = len(change)
    min_side = max(2, math.ceil(MIN_SIDE_HISTORY_SHARE * count))
    mean = change.mean()
    squares, positive = 0.0, 0
    for i in range(count):
        squares += (change[i] - mean) ** 2
        positive += change[i] > 0.0
    best_feature, best_threshold, best_score = -1, 0.0, -np.inf
    for c in range(x.shape[1]):
        order = np.argsort(x[:, c])
        total, left_squares, left_positive = 0.0, 0.0, 0  # of the changes less their mean
        for i in range(count - min_side):
            value = change[order[i]]
            total += value - mean
            left_squares += (value - mean) ** 2
            left_positive += value > 0.0
            below, above = x[order[i], c], x[order[i + 1], c]
            left, right = i + 1, count - i - 1
            if left < min_side or not below < above:
                continue
            # Sums of squares around the mean of each side; the totals of both sides cancel.
            left_error = max(0.0, left_squares - total * total / left)
            right_error = max(0.0, squares - left_squares - total * total / right)
            if split_test == T_TEST:
                difference = abs(total / left + total / right)
                error = math.sqrt(left_error / (left - 1) / left + right_error / (right - 1) / right)
                score = difference / error if error > 0.0 else (np.inf if difference > 0.0 else 0.0)
            elif split_test == INFORMATION_GAIN:
                after = left * _sign_entropy(left_positive, left) + right * _sign_entropy(
                    positive - left_positive, right
                )
                score = _sign_entropy(positive, count) - after / count
            else:
                score = squares - left_error - right_error
            if score > best_score:
                best_feature, best_threshold, best_score = c, halfway(below, above), score
    return best_feature, best_threshold, best_score


@njit(cache=True)
def _varies_enough_to_split(changes):
    """Return whether changes [H] spread so widely around their mean that their leaf should be split."""
    mean = changes.mean()
    squares = 0.0
    for i in range(len(changes)):
        squares += (changes[i] - mean) ** 2
    return abs(mean) < MAX_MEAN_IN_DEVIATIONS_TO_SPLIT * math.sqrt(squares / len(changes))


@njit(cache=True)
def learn_step(tables, x, action, reward, after, terminated):
    """Learn from one step; a greedy one enters its leaf's history, and the leaf may be split.

    `tables` are changed in place; other arguments as in `custard.baselines.growing_tree.remember`.
    """
    tree, numbers = tables.tree, tables.numbers
    tree.size[1] += 1
    target = reward
    if not terminated:
        target += numbers.gamma * tree.q[find_leaf(tree, after)].max()
    leaf = find_leaf(tree, x)
    is_greedy = action == greedy_action(tree.q[leaf])
    change = numbers.alpha * (target - tree.q[leaf, action])
    tree.q[leaf, action] += change
    if not is_greedy or not may_split(tree, leaf):
        return
    slot, size = tables.slot[leaf], tables.change.shape[1]
    row = tables.length[slot] % size
    tables.change[slot, row] = change
    for i in range(len(x)):
        tables.x[slot, row, i] = x[i]
    tables.length[slot] += 1
    if tables.length[slot] < size or not _varies_enough_to_split(tables.change[slot]):
        return
    feature, threshold, score = best_split(tables.x[slot], tables.change[slot], numbers.split_test)
    if feature < 0 or score <= 0.0:
        tables.length[slot] = 0  # nothing tells these states apart: look again when all of them are new
        return
    first = split_leaf(tree, leaf, feature, threshold)
    tables.slot[first], tables.slot[first + 1] = slot, (tree.size[0] - 1) // 2
    tables.length[slot] = tables.length[tables.slot[first + 1]] = 0


@njit(cache=True)
def _learn_held_step(held, x, action, reward, after, terminated):
    learn_step(held.values, x, action, reward, after, terminated)


@njit(cache=True)
def _learn_compiled(tables, episodes, steps):
    learn_compiled(tables, episodes, steps, learn_step)


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn until the budget is used; yield the best tree judged (with `keep_best=False` the last one) at intervals."""
    problem.require_discrete_actions("pyeatt")
    budget = default_budget(problem, settings.budget)
    tables = make_tables(problem, settings, problem.seeds("learner")["learner"])
    learner = TreeLearner(problem, problem.base.features, tables, settings, budget, _learn_compiled, _learn_held_step)
    yield from run_learner(problem, learner, budget, problem.probe_steps, settings.keep_best, state)
