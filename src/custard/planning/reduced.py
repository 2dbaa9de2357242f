"""What the search for the best tree works on: the states that can be reached and the splits that tell them apart.

`ReducedMDP.bound` says what policies within given action sets can return at most (`custard.planning.return_bounds`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order

from custard.core.mdp import FiniteMDP
from custard.core.memory import require_memory
from custard.core.numba_tools import njit
from custard.core.threads import one_thread
from custard.planning.evaluate import policy_value
from custard.planning.return_bounds import backward_bound, can_finish, endless_reward, relaxed_bound, rising_bound
from custard.planning.solve import value_iteration
from custard.tree.shape import Shape, Split, build_tree, map_leaves
from custard.tree.tree import Tree

__all__ = [
    "ReducedMDP",
    "action_values",
    "reduce",
    "separating_splits",
]

MAX_DIRECT_STATES = 1200  # up to here discounted models are solved by policy iteration with linear systems
BYTES_PER_SIDE = 4  # a threshold's side of a state: kept, sorted and kept again for points
BYTES_PER_ACTION = 64  # a state's action: its reward, successors and values
MAX_BOUND_WORK = 10**9  # entries looked at by one bound that holds whenever it stops: about a second
MAX_DENSE_FIXED_STATES, MAX_DENSE_FIXED_ENTRIES = 300, 10**7  # of systems that say what fixed actions return


@dataclass(frozen=True, eq=False)
class ReducedMDP:
    """The part of a finite MDP that matters to trees: S states that can be reached and are not terminal."""

    mdp: FiniteMDP
    states: np.ndarray  # [S], their numbers in the MDP
    pointer: np.ndarray  # [S * A + 1], where each (state, action)'s successors begin
    successor: np.ndarray
    probability: np.ndarray
    reward: np.ndarray  # [S, A]
    start: np.ndarray  # [S]
    splits: list[tuple[int, float]]  # C times (feature, threshold)
    goes_left: np.ndarray  # [C, S] bool: which states lie at or below each split's threshold
    top: np.ndarray  # [S], the best values without a tree: an upper bound to start from
    optimum: float  # the best return without a tree
    tolerance: float  # returns that differ by less are the same
    split_number: dict[tuple[int, float], int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "split_number", {split: number for number, split in enumerate(self.splits)})

    @property
    def n(self) -> int:
        """The number of states."""
        return len(self.states)

    @property
    def n_actions(self) -> int:
        """The number of actions."""
        return self.reward.shape[1]

    @property
    def any_action(self) -> np.ndarray:
        """The action sets that confine no state, [S, A] bool."""
        return np.ones((self.n, self.n_actions), dtype=bool)

    def only(self, choice: np.ndarray) -> np.ndarray:
        """Return the action sets that leave each state one action, [S, A] bool."""
        return np.arange(self.n_actions) == choice[:, None]

    def decide(self, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """Return each state's action [S] and how many splits lie above its leaf [S], for leaves of action numbers."""
        choice, depth = np.zeros(self.n, dtype=np.int64), np.zeros(self.n, dtype=np.int64)
        stack = [(shape, np.ones(self.n, dtype=bool), 0)]
        while stack:
            part, where, level = stack.pop()
            if isinstance(part, Split):
                left = self.goes_left[self.split_number[part.feature, part.threshold]]
                stack += [(part.left, where & left, level + 1), (part.right, where & ~left, level + 1)]
            else:
                choice[where], depth[where] = part, level
        return choice, depth

    def tree(self, shape: Shape) -> Tree:
        """Return the `Tree` of a shape whose leaves are action numbers 0…A-1."""
        actions = self.mdp.actions
        return build_tree(map_leaves(shape, lambda number: number + actions.start), self.mdp.features, actions)

    def value(self, choice: np.ndarray, price: np.ndarray | None = None) -> float:
        """Return the exact return of a policy over the reduced states, each visit charged its price."""
        full = np.zeros(self.mdp.n_states, dtype=np.int64)
        full[self.states] = choice
        if price is None or not price.any():
            return policy_value(full, self.mdp)
        rewards = self.mdp.rewards.copy()
        rewards[self.states] -= price[:, None]
        return policy_value(full, _with_rewards(self.mdp, rewards))

    def fixed_returns(self) -> np.ndarray | None:
        """Return what each action returns if it is always taken, [A], of a small discounted model; else None."""
        n, n_actions = self.n, self.n_actions
        is_small = n <= MAX_DENSE_FIXED_STATES and n_actions * n * n <= MAX_DENSE_FIXED_ENTRIES
        if self.mdp.gamma == 1.0 or self.mdp.horizon is not None or not is_small:
            return None
        system = np.tile(np.eye(n), (n_actions, 1, 1))
        row = np.repeat(np.arange(n * n_actions), np.diff(self.pointer))
        np.subtract.at(system, (row % n_actions, row // n_actions, self.successor), self.mdp.gamma * self.probability)
        with one_thread():
            return np.linalg.solve(system, self.reward.T[:, :, None])[:, :, 0] @ self.start

    def bound(self, allowed: np.ndarray, price: np.ndarray, values: np.ndarray, cutoff: float) -> float:
        """Return an upper bound on the return of policies within the allowed actions, `allowed` [S, A] bool.

        `values` [S] start from an upper bound and are improved in place. It may stop as soon as the bound falls below
        the cutoff.
        """
        arrays = (self.pointer, self.successor, self.probability, self.reward, self.start)
        gamma, horizon = self.mdp.gamma, self.mdp.horizon
        if horizon is not None:
            if gamma == 1.0:
                most = endless_reward(*arrays[:4], self.start, allowed, price)
                if most * horizon <= cutoff + 4 * self.tolerance:
                    return most * horizon  # no step can end the episode: that many rewards follow, none larger
            return backward_bound(*arrays, allowed, price, values, gamma, horizon, cutoff)
        if gamma == 1.0 and (self.reward >= 0).all():
            # From above, loops that earn nothing would keep what they were first given; from below they stay at zero.
            return rising_bound(*arrays, allowed, price, values, 100_000) + self.tolerance / 10
        max_sweeps = 4 * self.n + 200 if gamma == 1.0 else MAX_BOUND_WORK // max(1, len(self.successor)) + 1
        bound = relaxed_bound(*arrays, allowed, price, values, gamma, max_sweeps, cutoff)
        losing = gamma == 1.0 and bound > cutoff and np.isfinite(bound) and bool((self.reward < 0).all())
        if losing and not can_finish(*arrays[:3], self.start, allowed, self.n_actions):
            return -np.inf  # every policy left may go on losing for ever
        return bound


def separating_splits(x: np.ndarray) -> list[tuple[int, float]]:
    """Return every (feature, threshold) that separates some of the states x [S, n]: midpoints between neighbours.

    >>> separating_splits(np.array([[0.0, 5.0], [1.0, 5.0]]))
    [(0, 0.5)]
    """
    splits = []
    for c in range(x.shape[1]):
        seen = np.unique(x[:, c])
        for below, above in zip(seen[:-1].tolist(), seen[1:].tolist(), strict=True):
            middle = below + (above - below) / 2
            splits.append((c, middle if below <= middle < above else below))
    return splits


def reduce(mdp: FiniteMDP, deadline: float = np.inf) -> ReducedMDP:
    """Drop what cannot be reached from the start by any policy.

    Past a deadline on `time.monotonic`'s clock the best values without a tree are upper bounds only.
    """
    states = _states_in_reach(mdp)
    splits = separating_splits(mdp.x[states])
    what = f"a search over {len(states):,} states with {len(splits):,} thresholds between them"
    require_memory(BYTES_PER_SIDE * len(splits) * len(states) + BYTES_PER_ACTION * len(states) * mdp.actions.n, what)
    pointer, successor, probability = _transitions_among(mdp, states)
    reward, start = np.ascontiguousarray(mdp.rewards[states]), mdp.start[states]
    if mdp.gamma < 1.0 and mdp.horizon is None and len(states) <= MAX_DIRECT_STATES:
        with one_thread():
            values = discounted_values(pointer, successor, probability, reward, mdp.gamma)
    else:
        values = value_iteration(mdp, deadline=deadline)[0][states]
    optimum = -np.inf if np.isneginf(values[start > 0]).any() else float(start[start > 0] @ values[start > 0])
    tolerance = 1e-9 * max(1.0, abs(optimum) if np.isfinite(optimum) else 1.0)
    goes_left = np.array([mdp.x[states, c] <= t for c, t in splits]).reshape(len(splits), len(states))
    _, first = np.unique(goes_left, axis=0, return_index=True) if len(splits) else (None, np.arange(0))
    first = np.sort(first)  # splits that divide the states alike count once
    return ReducedMDP(
        mdp, states, pointer, successor, probability, reward, start, [splits[i] for i in first], goes_left[first],
        values + tolerance / 10, optimum, tolerance,
    )  # fmt: skip


def _transitions_among(mdp: FiniteMDP, states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pointer, successor and probability over some states, those that are terminal left out."""
    n_actions = mdp.actions.n
    place = np.full(mdp.n_states, -1)
    place[states] = np.arange(len(states))
    counts = np.zeros((len(states), n_actions), dtype=np.int64)
    parts = []
    for action, matrix in enumerate(mdp.transitions):
        rows = sparse.coo_array(matrix[states])
        inner = ~mdp.terminal[rows.coords[1]]
        source, after, probability = rows.coords[0][inner], place[rows.coords[1][inner]], rows.data[inner]
        counts[:, action] = np.bincount(source, minlength=len(states))
        parts.append((source, after, probability))
    pointer = np.concatenate([[0], np.cumsum(counts)])
    successor, probabilities = np.empty(pointer[-1], dtype=np.int64), np.empty(pointer[-1])
    for action, (source, after, probability) in enumerate(parts):
        # The rows of one action are in order: its k-th entry of a row lies k behind where the row begins.
        first = np.concatenate([[0], np.cumsum(counts[:, action])])[source]
        at = pointer[source * n_actions + action] + np.arange(len(source)) - first
        successor[at], probabilities[at] = after, probability
    return pointer, successor, probabilities


def _states_in_reach(mdp: FiniteMDP) -> np.ndarray:
    """Return the numbers of the states that some policy reaches and that are not terminal, ascending."""
    count = mdp.n_states
    moves = sparse.csr_array(sum(mdp.transitions[1:], mdp.transitions[0]))
    moves = sparse.csr_array(sparse.diags_array((~mdp.terminal).astype(float)) @ moves)
    row = sparse.csr_array((mdp.start > 0).astype(float).reshape(1, -1))
    graph = sparse.vstack([sparse.hstack([moves, sparse.csr_array((count, 1))]),
                           sparse.hstack([row, sparse.csr_array((1, 1))])], format="csr")  # fmt: skip
    order = breadth_first_order(graph, count, directed=True, return_predecessors=False)
    reached = np.zeros(count + 1, dtype=bool)
    reached[order] = True
    return np.flatnonzero(reached[:count] & ~mdp.terminal)


def action_values(problem: ReducedMDP, values: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return Q [S, A] of one step and then `values` [S]; minus infinity for what is not allowed."""
    after = np.add.reduceat(
        np.append(problem.probability * values[problem.successor], 0.0),
        np.minimum(problem.pointer[:-1], len(problem.successor)),
    )
    after = np.where(np.diff(problem.pointer) > 0, after, 0.0).reshape(problem.n, problem.n_actions)
    q = problem.reward + problem.mdp.gamma * after
    return np.where(allowed, q, -np.inf)


def _with_rewards(mdp: FiniteMDP, rewards: np.ndarray) -> FiniteMDP:
    """Return the MDP with other rewards, unchecked: the model was checked already and only numbers change."""
    copy = object.__new__(FiniteMDP)
    for name in ("transitions", "terminal", "start", "gamma", "x", "features", "actions", "horizon"):
        object.__setattr__(copy, name, getattr(mdp, name))
    object.__setattr__(copy, "rewards", rewards)
    return copy


@njit(cache=True)
def discounted_values(pointer, successor, probability, reward, gamma):  # type: ignore[no-untyped-def]
    """Return the best values without a tree by policy iteration, raised by what rounding may have cost, [S]."""
    n, n_actions = reward.shape
    choice, values = np.zeros(n, np.int64), np.zeros(n)
    for _ in range(10 * n + 10):
        system, earned = np.zeros((n, n)), np.empty(n)
        for s in range(n):
            system[s, s] = 1.0
            k = s * n_actions + choice[s]
            for i in range(pointer[k], pointer[k + 1]):
                system[s, successor[i]] -= gamma * probability[i]
            earned[s] = reward[s, choice[s]]
        values = np.linalg.solve(system, earned)
        changed, residual, largest = False, 0.0, max(1.0, np.abs(values).max())
        for s in range(n):
            best, best_a = values[s] + 1e-12 * largest, choice[s]
            for a in range(n_actions):
                total = 0.0
                for i in range(pointer[s * n_actions + a], pointer[s * n_actions + a + 1]):
                    total += probability[i] * values[successor[i]]
                q = reward[s, a] + gamma * total
                residual = max(residual, q - values[s])
                if q > best:
                    best, best_a = q, a
            changed = changed or best_a != choice[s]
            choice[s] = best_a
        if not changed:
            return values + residual / (1.0 - gamma)
    return np.full(n, reward.max() / (1.0 - gamma))
