"""Compiled upper bounds on the return of policies whose states may take only some of the actions.

If some states may take one action only and the others whatever they like, the best return is at least that of every
tree that gives those states these actions, and allowing less never raises it. Value iteration that starts from upper
bounds holds upper bounds after every sweep, so it may stop at any time.

The functions share their parameters, S states and A actions:

    pointer      [S * A + 1]  where the successors of each (state, action) begin
    successor    [E]          states, those that are terminal left out (worth nothing)
    probability  [E]          of each successor
    reward       [S, A]       expected
    start        [S]          the start distribution
    allowed      [S, A] bool  the actions that a state may take
    price        [S]          what each visit costs
    values       [S]          upper bounds on what follows each state, improved in place
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from custard.core.numba_tools import njit

__all__ = ["backward_bound", "can_finish", "endless_reward", "reachable", "relaxed_bound", "rising_bound"]

MAX_IDLE_SWEEPS = 30  # sweeps without effect on the start after which a bound that holds anyway is good enough
#: Most bounds are low enough by then; for the others, copying the allowed actions saves time.
SWEEPS_BEFORE_COPYING_ACTIONS = 4


@njit(cache=True)
def backup(pointer, successor, probability, reward, allowed, price, values, gamma, s):
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
def gather(pointer, successor, probability, reward, allowed, price, gamma):
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
def backup_gathered(first, begin, earned, after, weight, values, s):
    """Return what `backup` returns at state `s`, from gathered actions."""
    best = -np.inf
    for row in range(first[s], first[s + 1]):
        total = earned[row]
        for i in range(begin[row], begin[row + 1]):
            total += weight[i] * values[after[i]]
        if total > best:
            best = total
    return best


@njit(cache=True)
def start_value(start, values):
    """Return the mean value at the start; other states do not count, however bad (0 times infinity is no number)."""
    total = 0.0
    for s in range(len(start)):
        if start[s] > 0.0:
            total += start[s] * values[s]
    return total


@njit(cache=True)
def relaxed_bound(pointer, successor, probability, reward, start, allowed, price, values, gamma, max_sweeps, cutoff):
    """Iterate values in place from above, without a horizon; the start's value after at most `max_sweeps` sweeps."""
    n = len(reward)
    bound = 0.0
    first, begin, earned, after, weight = gather(pointer, successor, probability, reward, allowed[:0], price, gamma)
    for sweep in range(max_sweeps):
        change = 0.0
        if sweep == SWEEPS_BEFORE_COPYING_ACTIONS:
            first, begin, earned, after, weight = gather(pointer, successor, probability, reward, allowed, price, gamma)
        for k in range(n):
            s = n - 1 - k if sweep % 2 == 0 else k
            if sweep >= SWEEPS_BEFORE_COPYING_ACTIONS:
                best = backup_gathered(first, begin, earned, after, weight, values, s)
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
def rising_bound(pointer, successor, probability, reward, start, allowed, price, values, max_sweeps):
    """Iterate undiscounted values from zero, for rewards of at least zero: the least fixed point, to rounding.

    Infinity if it is not reached within `max_sweeps`, for what was reached until then is no upper bound.
    """
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
            return start_value(start, values)
    return np.inf


@njit(cache=True)
def backward_bound(pointer, successor, probability, reward, start, allowed, price, values, gamma, horizon, cutoff):
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
            best = backup_gathered(first, begin, earned, after, weight, values, s)
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
def reachable(pointer, successor, start, allowed, n_actions):
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
def endless_reward(pointer, successor, probability, reward, start, allowed, price):
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
def can_finish(pointer, successor, probability, start, allowed, n_actions):
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
