"""What the states that a tree visits say about it: which features decide, and what is typical of each leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from custard.tree.explain import read_features
from custard.tree.tree import Tree

__all__ = ["deciding_shares", "leaf_visits", "sample_states"]

MAX_SHOWN_STATES = 400
MAX_JUDGED_STATES = 4_000
SHUFFLE_ROUNDS = 3


def deciding_shares(tree: Tree, states: np.ndarray | None, seed: int = 0) -> list[float]:
    """Return for each feature of an observation the share of decisions that change if its values are shuffled, [n].

    A shuffled feature takes the values it has in other visited states. Without states, 1 for features that some
    question asks about, 0 for others.

    >>> from custard import Actions, Features, Tree
    >>> features = Features(("a", "b"), [-1, -1], [1, 1])
    >>> tree = Tree.stump(1, 0.0, 0, 1, features, Actions("discrete", ("left", "right")))
    >>> shares = deciding_shares(tree, np.random.default_rng(0).uniform(-1, 1, (1000, 2)))
    >>> shares[0], 0.4 < shares[1] < 0.6
    (0.0, True)
    """
    used = sorted(c for c in read_features(tree) if c < tree.features.n_raw)
    shares = np.zeros(tree.features.n_raw)
    if states is None or len(states) < 2:
        shares[used] = 1.0
        return shares.tolist()
    rng = np.random.default_rng(seed)
    chosen = states[rng.permutation(len(states))[:MAX_JUDGED_STATES]]
    before = _actions_of(tree, chosen)
    for c in used:
        for _ in range(SHUFFLE_ROUNDS):
            shuffled = chosen.copy()
            shuffled[:, c] = rng.permutation(chosen[:, c])
            differs = _actions_of(tree, shuffled) != before
            shares[c] += float(differs.reshape(len(chosen), -1).any(axis=1).mean()) / SHUFFLE_ROUNDS
    return shares.tolist()


def leaf_visits(tree: Tree, episodes: Sequence[np.ndarray]) -> dict[int, dict[str, Any]]:
    """Return for each leaf that episodes ([steps, n] each) visit: in how many, and the visited state typical of it.

    The typical state is the visited one nearest to the median of the leaf's states, so that it does reach the leaf.
    """
    states = np.concatenate(list(episodes))
    number = np.repeat(np.arange(len(episodes)), [len(episode) for episode in episodes])
    leaf = tree.apply(states)
    columns = [column[np.isfinite(column)] for column in states.T]
    spread = np.array([float(column.std()) or 1.0 if len(column) else 1.0 for column in columns])
    found = {}
    for n in np.unique(leaf).tolist():
        own = states[leaf == n]
        with np.errstate(invalid="ignore"):
            gap = (((own - np.median(own, axis=0)) / spread) ** 2).sum(axis=1)
        typical = own[int(np.argmin(np.where(np.isnan(gap), np.inf, gap)))]
        found[n] = {"episodes": len(np.unique(number[leaf == n])), "typical": typical.tolist()}
    return found


def sample_states(states: np.ndarray | None, seed: int = 0) -> list[list[float]]:
    """Return some of the visited states for the page to draw, to four digits."""
    if states is None:
        return []
    finite = states[np.isfinite(states).all(axis=1)]
    chosen = finite[np.sort(np.random.default_rng(seed).permutation(len(finite))[:MAX_SHOWN_STATES])]
    return [[float(f"{value:.4g}") for value in row] for row in chosen.tolist()]


def _actions_of(tree: Tree, states: np.ndarray) -> np.ndarray:
    return np.asarray(tree.predict(states, compiled=False))
