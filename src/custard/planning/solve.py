"""The best policy without a tree: value iteration, policy iteration, backward induction with the paper's tie rules."""

from __future__ import annotations

import time

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, bicgstab

from custard.core.errors import CustardError, one_of
from custard.core.mdp import FiniteMDP
from custard.core.numba_tools import njit
from custard.core.threads import one_thread
from custard.planning.evaluate import policy_value, state_values, visits

__all__ = ["backward_induction", "can_end", "optimal_value", "policy_iteration", "value_iteration"]

MAX_VALUE_ITERATION_SWEEPS = 200_000
MIN_NARROWING = 0.5  # by which solving for the greedy policy's values must narrow the bracket to be tried again
MAX_SOLVER_STEPS = 60  # towards those values
MAX_JACOBI_STATES = 2_000  # beyond, undiscounted values are iterated in place
SWEEPS_PER_BRACKET = 8  # in place, from one look at how far values may still be off to the next
ROUNDING = 1e-15  # changes that differ by less, relative to the largest value, are the same
TIE_RULES = ("first", "random", "downstream")


def value_iteration(
    mdp: FiniteMDP, tolerance: float = 1e-12, deadline: float = np.inf
) -> tuple[np.ndarray, np.ndarray]:
    """Return V [S] and Q [S, A] of the best policy, unrestricted by any tree.

    With a horizon: the values with all of it still to come (the best policy may then depend on the time left). With
    gamma = 1 and no horizon, states from which every policy may go on losing for ever are worth minus infinity. Past a
    deadline on `time.monotonic`'s clock the values are upper bounds, infinite where none is known.

    >>> import gymnasium as gym, custard
    >>> V, Q = value_iteration(gym.make("custard/PrereqWorld-v0", m=7).unwrapped.mdp())
    >>> float(V[0]), Q.shape
    (-4.0, (128, 7))
    """
    stacked = sparse.vstack(mdp.transitions, format="csr")
    shape = (mdp.actions.n, mdp.n_states)
    rewards = np.where(mdp.terminal[:, None], 0.0, mdp.rewards)
    values = earlier = np.zeros(mdp.n_states)
    lost = np.zeros(mdp.n_states, dtype=bool)  # worth minus infinity
    if mdp.horizon is None and mdp.gamma < 1.0:
        values = _discounted_values(stacked, rewards, mdp, tolerance, deadline)
        return values, _action_values(stacked, shape, rewards, values, mdp.gamma, lost)
    settling_sweeps = 2 * mdp.n_states + 1000
    # From zero, values then only fall or only rise: sweeps in place go the same way, faster.
    is_swept = mdp.horizon is None and mdp.n_states > MAX_JACOBI_STATES and (rewards.max() <= 0 or rewards.min() >= 0)
    for sweep in range(mdp.horizon if mdp.horizon is not None else MAX_VALUE_ITERATION_SWEEPS):
        if is_swept and not lost.any():
            values = values.copy()
            for _ in range(SWEEPS_PER_BRACKET):
                _sweep_in_place(stacked.indptr, stacked.indices, stacked.data, rewards, mdp.terminal, 1.0, values)
        q = _action_values(stacked, shape, rewards, values, mdp.gamma, lost)
        new = np.where(mdp.terminal, 0.0, q.max(axis=1))
        lost = lost | np.isneginf(new)  # whatever is done there, a lost state may follow
        change = np.abs(new[~lost] - values[~lost]).max(initial=0.0)
        values = new
        if time.monotonic() > deadline:
            values = _raised(mdp, values, sweep + 1)
            break
        scale = max(1.0, np.abs(values[~lost]).max(initial=0.0))
        if change <= tolerance * scale * (1.0 - mdp.gamma if mdp.gamma < 1.0 else 1e-1):
            break
        if mdp.horizon is None and sweep == settling_sweeps // 2:
            earlier = values.copy()
        if mdp.horizon is None and sweep == settling_sweeps:
            lost = ~_can_stop_losing(mdp) & (values < earlier)
            values[lost] = -np.inf
    else:
        if mdp.horizon is None:
            raise CustardError(
                "value iteration does not settle: with gamma=1 some policy goes on gaining for ever. "
                "Give gamma below 1, or a horizon."
            )
    return values, _action_values(stacked, shape, rewards, values, mdp.gamma, lost)


def _discounted_values(
    stacked: sparse.csr_array, rewards: np.ndarray, mdp: FiniteMDP, tolerance: float, deadline: float
) -> np.ndarray:
    """Return the values of the best policy of a discounted model, [S]; past the deadline upper bounds.

    A sweep brackets the values (MacQueen), then the greedy policy's are solved for by iteration (BiCGSTAB), until the
    bracket is narrow. Where it does not become narrower so, sweeps in place follow.
    """
    values, new, choice = np.zeros(mdp.n_states), np.zeros(mdp.n_states), np.zeros(mdp.n_states, dtype=np.int64)
    arrays = (stacked.indptr, stacked.indices, stacked.data, rewards, mdp.terminal, mdp.gamma)
    factor, width = mdp.gamma / (1.0 - mdp.gamma), np.inf
    ends, state, alive = bool(mdp.terminal.any()), np.arange(mdp.n_states), (~mdp.terminal).astype(float)
    while True:
        low, high = _bracket(*arrays, values, new, choice)
        if ends:  # what follows an end is worth nothing, and stays so
            low, high = min(low, 0.0), max(high, 0.0)
        scale, before, width = max(1.0, float(np.abs(new).max())), width, high - low
        if time.monotonic() > deadline:
            return np.where(mdp.terminal, 0.0, new + factor * max(0.0, high))
        values = np.where(mdp.terminal, 0.0, new + (0.0 if ends else 0.5 * factor * (low + high)))
        if 0.5 * factor * width <= tolerance * scale or width <= ROUNDING * scale:
            return values
        if width <= MIN_NARROWING * before:
            matrix = stacked[choice * mdp.n_states + state]
            system = LinearOperator(matrix.shape, matvec=lambda v, m=matrix: v - mdp.gamma * alive * (m @ v))
            with one_thread():
                solved, _ = bicgstab(system, rewards[state, choice], values, rtol=1e-14, maxiter=MAX_SOLVER_STEPS)
            values = solved if np.isfinite(solved).all() else values
        else:
            for _ in range(SWEEPS_PER_BRACKET):
                _sweep_in_place(*arrays, values)


@njit(cache=True)
def _backup(pointer, successor, probability, rewards, gamma, values, s):  # type: ignore[no-untyped-def]
    """Return the most that an action earns in state `s`, now and later, and that action.

    Row a S + s of the transitions holds what follows action a.
    """
    n, n_actions = rewards.shape
    best, best_a = -np.inf, 0
    for a in range(n_actions):
        total = 0.0
        for i in range(pointer[a * n + s], pointer[a * n + s + 1]):
            total += probability[i] * values[successor[i]]
        total = rewards[s, a] + gamma * total
        if total > best:
            best, best_a = total, a
    return best, best_a


@njit(cache=True)
def _bracket(  # type: ignore[no-untyped-def]
    pointer, successor, probability, rewards, terminal, gamma, values, new, choice
):  # fmt: skip
    """Write the values after one sweep and the actions it takes; return the least and the largest change."""
    low, high = np.inf, -np.inf
    for s in range(len(values)):
        if not terminal[s]:
            new[s], choice[s] = _backup(pointer, successor, probability, rewards, gamma, values, s)
            low, high = min(low, new[s] - values[s]), max(high, new[s] - values[s])
    return low, high


@njit(cache=True)
def _sweep_in_place(pointer, successor, probability, rewards, terminal, gamma, values):  # type: ignore[no-untyped-def]
    """Improve the values, forth and back."""
    n = len(values)
    for k in range(2 * n):
        s = k if k < n else 2 * n - 1 - k
        if not terminal[s]:
            values[s] = _backup(pointer, successor, probability, rewards, gamma, values, s)[0]


def _raised(mdp: FiniteMDP, values: np.ndarray, sweeps: int) -> np.ndarray:
    """Return upper bounds on the values, [S], with a horizon or without a discount, from those after some sweeps."""
    if mdp.horizon is not None:
        more = (mdp.horizon - sweeps) * max(0.0, float(mdp.rewards.max()))
    else:
        values, more = np.zeros(len(values)), 0.0 if mdp.rewards.max() <= 0.0 else np.inf
    return np.where(mdp.terminal, 0.0, values + more)


def _action_values(
    stacked: sparse.csr_array, shape: tuple[int, int], rewards: np.ndarray, values: np.ndarray, gamma: float,
    lost: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return Q [S, A] of one step and then `values` [S]; minus infinity where a `lost` state may follow."""
    if not lost.any():
        return rewards + gamma * (stacked @ values).reshape(shape).T
    risk = (stacked @ lost.astype(float)).reshape(shape).T
    q = rewards + gamma * (stacked @ np.where(lost, 0.0, values)).reshape(shape).T
    return np.where((risk > 0) | lost[:, None], -np.inf, q)


def can_end(mdp: FiniteMDP) -> np.ndarray:
    """Return the states from which some policy terminates with probability one, [S] bool."""
    return _can_reach(mdp, mdp.terminal)


def _can_stop_losing(mdp: FiniteMDP) -> np.ndarray:
    """Return the states from which some policy surely comes to an end or to where it earns nothing for ever, [S] bool.

    The others lose for ever with some probability, or gain for ever.
    """
    idle = np.ones(mdp.n_states, dtype=bool)  # the largest set that can be kept to by actions that earn nothing
    while True:
        keeps_to = [(matrix @ (~idle).astype(float)) == 0 for matrix in mdp.transitions]
        smaller = mdp.terminal | np.any([keep & (mdp.rewards[:, a] == 0.0) for a, keep in enumerate(keeps_to)], axis=0)
        if (smaller == idle).all():
            return _can_reach(mdp, idle)
        idle = smaller


def _can_reach(mdp: FiniteMDP, goal: np.ndarray) -> np.ndarray:
    """Return the states from which some policy reaches the goal [S] with probability one, [S] bool."""
    good = np.ones(mdp.n_states, dtype=bool)
    while True:  # the largest set in which the goal can be reached without a risk of leaving it
        allowed = np.stack([(matrix @ (~good).astype(float)) == 0 for matrix in mdp.transitions])
        reached = goal.copy()
        while True:
            steps = [ok & ((matrix @ reached.astype(float)) > 0) for ok, matrix in zip(allowed, mdp.transitions)]
            more = reached | (good & np.any(steps, axis=0))
            if (more == reached).all():
                break
            reached = more
        if (reached == good).all():
            return good
        good = reached


def optimal_value(mdp: FiniteMDP) -> float:
    """Return the best expected return from the start distribution over all policies."""
    values, _ = value_iteration(mdp)
    started = mdp.start > 0
    return -np.inf if np.isneginf(values[started]).any() else float(mdp.start[started] @ values[started])


def policy_iteration(mdp: FiniteMDP, rounds: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Return a best policy, choice [S], and its exact values V [S] in the states it reaches from the start.

    Needs gamma below one, or a model in which every policy terminates. It begins from value iteration's choice, so few
    rounds are needed; what it adds is exact values.
    """
    if mdp.horizon is not None:
        raise CustardError(
            "policy iteration needs an MDP without a horizon: the best policy may depend on the time left"
        )
    _, q = value_iteration(mdp)
    choice = q.argmax(axis=1)
    for _ in range(rounds):
        values = state_values(choice, mdp)
        if not np.isfinite(values).all():
            raise CustardError("policy iteration met a policy that never terminates: give gamma below 1")
        q = np.stack([matrix @ values for matrix in mdp.transitions], axis=1) * mdp.gamma + mdp.rewards
        reached = visits(choice, mdp)[0] > 0.0
        better = reached & (q.max(axis=1) > q[np.arange(mdp.n_states), choice] + 1e-10) & ~mdp.terminal
        if not better.any():
            break
        trial = np.where(better, q.argmax(axis=1), choice)
        if policy_value(trial, mdp) <= policy_value(choice, mdp) + 1e-12:
            break
        choice = trial
    return choice, state_values(choice, mdp)


def backward_induction(
    mdp: FiniteMDP, ties: str = "first", seed: int = 0, tolerance: float = 1e-9
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the paper's expert "BI": choice [S], V [S] and Q [S, A], with its rules for actions of equal value.

    `ties="random"` (PrereqWorld) draws one of the best actions per state. `ties="downstream"` (PotholeWorld) keeps the
    action chosen in the states that follow, if it is among the best: states are settled from the end backwards, in
    order of their distance from termination under the best policy, and where several states follow, the action of the
    likeliest counts.
    """
    if ties not in TIE_RULES:
        raise CustardError(one_of("tie rule", ties, TIE_RULES))
    values, q = value_iteration(mdp)
    finite = np.where(np.isneginf(q), -1e300, q)
    best = finite >= finite.max(axis=1, keepdims=True) - tolerance * np.maximum(1.0, np.abs(values))[:, None]
    if ties == "first":
        return best.argmax(axis=1), values, q
    rng = np.random.default_rng(seed)
    if ties == "random":
        return np.where(best, rng.random(best.shape), -1.0).argmax(axis=1), values, q
    choice = best.argmax(axis=1)
    settled = mdp.terminal.copy()
    for state in _order_from_end(mdp, best):
        votes = np.zeros(mdp.actions.n)
        for action in np.flatnonzero(best[state]):
            matrix = mdp.transitions[action]
            row = slice(matrix.indptr[state], matrix.indptr[state + 1])
            known = settled[matrix.indices[row]] & ~mdp.terminal[matrix.indices[row]]
            np.add.at(votes, choice[matrix.indices[row][known]], matrix.data[row][known])
        keep = np.where(best[state], votes, -1.0)
        choice[state] = int(keep.argmax())
        settled[state] = True
    return choice, values, q


def _order_from_end(mdp: FiniteMDP, best: np.ndarray) -> np.ndarray:
    """Return the states in order of their expected steps to termination when a best action is taken at random."""
    weight = np.where(best, 1.0 / best.sum(axis=1, keepdims=True), 0.0)
    steps = np.zeros(mdp.n_states)
    for _ in range(min(10 * mdp.n_states, 2000)):
        after = sum(weight[:, a] * (matrix @ steps) for a, matrix in enumerate(mdp.transitions))
        new = np.where(mdp.terminal, 0.0, 1.0 + after)
        if np.abs(new - steps).max() < 1e-9:
            break
        steps = new
    order = np.argsort(steps, kind="stable")
    return order[~mdp.terminal[order]]
