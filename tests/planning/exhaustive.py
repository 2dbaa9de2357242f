"""Every tree there is: the slow, obviously right answer that tests compare with."""

from __future__ import annotations

import numpy as np

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP
from custard.planning.evaluate import policy_value
from custard.planning.reduced import separating_splits
from custard.tree.shape import Shape, Split, build_tree, map_leaves
from custard.tree.tree import Tree

__all__ = ["best_tree_exhaustive", "numbered_tree"]

MAX_TREES = 2_000_000


def best_tree_exhaustive(mdp: FiniteMDP, max_depth: int, tolerance: float = 1e-9) -> tuple[Tree, float]:
    """The tree of highest value, then of fewest leaves, by trying every one of at most `max_depth`.

    Trees that decide alike in every state count once. Only for tiny models: a CustardError says when there are
    more than two million different ones.
    """
    states = np.flatnonzero(~mdp.terminal)
    policies = _policies(mdp, states, max_depth)
    best: tuple[float, int, Shape] | None = None
    for choice, (leaves, node) in policies.items():
        full = np.zeros(mdp.n_states, dtype=np.int64)
        full[states] = choice
        value = policy_value(full, mdp)
        if best is None or value > best[0] + tolerance or (value >= best[0] - tolerance and leaves < best[1]):
            best = (value, leaves, node)
    assert best is not None
    return numbered_tree(best[2], mdp), best[0]


def numbered_tree(shape: Shape, mdp: FiniteMDP) -> Tree:
    """The tree of a shape whose leaves are action numbers 0…A-1."""
    return build_tree(map_leaves(shape, lambda number: number + mdp.actions.start), mdp.features, mdp.actions)


def _policies(mdp: FiniteMDP, states: np.ndarray, depth: int) -> dict[tuple[int, ...], tuple[int, Shape]]:
    """choice over `states` -> (fewest leaves, tree) for every tree of at most `depth`."""
    found: dict[tuple[int, ...], tuple[int, Shape]] = {(a,) * len(states): (1, a) for a in range(mdp.actions.n)}
    if depth == 0:
        return found
    for c, threshold in separating_splits(mdp.x[states]):
        yes = mdp.x[states, c] <= threshold
        left = _policies(mdp, states[yes], depth - 1)
        right = _policies(mdp, states[~yes], depth - 1)
        if len(left) * len(right) + len(found) > MAX_TREES:
            raise CustardError(f"more than {MAX_TREES:,} different trees: too many to try them all")
        where = np.empty(len(states), dtype=np.int64)
        for a_choice, (a_leaves, a_node) in left.items():
            where[yes] = a_choice
            for b_choice, (b_leaves, b_node) in right.items():
                where[~yes] = b_choice
                key = tuple(where.tolist())
                if key not in found or found[key][0] > a_leaves + b_leaves:
                    found[key] = (a_leaves + b_leaves, Split(c, threshold, a_node, b_node))
    return found
