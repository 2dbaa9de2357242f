"""Trees over weighted sums, and with linear leaves: made of a linear policy exactly, then with fewer coefficients.

The largest of a few linear scores is found by a tournament: each test compares two scores, which is one weighted sum
with a threshold. A policy whose actions are linear in the features is a single linear leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from custard.core.features import Features
from custard.core.sums import Sum
from custard.solvers.common.mutations import trees_without_one_split
from custard.task.policies import LinearPolicy
from custard.tree.linear import used_derived
from custard.tree.shape import LEFT, RIGHT, LinearLeaf, Shape, Split, build_tree, replace_part, shape_of, subshape
from custard.tree.simplify import simplify
from custard.tree.tree import LEAF, Tree

__all__ = ["grown", "linear_tree", "readable", "rounded", "smaller_trees", "with_sums"]

MAX_TOURNAMENT_ACTIONS = 5  # a tournament of a actions has 2 ** (a - 1) leaves
MIN_ACTION_SHARE = 0.002  # share of states in which an action must be chosen to take part
DROPPED_AT_ONCE = 2, 4, 8, 16, 32  # coefficients of all sums
DROPPED_COEFFICIENTS = 3  # of each sum or leaf component, those that matter least, are tried without


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
    order = order[: max(1, min(max_actions, int((chosen > MIN_ACTION_SHARE * len(states)).sum())))]
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


def smaller_trees(tree: Tree, states: np.ndarray, moves_sums: bool) -> list[Tree]:
    """Return the tree without one of its splits or, if `moves_sums`, without some coefficients that matter least.

    states [M, n_raw] are some that were met: a coefficient matters by how much its term varies there.
    """
    spread, features = states.std(axis=0), tree.features
    found = trees_without_one_split(tree)
    effects: list[tuple[float, int, int]] = []  # of each coefficient: how much it matters, its sum, its feature
    for c in used_derived(tree) if moves_sums else ():
        terms = [(index, weight) for index, weight in features.sum_of(c).terms if isinstance(index, int)]
        total = float(features.sum_of(c).values(states).std()) or 1.0
        mine = sorted((abs(weight) * spread[index] / total, c, index) for index, weight in terms)
        effects += mine
        for _, _, index in mine[: DROPPED_COEFFICIENTS if len(terms) > 1 else 0]:
            found.append(without_coefficients(tree, {(c, index)}))
    effects.sort()
    for count in DROPPED_AT_ONCE:
        if count < len(effects):
            found.append(without_coefficients(tree, {(c, index) for _, c, index in effects[:count]}))
    for node, component in zip(*np.nonzero(_gains(tree).any(axis=2)), strict=True) if moves_sums else ():
        gains = _gains(tree)[node, component]
        order = np.argsort(np.where(gains != 0.0, np.abs(gains) * spread, np.inf), kind="stable")
        for index in order[: min(DROPPED_COEFFICIENTS, np.count_nonzero(gains))].tolist():
            fewer = _gains(tree).copy()
            fewer[node, component, index] = 0.0
            value = tree.value.copy()
            value[node, component] += gains[index] * states[:, index].mean()
            found.append(replace(tree, gains=fewer, value=value))
    return [readable(each) for each in found]


def grown(tree: Tree, states: np.ndarray, rng: np.random.Generator, max_depth: int) -> Tree:
    """Return the tree with one leaf split in two alike, by a random sum through the middle of states [M, n_raw]."""
    shape, leaves = shape_of(tree), np.flatnonzero(tree.feature == LEAF)
    leaves = leaves[tree.node_depth[leaves] < max_depth]
    if not len(leaves):
        return tree
    node = int(rng.choice(leaves))
    here = states[tree.apply(states) == node]
    here = here if len(here) > 1 else states
    spread = states.std(axis=0)
    weights = rng.normal(size=len(spread)) / np.where(spread > 0.0, spread, 1.0)
    features = with_sums(tree.features, [*tree.features.derived, weights])
    path = _path_to(tree, node)
    leaf = subshape(shape, path)
    threshold = float(np.median(here @ weights))
    return build_tree(replace_part(shape, path, Split(features.n - 1, threshold, leaf, leaf)), features, tree.actions)


def rounded(tree: Tree, digits: int) -> Tree:
    """Return the tree with every weight, threshold, gain and leaf value rounded to so many digits."""

    def shorter(value: float) -> float:
        return float(f"{value:.{digits}g}")

    for c in used_derived(tree):
        entry = tree.features.sum_of(c)
        tree = with_sum(tree, c, Sum(tuple((index, shorter(weight)) for index, weight in entry.terms)))
    each = np.vectorize(shorter, otypes=[float])
    if tree.actions.kind == "box":
        tree = replace(tree, value=each(tree.value), gains=None if tree.gains is None else each(tree.gains))
    return replace(tree, threshold=each(tree.threshold))


def without_coefficients(tree: Tree, dropped: set[tuple[int, int]]) -> Tree:
    """Return the tree without coefficients, given by sum and feature; of each sum the largest stays."""
    for c in {c for c, _ in dropped}:
        terms = tree.features.sum_of(c).terms
        left = tuple(term for term in terms if (c, term[0]) not in dropped)
        tree = with_sum(tree, c, Sum(left or (max(terms, key=lambda term: abs(term[1])),)))
    return tree


def with_sum(tree: Tree, c: int, entry: Sum) -> Tree:
    """Return the tree with another sum in place of derived feature c."""
    n_raw = tree.features.n_raw
    sums = [entry if n_raw + k == c else old for k, old in enumerate(tree.features.derived)]
    return replace(tree, features=with_sums(tree.features, sums))


def with_sums(features: Features, sums: Sequence[Sum | np.ndarray]) -> Features:
    """Return the raw features with these sums after them; their names cost no time to make (`readable` has better)."""
    return features.raw.with_sums(sums, [f"sum {k}" for k in range(len(sums))])


def readable(tree: Tree) -> Tree:
    """Return the tree with sums called what they are; one of a single feature becomes a plain test of that feature."""
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


def _path_to(tree: Tree, node: int) -> tuple[int, ...]:
    """Return the path from the root to a node."""
    sides: list[int] = []
    while node != 0:
        parent = int(tree.parent[node])
        sides.insert(0, LEFT if tree.children_left[parent] == node else RIGHT)
        node = parent
    return tuple(sides)


def _gains(tree: Tree) -> np.ndarray:
    """Return the gains [n_nodes, k, n_raw], zeros where leaves are constant."""
    return np.zeros((tree.n_nodes, tree.actions.size, tree.features.n_raw)) if tree.gains is None else tree.gains
