"""Climbing on the exact return of a discounted model: full trees of a depth, changed one split or leaf at a time.

A tree is two arrays in heap order: `split` [2^d - 1], numbers of splits (node i's children are 2i + 1 and 2i + 2), and
`leaf` [2^d], actions. A change matters only where a state takes another action, and it can only be better if one of
those actions has a positive advantage over the present tree: all others are skipped without evaluating them.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

from custard.planning.relaxation import action_value
from custard.tree.shape import Shape, Split

__all__ = [
    "MAX_HEAP_DEPTH", "action_gains", "best_stump", "climb_heap", "decide_heap", "evaluate_choice", "heap_of",
    "perturb_heap", "shape_of_heap",
]  # fmt: skip

MAX_HEAP_DEPTH = 10  # up to here trees are climbed as arrays of 2**depth leaves
MAX_EVALUATION_SWEEPS = 100_000
MAX_DIRECT_STATES = 160  # up to here a linear system is solved instead of iterating


@njit(cache=True)
def decide_heap(split, leaf, goes_left, choice):
    """Write each point's action; goes_left [C, P]."""
    n_inner = len(split)
    for p in range(len(choice)):
        node = 0
        while node < n_inner:
            node = 2 * node + (1 if goes_left[split[node], p] else 2)
        choice[p] = leaf[node - n_inner]


@njit(cache=True)
def evaluate_choice(model, choice, values, cutoff):
    """Return what one action per point returns, or a bound below the cutoff; `values` [S] are improved in place.

    Each sweep brackets the return (MacQueen): it stops once the bracket is narrow or lies below the cutoff.
    """
    n, n_actions = model.reward.shape
    gamma = model.gamma
    if n <= MAX_DIRECT_STATES:
        system, reward = np.zeros((n, n)), np.empty(n)
        for s in range(n):
            a = choice[model.point[s]]
            system[s, s] = 1.0
            for i in range(model.pointer[s * n_actions + a], model.pointer[s * n_actions + a + 1]):
                system[s, model.successor[i]] -= gamma * model.probability[i]
            reward[s] = model.reward[s, a]
        values[:] = np.linalg.solve(system, reward)
        return np.dot(model.start, values)
    new = np.empty(n)
    total = 0.0
    for _ in range(MAX_EVALUATION_SWEEPS):
        low, high, leaks = np.inf, -np.inf, False
        for s in range(n):
            a = choice[model.point[s]]
            k = s * n_actions + a
            after, mass = 0.0, 0.0
            for i in range(model.pointer[k], model.pointer[k + 1]):
                after += model.probability[i] * values[model.successor[i]]
                mass += model.probability[i]
            new[s] = model.reward[s, a] + gamma * after
            leaks = leaks or mass < 1.0 - 1e-9
            low, high = min(low, new[s] - values[s]), max(high, new[s] - values[s])
        values[:] = new
        if leaks:  # where episodes end, what follows is worth nothing and stays so
            low, high = min(low, 0.0), max(high, 0.0)
        factor = gamma / (1.0 - gamma)
        total = 0.0
        for s in range(n):
            total += model.start[s] * values[s]
        if total + factor * high < cutoff:
            return total + factor * high
        if factor * (high - low) < 1e-11 * max(1.0, abs(total)):
            middle = 0.5 * factor * (high + low)
            if not leaks:
                values += middle
            return total + middle
    return total


@njit(cache=True)
def action_gains(model, values, weight, n_points):
    """Return each action's value, less the best one's, weighed and summed over each point's states, [P, A]."""
    n, n_actions = model.reward.shape
    gains = np.zeros((n_points, n_actions))
    q = np.empty(n_actions)
    for s in range(n):
        most = -np.inf
        for a in range(n_actions):
            q[a] = action_value(model, values, s, a)
            most = max(most, q[a])
        for a in range(n_actions):
            gains[model.point[s], a] += weight[s] * (q[a] - most)
    return gains


@njit(cache=True)
def advantages(model, choice, values, gain):
    """Write the largest advantage of each action over the present one in any of a point's states, [P, A]."""
    n, n_actions = model.reward.shape
    gain[:] = -np.inf
    for s in range(n):
        p = model.point[s]
        for a in range(n_actions):
            q = action_value(model, values, s, a) - values[s] if a != choice[p] else 0.0
            gain[p, a] = max(gain[p, a], q)


@njit(cache=True)
def _reach(split, goes_left, node, inside):
    """Write which points reach a node, [P] bool."""
    inside[:] = True
    while node > 0:
        parent = (node - 1) // 2
        is_left = node == 2 * parent + 1
        for p in range(len(inside)):
            if goes_left[split[parent], p] != is_left:
                inside[p] = False
        node = parent


@njit(cache=True)
def climb_heap(model, goes_left, split, leaf, values, best, state, max_evaluations, tolerance):
    """Make single changes that return more, in place, until none does or so many were evaluated.

    goes_left        [C, P] bool
    split, leaf      the tree, changed in place
    values           [S], of the tree, changed in place
    best             what the tree returns
    state            [2] int64: a generator's state, and how many evaluations were made; both changed
    max_evaluations  after which it returns
    tolerance        what a change must gain

    Returns what the tree returns, and whether no single change is better.
    """
    n_splits, n_points = goes_left.shape
    n_actions = model.reward.shape[1]
    n_inner, n_leaves = len(split), len(leaf)
    n_moves = n_inner * n_splits + n_leaves * n_actions
    choice, trial = np.empty(n_points, np.int64), np.empty(n_points, np.int64)
    gain = np.empty((n_points, n_actions))
    inside = np.empty(n_points, np.bool_)
    trial_values = np.empty(len(values))
    decide_heap(split, leaf, goes_left, choice)
    advantages(model, choice, values, gain)
    since, at = 0, 0
    stride = 1
    while since < n_moves:
        if since == 0:  # a new order: every move once, a random number of moves apart
            at, stride = _below(state, n_moves), 1 + _below(state, n_moves)
            while _divisor(stride, n_moves) > 1:
                stride = 1 + _below(state, n_moves)
        at = (at + stride) % n_moves
        since += 1
        is_split = at < n_inner * n_splits
        if is_split:
            node, new = at // n_splits, at % n_splits
            if split[node] == new:
                continue
        else:
            node, new = n_inner + (at - n_inner * n_splits) // n_actions, (at - n_inner * n_splits) % n_actions
            if leaf[node - n_inner] == new:
                continue
        _reach(split, goes_left, node, inside)
        if is_split:
            old = split[node]
            split[node] = new
        else:
            old = leaf[node - n_inner]
            leaf[node - n_inner] = new
        promising = False
        for p in range(n_points):
            trial[p] = choice[p]
            if inside[p]:
                at_node = node
                while at_node < n_inner:
                    at_node = 2 * at_node + (1 if goes_left[split[at_node], p] else 2)
                trial[p] = leaf[at_node - n_inner]
                if trial[p] != choice[p] and gain[p, trial[p]] > tolerance * 1e-3:
                    promising = True
        better = False
        if promising:
            state[1] += 1
            trial_values[:] = values
            total = evaluate_choice(model, trial, trial_values, best + tolerance)
            better = total > best + tolerance
        if better:
            best = total
            values[:] = trial_values
            choice[:] = trial
            advantages(model, choice, values, gain)
            since = 0
        elif is_split:
            split[node] = old
        else:
            leaf[node - n_inner] = old
        if state[1] >= max_evaluations:
            return best, False
    return best, True


@njit(cache=True)
def best_stump(model, goes_left, number, values, best):
    """Return the most that any two actions on both sides of a split return, if that is more than `best`, and the two.

    goes_left  [C, P] bool
    number     of the split
    values     [S], to begin from
    """
    n_points = goes_left.shape[1]
    n_actions = model.reward.shape[1]
    choice, trial = np.empty(n_points, np.int64), np.empty(len(values))
    best_left, best_right = -1, -1
    for left in range(n_actions):
        for right in range(n_actions):
            for p in range(n_points):
                choice[p] = left if goes_left[number, p] else right
            trial[:] = values
            total = evaluate_choice(model, choice, trial, best)
            if total > best:
                best, best_left, best_right = total, left, right
    return best, best_left, best_right


@njit(cache=True)
def _below(state, limit):
    """Return a random number below a limit (xorshift; the state must not be zero)."""
    word = np.uint64(state[0])
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    state[0] = np.int64(word)
    return np.int64((word >> np.uint64(11)) % np.uint64(limit))


@njit(cache=True)
def _divisor(a, b):
    """Return the greatest common divisor."""
    while b:
        a, b = b, a % b
    return a


@njit(cache=True)
def perturb_heap(split, leaf, n_splits, n_actions, changes, state):
    """Make random changes in place."""
    for _ in range(changes):
        node = _below(state, len(split) + len(leaf))
        if node < len(split):
            split[node] = _below(state, n_splits)
        else:
            leaf[node - len(split)] = _below(state, n_actions)


def heap_of(shape: Shape, depth: int, split_number: dict[tuple[int, float], int]) -> tuple[np.ndarray, np.ndarray]:
    """Return a shape as heap arrays; parts that are not as deep are repeated below any split."""
    split, leaf = np.zeros(2**depth - 1, dtype=np.int64), np.zeros(2**depth, dtype=np.int64)
    stack = [(shape, 0)]
    while stack:
        part, node = stack.pop()
        if node >= len(split):
            leaf[node - len(split)] = part
        else:
            is_split = isinstance(part, Split)
            split[node] = split_number[part.feature, part.threshold] if is_split else 0
            stack += [(part.left if is_split else part, 2 * node + 1), (part.right if is_split else part, 2 * node + 2)]
    return split, leaf


def shape_of_heap(split: np.ndarray, leaf: np.ndarray, splits: list[tuple[int, float]], node: int = 0) -> Shape:
    """Return heap arrays as a shape, without splits that change nothing."""
    if node >= len(split):
        return int(leaf[node - len(split)])
    left = shape_of_heap(split, leaf, splits, 2 * node + 1)
    right = shape_of_heap(split, leaf, splits, 2 * node + 2)
    feature, threshold = splits[split[node]]
    return left if left == right else Split(feature, threshold, left, right)
