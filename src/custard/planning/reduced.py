"""What the search for the best tree works on: the states that can be reached, the splits that tell them apart, and
compiled bounds on what any policy within given action sets can return.

The bound behind everything: let some states be confined to one action and let all others act as they like. The best
return of that relaxed problem is at least that of every tree that confines them so, and confining more states never
raises it. Value iteration that starts from an upper bound stays one at every sweep, so it may stop at any time.

The compiled functions share their parameters, S states and A actions:

    pointer      [S * A + 1]  where the successors of each (state, action) begin
    successor    [E]          states, those that are terminal left out (worth nothing)
    probability  [E]          of each successor
    reward       [S, A]       expected
    start        [S]          the start distribution
    allowed      [S, A] bool  the actions that a state may take
    price        [S]          what each visit costs
    values       [S]          upper bounds on what follows each state, improved in place
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
from custard.planning.solve import value_iteration
from custard.tree.shape import Shape, Split, build_tree, map_leaves
from custard.tree.tree import Tree

__all__ = [
    "ReducedMDP",
    "action_values",
    "backward_bound",
    "reduce",
    "relaxed_bound",
    "separating_splits",
]

MAX_DIRECT_STATES = 1200  # up to here discounted models are solved by policy iteration with linear systems
BYTES_PER_SIDE = 4  # a threshold's side of a state: kept, sorted and kept again for points
BYTES_PER_ACTION = 64  # a state's action: its reward, successors and values
MAX_BOUND_WORK = 10**9  # entries looked at by one bound that holds whenever it stops: about a second
MAX_IDLE_SWEEPS = 30  # sweeps without effect on the start after which a bound that holds anyway is good enough
SWEEPS_BEFORE_GATHERING = 4  # of value iteration: most bounds are known by then, for others gathering pays
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
def backup(pointer, successor, probability, reward, allowed, price, values, gamma, s):  # type: ignore[no-untyped-def]
    """Return Bellman's right-hand side at state `s`: the most an allowed action earns now and later."""
    n_actions = reward.shape[1]
    best = -np.inf
    for a in range(n_actions):
        if allowed[s, a]:
            total = reward[s, a] - price[s]
            for i in range(pointer[s * n_actions + a], pointer[s * n_actions + a + 1]):
                total += gamma * probability[i] * values[successor[i]]
            if total > best:
                best = total
    return best


@njit(cache=True)
def gather(pointer, successor, probability, reward, allowed, price, gamma):  # type: ignore[no-untyped-def]
    """Return the allowed actions of the first len(allowed) states, without the others.

    Of state s, those are rows first[s] to first[s + 1]; row r earns earned[r], and entries begin[r] to begin[r + 1] are
    the states that follow and their discounted probabilities.
    """
    n, n_actions = len(allowed), reward.shape[1]
    first, earned = np.zeros(n + 1, np.int64), np.empty(n * n_actions)
    begin = np.zeros(n * n_actions + 1, np.int64)
    after, weight = np.empty(pointer[n * n_actions], np.int64), np.empty(pointer[n * n_actions])
    rows = entries = 0
    for s in range(n):
        for a in range(n_actions):
            if allowed[s, a]:
                earned[rows] = reward[s, a] - price[s]
                for i in range(pointer[s * n_actions + a], pointer[s * n_actions + a + 1]):
                    after[entries], weight[entries] = successor[i], gamma * probability[i]
                    entries += 1
                rows += 1
                begin[rows] = entries
        first[s + 1] = rows
    return first, begin, earned, after, weight


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


@njit(cache=True)
def start_value(start, values):  # type: ignore[no-untyped-def]
    """Return the mean value at the start; other states do not count, however bad (0 times infinity is no number)."""
    total = 0.0
    for s in range(len(start)):
        if start[s] > 0.0:
            total += start[s] * values[s]
    return total


@njit(cache=True)
def relaxed_bound(  # type: ignore[no-untyped-def]
    pointer, successor, probability, reward, start, allowed, price, values, gamma, max_sweeps, cutoff
):  # fmt: skip
    """Iterate values in place from above, without a horizon; the start's value after at most `max_sweeps` sweeps."""
    n = len(reward)
    bound = 0.0
    first, begin, earned, after, weight = gather(pointer, successor, probability, reward, allowed[:0], price, gamma)
    for sweep in range(max_sweeps):
        change = 0.0
        if sweep == SWEEPS_BEFORE_GATHERING:
            first, begin, earned, after, weight = gather(pointer, successor, probability, reward, allowed, price, gamma)
        for k in range(n):
            s = n - 1 - k if sweep % 2 == 0 else k
            if sweep >= SWEEPS_BEFORE_GATHERING:
                best = -np.inf
                for row in range(first[s], first[s + 1]):
                    total = earned[row]
                    for i in range(begin[row], begin[row + 1]):
                        total += weight[i] * values[after[i]]
                    if total > best:
                        best = total
            else:
                best = backup(pointer, successor, probability, reward, allowed, price, values, gamma, s)
            if best < values[s]:
                if values[s] - best > change:
                    change = values[s] - best
                values[s] = best
        bound = start_value(start, values)
        if bound <= cutoff or change < max(1e-13, 1e-15 * abs(bound)):
            break
    return bound


@njit(cache=True)
def rising_bound(  # type: ignore[no-untyped-def]
    pointer, successor, probability, reward, start, allowed, price, values, max_sweeps
):  # fmt: skip
    """Iterate undiscounted values from zero, for rewards of at least zero: the least fixed point, to rounding."""
    n = len(reward)
    values[:] = 0.0
    for sweep in range(max_sweeps):
        change = 0.0
        for k in range(n):
            s = n - 1 - k if sweep % 2 == 0 else k
            best = backup(pointer, successor, probability, reward, allowed, price, values, 1.0, s)
            if best - values[s] > change:
                change = best - values[s]
            values[s] = max(best, values[s])
        if change < 1e-13:
            break
    return start_value(start, values)


@njit(cache=True)
def backward_bound(  # type: ignore[no-untyped-def]
    pointer, successor, probability, reward, start, allowed, price, values, gamma, horizon, cutoff
):  # fmt: skip
    """Induce backwards over the horizon; `values` is overwritten. The best policy may depend on the time left."""
    n = len(reward)
    first, begin, earned, after, weight = gather(pointer, successor, probability, reward, allowed, price, gamma)
    new = np.zeros(n)
    values[:] = 0.0
    losing = reward.max() <= 0.0  # then fewer steps are never worse, and every sweep gives an upper bound
    bound, idle_sweeps = 0.0, 0
    for _ in range(horizon):
        change = 0.0
        for s in range(n):
            best = -np.inf
            for row in range(first[s], first[s + 1]):
                total = earned[row]
                for i in range(begin[row], begin[row + 1]):
                    total += weight[i] * values[after[i]]
                if total > best:
                    best = total
            new[s] = best
            if abs(best - values[s]) > change:
                change = abs(best - values[s])
        values[:] = new
        before, bound = bound, start_value(start, values)
        idle_sweeps = idle_sweeps + 1 if bound == before else 0
        if change < 1e-14 or (losing and (bound <= cutoff or idle_sweeps > MAX_IDLE_SWEEPS)):
            break
    return bound


@njit(cache=True)
def reachable(pointer, successor, start, allowed, n_actions):  # type: ignore[no-untyped-def]
    """Return which states some policy within the allowed actions reaches, [S] bool."""
    n = len(start)
    seen = start > 0.0
    stack = np.empty(n, dtype=np.int64)
    size = 0
    for s in range(n):
        if seen[s]:
            stack[size] = s
            size += 1
    while size:
        size -= 1
        s = stack[size]
        for a in range(n_actions):
            if allowed[s, a]:
                for i in range(pointer[s * n_actions + a], pointer[s * n_actions + a + 1]):
                    after = successor[i]
                    if not seen[after]:
                        seen[after] = True
                        stack[size] = after
                        size += 1
    return seen


@njit(cache=True)
def endless_reward(pointer, successor, probability, reward, start, allowed, price):  # type: ignore[no-untyped-def]
    """Return the largest reward in reach if no policy within the allowed actions can terminate; infinity if one can."""
    n_actions = reward.shape[1]
    seen = reachable(pointer, successor, start, allowed, n_actions)
    most = -np.inf
    for s in range(len(start)):
        if seen[s]:
            for a in range(n_actions):
                if allowed[s, a]:
                    mass = 0.0
                    for i in range(pointer[s * n_actions + a], pointer[s * n_actions + a + 1]):
                        mass += probability[i]
                    if mass < 1.0 - 1e-12:
                        return np.inf
                    most = max(most, reward[s, a] - price[s])
    return most


@njit(cache=True)
def can_finish(pointer, successor, probability, start, allowed, n_actions):  # type: ignore[no-untyped-def]
    """Return whether some policy within the allowed actions surely terminates from every start state."""
    n = len(start)
    good = np.ones(n, dtype=np.bool_)
    while True:
        reached = np.zeros(n, dtype=np.bool_)
        grew = True
        while grew:
            grew = False
            for s in range(n):
                if good[s] and not reached[s]:
                    for a in range(n_actions):
                        if allowed[s, a]:
                            safe, near, mass = True, False, 0.0
                            for i in range(pointer[s * n_actions + a], pointer[s * n_actions + a + 1]):
                                mass += probability[i]
                                if not good[successor[i]]:
                                    safe = False
                                if reached[successor[i]]:
                                    near = True
                            if safe and (near or mass < 1.0 - 1e-12):
                                reached[s] = True
                                grew = True
                                break
        same = True
        for s in range(n):
            if good[s] != reached[s]:
                same = False
            good[s] = reached[s]
        if same:
            break
    return not (~good & (start > 0.0)).any()
