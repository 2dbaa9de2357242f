"""Where tree policy iteration begins: fits to random behaviour, random trees, tables of values, a given expert."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from custard.errors import CustardError
from custard.features import Features
from custard.lab.evaluate import rollouts
from custard.lab.source import episode_seeds
from custard.solvers.api import Problem
from custard.solvers.mutate import random_shape, tree_of
from custard.solvers.simulate import Compiled
from custard.tree.fit import fit_tree
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.tpi import Search

__all__ = ["finite", "first_trees", "imitations", "outside_expert", "states_or_random"]

TABLE_DEPTH = 12  # questions a path for trees of a learned table where no limit is given

ROUNDS = 10  # fits, each on the states of the expert and of all trees before
STARTS = 8  # trees that a search begins from
MOST = 20_000  # states in a fit
EPISODES = 20  # of the expert, and of each tree
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
    if search.settings.expert is not None and search.number == 0:
        own = search.compiled and search.settings.budget is None  # far too many steps to train a network in
        budget = None if own else search.budget // 3
        act, worth, steps = outside_expert(search.problem, search.settings.expert, budget, search.seed)
        search.real.steps += steps
        for depth in depths:
            limits = depth, search.settings.max_leaves, search.cuts, int(rng.integers(2**31))
            end = search.real.steps + IMITATING * search.budget
            for tree, used in imitations(search.problem, act, worth, *limits):
                trees.append(tree)
                search.real.steps += used
                if search.real.steps >= end:
                    break
    shapes = [random_shape(rng, x, search.menu, search.depth) for _ in range(search.changes // 3)]
    trees += [tree for tree in (tree_of(shape, search.blank) for shape in shapes) if tree.n_leaves <= search.leaves]
    few = seeds[: max(2, len(seeds) // 8, 16 if isinstance(search.sim, Compiled) else 0)]
    ranked = [(-np.inf, 0, 0, search.blank)]
    for tree in map(simplify, trees):
        if search.real.steps < search.spend // 2 or search.number > 0:
            ranked.append((float(search.sim.returns(tree, few).mean()), -tree.n_leaves, -tree.depth, tree))
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


def outside_expert(
    problem: Problem, given: str | Callable[..., Any], budget: int | None, seed: int
) -> tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray], int]:
    """What an expert does [B] and what it thinks actions are worth [B, A], and the steps it took to train.

    "dqn" trains one of ours with at most `budget` steps, those of its checks not counted, or as many as it takes by
    itself; a file holds one of ours (.npz) or a Stable-Baselines3 model (.zip); a function maps feature vectors [B, n]
    to Q-values [B, A].
    """
    from custard.baselines import dqn  # needs jax only to train
    from custard.baselines.experts import from_function, from_sb3
    from custard.lab.methods import settings_for

    n = problem.base.actions.n
    problem.require_discrete_actions("an expert to start from")
    steps = 0
    if callable(given):
        expert = from_function(given, n)
    elif given == "dqn":
        how = {"checks": 8, "check_rollouts": 20, "standardise": True} | ({} if budget is None else {"steps": budget})
        chosen = settings_for(dqn, problem.preset, "tuned", how)
        best = None
        for progress in dqn.train(problem, chosen, seed):
            best, steps = progress.best, progress.steps
        if best is None:
            raise CustardError(f"{budget} steps are too few for a DQN expert")
        expert = from_function(best.q, n, "DQN")
    elif str(given).endswith(".npz"):
        expert = from_function(dqn.Network.load(given).q, n, Path(given).name)
    elif str(given).endswith(".zip"):
        expert = from_sb3(Path(given), problem)
    else:
        raise CustardError(f"expert={given!r} is not known: choose dqn, a .npz or .zip file, or a function to Q-values")
    worth = expert.q or expert.log_policy
    assert worth is not None
    return expert.act, worth, steps


def imitations(
    problem: Problem,
    act: Callable[[np.ndarray], np.ndarray],
    worth: Callable[[np.ndarray], np.ndarray],
    depth: int,
    max_leaves: int | None,
    cuts: int,
    seed: int,
) -> Iterator[tuple[Tree, int]]:
    """Trees fitted to an expert's values on its own states, then also on the states the trees went to (DAgger).

    With each comes the number of environment steps it took.
    """
    rng = np.random.default_rng(seed)
    features, actions = problem.base.features, problem.base.actions
    tree: Tree | None = None
    x = np.zeros((0, features.n))
    for _ in range(ROUNDS):
        met: list[np.ndarray] = []

        def follow(states: np.ndarray, met: list[np.ndarray] = met, tree: Tree | None = tree) -> np.ndarray:
            met.append(states.copy())
            return act(states) + actions.start if tree is None else tree.predict(states)

        seeds = episode_seeds(int(rng.integers(2**31)), EPISODES)
        _, lengths, _ = rollouts(follow, problem.source, seeds, features=problem.encoder)
        x = np.concatenate([x, *met])
        some = x[rng.permutation(len(x))[:MOST]]
        value = worth(some)
        value = value - value.max(axis=1, keepdims=True)
        tree = fit_tree(some, value, features, actions, max_depth=depth, max_leaves=max_leaves, cuts=cuts).tree
        yield tree, int(lengths.sum())
