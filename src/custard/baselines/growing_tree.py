"""A tree that grows while it learns action values in its leaves: what cqi, pyeatt, cutree and utree share.

`GrowingTree` is a set of arrays with room for more nodes, so that compiled code can split leaves in place.
`run_learner` is the loop around every such learner: learn for a while, judge the tree, yield a snapshot.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from custard.core.actions import Actions
from custard.core.features import Features
from custard.core.numba_tools import hold, njit
from custard.envs.pcg64 import streams, uniform
from custard.solvers.common.checkpoint import copy_arrays, restore_arrays
from custard.solvers.common.selection import Selection
from custard.task.compiled_episodes import start_episode, step_episode
from custard.task.problem import Problem, Snapshot
from custard.task.runners import PythonEpisodes, make_episodes
from custard.tree.tree import LEAF, Tree

if TYPE_CHECKING:
    from custard.baselines import cqi, cutree, pyeatt, utree

    TreeSettings = cqi.Settings | cutree.Settings | pyeatt.Settings | utree.Settings

__all__ = [
    "DEFAULT_MAX_LEAVES",
    "GrowingTree",
    "Learner",
    "PhasedLearner",
    "TreeLearner",
    "choose_action",
    "decayed_epsilon",
    "default_budget",
    "evenly_spaced",
    "find_leaf",
    "greedy_action",
    "halfway",
    "ks_scale",
    "ks_threshold",
    "learn_compiled",
    "make_growing_tree",
    "may_split",
    "remember",
    "run_learner",
    "split_leaf",
]  # fmt: skip

DEFAULT_COMPILED_ENV_BUDGET, DEFAULT_PYTHON_ENV_BUDGET = 5_000_000, 500_000  # environment steps
LEARNING_BUDGET_SHARE = 0.9  # of a budget; the rest is for judging the last tree
BUDGET_PER_JUDGING_EPISODE = 10_000
MAX_JUDGED_TREES = 40  # per run, unless judging takes too long
MAX_JUDGING_STEPS_SHARE = 0.3  # of the steps so far, above which no tree but the last is judged
DEFAULT_MAX_LEAVES = 512  # none of these learners ever prunes


class GrowingTree(NamedTuple):
    """A tree with room for N nodes, A actions. Nodes are appended, so children come after their parents."""

    feature: np.ndarray  # [N] int64, LEAF at leaves
    threshold: np.ndarray  # [N]
    left: np.ndarray  # [N] int64
    right: np.ndarray  # [N] int64
    parent: np.ndarray  # [N] int64, -1 at the root
    depth: np.ndarray  # [N] int64: splits above
    q: np.ndarray  # [N, A] action values; those of leaves count
    size: np.ndarray  # [2] int64: nodes, steps learned from
    limits: np.ndarray  # [2] int64: maximum number of nodes, maximum depth
    exploration: np.ndarray  # [2] minimum share of random actions, steps over which that share sinks from 1
    rng: np.ndarray  # [4] uint64: the stream that exploration draws from

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint stores: the arrays themselves, not copies."""
        return {f"tree.{name}": getattr(self, name) for name in self._fields if name not in ("limits", "exploration")}


def make_growing_tree(problem: Problem, settings: TreeSettings, max_leaves: int, seed: int) -> GrowingTree:
    """Return a single leaf with room for `max_leaves`, fewer where the depth limit allows fewer."""
    max_depth = np.iinfo(np.int64).max if problem.max_depth is None else problem.max_depth
    if max_depth < 60:
        max_leaves = min(max_leaves, 2**max_depth)
    n = 2 * max_leaves - 1
    feature, left, right, parent = (np.full(n, LEAF, dtype=np.int64) for _ in range(4))
    return GrowingTree(
        feature, np.zeros(n), left, right, parent, np.zeros(n, dtype=np.int64),
        np.zeros((n, problem.base.actions.n)), np.array([1, 0]), np.array([n, max_depth]),
        np.array([settings.epsilon, settings.epsilon_steps], dtype=np.float64), streams([seed])[0],
    )  # fmt: skip


def tree_of_leaves(tree: GrowingTree, features: Features, actions: Actions) -> Tree:
    """Return the greedy policy as a tree."""
    n = int(tree.size[0])
    value = np.where(tree.feature[:n] == LEAF, tree.q[:n].argmax(axis=1), 0) + actions.start
    return Tree(
        tree.feature[:n].copy(), tree.threshold[:n].copy(), tree.left[:n].copy(), tree.right[:n].copy(), value,
        features, actions,
    )  # fmt: skip


@njit(cache=True)
def find_leaf(tree, x):
    """Return the leaf that a state [n] reaches."""
    node = 0
    while tree.feature[node] >= 0:
        node = tree.left[node] if x[tree.feature[node]] <= tree.threshold[node] else tree.right[node]
    return node


@njit(cache=True)
def greedy_action(q):
    """Return the first action with the largest value [A]."""
    best = 0
    for a in range(1, len(q)):
        if q[a] > q[best]:
            best = a
    return best


@njit(cache=True)
def decayed_epsilon(minimum, decay_steps, t):
    """Return the share of random actions at step t: on a line from 1 to 0 at `decay_steps`, at least `minimum`."""
    return max(minimum, 1.0 - t / decay_steps) if decay_steps > 0 else minimum


@njit(cache=True)
def choose_action(tree, x):
    """Return an epsilon-greedy action for a state [n]."""
    if uniform(tree.rng, 0.0, 1.0) < decayed_epsilon(tree.exploration[0], tree.exploration[1], tree.size[1]):
        return int(uniform(tree.rng, 0.0, float(tree.q.shape[1])))
    return greedy_action(tree.q[find_leaf(tree, x)])


@njit(cache=True)
def _choose_held_action(held_tree, x):
    """Return the same for a tree that is held (`hold`)."""
    return choose_action(held_tree.values, x)


@njit(inline="always")  # a compiled function that hands another one over is not cached; statements put in place are
def learn_compiled(tables, episodes, steps, learn_step):
    """Take epsilon-greedy steps in a compiled environment and learn from each.

    tables      all that is learned, of which `tree` is the `GrowingTree`
    episodes    the environment, `custard.task.compiled_episodes`
    steps       how many
    learn_step  called as learn_step(tables, x, action, reward, next x, terminated)
    """
    x = np.zeros(episodes.x.shape[1])
    for _ in range(steps):
        for i in range(len(x)):
            x[i] = episodes.x[0, i]
        action = choose_action(tables.tree, x)
        reward, terminated, is_over = step_episode(episodes, 0, action)
        learn_step(tables, x, action, reward, episodes.x[0], terminated)
        if is_over:
            start_episode(episodes, 0)


@njit(cache=True)
def may_split(tree, leaf):
    """Return whether the limits allow a leaf to be split."""
    return tree.size[0] + 2 <= tree.limits[0] and tree.depth[leaf] < tree.limits[1]


@njit(cache=True)
def split_leaf(tree, leaf, feature, threshold):
    """Split a leaf in place; both children begin with its action values. Returns the left one, the right is next."""
    first = tree.size[0]
    tree.feature[leaf], tree.threshold[leaf] = feature, threshold
    tree.left[leaf], tree.right[leaf] = first, first + 1
    for child in (first, first + 1):
        tree.parent[child], tree.depth[child] = leaf, tree.depth[leaf] + 1
        for a in range(tree.q.shape[1]):
            tree.q[child, a] = tree.q[leaf, a]
    tree.size[0] = first + 2
    return first


@njit(cache=True)
def remember(tables, x, action, reward, after, terminated):
    """Write a transition into the row of the oldest one, count the step, and return the row.

    tables      has `tree` and, per remembered transition, `x`, `action`, `reward`, `after` and `terminated`
    x, after    [n] the states before and after
    action      numbered from 0
    reward      of the step
    terminated  whether `after` ends the episode
    """
    row = tables.tree.size[1] % len(tables.action)
    for i in range(len(x)):
        tables.x[row, i], tables.after[row, i] = x[i], after[i]
    tables.action[row], tables.reward[row], tables.terminated[row] = action, reward, terminated
    tables.tree.size[1] += 1
    return row


# -- split tests ------------------------------------------------------------------------------------------------------


@njit(cache=True, inline="always")
def halfway(below, above):
    """Return the threshold halfway between neighbouring values of a feature, less than the upper one."""
    middle = below + 0.5 * (above - below)
    return middle if middle < above else below


def ks_scale(p: float) -> float:
    """Return the scaled statistic above which the Kolmogorov-Smirnov test gives a probability below p.

    >>> round(ks_scale(0.05), 3)
    1.358
    """
    from scipy.special import kolmogi

    return float(kolmogi(p))


@njit(cache=True, inline="always")
def ks_threshold(scale, m):
    """Return the distance D that the Kolmogorov-Smirnov test accepts, from `ks_scale`: D (√m + 0.12 + 0.11 / √m) is
    compared with it, where m = n_1 n_2 / (n_1 + n_2) of the two samples."""
    root = math.sqrt(m)
    return scale / (root + 0.12 + 0.11 / root)


def evenly_spaced(rows: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` of the rows [K], evenly spaced."""
    if len(rows) <= count:
        return rows
    return rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]


# -- the run ----------------------------------------------------------------------------------------------------------


class TreeLearner:
    """Learns from every step of an environment, compiled or stepped by Python.

    `learn_compiled` and `learn_held_step` are the learner's own compiled functions: the loop, and one step, each with
    its own update. A class that handed the update to compiled code would compile it in every process.

        learn_compiled(tables, episodes, steps)
        learn_held_step(held tables, x, action, reward, next x, terminated)
    """

    max_interval = 1_000_000

    def __init__(
        self, problem: Problem, features: Features, tables: Any, settings: TreeSettings, budget: int,
        learn_compiled: Any, learn_held_step: Any,
    ) -> None:  # fmt: skip
        """Make the environment.

        problem   what is to be solved
        features  what the tree splits on, with the bounds that the learner needs
        tables    all that is learned: a tuple of arrays, of which `tree` is the `GrowingTree`
        settings  of the learner
        budget    environment steps of the run
        """
        self.features, self.actions, self.tables = features, problem.base.actions, tables
        self._learn_compiled, self._learn_held_step = learn_compiled, learn_held_step
        self.episodes = make_episodes(
            problem, problem.seeds("environment")["environment"], max_steps=problem.episode_cap(budget),
            limit_terminates=not settings.bootstrap_at_limit,
        )  # fmt: skip

    def learn(self, steps: int) -> int:
        """Learn from `steps` environment steps, at most one episode more; return how many were taken."""
        episodes = self.episodes
        if not isinstance(episodes, PythonEpisodes):
            self._learn_compiled(self.tables, episodes, steps)
            return steps
        held, held_tree, taken, start = hold(self.tables), hold(self.tables.tree), 0, self.actions.start
        while taken < steps:
            x, is_over = episodes.reset(), False
            while not is_over:
                action = _choose_held_action(held_tree, x)
                after, reward, terminated, truncated = episodes.step(action + start)
                self._learn_held_step(held, x, action, float(reward), after, terminated)
                x, is_over = after, terminated or truncated
            taken += episodes.length
        return taken

    def tree(self) -> Tree:
        """Return the greedy policy."""
        return tree_of_leaves(self.tables.tree, self.features, self.actions)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that changes, the arrays themselves."""
        return {**self.tables.arrays(), **self.episodes.arrays()}

    def further_metrics(self, selection: Selection) -> dict[str, float]:
        """Return what else a row of metrics says."""
        return {}


class PhasedLearner(TreeLearner):
    """Learns in phases. A subclass sets the first two fields before it learns.

    phase_length    environment steps of a phase
    steps_in_phase  [1] int64, counted by the learner's step
    """

    phase_length: int
    steps_in_phase: np.ndarray

    def learn(self, steps: int) -> int:
        """Learn from `steps` environment steps, at most one episode more; call `end_phase` whenever a phase ends."""
        taken = 0
        while taken < steps:
            rest_of_phase = self.phase_length - int(self.steps_in_phase[0])
            taken += super().learn(max(1, min(steps - taken, rest_of_phase)))
            if self.steps_in_phase[0] >= self.phase_length:
                self.steps_in_phase[0] = 0
                self.end_phase()
        return taken

    def end_phase(self) -> None:
        """Change the tree by what was learned."""
        raise NotImplementedError


class Learner(Protocol):
    """What `run_learner` runs."""

    @property
    def max_interval(self) -> int:
        """Environment steps between two snapshots, at most: those of a few seconds."""

    def learn(self, steps: int) -> int:
        """Learn from `steps` environment steps, at most one episode more; return how many were taken."""

    def tree(self) -> Tree:
        """Return the present policy as a tree."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that changes while it learns, the arrays themselves: to resume, others are written into them."""

    def further_metrics(self, selection: Selection) -> dict[str, float]:
        """Return what else a row of metrics says; environment steps are taken by `Selection.mean_return`."""


def default_budget(problem: Problem, budget: int | None) -> int:
    """Return the environment steps of a run: those given, or 5 million, a tenth where Python steps."""
    return budget or (DEFAULT_COMPILED_ENV_BUDGET if problem.is_compiled else DEFAULT_PYTHON_ENV_BUDGET)


def run_learner(
    problem: Problem, learner: Learner, budget: int, steps: int, keep: bool, state: Any
) -> Iterator[Snapshot]:
    """Learn until the budget is used; judge the tree at intervals and yield the best one, or without `keep` the last.

    Where judging takes too much of the steps, a snapshot has the best tree of those judged before.

    problem  what is to be solved
    learner  learns and grows its tree
    budget   environment steps, judging included
    steps    environment steps taken before the first one learned from
    keep     whether the best tree judged counts; otherwise the last one
    state    what an earlier snapshot's `state()` returned, or None
    """
    selection = Selection(problem, int(np.clip(budget // BUDGET_PER_JUDGING_EPISODE, 32, 512)), budget=budget)
    # A poor policy also returns the same in every episode (walking until the time limit): no more episodes for that.
    selection.flawless_max_episodes = selection.max_episodes
    progress = np.array([steps, 0])  # environment steps besides judging, trees judged
    arrays = {**learner.arrays(), "run.progress": progress}
    if state is not None:
        restore_arrays(arrays, state)
        selection.restore(state)
    learning_budget = int(LEARNING_BUDGET_SHARE * budget)
    interval = max(1, min(budget // MAX_JUDGED_TREES, learner.max_interval))
    used = int(progress[0]) + selection.steps
    while used < learning_budget or selection.best is None:
        progress[0] += learner.learn(max(1, min(interval, learning_budget - used)))
        selection.spent = int(progress[0])
        used = int(progress[0]) + selection.steps
        tree = learner.tree()
        metrics: dict[str, float] = {"leaves": tree.n_leaves, "depth": tree.depth}
        is_affordable = selection.steps <= MAX_JUDGING_STEPS_SHARE * progress[0]
        if used >= learning_budget or selection.best is None or is_affordable:
            selection.judge(tree, keep)
            progress[1] += 1
            metrics = {"tree_return": selection.last_mean, **metrics, **learner.further_metrics(selection)}
        used, best = int(progress[0]) + selection.steps, selection.best
        assert best is not None
        message = "budget used" if used >= learning_budget else ""
        value = selection.show(is_last=bool(message))
        kept = {**copy_arrays(arrays), **selection.state()}
        yield Snapshot(
            used + selection.shown_steps, best.tree, value, budget, metrics, tree, message, lambda kept=kept: kept
        )  # type: ignore[misc]
