"""U-Tree (McCallum 1996): split leaves by what was seen and done now or some steps ago, wherever that changes returns.

Every step is an instance: what was seen, what was done, the reward, and what was seen next. The leaves are the states
of a finite MDP whose model is counted, and value iteration sweeps over it while the agent acts. At intervals each leaf
is tried with a fringe of distinctions below it: if the returns of the instances that a distinction selects are
distributed otherwise than those of the whole leaf, by the Kolmogorov-Smirnov test, the leaf is split. With `history=H`
the distinctions reach H steps back, so that the tree tells apart places that look alike.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from custard.baselines.growing_tree import (
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
from custard.core.errors import CustardError, require_least, require_shares
from custard.core.numba_tools import njit
from custard.task.problem import Problem, Snapshot
from custard.tree.tree import LEAF

__all__ = ["PRESETS", "Settings", "Tables", "best_extension", "fringe_statistic", "learn_step", "make_tables", "solve"]

DEFAULT_SPLIT_TEST_ROUNDS = 100  # per run, unless the steps between two rounds are given
VALUE_SWEEPS_AFTER_SPLIT = 50  # of value iteration, when the leaves have changed
MAX_NUMBERS_IN_MODEL = 20_000_000  # of the counted model


@dataclass(frozen=True)
class Settings:
    """Settings of U-Tree."""

    budget: int | None = None  # environment steps, judging included; None: 5 million, a tenth where Python steps
    max_p_value: float = 5e-5  # probability below which the Kolmogorov-Smirnov test splits
    min_instances: int = 50  # n, instances of the tested action that a leaf, and what a distinction selects, must have
    fringe: int = 2  # distinctions tried below a leaf together: 1, or 2 where no single one is accepted
    thresholds_per_feature: int = 8  # thresholds tried per feature, at most; evenly spaced among the leaf's instances
    max_tested: int = 400  # instances per leaf and action that a test looks at; evenly spaced if there are more
    test_every: int | None = None  # steps between two rounds of tests; None: a hundredth of the budget
    sweep_every: int = 100  # steps between two sweeps of value iteration
    memory: int = 50_000  # instances remembered, the newest ones
    gamma: float = 0.99  # discount
    epsilon: float = 0.1  # share of random actions, at least
    epsilon_steps: int = 100_000  # learning steps over which that share sinks from 1; 0: it is constant
    max_leaves: int = 256  # of the tree while it grows; it is never pruned
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: a time limit is a termination
    keep_best: bool = True  # return the best tree judged; False: the last one

    def __post_init__(self) -> None:
        require_shares(self, "max_p_value", "gamma", "epsilon")
        require_least(self, 0, "epsilon_steps")
        require_least(self, 1, "test_every", "sweep_every", "memory", "max_leaves", "thresholds_per_feature")
        require_least(self, 2, "min_instances", "max_tested")
        if self.fringe not in (1, 2):
            raise CustardError(f"fringe={self.fringe} must be 1 or 2")


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {"": {}},
    "paper": {"": {"max_p_value": 0.2, "min_instances": 10, "sweep_every": 1, "keep_best": False}},
}


class Tables(NamedTuple):
    """The tree, the model of its leaves and the remembered instances: N nodes, A actions, M instances, n features."""

    tree: GrowingTree
    visits: np.ndarray  # [N, A] how often each action was taken in a leaf
    rewards: np.ndarray  # [N, A] sums of rewards
    followed: np.ndarray  # [N, A, N] how often which leaf followed
    x: np.ndarray  # [M, n] what was seen
    action: np.ndarray  # [M] int64, numbered from 0
    reward: np.ndarray  # [M]
    after: np.ndarray  # [M, n] what was seen next
    terminated: np.ndarray  # [M] bool
    since_test: np.ndarray  # [1] int64: steps since the last round of tests
    numbers: np.ndarray  # [2] gamma, steps between two sweeps

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint stores: the arrays themselves, not copies."""
        own = [name for name in self._fields if name not in ("tree", "numbers")]
        return {**self.tree.arrays(), **{f"utree.{name}": getattr(self, name) for name in own}}


def make_tables(problem: Problem, settings: Settings, seed: int) -> Tables:
    """Return the tables of a single leaf without instances."""
    s, n, actions = settings, problem.base.features.n, problem.base.actions.n
    affordable = max(1, int(math.sqrt(MAX_NUMBERS_IN_MODEL / actions)) // 2)
    tree = make_growing_tree(problem, s, min(s.max_leaves, affordable), seed)
    nodes, capacity = len(tree.feature), s.memory
    return Tables(
        tree, np.zeros((nodes, actions)), np.zeros((nodes, actions)), np.zeros((nodes, actions, nodes)),
        np.zeros((capacity, n)), np.zeros(capacity, dtype=np.int64), np.zeros(capacity), np.zeros((capacity, n)),
        np.zeros(capacity, dtype=bool), np.zeros(1, dtype=np.int64), np.array([s.gamma, float(s.sweep_every)]),
    )  # fmt: skip


# -- the finite MDP of the leaves -------------------------------------------------------------------------------------


@njit(cache=True)
def _count_instance(tables, i, sign):
    """Add instance i to the counted model, or take it away (sign -1)."""
    leaf, action = find_leaf(tables.tree, tables.x[i]), tables.action[i]
    tables.visits[leaf, action] += sign
    tables.rewards[leaf, action] += sign * tables.reward[i]
    if not tables.terminated[i]:
        tables.followed[leaf, action, find_leaf(tables.tree, tables.after[i])] += sign


@njit(cache=True)
def _recount_model(tables):
    """Count the model of the present leaves anew from all instances."""
    tables.visits[:], tables.rewards[:], tables.followed[:] = 0.0, 0.0, 0.0
    for i in range(min(tables.tree.size[1], len(tables.action))):
        _count_instance(tables, i, 1.0)


@njit(cache=True)
def _sweep_leaf_values(tables):
    """Update Q(s, a) = R(s, a) + gamma Σ P(s' | s, a) max Q(s', ·) of every leaf once.

    An action never taken in a leaf is worth as much as the worst that was.
    """
    tree, gamma, n_actions = tables.tree, tables.numbers[0], tables.visits.shape[1]
    count = tree.size[0]
    value = np.zeros(count)
    for s in range(count):
        value[s] = tree.q[s].max() if tree.feature[s] < 0 else 0.0
    for s in range(count):
        if tree.feature[s] >= 0:
            continue
        worst = np.inf
        for a in range(n_actions):
            visits = tables.visits[s, a]
            if visits > 0.0:
                total = tables.rewards[s, a]
                for k in range(count):
                    total += gamma * tables.followed[s, a, k] * value[k]
                tree.q[s, a] = total / visits
                worst = min(worst, tree.q[s, a])
        if worst < np.inf:
            for a in range(n_actions):
                if tables.visits[s, a] == 0.0:
                    tree.q[s, a] = worst


@njit(cache=True)
def learn_step(tables, x, action, reward, after, terminated):
    """Remember a step in the place of the oldest one, count it, and sweep if it is time.

    Arguments as in `custard.baselines.growing_tree.remember`.
    """
    tree, capacity = tables.tree, len(tables.action)
    if tree.size[1] >= capacity:
        _count_instance(tables, tree.size[1] % capacity, -1.0)
    row = remember(tables, x, action, reward, after, terminated)
    tables.since_test[0] += 1
    _count_instance(tables, row, 1.0)
    if tree.size[1] % int(tables.numbers[1]) == 0:
        _sweep_leaf_values(tables)


# -- distinctions -----------------------------------------------------------------------------------------------------


@njit(cache=True)
def fringe_statistic(selected, q, order):
    """Return the largest distance between the distributions of q [K] where selected and of all; `order` sorts q."""
    count, chosen = len(q), 0
    for i in range(count):
        chosen += selected[i]
    below, largest = 0, 0.0
    for k in range(count):
        i = order[k]
        below += selected[i]
        if k + 1 < count and q[order[k + 1]] == q[i]:  # equal values count together
            continue
        largest = max(largest, abs(below / chosen - (k + 1) / count))
    return largest


@njit(cache=True)
def _candidate_tests(x, members, cuts):
    """Return features and thresholds that separate some states [K, n], at most `cuts` per feature.

    Thresholds lie halfway between neighbouring values, evenly spaced among the states.
    """
    features, thresholds = [], []
    count = 0
    for i in range(len(members)):
        count += members[i]
    for c in range(x.shape[1]):
        values = np.sort(x[:, c][members])
        last = -1
        for j in range(1, cuts + 1):
            k = max(last + 1, j * count // (cuts + 1) - 1)
            while k + 1 < count and not values[k] < values[k + 1]:
                k += 1
            if k + 1 >= count:
                break
            features.append(c)
            thresholds.append(halfway(values[k], values[k + 1]))
            last = k
    return features, thresholds


@njit(cache=True)
def _distance_if_accepted(selected, q, order, min_instances, scale):
    """Return the distance D between the selected states and all, or 0 if the test does not accept it.

    q, min_instances and scale as in `best_extension`; `order` sorts q.
    """
    count, chosen = len(q), 0
    for i in range(count):
        chosen += selected[i]
    if chosen < min_instances or chosen == count:
        return 0.0
    min_d = ks_threshold(scale, chosen * float(count) / (chosen + count))
    if min_d >= 1.0:
        return 0.0
    d = fringe_statistic(selected, q, order)
    return d if d > min_d else 0.0


class Extension(NamedTuple):
    """One or two distinctions by which a leaf is to be split; features are -1 for none."""

    feature: int
    threshold: float
    second_feature: int
    second_threshold: float
    side: int  # of the first distinction that the second one splits: 0 left, 1 right
    d: float  # the test's distance

    def is_better_than(self, other: Extension) -> bool:
        """Return whether it is shorter, or as long with a larger D."""
        return (other.second_feature >= 0, self.d) > (self.second_feature >= 0, other.d)


@njit(cache=True)
def best_extension(x, q, fringe, cuts, min_instances, scale):
    """Return the distinctions by which a leaf is to be split, and their D; shorter extensions come first.

    x              [K, n] states of one leaf, in which one action was taken
    q              [K] their sampled action values
    fringe         1 or 2 distinctions, one below the other
    cuts           thresholds per feature, at most
    min_instances  states that a distinction must select
    scale          what `ks_scale` returns for the test's probability

    The answer has the fields of `Extension`.
    """
    count, order = len(q), np.argsort(q)
    everyone, selected = np.ones(count, np.bool_), np.zeros(count, np.bool_)
    features, thresholds = _candidate_tests(x, everyone, cuts)
    best = (-1, 0.0, -1, 0.0, 0, 0.0)
    for k in range(len(features)):
        for side in range(2):
            for i in range(count):
                selected[i] = (x[i, features[k]] <= thresholds[k]) == (side == 0)
            d = _distance_if_accepted(selected, q, order, min_instances, scale)
            if d > best[5]:
                best = (features[k], thresholds[k], -1, 0.0, 0, d)
    if best[0] >= 0 or fringe < 2:
        return best
    inside = np.zeros(count, np.bool_)
    for k in range(len(features)):
        for side in range(2):
            for i in range(count):
                inside[i] = (x[i, features[k]] <= thresholds[k]) == (side == 0)
            more_features, more_thresholds = _candidate_tests(x, inside, cuts)
            for j in range(len(more_features)):
                for second_side in range(2):
                    for i in range(count):
                        goes_left = x[i, more_features[j]] <= more_thresholds[j]
                        selected[i] = inside[i] and goes_left == (second_side == 0)
                    d = _distance_if_accepted(selected, q, order, min_instances, scale)
                    if d > best[5]:
                        best = (features[k], thresholds[k], more_features[j], more_thresholds[j], side, d)
    return best


@njit(cache=True)
def _leaves_and_sampled_q(tables):
    """Return the leaf of each instance, and its sampled action value: reward + gamma * value of the next leaf."""
    count = min(tables.tree.size[1], len(tables.action))
    leaves, sampled_q = np.zeros(count, np.int64), np.zeros(count)
    for i in range(count):
        leaves[i] = find_leaf(tables.tree, tables.x[i])
        sampled_q[i] = tables.reward[i]
        if not tables.terminated[i]:
            sampled_q[i] += tables.numbers[0] * tables.tree.q[find_leaf(tables.tree, tables.after[i])].max()
    return leaves, sampled_q


def _split_leaves(tables: Tables, settings: Settings) -> bool:
    """Split every leaf that the test splits; return whether there was one."""
    tree, s, n_before = tables.tree, settings, int(tables.tree.size[0])
    scale = ks_scale(s.max_p_value)
    leaves, sampled_q = _leaves_and_sampled_q(tables)
    for leaf in np.flatnonzero(tree.feature[:n_before] == LEAF).tolist():
        if not may_split(tree, leaf):
            continue
        members = np.flatnonzero(leaves == leaf)
        best = Extension(-1, 0.0, -1, 0.0, 0, 0.0)
        for action in range(tree.q.shape[1]):
            tested = members[tables.action[: len(leaves)][members] == action]
            if len(tested) < s.min_instances:
                continue
            tested = evenly_spaced(tested, s.max_tested)
            x, q = tables.x[tested], sampled_q[tested]
            found = Extension(*best_extension(x, q, s.fringe, s.thresholds_per_feature, s.min_instances, scale))
            if found.feature >= 0 and (best.feature < 0 or found.is_better_than(best)):
                best = found
        if best.feature >= 0:
            left = split_leaf(tree, leaf, best.feature, best.threshold)
            if best.second_feature >= 0 and may_split(tree, left + best.side):
                split_leaf(tree, left + best.side, best.second_feature, best.second_threshold)
    return int(tree.size[0]) > n_before


# -- learning ---------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _learn_held_step(held, x, action, reward, after, terminated):
    learn_step(held.values, x, action, reward, after, terminated)


@njit(cache=True)
def _learn_compiled(tables, episodes, steps):
    learn_compiled(tables, episodes, steps, learn_step)


class _Learner(PhasedLearner):
    """Learns from every step; tests the leaves at the end of each phase."""

    def __init__(self, problem: Problem, settings: Settings, budget: int) -> None:
        tables = make_tables(problem, settings, problem.seeds("learner")["learner"])
        super().__init__(problem, problem.base.features, tables, settings, budget, _learn_compiled, _learn_held_step)
        self.settings, self.steps_in_phase = settings, tables.since_test
        self.phase_length = settings.test_every or max(1, budget // DEFAULT_SPLIT_TEST_ROUNDS)

    def end_phase(self) -> None:
        """Split leaves; where there were any to split, count the model anew and sweep over it."""
        if _split_leaves(self.tables, self.settings):
            _recount_model(self.tables)
            for _ in range(VALUE_SWEEPS_AFTER_SPLIT):
                _sweep_leaf_values(self.tables)


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn until the budget is used; yield the best tree judged (with `keep_best=False` the last one) at intervals."""
    problem.require_discrete_actions("utree")
    budget = default_budget(problem, settings.budget)
    learner = _Learner(problem, settings, budget)
    yield from run_learner(problem, learner, budget, problem.probe_steps, settings.keep_best, state)
