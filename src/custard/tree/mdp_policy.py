"""A tree as the policy of a finite MDP."""

from __future__ import annotations

import numpy as np

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP
from custard.tree.tree import Tree

__all__ = ["mdp_policy"]


def mdp_policy(tree: Tree, mdp: FiniteMDP) -> np.ndarray:
    """Return the action number 0…A-1 that a tree takes in each state, [S] int64."""
    if tree.features.n_raw != mdp.features.n_raw or not tree.actions.discrete or tree.actions.n != mdp.actions.n:
        raise CustardError(
            f"the tree asks about {tree.features.n} features and has {tree.actions.n} actions, but the MDP has "
            f"{mdp.features.n} features and {mdp.actions.n} actions"
        )
    return tree.predict(mdp.x[:, : tree.features.n_raw], compiled=False).astype(np.int64) - tree.actions.start
