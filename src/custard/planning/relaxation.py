"""The best policy within allowed actions, of a discounted model: values, occupancy, and what each action would cost.

Policy iteration on the inverse M = (I - gamma P)^-1 of the present policy: a state that changes its action changes one
row of P, and M, the values and the occupancy follow by a rank-one update. So a problem that differs from the last one
in a few states is solved in a few updates. Whatever rounding does, the largest Bellman residual turns the values into
a bound that holds.

The compiled functions share `model`: pointer, successor, probability, reward, start (`custard.planning.return_bounds`),
point [S] int64 (the point of each state: states of equal features share one), gamma and whether episodes may end; and
`words`, the actions that each point may take (see `custard.planning.agreement`).
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from custard.planning.agreement import allows

__all__ = [
    "DenseRelaxation",
    "Model",
    "Policy",
    "SparseRelaxation",
    "drops",
    "follow",
    "invert",
    "margins",
    "solve_within",
]

TIE = 1e-12  # values that differ by less, relative to the largest, are the same
MIN_VISITS = 1e-12  # states visited less count as not visited
MAX_DRIFT = 1e-10  # of the values, relative to the largest, before the inverse is computed anew
MAX_VALUE_SWEEPS = 10_000  # of value iteration from above, which may stop at any time
MAX_VISIT_SWEEPS = 300  # steps after which what is visited is known well enough
MAX_UPDATE_SHARE = 0.2  # of the states; beyond, a new inverse is cheaper than as many updates


class Model(NamedTuple):
    """What the compiled functions need of a reduced MDP."""

    pointer: np.ndarray
    successor: np.ndarray
    probability: np.ndarray
    reward: np.ndarray
    start: np.ndarray
    point: np.ndarray
    gamma: float
    leaks: bool  # whether some episode may end


class Policy(NamedTuple):
    """A policy with its inverse, changed in place."""

    choice: np.ndarray  # [S] int64
    inverse: np.ndarray  # [S, S]
    values: np.ndarray  # [S]
    occupancy: np.ndarray  # [S], expected discounted visits

    @classmethod
    def empty(cls, count: int) -> Policy:
        """Return room for a policy over `count` states."""
        return cls(np.zeros(count, np.int64), np.zeros((count, count)), np.zeros(count), np.zeros(count))


@njit(cache=True)
def invert(model, policy):
    """Compute the inverse, values and occupancy of a policy from scratch."""
    n, n_actions = model.reward.shape
    system = np.zeros((n, n))
    reward = np.empty(n)
    for s in range(n):
        a = policy.choice[s]
        system[s, s] = 1.0
        for i in range(model.pointer[s * n_actions + a], model.pointer[s * n_actions + a + 1]):
            system[s, model.successor[i]] -= model.gamma * model.probability[i]
        reward[s] = model.reward[s, a]
    policy.inverse[:] = np.linalg.inv(system)
    policy.values[:] = policy.inverse @ reward
    policy.occupancy[:] = model.start @ policy.inverse


@njit(cache=True)
def action_value(model, values, s, a):
    """Return the reward of an action and the discounted value of what follows."""
    k = s * model.reward.shape[1] + a
    total = 0.0
    for i in range(model.pointer[k], model.pointer[k + 1]):
        total += model.probability[i] * values[model.successor[i]]
    return model.reward[s, a] + model.gamma * total


@njit(cache=True)
def _switch(model, policy, s, a):
    """Let state `s` take action `a`: update everything by a rank-one change."""
    n, n_actions = model.reward.shape
    old = policy.choice[s]
    inverse = policy.inverse
    row = np.zeros(n)  # what the change of the state's transitions does to the inverse's rows
    for sign, action in ((1.0, a), (-1.0, old)):
        k = s * n_actions + action
        for i in range(model.pointer[k], model.pointer[k + 1]):
            t, p = model.successor[i], sign * model.probability[i] * model.gamma
            for j in range(n):
                row[j] += p * inverse[t, j]
    scale = 1.0 / (1.0 - row[s])
    gain = (action_value(model, policy.values, s, a) - policy.values[s]) * scale
    for j in range(n):
        row[j] *= scale
    visits = policy.occupancy[s]
    for i in range(n):
        u = inverse[i, s]
        if u != 0.0:
            policy.values[i] += u * gain
            for j in range(n):
                inverse[i, j] += u * row[j]
    for j in range(n):
        policy.occupancy[j] += visits * row[j]
    policy.choice[s] = a


@njit(cache=True)
def follow(model, policy, choice):
    """Change a policy into another one, by updates or from scratch."""
    n = len(choice)
    different = 0
    for s in range(n):
        different += choice[s] != policy.choice[s]
    if different > MAX_UPDATE_SHARE * n + 1:
        policy.choice[:] = choice
        invert(model, policy)
        return
    for s in range(n):
        if choice[s] != policy.choice[s]:
            _switch(model, policy, s, choice[s])


@njit(cache=True)
def margins(model, policy):
    """Return how far each action's value lies below the state's, [S, A]."""
    n, n_actions = model.reward.shape
    below = np.empty((n, n_actions))
    for s in range(n):
        for a in range(n_actions):
            below[s, a] = policy.values[s] - action_value(model, policy.values, s, a)
    return below


@njit(cache=True)
def solve_within(model, policy, words, known_values, below):
    """Make a policy the best one within the allowed actions; return a bound on what any such policy returns.

    known_values, below  values [S] and `margins` [S, A] of the best policy within more actions. If values have fallen
                         by at least d and at most D since, an action's value has fallen by at least gamma d, so that
                         those more than D - gamma d below need no look.
    """
    n, n_actions = model.reward.shape
    for s in range(n):  # what is no longer allowed
        if not allows(words, model.point[s], policy.choice[s]):
            best, best_a = -np.inf, -1
            for a in range(n_actions):
                if allows(words, model.point[s], a):
                    q = action_value(model, policy.values, s, a)
                    if q > best:
                        best, best_a = q, a
            _switch(model, policy, s, best_a)
    refreshed = changed = False
    residual = 0.0
    for sweep in range(10 * n + 100):
        largest, fallen_most, fallen_least = 1.0, 0.0, np.inf
        for s in range(n):
            largest = max(largest, abs(policy.values[s]))
            fallen_most = max(fallen_most, known_values[s] - policy.values[s])
            fallen_least = min(fallen_least, known_values[s] - policy.values[s])
        if model.leaks:
            fallen_least = 0.0
        near = fallen_most - model.gamma * max(0.0, fallen_least) + TIE * largest
        changed, residual, drift = False, 0.0, 0.0
        for k in range(n):
            s = n - 1 - k if sweep % 2 == 0 else k
            now = policy.choice[s]
            mine = action_value(model, policy.values, s, now)
            drift = max(drift, abs(mine - policy.values[s]))
            best, best_a, most = mine + TIE * largest, now, mine
            for a in range(n_actions):
                if a != now and below[s, a] <= near and allows(words, model.point[s], a):
                    q = action_value(model, policy.values, s, a)
                    most = max(most, q)
                    if q > best:
                        best, best_a = q, a
            if best_a != now:
                _switch(model, policy, s, best_a)
                changed = True
            else:
                residual = max(residual, most - policy.values[s])
        if drift > MAX_DRIFT * largest and not refreshed:
            invert(model, policy)
            refreshed = True
        elif not changed:
            break
    if changed:
        residual = np.inf  # not settled: nothing is known
    bound = 0.0
    for s in range(n):
        bound += model.start[s] * policy.values[s]
    return bound + max(0.0, residual) / (1.0 - model.gamma)


@njit(cache=True)
def mark_forbidden(words, lost):
    """Write minus one where an action is not allowed at a point."""
    for p in range(lost.shape[0]):
        for a in range(lost.shape[1]):
            if not allows(words, p, a):
                lost[p, a] = -1.0


@njit(cache=True)
def drops(model, policy, words, below, n_points):
    """Return how much the start loses if a point takes an action and all others go on as they do, [P, A].

    Minus one where the action is not allowed, and zero for all actions of points that are not visited. `below` are the
    policy's `margins`.
    """
    n, n_actions = model.reward.shape
    lost = np.zeros((n_points, n_actions))
    for s in range(n):
        p = model.point[s]
        if policy.occupancy[s] <= MIN_VISITS:
            continue
        old = policy.choice[s] + s * n_actions
        stays = 0.0
        for i in range(model.pointer[old], model.pointer[old + 1]):
            stays += model.probability[i] * policy.inverse[model.successor[i], s]
        for a in range(n_actions):
            if a == policy.choice[s] or below[s, a] <= 0.0 or not allows(words, p, a):
                continue
            k = s * n_actions + a
            after = 0.0
            for i in range(model.pointer[k], model.pointer[k + 1]):
                after += model.probability[i] * policy.inverse[model.successor[i], s]
            lost[p, a] += policy.occupancy[s] * below[s, a] / (1.0 - model.gamma * (after - stays))
    mark_forbidden(words, lost)
    return lost


@njit(cache=True)
def solve_from_above(model, values, words, max_sweeps):
    """Lower upper bounds on values in place until they settle; write the best choice and return the start's bound.

    Every sweep leaves upper bounds, so it may stop at any time. For models of any size, discounted or not.
    """
    n, n_actions = model.reward.shape
    choice = np.zeros(n, np.int64)
    for sweep in range(max_sweeps):
        change, largest = 0.0, 1.0
        for k in range(n):
            s = n - 1 - k if sweep % 2 == 0 else k
            best = -np.inf
            for a in range(n_actions):
                if allows(words, model.point[s], a):
                    q = action_value(model, values, s, a)
                    if q > best:
                        best = q
                        choice[s] = a
            if best < values[s]:
                change = max(change, values[s] - best)
                values[s] = best
            if np.isfinite(values[s]):
                largest = max(largest, abs(values[s]))
        if change <= TIE * largest:
            break
    bound = 0.0
    for s in range(n):
        if model.start[s] > 0.0:
            bound += model.start[s] * values[s]
    return bound, choice


class DenseRelaxation:
    """The best policy within allowed actions by rank-one updates: for models of up to a thousand states or so."""

    def __init__(self, model: Model, choice: np.ndarray, full: np.ndarray) -> None:
        count = len(choice)
        self.model = model
        self.policy, self.trial = Policy.empty(count), Policy.empty(count)
        self.policy.choice[:] = choice
        invert(model, self.policy)
        everything = np.full(model.reward.shape, -np.inf)
        self.bound = float(solve_within(model, self.policy, full, self.policy.values.copy(), everything))
        self.below = margins(model, self.policy)

    @property
    def choice(self) -> np.ndarray:
        """The action of each state, [S]."""
        return self.policy.choice

    @property
    def visits(self) -> np.ndarray:
        """How often each state is visited, [S]."""
        return self.policy.occupancy

    def move(self, choice: np.ndarray, words: np.ndarray) -> None:
        """Take the best policy of other constraints, known from before."""
        follow(self.model, self.policy, choice)
        self.below = margins(self.model, self.policy)
        drift = np.abs(self.below[np.arange(len(choice)), choice]).max()
        if drift > MAX_DRIFT * max(1.0, float(np.abs(self.policy.values).max())):
            invert(self.model, self.policy)
            self.below = margins(self.model, self.policy)

    def follow(self, choice: np.ndarray) -> None:
        """Take a policy of the same values."""
        follow(self.model, self.policy, choice)
        self.below = margins(self.model, self.policy)

    def losses(self, words: np.ndarray, n_points: int) -> np.ndarray:
        """Return what the start loses if a point takes an action, [P, A]; see `drops`."""
        return drops(self.model, self.policy, words, self.below, n_points)

    def child(self, words: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the bound within fewer actions, and the best policy there."""
        for mine, theirs in zip(self.trial, self.policy, strict=True):
            mine[:] = theirs
        bound = solve_within(self.model, self.trial, words, self.policy.values, self.below)
        return float(bound), self.trial.choice.astype(np.int32)


class SparseRelaxation:
    """The same by value iteration from above: for models of any size."""

    def __init__(self, model: Model, top: np.ndarray, full: np.ndarray) -> None:
        self.model, self.top = model, top
        self.values = top.copy()
        self.bound, self.choice = self._solve(self.values, full)
        self.visits = visits_of(model, self.choice, MAX_VISIT_SWEEPS)

    def _solve(self, values: np.ndarray, words: np.ndarray) -> tuple[float, np.ndarray]:
        bound, choice = solve_from_above(self.model, values, words, MAX_VALUE_SWEEPS)
        return float(bound), choice

    def move(self, choice: np.ndarray, words: np.ndarray) -> None:
        """Take the best policy of other constraints, known from before."""
        self.values = self.top.copy()
        self._solve(self.values, words)
        self.follow(choice)

    def follow(self, choice: np.ndarray) -> None:
        """Take a policy of the same values."""
        self.choice = choice
        self.visits = visits_of(self.model, choice, MAX_VISIT_SWEEPS)

    def losses(self, words: np.ndarray, n_points: int) -> np.ndarray:
        """Return about what the start loses if a point takes an action, [P, A]: its visits times the loss of one."""
        return visited_losses(self.model, self.values, self.visits, words, n_points)

    def child(self, words: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the bound within fewer actions, and the best policy there."""
        bound, choice = self._solve(self.values.copy(), words)
        return bound, choice.astype(np.int32)


@njit(cache=True)
def visited_losses(model, values, visits, words, n_points):
    """Return each action's loss against the state's value, times its visits, summed over points' states, [P, A]."""
    n, n_actions = model.reward.shape
    lost = np.zeros((n_points, n_actions))
    for s in range(n):
        if visits[s] > MIN_VISITS:
            for a in range(n_actions):
                if allows(words, model.point[s], a):
                    loss = values[s] - action_value(model, values, s, a)
                    lost[model.point[s], a] += visits[s] * max(0.0, loss)
    mark_forbidden(words, lost)
    return lost


@njit(cache=True)
def visits_of(model, choice, max_sweeps):
    """Return how often each state is visited (discounted) under one action per state, [S]; roughly, if sweeps end."""
    n, n_actions = model.reward.shape
    mass, new, visits = model.start.copy(), np.zeros(n), np.zeros(n)
    for _ in range(max_sweeps):
        new[:] = 0.0
        for s in range(n):
            if mass[s] > 0.0:
                visits[s] += mass[s]
                k = s * n_actions + choice[s]
                for i in range(model.pointer[k], model.pointer[k + 1]):
                    new[model.successor[i]] += model.gamma * model.probability[i] * mass[s]
        left = 0.0
        for s in range(n):
            left += new[s]
            mass[s] = new[s]
        if left < 1e-6:
            break
    return visits
