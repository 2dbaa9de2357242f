"""Trees that are perfect but in rare episodes: told apart on very many, confirmed, and mended where they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from custard.solvers.common.candidate import Candidate
from custard.task.source import episode_seeds
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.tpi.search import Search

__all__ = ["NEARLY", "SHRINKS", "WORTH", "confirmed", "enough", "harder", "many", "mend", "mending"]

ENOUGH = 16_000, 100  # episodes, compiled or not, in which a perfect tree is to be perfect, if the budget allows
SHRINKS = 12  # rounds in a row in which no perfect tree of fewer leaves was found before the search for one ends
MENDING = 25_000_000  # steps for mending a tree after that
MANY = 10_000_000  # steps of the episodes in which a tree to mend fails in few
MOST_HARD = 64  # episodes remembered in which nearly perfect trees failed
NEARLY = 2.5e-5  # the share of the most possible that a nearly perfect tree may miss
WORTH = 1e-4  # the share of the return that a question must add, where returns are exact or a tree is perfect


def enough(search: Search) -> int:
    """Episodes in which a perfect tree is to be perfect."""
    room = (search.budget - search.spend) / (2 * search.real.limit)
    return int(np.clip(room, 16, ENOUGH[0] if search.compiled else ENOUGH[1]))


def many(search: Search) -> int:
    """Episodes in which a tree of a round is to be perfect: more, the longer nothing better was found."""
    return enough(search) // 16 * min(4, 2**search.stale)


def harder(search: Search, now: Candidate, rng: np.random.Generator) -> Candidate:
    """More and more episodes for a tree that is perfect on those it has run, until it fails in some."""
    while search.perfect(now.mean) and len(now.seeds) < many(search) and search.going:
        count = min(3 * len(now.seeds), many(search) - len(now.seeds))
        fresh = episode_seeds(int(rng.integers(2**31)), count)
        now = now.more(fresh, search.sim.returns(now.tree, fresh))
    if search.failing(now):
        remember(search, now.seeds[now.returns < search.ceiling])
    return now


def remember(search: Search, failed: np.ndarray) -> None:
    """Keep episodes in which a nearly perfect tree failed, the latest last."""
    search.hard = np.concatenate([search.hard[~np.isin(search.hard, failed)], failed])[-MOST_HARD:]


def confirmed(search: Search, tree: Tree) -> bool:
    """Whether a tree is nearly perfect on many fresh episodes; if not, those where it fails are kept."""
    seeds = episode_seeds(int(np.random.default_rng([search.seed, search.number, 1]).integers(2**31)), enough(search))
    late = search.stale >= SHRINKS // 2 or search.real.steps > search.spend // 2
    missed = WORTH if late and tree.n_leaves < search.best.n_leaves else NEARLY
    allowed = search.ceiling * enough(search) * missed
    returns = np.zeros(0)
    while len(returns) < enough(search) and (search.ceiling - returns).sum() <= allowed:  # a few tell of bad ones
        part = seeds[len(returns) : max(enough(search) // 16, 4 * len(returns))]
        returns = np.concatenate([returns, search.sim.returns(tree, part)])
    good = bool((search.ceiling - returns).sum() <= allowed)
    if good or tree is search.best:
        search.value = float(returns.mean())
    if (returns < search.ceiling).any():
        remember(search, seeds[: len(returns)][returns < search.ceiling])
    return good


def mending(search: Search) -> bool:
    """Whether rounds are for the episodes in which the best tree fails, if it fails in a few of very many."""
    room = search.compiled and search.real.steps + 3 * MANY < 0.65 * search.budget
    return room and search.sure and search.stale >= SHRINKS and search.mended < MENDING


def mend(search: Search) -> None:
    """Small changes to a tree that is perfect but in a few of very many episodes, kept if it fails less.

    Changes are tried where it fails and in a few other episodes; how often the changed tree fails shows in all of the
    many.
    """
    rng, before = np.random.default_rng([search.seed, search.number]), search.sim.steps
    count = max(enough(search), MANY // search.real.limit)
    ran = search.run(search.best, episode_seeds(int(rng.integers(2**31)), count))
    fails, search.value = ran.returns < search.ceiling, ran.mean
    if fails.any():
        search.leaves, search.depth = search.best.n_leaves, max(search.depth, search.best.depth)
        now = search.run(search.best, np.concatenate([ran.seeds[fails], search.episodes(rng)]))
        tree = simplify(search.polished(now, rng, np.zeros((0, search.features.n)), search.changes // 2).tree)
        mean = float(search.sim.returns(tree, ran.seeds).mean()) if tree != search.best else -np.inf
        if mean > search.value:
            search.best, search.value = tree, mean
    search.mended = MENDING if search.perfect(search.value) else search.mended + search.sim.steps - before
    search.number += 1
    search.finish()
