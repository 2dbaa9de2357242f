"""Where tree policy iteration begins: fits to random behaviour, random trees, tables of values, a given expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from custard.core.errors import CustardError
from custard.core.features import Features
from custard.solvers.common.mutations import random_shape
from custard.solvers.tpi.advice import EPISODES, imitations, longest
from custard.solvers.tpi.simulate import Compiled
from custard.tree.shape import tree_of
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.tpi.search import Search

__all__ = ["finite", "first_trees", "states_or_random"]

TABLE_DEPTH = 12  # questions a path for trees of a learned table where no limit is given

STARTS = 8  # trees that a search begins from
LEARNING = 4_800_000  # steps in which a table is learned, at the most
IMITATING = 0.1  # the share of the budget that fits to an expert may take at each depth


def first_trees(search: Search, rng: np.random.Generator, seeds: np.ndarray) -> tuple[list[Tree], np.ndarray]:
    """New trees to begin from, the best first: fits to random behaviour, an expert's, random trees.

    Each asks about other features than those before it. Also states that were met.
    """
    trees: list[Tree] = []
    x = np.zeros((0, search.features.n))
    if search.sim.values_actions:
        tried = search.menu.tried(rng, search.blank)
        x, q = search.sim.action_values(search.blank, int(rng.integers(2**31)), search.states(len(tried)), 1.0, tried)
        trees += list(search.fits(search.blank, x, q, tried))
    x = states_or_random(x, search.features, rng)
    depths = sorted({search.depth, search.deepest})
    if search.table is not None and isinstance(search.sim, Compiled):
        if search.model is not None:
            search.table.q, search.table.visits = search.model.q(), search.model.visits
            depths += [TABLE_DEPTH] if search.problem.max_depth is None else []
        else:
            steps = min(LEARNING, search.budget // 25) // (1 if search.number == 0 else 5)
            search.table.learn(search.sim, steps, int(rng.integers(2**31)))
        for depth in depths:
            args = depth, search.settings.max_leaves, int(rng.integers(2**31)), 30 if search.model is None else 8
            trees += list(search.table.trees(search.sim, *args))
    known: dict[int, float] = {}  # returns over more episodes than the others run below
    if search.expert is not None and search.number == 0:
        for depth in depths:
            limits = depth, search.settings.max_leaves, search.cuts, int(rng.integers(2**31))
            room = IMITATING * search.budget
            end, episodes = search.real.steps + room, int(np.clip(room / (10 * search.real.length), 4, EPISODES))
            for tree, mean, used in imitations(search.advised, search.expert, *limits, longest(search), episodes):
                known[len(trees)] = mean
                trees.append(search.as_advised(tree))
                search.real.steps += used
                if search.real.steps >= end:
                    break
    if search.menu.all is None and not search.menu.whole:  # always the middle: often better than what chance offers
        middle = (search.menu.low + search.menu.high) / 2
        trees.append(Tree.leaf(middle, search.features, search.actions))
    shapes = [random_shape(rng, x, search.menu, search.depth) for _ in range(search.changes // 3)]
    trees += [tree for tree in (tree_of(shape, search.blank) for shape in shapes) if tree.n_leaves <= search.leaves]
    few = seeds[: max(2, len(seeds) // 8, 16 if isinstance(search.sim, Compiled) else 0)]
    ranked = [(-np.inf, 0, 0, search.blank)]
    for k, tree in enumerate(map(simplify, trees)):
        if k in known or search.real.steps < search.spend // 2 or search.number > 0:
            mean = known[k] if k in known else float(search.sim.returns(tree, few).mean())
            ranked.append((mean, -tree.n_leaves, -tree.depth, tree))
    ranked.sort(key=lambda entry: entry[:3], reverse=True)
    kinds = {tuple(entry[3].feature.tolist()): entry[3] for entry in reversed(ranked)}
    order = dict.fromkeys(tuple(entry[3].feature.tolist()) for entry in ranked)
    return [kinds[kind] for kind in order][: STARTS if search.features.n > 1 else 1], x


def states_or_random(x: np.ndarray, features: Features, rng: np.random.Generator) -> np.ndarray:
    """The states given, or random ones where there are none."""
    if len(x):
        return finite(x, features)
    spread = np.where(features.unbounded, 2.0, features.high - features.low)
    low = np.where(features.unbounded, -1.0, features.low)
    return low + rng.random((100, features.n)) * spread


def finite(x: np.ndarray, features: Features) -> np.ndarray:
    """The states, refused if one is infinite: thresholds lie between states."""
    if not np.isfinite(x).all():
        name = features.names[int(np.argwhere(~np.isfinite(x))[0, -1])]
        raise CustardError(
            f"the environment gave an infinite value for feature {name!r}: clip it, so that it has a place"
        )
    return x
