"""What MFEC learns from each base step and each episode, compiled; the same functions serve every environment.

`decide` learns about the tree in a base state and chooses a base action, `record` takes its reward, `sweep` learns the
omniscient Q_o backward when the episode is over. `run_native` is the loop over them for native environments;
`custard.solvers.mfec.loops.Foreign` is the same loop in Python.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

from custard.core.numba_tools import borrowed
from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import uniform
from custard.solvers.common.key_table import find, insert, nearest
from custard.solvers.mfec.bounds_table import NONE, grow, learn_node, rate, root_node, walk
from custard.solvers.mfec.loops import BEGUN, GOES_ON, OVER, TERMINATED
from custard.solvers.mfec.memory import (
    ACTIONS,
    ALL,
    ALPHA_B,
    ALPHA_O,
    DARING,
    DISCOVERING,
    DRAWS,
    EPISODE,
    EPISODES,
    EPSILON,
    EXPAND,
    EXPLORING,
    FIRST,
    FOLLOWING,
    GAMMA_B,
    GUIDED,
    HITS,
    HORIZON,
    KAPPA,
    KIND,
    LAMBDA,
    LEARNING,
    LENGTH,
    MISSES,
    MU,
    OUTCOMES,
    PATIENT,
    RETURN,
    RETURNS,
    REWARDS,
    SHARE,
    STILL,
    STRETCH,
    UNDECIDED,
    VISITS,
    ZETA,
)

__all__ = ["decide", "learn_tree", "record", "run_native", "state_row", "sweep", "turn"]


# -- the omniscient Q_o ---------------------------------------------------------------------------------------------


@njit(cache=True, inline="always")
def state_row(memory, x, k):
    """The row of a base state in Q_o. One never seen starts from the mean of its k nearest neighbours.

    q_star starts from 0 instead, so that what is never tried looks good where rewards are costs: it leads exploration.
    """
    n = len(x)
    key = memory.key
    for c in range(n):
        z = x[c]
        width = memory.grid[1, c]
        if width > 0.0:
            z = memory.grid[0, c] + (np.floor((z - memory.grid[0, c]) / width) + 0.5) * width
        key[c] = z / memory.scale[c] + 0.0
    row = np.int64(find(memory.states, key))
    if row >= 0:
        memory.count[HITS] += 1
        for c in range(n):
            memory.point[row, c] = x[c]
        return row
    memory.count[MISSES] += 1
    rows = np.empty(k, np.int64)
    distances = np.empty(k)
    found = nearest(memory.states, key, rows, distances)
    row = np.int64(insert(memory.states, key))
    if row < 0:  # the table is full: the nearest base state stands for this one
        return rows[0]
    for c in range(n):
        memory.point[row, c] = x[c]
    for b in range(memory.q_o.shape[1]):
        for i in range(found):
            memory.q_o[row, b] += memory.q_o[rows[i], b] / found
    return row


@njit(cache=True, inline="always")
def sweep(memory, x, terminal, over, k):
    """Learn Q_o backward through an episode, or the part of it that has been recorded; x is the state after it.

    The target is r + gamma_b * Q_o(s_b', b'), where b' is what the behaviour does next: the tree's action with
    probability 1 - mu, and the guide's (or, without a guide, the best) with probability mu. It is the mean over the
    outcomes remembered of this base state and action if lambda is 0, else what really followed, averaged by rates.
    """
    count, now = memory.count, memory.now
    gamma, mu = now[GAMMA_B], now[MU]
    g, after = 0.0, -1
    if not terminal:
        after = state_row(memory, x, k)
        leaf, _ = walk(memory.nodes, memory.lattice, root_node(memory.nodes, memory.lattice), x)
        g = _value(memory.q_o, after, mu, _advice(memory, x), leaf)
        memory.v_star[after], memory.v_o[after] = _most(memory.q_star, after), g
    for t in range(count[LENGTH] - 1, -1, -1):
        row, a, r = memory.row[t], memory.action[t], memory.reward[t]
        n = memory.learned[row, a] + 1
        outcomes = memory.after[row, a]
        outcomes[(n - 1) % OUTCOMES] = after
        memory.learned[row, a] = n
        memory.gain[row, a] += (r - memory.gain[row, a]) / n
        memory.when[row] = t
        n = min(n, OUTCOMES)
        memory.q_star[row, a] = _expected(memory.gain[row, a], gamma, outcomes, n, memory.v_star)
        memory.v_star[row] = _most(memory.q_star, row)
        if now[LAMBDA] == 0.0:
            memory.q_o[row, a] = _expected(memory.gain[row, a], gamma, outcomes, n, memory.v_o)
        else:
            memory.followed[row, a] += 1
            alpha = rate(memory.followed[row, a], now[KAPPA], now[ALPHA_O])
            g = r + gamma * g
            change = alpha * (g - memory.q_o[row, a])
            memory.q_o[row, a] += change
            if count[GUIDED] == 1 and not memory.strayed[t]:  # the state is better or worse than thought: all of it
                for b in range(memory.q_o.shape[1]):
                    if b != a:
                        memory.q_o[row, b] += change
        v_o = _value(memory.q_o, row, mu, memory.advice[t], memory.leaf[t])
        memory.v_o[row] = v_o
        g = v_o if memory.strayed[t] else (1.0 - now[LAMBDA]) * v_o + now[LAMBDA] * g
        after = row
    count[LENGTH] = 0
    if over:
        count[EPISODE] += 1
        if count[KIND] == FOLLOWING:
            count[EPISODES] += 1
            now[RETURNS] += now[RETURN]
        now[RETURN] = 0.0
        count[STILL] = 0
        count[KIND] = UNDECIDED


@njit(cache=True)
def _expected(gain, gamma, outcomes, n, v):
    """The mean reward of an action, and what the base states it led to are worth."""
    total = 0.0
    for i in range(n):
        if outcomes[i] >= 0:
            total += v[outcomes[i]]
    return gain + gamma * total / n


@njit(cache=True)
def refresh(memory, order):
    """Bring the values of all base states up to date with what is remembered of them."""
    memory = borrowed(memory)
    now, gamma = memory.now, memory.now[GAMMA_B]
    root = root_node(memory.nodes, memory.lattice)
    for row in order:
        for b in range(memory.q_o.shape[1]):
            n = min(memory.learned[row, b], OUTCOMES)
            if n > 0:
                gain, outcomes = memory.gain[row, b], memory.after[row, b]
                memory.q_star[row, b] = _expected(gain, gamma, outcomes, n, memory.v_star)
                if now[LAMBDA] == 0.0:
                    memory.q_o[row, b] = _expected(gain, gamma, outcomes, n, memory.v_o)
        x = memory.point[row]
        leaf, _ = walk(memory.nodes, memory.lattice, root, x)
        memory.v_star[row] = _most(memory.q_star, row)
        memory.v_o[row] = _value(memory.q_o, row, now[MU], _advice(memory, x), leaf)


@njit(cache=True)
def _most(q, row):
    most = q[row, 0]
    for b in range(1, q.shape[1]):
        most = max(most, q[row, b])
    return most


@njit(cache=True)
def _value(q, row, mu, advice, leaf):
    """What the behaviour is worth in a base state."""
    value = (1.0 - mu) * q[row, leaf]
    if mu > 0.0:
        value += mu * (q[row, advice] if advice >= 0 else _most(q, row))
    return value


@njit(cache=True, inline="always")
def _advice(memory, x):
    """The guide's action, or -1 without a guide."""
    if memory.count[GUIDED] == 0:
        return -1
    guide = memory.guide
    node = 0
    while guide.feature[node] >= 0:
        node = guide.left[node] if x[guide.feature[node]] <= guide.threshold[node] else guide.right[node]
    return guide.value[node]


# -- Q over bounds --------------------------------------------------------------------------------------------------


@njit(cache=True, inline="always")
def learn_tree(memory, x, row):
    """Descend from the root with one base state, epsilon-greedily, learning every action of every node on the way.

    A node that explores tries the same question for a stretch of visits: what lies behind it is then learned from
    whole episodes, not from stray states of many.
    """
    nodes, lattice, rng, count, now = memory.nodes, memory.lattice, memory.rng, memory.count, memory.now
    base = lattice.n_base
    questions = nodes.threshold.shape[1]
    o = np.int64(root_node(nodes, lattice))
    while o >= 0:
        count[VISITS] += 1
        if nodes.visits[o] % count[STRETCH] == 0:
            nodes.trial[o] = NONE
            if uniform(rng, 0.0, 1.0) < now[EPSILON]:
                a = base + int(uniform(rng, 0.0, 1.0) * questions)
                for _ in range(DRAWS - 1):
                    other = base + int(uniform(rng, 0.0, 1.0) * questions)
                    if nodes.q[o, other] > nodes.q[o, a]:
                        a = other
                nodes.trial[o] = a
        a = np.int64(nodes.best[o] if nodes.trial[o] == NONE else nodes.trial[o])
        first = o == 0 and count[FIRST] >= base
        if first:
            a = count[FIRST]
        only = -1 if count[ALL] == 1 else a
        learn_node(nodes, lattice, o, x, memory.q_o[row], now[ZETA], now[KAPPA], now[ALPHA_B], only)
        if first:
            nodes.best[o] = a
        if a < base or np.isnan(nodes.threshold[o, a - base]):
            return
        m = a - base
        side = 0 if x[lattice.feature[m]] <= nodes.threshold[o, m] else 1
        if nodes.child[o, m, side] < 0 and nodes.child_visits[o, m, side] < now[EXPAND]:
            return
        o = np.int64(grow(nodes, lattice, o, m, side))


@njit(cache=True, inline="always")
def decide(memory, x, k):
    """Learn about the tree in one base state and choose the base action to take there."""
    nodes, lattice, rng, count, now = memory.nodes, memory.lattice, memory.rng, memory.count, memory.now
    row = state_row(memory, x, k)
    if count[KIND] == UNDECIDED:
        kind = EXPLORING if uniform(rng, 0.0, 1.0) < 0.5 else DISCOVERING
        count[KIND] = kind if uniform(rng, 0.0, 1.0) < now[SHARE] else FOLLOWING
        now[DARING] = uniform(rng, 0.0, 1.0) ** 3  # from a stray action now and then to nothing else
    # A tree must serve the states it leads to, not those that random actions lead to; each once an episode, so that
    # waiting in one state does not drown the others.
    if count[KIND] == FOLLOWING and count[LEARNING] == 1 and memory.seen[row] != count[EPISODE]:
        learn_tree(memory, x, row)
        for c in range(len(x)):
            memory.moments[0, c] += 1.0
            memory.moments[1, c] += x[c]
            memory.moments[2, c] += x[c] * x[c]
    memory.seen[row] = count[EPISODE]
    still = True
    for c in range(len(x)):
        still = still and memory.last[c] == x[c]
        memory.last[c] = x[c]
    count[STILL] = count[STILL] + 1 if still else 0
    leaf, _ = walk(nodes, lattice, root_node(nodes, lattice), x)
    advice = _advice(memory, x)
    meant = np.int64(leaf)
    if now[MU] > 0.0 and uniform(rng, 0.0, 1.0) < now[MU]:
        meant = np.int64(advice) if advice >= 0 else _preferred(memory.q_star, row, memory.priority)
    # Half of the exploring episodes try what the tree does not do, the other half what looks best of all.
    action = meant if count[KIND] != DISCOVERING else _preferred(memory.q_star, row, memory.priority)
    if count[KIND] != FOLLOWING and uniform(rng, 0.0, 1.0) < now[DARING]:
        action = _least_tried(memory.tried, row, rng)
    memory.tried[row, action] += 1
    t = count[LENGTH]
    memory.row[t], memory.action[t], memory.leaf[t], memory.advice[t] = row, action, leaf, advice
    memory.strayed[t] = action != meant
    return action


@njit(cache=True)
def _preferred(q, row, priority):
    """The best base action; among equally good ones the one this cycle prefers."""
    best = 0
    for b in range(1, q.shape[1]):
        gain = q[row, b] - q[row, best]
        if gain > 1e-9 or (gain > -1e-9 and priority[b] > priority[best]):
            best = b
    return best


@njit(cache=True)
def _least_tried(tried, row, rng):
    action, ties = 0, 1
    for b in range(1, tried.shape[1]):
        if tried[row, b] < tried[row, action]:
            action, ties = b, 1
        elif tried[row, b] == tried[row, action]:
            ties += 1
            if uniform(rng, 0.0, 1.0) * ties < 1.0:
                action = b
    return action


@njit(cache=True, inline="always")
def record(memory, reward):
    """The reward of the action that `decide` chose."""
    memory.reward[memory.count[LENGTH]] = reward
    memory.count[LENGTH] += 1
    memory.count[ACTIONS] += 1
    memory.now[RETURN] += reward
    memory.now[REWARDS] += abs(reward)


@njit(cache=True)
def turn(held, x, news, k):
    """One turn of the same loop, for environments that Python steps: learn from the last one, then choose.

    x [n] must hold the state and news [2] the reward that led there and what became of the episode: BEGUN, GOES_ON,
    TRUNCATED or TERMINATED. The base action to take, or OVER at an episode's end.
    """
    memory = borrowed(held.all)
    if news[1] != BEGUN:
        record(memory, news[0])
        over = news[1] != GOES_ON or memory.count[STILL] >= PATIENT
        if over or memory.count[LENGTH] == HORIZON:
            sweep(memory, x, news[1] == TERMINATED, over, k)
        if over:
            return OVER
    return decide(memory, x, k)


@njit(cache=True)
def run_native(memory, world, params, limit, limit_ends, state, env_rng, elapsed, x, steps, k):
    """Episodes in a native environment, all compiled; `custard.solvers.mfec.loops.Foreign` is the same in Python."""
    memory, params, state, env_rng, x = borrowed((memory, params, state, env_rng, x))
    for _ in range(steps):
        action = decide(memory, x, k)
        reward, terminal = advance(world, params, state, action, env_rng)
        observe(world, state, x)
        elapsed[0] += 1
        record(memory, reward)
        terminal = terminal or (limit_ends and elapsed[0] >= limit)
        over = terminal or elapsed[0] >= limit or memory.count[STILL] >= PATIENT
        if over or memory.count[LENGTH] == HORIZON:
            sweep(memory, x, terminal, over, k)
        if over:
            begin(world, state, env_rng)
            observe(world, state, x)
            elapsed[0] = 0
