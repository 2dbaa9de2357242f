"""Trees over weighted sums, and with linear leaves: made of a linear policy exactly, then with fewer coefficients.

The largest of a few linear scores is found by a tournament: each test compares two scores, which is one weighted sum
with a threshold. A policy whose actions are linear in the features is a single linear leaf.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from custard.core.actions import Actions
from custard.core.features import Features
from custard.core.sums import Sum
from custard.task.policies import LinearPolicy
from custard.tree.leaf_actions import LeafActions
from custard.tree.linear import used_derived
from custard.tree.shape import LinearLeaf, Shape, Split, build_tree, shape_of, with_split_leaf
from custard.tree.simplify import simplify
from custard.tree.tree import LEAF, Tree

__all__ = [
    "Coefficient",
    "coefficients",
    "linear_tree",
    "random_linear_tree",
    "with_few_terms",
    "with_named_sums",
    "with_random_split",
    "with_rounded_numbers",
    "with_sums",
    "within_bounds",
    "without_coefficients",
]

MAX_TOURNAMENT_ACTIONS = 5  # a tournament of a actions has 2 ** (a - 1) leaves
MIN_CHOSEN_STATES_SHARE = 0.002  # share of states in which an action must be chosen to take part
RANDOM_GAIN_DEVIATION = 0.5  # deviation of random gains: of half an action's range, per deviation of a feature
IN_SUM_NOT_LEAF = -1  # instead of a leaf's component


def linear_tree(
    policy: LinearPolicy, features: Features, states: np.ndarray, max_actions: int = MAX_TOURNAMENT_ACTIONS
) -> Tree:
    """Return a tree that acts as a linear policy does, but for actions that it hardly ever takes in states [M, n].

    Of many actions only the `max_actions` that it takes most often are left: a tree of depth d has room for d + 1.
    """
    if not policy.actions.discrete:
        return build_tree(LinearLeaf(policy.bias, policy.weights), features.raw, policy.actions)
    chosen = np.bincount(policy.scores(states).argmax(axis=1), minlength=policy.actions.n)
    order = np.argsort(-chosen, kind="stable")
    order = order[: max(1, min(max_actions, int((chosen > MIN_CHOSEN_STATES_SHARE * len(states)).sum())))]
    sums: dict[tuple[int, int], int] = {}  # of two actions -> number of the sum that compares them
    weights: list[np.ndarray] = []

    def below(champion: int, others: Sequence[int]) -> Shape:
        """Return the shape in which a champion meets the other actions, one after the other."""
        if not others:
            return champion + policy.actions.start
        other = others[0]
        if (champion, other) not in sums:
            sums[champion, other] = len(weights)
            weights.append(policy.weights[other] - policy.weights[champion])
        threshold = float(policy.bias[champion] - policy.bias[other])
        sides = below(champion, others[1:]), below(other, others[1:])
        return Split(features.n_raw + sums[champion, other], threshold, *sides)

    shape = below(int(order[0]), order[1:].tolist())
    return build_tree(shape, with_sums(features, weights), policy.actions)


class Coefficient(NamedTuple):
    """One coefficient of a tree."""

    place: int  # the derived feature, or the leaf's node
    component: int  # of the leaf's action, or IN_SUM_NOT_LEAF
    feature: int


def coefficients(tree: Tree, states: np.ndarray) -> list[Coefficient]:
    """Return the coefficients of a tree's sums and linear leaves, those first that matter least.

    states [M, n_raw] are some that were met: a coefficient matters by how much its term varies there.
    """
    spread, found = states.std(axis=0), list[tuple[float, Coefficient]]()
    for c in used_derived(tree):
        entry = tree.features.sum_of(c)
        total = float(entry.values(states).std()) or 1.0
        terms = [(i, abs(weight)) for i, weight in entry.terms if isinstance(i, int)]
        found += [(weight * spread[i] / total, Coefficient(c, IN_SUM_NOT_LEAF, i)) for i, weight in terms]
    box = LeafActions(tree.actions)
    for node, component, i in zip(*np.nonzero(_gains(tree)), strict=True):
        share = spread[i] / (box.high[component] - box.low[component])
        found.append((abs(_gains(tree)[node, component, i]) * share, Coefficient(int(node), int(component), int(i))))
    return [coefficient for _, coefficient in sorted(found)]


def without_coefficients(tree: Tree, dropped: Collection[Coefficient], states: np.ndarray) -> Tree:
    """Return the tree without some coefficients; of a sum that would lose all of them the largest stays.

    A leaf's constant takes over what a dropped term was in the mean of states [M, n_raw].
    """
    for c in sorted({place for place, component, _ in dropped if component == IN_SUM_NOT_LEAF}):
        terms = tree.features.sum_of(c).terms
        left = tuple(term for term in terms if (c, IN_SUM_NOT_LEAF, term[0]) not in dropped)
        tree = with_sum(tree, c, Sum(left or (max(terms, key=lambda term: abs(term[1])),)))
    in_leaves = [coefficient for coefficient in dropped if coefficient.component != IN_SUM_NOT_LEAF]
    if in_leaves:
        gains, value = _gains(tree).copy(), tree.value.copy()
        for place, component, feature in in_leaves:
            value[place, component] += gains[place, component, feature] * states[:, feature].mean()
            gains[place, component, feature] = 0.0
        tree = replace(tree, gains=gains, value=within_bounds(tree, value, gains))
    return with_named_sums(tree)


def with_few_terms(tree: Tree, states: np.ndarray, max_terms: int | None, max_gains: int | None) -> Tree:
    """Return the tree without the coefficients that matter least beyond limits per sum and per leaf component."""
    left, dropped = dict[tuple[int, int], int](), list[Coefficient]()
    for coefficient in reversed(coefficients(tree, states)):
        limit = max_terms if coefficient.component == IN_SUM_NOT_LEAF else max_gains
        count = left.get(coefficient[:2], 0) + 1
        left[coefficient[:2]] = count
        if limit is not None and count > limit:
            dropped.append(coefficient)
    return without_coefficients(tree, dropped, states) if dropped else tree


def with_random_split(tree: Tree, states: np.ndarray, rng: np.random.Generator, max_depth: int) -> Tree:
    """Return the tree with one leaf split in two alike, by a random sum through the middle of states [M, n_raw]."""
    leaves = np.flatnonzero(tree.feature == LEAF)
    leaves = leaves[tree.node_depth[leaves] < max_depth]
    if not len(leaves):
        return tree
    node = int(rng.choice(leaves))
    here = states[tree.apply(states) == node]
    here = here if len(here) > 1 else states
    spread = states.std(axis=0)
    weights = rng.normal(size=len(spread)) / np.where(spread > 0.0, spread, 1.0)
    features = with_sums(tree.features, [*tree.features.derived, weights])
    threshold = float(np.median(here @ weights))
    return build_tree(with_split_leaf(tree, node, features.n - 1, threshold), features, tree.actions)


def random_linear_tree(
    features: Features, actions: Actions, states: np.ndarray, rng: np.random.Generator, n_leaves: int, max_depth: int
) -> Tree:
    """Return a tree of random sums through the middle of states [M, n_raw] whose leaves have small random gains.

    `features` and `actions` are the environment's, `n_leaves` and `max_depth` the size of the tree.
    """
    box = LeafActions(actions)
    tree = Tree.leaf((box.low + box.high) / 2, features.raw, actions)
    for _ in range(n_leaves - 1):
        tree = with_random_split(tree, states, rng, max_depth)
    spread, half = states.std(axis=0), (box.high - box.low) / 2
    unit = RANDOM_GAIN_DEVIATION * half[:, None] / np.where(spread > 0.0, spread, 1.0)
    gains = unit * rng.normal(size=(tree.n_nodes, *unit.shape)) * (tree.feature == LEAF)[:, None, None]
    return replace(tree, gains=gains)


def with_rounded_numbers(tree: Tree, digits: int) -> Tree:
    """Return the tree with every weight, threshold, gain and leaf value rounded to a number of digits."""

    def shorter(value: float) -> float:
        return float(f"{value:.{digits}g}")

    for c in used_derived(tree):
        entry = tree.features.sum_of(c)
        tree = with_sum(tree, c, Sum(tuple((index, shorter(weight)) for index, weight in entry.terms)))
    each = np.vectorize(shorter, otypes=[float])
    if tree.actions.kind == "box":
        gains = None if tree.gains is None else each(tree.gains)
        tree = replace(tree, value=within_bounds(tree, each(tree.value), gains), gains=gains)
    return replace(tree, threshold=each(tree.threshold))


def within_bounds(tree: Tree, value: np.ndarray, gains: np.ndarray | None) -> np.ndarray:
    """Return leaf values [n_nodes, k] of which those without gains lie within the bounds of the actions."""
    is_constant = np.ones_like(value, dtype=bool) if gains is None else ~gains.any(axis=2)
    is_constant &= (tree.feature == LEAF)[:, None]
    box = LeafActions(tree.actions)
    return np.where(is_constant, np.clip(value, box.low, box.high), value)


def with_sum(tree: Tree, c: int, entry: Sum) -> Tree:
    """Return the tree with another sum in place of derived feature c."""
    n_raw = tree.features.n_raw
    sums = [entry if n_raw + k == c else old for k, old in enumerate(tree.features.derived)]
    return replace(tree, features=with_sums(tree.features, sums))


def with_sums(features: Features, sums: Sequence[Sum | np.ndarray]) -> Features:
    """Return the raw features with these sums after them, named by number: `with_named_sums` takes more time."""
    return features.raw.with_sums(sums, [f"sum {k}" for k in range(len(sums))])


def with_named_sums(tree: Tree) -> Tree:
    """Return the tree with sums named by their terms; one of a single feature becomes a plain test of that feature."""
    features, numbers = tree.features, dict[Sum, int]()

    def plain(part: Shape) -> Shape:
        if not isinstance(part, Split):
            return part
        left, right = plain(part.left), plain(part.right)
        if part.feature < features.n_raw:
            return part._replace(left=left, right=right)
        entry = features.sum_of(part.feature)
        if entry.is_linear and len(entry.terms) == 1 and entry.constant == 0.0:
            ((index, weight),) = entry.terms
            assert isinstance(index, int)
            return Split(index, part.threshold / weight, *((left, right) if weight > 0 else (right, left)))
        number = numbers.setdefault(entry, features.n_raw + len(numbers))
        return Split(number, part.threshold, left, right)

    shape = plain(shape_of(tree))
    return simplify(build_tree(shape, features.raw.with_sums(list(numbers)), tree.actions, tree.origin))


def _gains(tree: Tree) -> np.ndarray:
    """Return the gains [n_nodes, k, n_raw], zeros where leaves are constant."""
    return np.zeros((tree.n_nodes, tree.actions.size, tree.features.n_raw)) if tree.gains is None else tree.gains
