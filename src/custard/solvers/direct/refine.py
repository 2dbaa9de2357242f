"""Changes to a tree's shape, kept or dropped by the return: random small ones, and splits taken away."""

from __future__ import annotations

import numpy as np

from custard.solvers.common.mutations import mutate_shape
from custard.solvers.common.race import Racer, Winner
from custard.tree.leaf_actions import LeafActions
from custard.tree.shape import shape_of, tree_of
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

__all__ = ["change"]

CHALLENGERS = 24  # changed trees that are compared with the present one at a time
SECOND_CHANGE_SHARE = 0.3  # share of them with a further change


def change(
    incumbent: Tree,
    racer: Racer,
    episodes: int,
    states: np.ndarray,
    rng: np.random.Generator,
    max_depth: int,
    max_leaves: int,
) -> Winner:
    """Return the incumbent or a changed tree that beats it on fresh episodes.

    `states` [M, n] say where thresholds may lie; `max_depth` and `max_leaves` limit the tree.
    """
    states = incumbent.features.extend(states)
    leaf_actions, spread = LeafActions(incumbent.actions), states.std(axis=0)
    challengers = []
    for _ in range(CHALLENGERS):
        shape = shape_of(incumbent)
        for _ in range(2 if rng.random() < SECOND_CHANGE_SHARE else 1):
            shape = mutate_shape(shape, rng, states, spread, leaf_actions, max_depth, max_leaves)
        challengers.append(simplify(tree_of(shape, incumbent)))
    return racer.improve(incumbent, challengers, episodes)
