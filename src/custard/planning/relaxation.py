"""The best policy within allowed actions, of a discounted model: values, occupancy, and what each action would cost.

Policy iteration on the inverse M = (I - gamma P)^-1 of the present policy: a state that changes its action changes one
row of P, and M, the values and the occupancy follow by a rank-one update. So a problem that differs from the last one
in a few states is solved in a few updates. Whatever rounding does, the largest Bellman residual turns the values into
a bound that holds.

The compiled functions share `model`: pointer, successor, probability, reward, start (see `custard.planning.reduced`),
point [S] int64 (the point of each state: states of equal features share one) and gamma; and `words`, the actions that
each point may take (see `custard.planning.agreement`).
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from custard.planning.agreement import allows

__all__ = ["Model", "Policy", "drops", "follow", "invert", "solve_within"]

TIE = 1e-11  # values that differ by less, relative to the largest, are the same
MAX_DRIFT = 1e-9  # of the values, relative to the largest, before the inverse is computed anew
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
def solve_within(model, policy, words):
    """Make a policy the best one within the allowed actions; return a bound on what any such policy returns."""
    n, n_actions = model.reward.shape
    refreshed = False
    for sweep in range(10 * n + 100):
        largest = 1.0
        for s in range(n):
            largest = max(largest, abs(policy.values[s]))
        changed, residual, drift = False, 0.0, 0.0
        for k in range(n):
            s = n - 1 - k if sweep % 2 == 0 else k
            now = policy.choice[s]
            mine = action_value(model, policy.values, s, now)
            drift = max(drift, abs(mine - policy.values[s]))
            best, best_a, most = mine + TIE * largest, now, mine
            if not allows(words, model.point[s], now):
                best = most = -np.inf
            for a in range(n_actions):
                if a != now and allows(words, model.point[s], a):
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
def drops(model, policy, words, n_points):
    """Return how much the start loses if a point takes an action and all others go on as they do, [P, A].

    Minus one where the action is not allowed, and for all actions of points that are not visited zero.
    """
    n, n_actions = model.reward.shape
    lost = np.zeros((n_points, n_actions))
    for s in range(n):
        p = model.point[s]
        if policy.occupancy[s] <= 1e-12:
            continue
        old = policy.choice[s] + s * n_actions
        stays = 0.0
        for i in range(model.pointer[old], model.pointer[old + 1]):
            stays += model.probability[i] * policy.inverse[model.successor[i], s]
        for a in range(n_actions):
            if a == policy.choice[s] or not allows(words, p, a):
                continue
            k = s * n_actions + a
            after, total = 0.0, 0.0
            for i in range(model.pointer[k], model.pointer[k + 1]):
                after += model.probability[i] * policy.inverse[model.successor[i], s]
                total += model.probability[i] * policy.values[model.successor[i]]
            loss = policy.values[s] - model.reward[s, a] - model.gamma * total
            if loss > 0.0:
                lost[p, a] += policy.occupancy[s] * loss / (1.0 - model.gamma * (after - stays))
    for p in range(n_points):
        for a in range(n_actions):
            if not allows(words, p, a):
                lost[p, a] = -1.0
    return lost
