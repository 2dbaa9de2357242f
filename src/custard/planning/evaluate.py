"""Exact values: what a tree, or one action per state, earns from the start distribution."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.sparse.linalg import spsolve

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP
from custard.core.numba_tools import njit
from custard.tree.mdp_policy import mdp_policy
from custard.tree.tree import Tree

__all__ = ["mean_questions", "policy_value", "random_value", "state_values", "states_visited", "tree_value", "visits"]

MAX_UNFILTERED_STATES = 5_000  # of more, only those that the policy can reach are followed through an episode


def tree_value(tree: Tree, mdp: FiniteMDP) -> float:
    """Return the expected return of a tree from the start distribution: exact, no rollouts. See `policy_value`.

    >>> import gymnasium as gym, custard
    >>> mdp = gym.make("custard/PrereqWorld-v0", m=4).unwrapped.mdp()
    >>> tree_value(custard.Tree.leaf(0, mdp.features, mdp.actions), mdp)
    -inf
    """
    return policy_value(mdp_policy(tree, mdp), mdp)


def policy_value(choice: np.ndarray, mdp: FiniteMDP) -> float:
    """Return the expected return of a deterministic memoryless policy, choice[s] in 0…A-1, from the start distribution.

    With a horizon: the sum of that many (discounted) rewards. Without one and gamma = 1 the sum has no end unless the
    policy terminates. A set of states it can never leave is then worth 0 if it earns nothing there, minus infinity if
    it loses on average (or its sum never settles), plus infinity if it gains; minus infinity wins over plus infinity.
    """
    if mdp.horizon is not None:
        occupancy, _ = visits(choice, mdp)
        return float(occupancy @ _policy_rewards(choice, mdp))
    values = state_values(choice, mdp)
    started = np.flatnonzero(mdp.start > 0)
    if np.isneginf(values[started]).any():
        return -np.inf
    return float(mdp.start[started] @ values[started])


def random_value(mdp: FiniteMDP) -> float:
    """Return the expected discounted return of evenly drawn actions; needs gamma below one, ignores the horizon."""
    if mdp.gamma >= 1.0:
        raise CustardError("the exact return of random actions needs gamma below 1")
    alive = (~mdp.terminal).astype(float) / mdp.actions.n
    mean = sparse.diags_array(alive) @ sum(mdp.transitions[1:], mdp.transitions[0])
    system = sparse.csc_array(sparse.eye_array(mdp.n_states) - mdp.gamma * mean)
    return float(mdp.start @ np.atleast_1d(spsolve(system, alive * mdp.rewards.sum(axis=1))))


def state_values(choice: np.ndarray, mdp: FiniteMDP) -> np.ndarray:
    """Return V of a policy in each state it reaches from the start, [S]; zero in the others. Ignores the horizon."""
    choice = np.asarray(choice, dtype=np.int64)
    matrix, reward = mdp.policy_model(choice)
    values = np.zeros(mdp.n_states)
    reach = _states_reached(matrix, mdp)
    p, r = matrix[reach][:, reach], reward[reach]
    ends = mdp.terminal[reach].copy()
    if mdp.gamma == 1.0:
        worth, is_endless = _infinite_sums(p, r, ends)
        values[reach] = worth
        keep = np.isfinite(worth) & ~ends & ~is_endless  # what is earned on the way into a loop counts
        reach, p, r = reach[keep], p[keep][:, keep], r[keep]
    if len(reach):
        identity = sparse.eye_array(len(reach), format="csc")
        solved = spsolve(sparse.csc_array(identity - mdp.gamma * p), r)
        values[reach] = np.atleast_1d(solved)
    return values


def visits(choice: np.ndarray, mdp: FiniteMDP, tolerance: float = 1e-13) -> tuple[np.ndarray, float]:
    """Return how often each state is acted in (expected, discounted), [S], and the probability of not terminating.

    Without a horizon the policy must terminate or gamma be below one; otherwise a CustardError says so.
    """
    choice = np.asarray(choice, dtype=np.int64)
    matrix, _ = mdp.policy_model(choice)
    start = np.where(mdp.terminal, 0.0, mdp.start)
    if mdp.horizon is None:
        reach = _states_reached(matrix, mdp)
        p = matrix[reach][:, reach]
        if mdp.gamma == 1.0 and _trapped(p, mdp.terminal[reach]).any():
            raise CustardError("this policy never terminates from some state: its visits are endless")
        inner = reach[~mdp.terminal[reach]]
        occupancy = np.zeros(mdp.n_states)
        if len(inner):
            identity = sparse.eye_array(len(inner), format="csc")
            system = sparse.csc_array(identity - mdp.gamma * matrix[inner][:, inner].T)
            occupancy[inner] = np.atleast_1d(spsolve(system, start[inner]))
        return occupancy, 0.0
    largest = max(1.0, float(np.abs(mdp.rewards).max()))
    reach, inside = np.arange(mdp.n_states), matrix
    if mdp.n_states > MAX_UNFILTERED_STATES:  # of a million states a policy may visit ten
        reach = _states_reached(matrix, mdp)
        inside = matrix[reach][:, reach]
    inner, left = _push_forward(
        inside.indptr, inside.indices, inside.data, start[reach], mdp.terminal[reach], mdp.gamma, mdp.horizon,
        tolerance / largest,
    )  # fmt: skip
    occupancy = np.zeros(mdp.n_states)
    occupancy[reach] = inner
    return occupancy, float(left)


@njit(cache=True)
def _push_forward(pointer, successor, probability, start, terminal, gamma, horizon, enough):  # type: ignore[no-untyped-def]
    """Push the start distribution forward; stop once what is left could not matter.

    pointer, successor, probability  a policy's transitions, as in a csr matrix
    start, terminal                  [S]
    gamma, horizon                   of the MDP
    enough                           what may be left: probability times the steps to come
    """
    n = len(start)
    occupancy, mass, new = np.zeros(n), start.copy(), np.zeros(n)
    weight, total = 1.0, 1.0
    for step in range(horizon):
        new[:] = 0.0
        for s in range(n):
            if mass[s] > 0.0:
                occupancy[s] += weight * mass[s]
                for i in range(pointer[s], pointer[s + 1]):
                    if not terminal[successor[i]]:
                        new[successor[i]] += probability[i] * mass[s]
        mass, new = new, mass
        weight *= gamma
        total = mass.sum()
        if total * weight * (horizon - step) < enough:
            break
    return occupancy, total


def states_visited(tree: Tree, mdp: FiniteMDP, count: int = 10_000) -> np.ndarray:
    """Return about `count` states [N, n] in the proportions in which a tree visits them (discounted)."""
    occupancy, _ = visits(mdp_policy(tree, mdp), mdp)
    return np.repeat(mdp.x, np.ceil(count * occupancy / occupancy.sum() - 1e-6).astype(np.int64), axis=0)


def mean_questions(tree: Tree, mdp: FiniteMDP) -> float:
    """Return the expected number of questions a tree asks in an episode (discounted as rewards are)."""
    occupancy, _ = visits(mdp_policy(tree, mdp), mdp)
    return float(occupancy @ tree.node_depth[tree.apply(mdp.x)])


def _policy_rewards(choice: np.ndarray, mdp: FiniteMDP) -> np.ndarray:
    """Return the reward of each state's chosen action, [S]."""
    return np.where(mdp.terminal, 0.0, mdp.rewards[np.arange(mdp.n_states), choice])


def _states_reached(matrix: sparse.csr_array, mdp: FiniteMDP) -> np.ndarray:
    """Return the states that the policy's matrix reaches from the start distribution, ascending."""
    count = mdp.n_states
    row = sparse.csr_array((mdp.start > 0).astype(float).reshape(1, -1))
    graph = sparse.vstack([sparse.hstack([matrix, sparse.csr_array((count, 1))]),
                           sparse.hstack([row, sparse.csr_array((1, 1))])], format="csr")  # fmt: skip
    order = breadth_first_order(graph, count, directed=True, return_predecessors=False)
    return np.sort(order[order != count])


def _trapped(p: sparse.csr_array, ends: np.ndarray) -> np.ndarray:
    """Return which states can reach no terminal state."""
    count = p.shape[0]
    into = sparse.csr_array(ends.astype(float).reshape(1, -1))
    graph = sparse.vstack([sparse.hstack([sparse.csr_array(p.T), sparse.csr_array((count, 1))]),
                           sparse.hstack([into, sparse.csr_array((1, 1))])], format="csr")  # fmt: skip
    order = breadth_first_order(graph, count, directed=True, return_predecessors=False)
    trapped = np.ones(count, dtype=bool)
    trapped[order[order != count]] = False
    return trapped


def _infinite_sums(p: sparse.csr_array, r: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 0 where the undiscounted sum is finite, else minus or plus infinity, [R], and which states loop for ever.

    p     [R, R] sparse, a policy's transitions among the states it reaches
    r     [R], its rewards
    ends  [R] bool, which of them are terminal
    """
    worth = np.zeros(len(r))
    if not _trapped(p, ends).any():
        return worth, np.zeros(len(r), dtype=bool)
    _, label = connected_components(p, directed=True, connection="strong")
    entries = sparse.coo_array(p)
    crossing = label[entries.coords[0]] != label[entries.coords[1]]
    leaves = np.zeros(label.max() + 1, dtype=bool)
    leaves[label[entries.coords[0][crossing]]] = True
    leaves[label[ends]] = True
    signs = np.zeros(label.max() + 1)
    for part in np.flatnonzero(~leaves):
        members = np.flatnonzero(label == part)
        if (r[members] == 0).all():
            continue
        gain = _mean_reward(p[members][:, members].toarray(), r[members])
        signs[part] = np.inf if gain > 1e-12 else -np.inf
    for sign in (np.inf, -np.inf):  # minus infinity last, so that it wins
        bad = signs[label] == sign
        if bad.any():
            worth[_leads_to(p, bad)] = sign
    return worth, ~leaves[label]


def _mean_reward(p: np.ndarray, r: np.ndarray) -> float:
    """Return the average reward of an irreducible chain."""
    count = len(r)
    system = np.vstack([p.T - np.eye(count), np.ones((1, count))])
    target = np.zeros(count + 1)
    target[-1] = 1.0
    stationary = np.linalg.lstsq(system, target, rcond=None)[0]
    return float(stationary @ r)


def _leads_to(p: sparse.csr_array, goal: np.ndarray) -> np.ndarray:
    """Return the states from which some goal state can be reached, goal states included."""
    return ~_trapped(p, goal)
