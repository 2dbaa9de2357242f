"""Candidate trees: proposed (fits, refits, random trees), then refined and judged on their true return.

Every function takes a simulator and plain values, and returns values. Proposals come from measured action values
(`fit_trees`) or from chance (`random_trees`); `rank_trees` orders them. Refinements compare trees on the same episodes:
`polish` tries small changes, `shrink` drops splits, `judge` and `confirm_perfect` use fresh episodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from custard.core.actions import Actions
from custard.core.features import Features
from custard.solvers.common.mutations import mutate_shape, random_shape
from custard.solvers.common.paired import Candidate, compare, is_perfect, run_candidate
from custard.solvers.tpi.simulate import Simulator
from custard.task.source import episode_seeds
from custard.tree.fit import fit_tree
from custard.tree.leaf_actions import LeafActions
from custard.tree.shape import (
    LEFT,
    Shape,
    Split,
    leaves_below,
    paths,
    replace_part,
    shape_of,
    subshape,
    tree_of,
    with_actions,
)
from custard.tree.simplify import prune_unvisited, simplify
from custard.tree.tree import Tree

__all__ = [
    "DEFAULT_MAX_LEAVES", "NEGLIGIBLE_RETURN_SHARE", "ActionValues", "Confirmation", "TreeSpace", "Verdict",
    "confirm_perfect", "fit_trees", "judge", "polish", "random_trees", "rank_trees", "remember_failing_seeds",
    "shrink", "states_or_random",
]  # fmt: skip

DEFAULT_MAX_LEAVES = 4096  # where no limit is given
MIN_STATES_FOR_REFIT = 10  # states in a branch that is fitted anew
FALLBACK_RANDOM_STATES = 100  # states drawn where none was met
SECOND_CHANGE_SHARE = 0.3  # how often two small changes are made at once
MIN_REJECTED_CHANGE_COST = 0.2  # cost of a rejected change, in shares of a full comparison
PERFECT_TREE_EPISODE_FACTOR = 3  # times as many further episodes for a tree that is perfect on all so far
MAX_FAILING_SEEDS = 64  # episodes remembered in which nearly perfect trees failed
NEGLIGIBLE_RETURN_SHARE = 1e-4  # a split must add more, where returns are exact or a tree is perfect


@dataclass(frozen=True)
class TreeSpace:
    """The trees that are searched."""

    blank: Tree  # a single leaf; all trees have its features and actions
    leaf_actions: LeafActions
    depth: int
    max_leaves: int


class ActionValues(NamedTuple):
    """What actions are worth in states that a tree meets."""

    x: np.ndarray  # [N, n]
    q: np.ndarray  # [N, A]
    actions: np.ndarray  # [A] or [A, k]


class Verdict(NamedTuple):
    """The better of two trees on episodes that neither was chosen on."""

    tree: Tree
    mean: float
    error: float  # standard error of that mean
    episodes: int
    is_better: bool  # whether the new tree is better
    is_progress: bool  # whether it is better by so much that the search should go on
    returns_vary: bool  # whether the old tree returns more in some episodes than in others


class Confirmation(NamedTuple):
    """What fresh episodes say of a tree that looked perfect."""

    is_perfect: bool
    mean: float
    failing_seeds: np.ndarray
    error: float  # standard error of the mean; NaN for a single episode
    episodes: int  # that were run


def fit_trees(space: TreeSpace, tree: Tree, values: ActionValues, zeta: float, cuts: int) -> Iterator[Tree]:
    """Yield the best trees for measured action values, then the given tree with each of its branches refitted.

    `zeta` is the price of a split in shares of what the best action gains over the worst, `cuts` the number of
    thresholds per feature.
    """
    if len(space.blank.features.require_finite(values.x)) < 2:
        return
    q = values.q - values.q.max(axis=1, keepdims=True)
    price = -zeta * float(-q.min(axis=1).mean())
    numbered = Actions("discrete", tuple(str(k) for k in range(len(values.actions))))

    def fit(rows: np.ndarray | slice, depth: int, max_leaves: int) -> Shape:
        fitted = fit_tree(
            values.x[rows], q[rows], space.blank.features, numbered, max_depth=depth, price=price, cuts=cuts,
            max_leaves=max_leaves if space.max_leaves < DEFAULT_MAX_LEAVES else None,
        )  # fmt: skip
        return with_actions(shape_of(fitted.tree), values.actions)

    for depth in sorted({space.depth, max(0, space.depth - 1)}):
        yield tree_of(fit(slice(None), depth, space.max_leaves), space.blank)
    shape, leaf = shape_of(tree), tree.apply(values.x)
    for path in [path for path in paths(shape) if path]:
        below = leaves_below(tree, path)
        rows = np.isin(leaf, below)
        if rows.sum() >= MIN_STATES_FOR_REFIT:
            branch = fit(rows, space.depth - len(path), space.max_leaves - tree.n_leaves + len(below))
            yield tree_of(replace_part(shape, path, branch), space.blank)


def random_trees(space: TreeSpace, x: np.ndarray, rng: np.random.Generator, count: int) -> list[Tree]:
    """Return random trees whose thresholds lie among the states x [N, n]; those with too many leaves are left out.

    Where actions are real vectors, a single leaf with the middle of their range comes first: it often beats chance.
    """
    trees, leaf_actions = [], space.leaf_actions
    if leaf_actions.all is None and not leaf_actions.whole:
        middle = (leaf_actions.low + leaf_actions.high) / 2
        trees.append(Tree.leaf(middle, space.blank.features, space.blank.actions))
    shapes = [random_shape(rng, x, leaf_actions, space.depth) for _ in range(count)]
    complete = [tree_of(shape, space.blank) for shape in shapes]
    return trees + [tree for tree in complete if tree.n_leaves <= space.max_leaves]


def rank_trees(
    simulator: Simulator,
    trees: Sequence[Tree],
    seeds: np.ndarray,
    max_steps: float,
    blank: Tree,
) -> list[Tree]:
    """Return the trees by mean return on a few episodes, the best first, then by size; `blank` is ranked last.

    Of trees that split on the same features in the same order only the best is kept. Once the simulator has used
    `max_steps`, no more trees are run.
    """
    episodes = max(2, len(seeds) // 8, 16 if simulator.is_compiled else 0)
    ranked = [(-np.inf, 0, 0, blank)]
    for tree in map(simplify, trees):
        if simulator.steps < max_steps:
            mean = float(simulator.returns(tree, seeds[:episodes]).mean())
            ranked.append((mean, -tree.n_leaves, -tree.depth, tree))
    ranked.sort(key=lambda entry: entry[:3], reverse=True)
    best_by_splits: dict[tuple[int, ...], Tree] = {}
    for *_, tree in ranked:
        best_by_splits.setdefault(tuple(tree.feature.tolist()), tree)
    return list(best_by_splits.values())


def states_or_random(x: np.ndarray, features: Features, rng: np.random.Generator) -> np.ndarray:
    """Return the states x [N, n], or random ones if there are none."""
    if len(x):
        return features.require_finite(x)
    spread = np.where(features.unbounded, 2.0, features.high - features.low)
    low = np.where(features.unbounded, -1.0, features.low)
    return low + rng.random((FALLBACK_RANDOM_STATES, features.n)) * spread


def remember_failing_seeds(remembered: np.ndarray, failing: np.ndarray) -> np.ndarray:
    """Return the seeds of episodes in which nearly perfect trees failed, the latest last."""
    if not len(failing):
        return remembered
    return np.concatenate([remembered[~np.isin(remembered, failing)], failing])[-MAX_FAILING_SEEDS:]


def polish(
    simulator: Simulator,
    candidate: Candidate,
    space: TreeSpace,
    x: np.ndarray,
    rng: np.random.Generator,
    changes: int,
    max_steps: float,
    perfect_episodes: int,
    failing_seeds: np.ndarray,
) -> tuple[Candidate, np.ndarray]:
    """Try small changes to a tree, keep those that raise its return; return the tree and the failing seeds.

    simulator         runs the trees
    candidate         the tree to begin with, and its episodes
    space             the trees that are searched
    x                 [N, n] states among which new thresholds lie
    rng               draws the changes
    changes           how many changes are tried, about
    max_steps         the simulator's step count at which to stop
    perfect_episodes  how many episodes a perfect tree is to be perfect in
    failing_seeds     those remembered so far
    """
    x = states_or_random(x, space.blank.features, rng)
    spread = np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    shape, depth = shape_of(candidate.tree), max(space.depth, candidate.tree.depth)
    work, full_comparison = 0.0, max(1.0, simulator.mean_episode_length) * len(candidate.seeds)
    while work < changes and simulator.steps < max_steps:
        candidate = _extend_while_perfect(simulator, candidate, rng, max_steps, perfect_episodes)
        failing_seeds = remember_failing_seeds(failing_seeds, candidate.failing_seeds(simulator.max_return))
        if is_perfect(candidate.mean, simulator.max_return):
            break
        changed = mutate_shape(shape, rng, x, spread, space.leaf_actions, depth, space.max_leaves)
        if rng.random() < SECOND_CHANGE_SHARE:
            changed = mutate_shape(changed, rng, x, spread, space.leaf_actions, depth, space.max_leaves)
        before, tree = simulator.steps, tree_of(changed, space.blank)
        candidate = compare(simulator, tree, candidate)
        if candidate.tree is tree:
            shape = changed
        # Where a few episodes can reject a change it costs little, so that more changes are tried.
        cheap = len(candidate.failing_seeds(simulator.max_return)) > 0
        work += max(MIN_REJECTED_CHANGE_COST, (simulator.steps - before) / full_comparison) if cheap else 1.0
    return candidate, failing_seeds


def _extend_while_perfect(
    simulator: Simulator, candidate: Candidate, rng: np.random.Generator, max_steps: float, max_episodes: int
) -> Candidate:
    """Return the candidate with more and more fresh episodes until it fails in one or has `max_episodes`."""
    while (
        is_perfect(candidate.mean, simulator.max_return)
        and len(candidate.seeds) < max_episodes
        and simulator.steps < max_steps
    ):
        count = min(PERFECT_TREE_EPISODE_FACTOR * len(candidate.seeds), max_episodes - len(candidate.seeds))
        seeds = episode_seeds(int(rng.integers(2**31)), count)
        candidate = candidate.with_episodes(seeds, simulator.returns(candidate.tree, seeds))
    return candidate


def confirm_perfect(simulator: Simulator, tree: Tree, seeds: np.ndarray, missed_share: float) -> Confirmation:
    """Return whether a tree misses at most a share of the largest return possible in the episodes of the seeds.

    A few episodes reject a bad tree.
    """
    allowed = simulator.max_return * len(seeds) * missed_share
    returns = np.zeros(0)
    while len(returns) < len(seeds) and (simulator.max_return - returns).sum() <= allowed:
        more = seeds[len(returns) : max(len(seeds) // 16, 4 * len(returns))]
        returns = np.concatenate([returns, simulator.returns(tree, more)])
    failing = seeds[: len(returns)][returns < simulator.max_return]
    is_perfect = bool((simulator.max_return - returns).sum() <= allowed)
    return Confirmation(is_perfect, float(returns.mean()), failing, standard_error(returns), len(returns))


def standard_error(returns: np.ndarray) -> float:
    """Return the standard error of a mean; NaN for a single return."""
    return float(returns.std(ddof=1)) / math.sqrt(len(returns)) if len(returns) > 1 else math.nan


def shrink(simulator: Simulator, candidate: Candidate, blank: Tree, max_steps: float) -> Candidate:
    """Return the tree without the splits that its return does not need, first those that no episode decides.

    All trees are made like `blank`; `max_steps` is the simulator's step count at which to stop.
    """
    visited = simulator.visited_states(candidate.tree)
    if visited is not None:
        candidate = replace(candidate, tree=prune_unvisited(candidate.tree, visited).tree)
    position, shape = 0, shape_of(candidate.tree)
    while position < len(paths(shape)) and simulator.steps < max_steps:
        path = paths(shape)[position]
        part = subshape(shape, path)
        for branch in part[LEFT:] if isinstance(part, Split) else ():
            tree = tree_of(replace_part(shape, path, branch), blank)
            if simulator.is_exact:
                other = run_candidate(simulator, tree, candidate.seeds)
            else:
                other = compare(simulator, tree, candidate)
            if other.tree is tree and _is_hardly_worse(simulator, other, candidate):
                candidate, shape = other, shape_of(tree)
                break
            candidate = replace(candidate, failures=other.failures)
        else:
            position += 1
    return candidate


def _is_hardly_worse(simulator: Simulator, small: Candidate, large: Candidate) -> bool:
    """Return whether a smaller tree is as good; where returns are exact, a negligible loss is allowed."""
    return small.mean >= large.mean - (NEGLIGIBLE_RETURN_SHARE * abs(large.mean) if simulator.is_exact else 0.0)


def judge(
    simulator: Simulator, tree: Tree, best: Tree, blank: Tree, seeds: np.ndarray, max_steps: float, is_first: bool
) -> Verdict:
    """Compare a tree with the best one on fresh episodes and shrink the winner.

    `seeds` [N] are the episodes; `blank` and `max_steps` are as in `shrink`. The tree of a first round (`is_first`)
    need not be clearly better.
    """
    incumbent = run_candidate(simulator, best, seeds)
    winner = shrink(simulator, compare(simulator, tree, incumbent), blank, max_steps)
    is_better, is_progress = winner.clearly_beats(incumbent) or is_first, True
    if simulator.is_exact:
        smaller = winner.tree.n_leaves < best.n_leaves
        is_better = is_better or (smaller and _is_hardly_worse(simulator, winner, incumbent))
        is_progress = winner.mean - incumbent.mean > 10 * NEGLIGIBLE_RETURN_SHARE * abs(incumbent.mean)
    is_better = is_better and winner.tree is not best
    kept = winner if is_better else incumbent
    error, returns_vary = standard_error(kept.returns), bool(incumbent.returns.std() > 0)
    return Verdict(
        kept.tree, kept.mean, error, len(kept.returns), is_better, is_better and is_progress, returns_vary
    )  # fmt: skip
