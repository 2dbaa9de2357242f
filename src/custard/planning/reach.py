"""The probability that a tree's episode reaches a set of states, within k steps or ever: exact, no rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order
from scipy.sparse.linalg import spsolve

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP
from custard.tree.mdp_policy import mdp_policy
from custard.tree.tree import Tree

__all__ = ["reach_probability"]


def reach_probability(tree: Tree, mdp: FiniteMDP, target: Any, steps: int | None = None) -> float:
    """Return the probability of being in a `target` state ([S] bool) within `steps` steps of the start (None: ever).

    Episodes end in terminal states; the discount plays no part, and neither does a time limit.

    >>> import gymnasium as gym, custard
    >>> mdp = gym.make("custard/PrereqWorld-v0", m=1, rho=0.5).unwrapped.mdp()
    >>> tree = custard.Tree.leaf(0, mdp.features, mdp.actions)
    >>> [reach_probability(tree, mdp, mdp.terminal, steps) for steps in (0, 1, 2, None)]
    [0.0, 0.5, 0.75, 1.0]
    """
    goal = np.asarray(target)
    if goal.shape != (mdp.n_states,) or goal.dtype != bool:
        raise CustardError(f"target needs one truth value for each of the {mdp.n_states} states")
    if steps is not None and steps < 0:
        raise CustardError(f"steps={steps} must not be negative")
    matrix, _ = mdp.policy_model(mdp_policy(tree, mdp))
    if steps is not None:
        probability = goal.astype(float)
        for _ in range(steps):
            after = np.where(goal, 1.0, matrix @ probability)
            if np.array_equal(after, probability):
                break
            probability = after
        return float(mdp.start @ probability)
    # States that can reach the target at all; the others stay at zero, which makes the system regular.
    count = mdp.n_states
    backwards = sparse.hstack([sparse.csr_array(matrix.T), sparse.csr_array((count, 1))])
    into = sparse.hstack([sparse.csr_array(goal.astype(float).reshape(1, -1)), sparse.csr_array((1, 1))])
    graph = sparse.vstack([backwards, into], format="csr")
    order = breadth_first_order(graph, count, directed=True, return_predecessors=False)
    open_states = np.setdiff1d(order[order != count], np.flatnonzero(goal))
    probability = goal.astype(float)
    if len(open_states):
        among = matrix[open_states]
        system = sparse.eye_array(len(open_states), format="csc") - sparse.csc_array(among[:, open_states])
        probability[open_states] = np.atleast_1d(spsolve(sparse.csc_array(system), among @ goal.astype(float)))
    return float(mdp.start @ np.clip(probability, 0.0, 1.0))
