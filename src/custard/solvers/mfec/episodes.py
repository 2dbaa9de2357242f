"""What MFEC learns from each base step and each episode, compiled; the same functions serve every environment.

`choose_base_action` updates Q over bounds in a base state and chooses a base action, `record_reward` takes its reward,
`learn_episode` learns the omniscient Q_o backward when the episode is over. `run_compiled` is the loop over them for
compiled environments; `custard.solvers.mfec.runners.run_episodes` is the same loop in Python.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import njit

from custard.core.numba_tools import without_refcounts
from custard.envs.pcg64 import uniform
from custard.solvers.common.key_table import NONE, find, insert, nearest
from custard.solvers.mfec.bounds_table import child_node, greedy_base_action, learning_rate, root_node, update_node
from custard.solvers.mfec.runners import CONTINUES, EPISODE_OVER, STARTED, TERMINATED
from custard.solvers.mfec.tables import (
    EPISODE_DISCOVERS,
    EPISODE_EXPLORES,
    EPISODE_FOLLOWS_TREE,
    EPISODE_UNDECIDED,
    MAX_OUTCOMES_PER_PAIR,
    MAX_RECORDED_STEPS,
    MAX_STEPS_WITHOUT_CHANGE,
)
from custard.task.compiled_episodes import start_episode, step_episode
from custard.tree.compiled import leaf_of

__all__ = [
    "base_state_row",
    "choose_base_action",
    "learn_episode",
    "next_action",
    "recompute_values",
    "record_reward",
    "run_compiled",
    "update_bounds_table",
]

RANDOM_SPLITS_COMPARED = 2  # random splits drawn, of which the one with the largest Q is tried


# -- the omniscient Q_o ---------------------------------------------------------------------------------------------


@njit(cache=True, inline="always")
def base_state_row(tables, x, k):
    """Return the row of a base state in Q_o. A new one starts from the mean of its k nearest neighbours.

    Its q_star starts from 0 instead, so that actions never tried look good where rewards are costs: q_star leads
    exploration.
    """
    n = len(x)
    counters, key, grid = tables.counters[0], tables.key, tables.grid
    for c in range(n):
        z = x[c]
        width = grid[1, c]
        if width > 0.0:
            z = grid[0, c] + (np.floor((z - grid[0, c]) / width) + 0.5) * width
        key[c] = z / tables.scale[c] + 0.0
    row = np.int64(find(tables.state_keys, key))
    if row >= 0:
        counters.hits += 1
        for c in range(n):
            tables.state_x[row, c] = x[c]
        return row
    counters.misses += 1
    neighbours = np.empty(k, np.int64)
    distances = np.empty(k)
    found = nearest(tables.state_keys, key, neighbours, distances)
    row = np.int64(insert(tables.state_keys, key))
    if row < 0:  # the table is full: the nearest base state stands for this one
        return neighbours[0]
    for c in range(n):
        tables.state_x[row, c] = x[c]
    for b in range(tables.q_o.shape[1]):
        for i in range(found):
            tables.q_o[row, b] += tables.q_o[neighbours[i], b] / found
    return row


@njit(cache=True, inline="always")
def learn_episode(tables, x, terminated, is_over, k):
    """Learn Q_o backward through the recorded steps of an episode.

    tables: `Tables`
    x [n]: the base state after the last step
    terminated: whether it is terminal
    is_over: whether the episode ends here; if not, only its record does
    k: neighbours of a new base state

    The target is r + gamma_b * Q_o(s_b', b'), where b' is what the behaviour does next: with probability
    `teacher_share` the guide's action (without a guide, the best one), else the tree's. If lambda is 0 it is the mean
    over the outcomes remembered of this base state and action, else what really followed, averaged by learning rates.
    """
    episode, counters, schedule = tables.episode, tables.counters[0], tables.schedule[0]
    gamma, teacher_share, trace = schedule.gamma_b, schedule.teacher_share, schedule.trace
    g, next_row = 0.0, -1
    if not terminated:
        next_row = base_state_row(tables, x, k)
        tree_action = greedy_base_action(tables.bounds, tables.rules, root_node(tables.bounds, tables.rules), x)
        g = _behaviour_value(tables.q_o, next_row, teacher_share, _guide_action(tables, x), tree_action)
        tables.v_star[next_row], tables.v_o[next_row] = _max_value(tables.q_star, next_row), g
    for t in range(counters.recorded_steps - 1, -1, -1):
        row, a, r = episode.row[t], episode.action[t], episode.reward[t]
        updates = tables.updates[row, a] + 1
        outcomes = tables.outcomes[row, a]
        outcomes[(updates - 1) % MAX_OUTCOMES_PER_PAIR] = next_row
        tables.updates[row, a] = updates
        tables.mean_reward[row, a] += (r - tables.mean_reward[row, a]) / updates
        tables.state_step[row] = t
        n_outcomes = min(updates, MAX_OUTCOMES_PER_PAIR)
        tables.q_star[row, a] = _outcome_value(tables.mean_reward[row, a], gamma, outcomes, n_outcomes, tables.v_star)
        tables.v_star[row] = _max_value(tables.q_star, row)
        if trace == 0.0:
            tables.q_o[row, a] = _outcome_value(tables.mean_reward[row, a], gamma, outcomes, n_outcomes, tables.v_o)
        else:
            tables.cycle_updates[row, a] += 1
            alpha = learning_rate(tables.cycle_updates[row, a], schedule.kappa, schedule.alpha_o)
            g = r + gamma * g
            change = alpha * (g - tables.q_o[row, a])
            tables.q_o[row, a] += change
            if schedule.has_guide and not episode.deviates[t]:  # the state itself is better or worse than thought
                for b in range(tables.q_o.shape[1]):
                    if b != a:
                        tables.q_o[row, b] += change
        v_o = _behaviour_value(tables.q_o, row, teacher_share, episode.guide_action[t], episode.tree_action[t])
        tables.v_o[row] = v_o
        g = v_o if episode.deviates[t] else (1.0 - trace) * v_o + trace * g
        next_row = row
    counters.recorded_steps = 0
    if is_over:
        counters.episode += 1
        if counters.episode_kind == EPISODE_FOLLOWS_TREE:
            counters.followed_episodes += 1
            counters.followed_returns += counters.episode_return
        counters.episode_return = 0.0
        counters.steps_without_change = 0
        counters.episode_kind = EPISODE_UNDECIDED


@njit(cache=True)
def _outcome_value(mean_reward, gamma, outcomes, n_outcomes, v):
    """Return the mean reward of an action plus the discounted mean value of the base states that followed it.

    `outcomes` are the rows of these, of which `n_outcomes` count, NONE for an episode's end; v [S] are values.
    """
    total = 0.0
    for i in range(n_outcomes):
        if outcomes[i] >= 0:
            total += v[outcomes[i]]
    return mean_reward + gamma * total / n_outcomes


@njit(cache=True)
def recompute_values(tables, order):
    """Compute the values of all base states anew from the outcomes remembered, in the `order` [S] of their rows."""
    tables = without_refcounts(tables)
    schedule = tables.schedule[0]
    root = root_node(tables.bounds, tables.rules)
    for row in order:
        for b in range(tables.q_o.shape[1]):
            n_outcomes = min(tables.updates[row, b], MAX_OUTCOMES_PER_PAIR)
            if n_outcomes > 0:
                reward, outcomes, gamma = tables.mean_reward[row, b], tables.outcomes[row, b], schedule.gamma_b
                tables.q_star[row, b] = _outcome_value(reward, gamma, outcomes, n_outcomes, tables.v_star)
                if schedule.trace == 0.0:
                    tables.q_o[row, b] = _outcome_value(reward, gamma, outcomes, n_outcomes, tables.v_o)
        x = tables.state_x[row]
        tree_action = greedy_base_action(tables.bounds, tables.rules, root, x)
        tables.v_star[row] = _max_value(tables.q_star, row)
        guide_action = _guide_action(tables, x)
        tables.v_o[row] = _behaviour_value(tables.q_o, row, schedule.teacher_share, guide_action, tree_action)


@njit(cache=True)
def _max_value(q, row):
    """Return the largest of a row's values."""
    value = q[row, 0]
    for b in range(1, q.shape[1]):
        value = max(value, q[row, b])
    return value


@njit(cache=True)
def _behaviour_value(q, row, teacher_share, guide_action, tree_action):
    """Return the value of the behaviour in a base state: the teacher's with probability `teacher_share`, or the tree's.

    `q` [S, B] are values, `row` is that of the base state; `guide_action` is -1 where the best action is the teacher.
    """
    value = (1.0 - teacher_share) * q[row, tree_action]
    if teacher_share > 0.0:
        value += teacher_share * (q[row, guide_action] if guide_action >= 0 else _max_value(q, row))
    return value


@njit(cache=True, inline="always")
def _guide_action(tables, x):
    """Return the guide's action in a base state, or -1 without a guide."""
    if not tables.schedule[0].has_guide:
        return -1
    return tables.guide[4][leaf_of(tables.guide, x)]


# -- Q over bounds --------------------------------------------------------------------------------------------------


@njit(cache=True, inline="always")
def update_bounds_table(tables, x, row):
    """Descend from the root with one base state, epsilon-greedily, updating every action of every node on the way.

    A node that explores tries the same split for a stretch of visits: what lies below it is then learned from whole
    episodes, not from single states of many.
    """
    bounds, rules, rng = tables.bounds, tables.rules, tables.rng
    counters, schedule = tables.counters[0], tables.schedule[0]
    base = rules.n_base
    n_splits = bounds.threshold.shape[1]
    q_o, zeta, kappa, alpha_b = tables.q_o[row], schedule.zeta, schedule.kappa, schedule.alpha_b
    o = np.int64(root_node(bounds, rules))
    while o >= 0:
        counters.node_visits += 1
        if bounds.visits[o] % schedule.visits_per_random_split == 0:
            bounds.explored_split[o] = NONE
            if uniform(rng, 0.0, 1.0) < schedule.epsilon:
                a = base + int(uniform(rng, 0.0, 1.0) * n_splits)
                for _ in range(RANDOM_SPLITS_COMPARED - 1):
                    other = base + int(uniform(rng, 0.0, 1.0) * n_splits)
                    if bounds.q[o, other] > bounds.q[o, a]:
                        a = other
                bounds.explored_split[o] = a
        a = np.int64(bounds.greedy[o] if bounds.explored_split[o] == NONE else bounds.explored_split[o])
        is_prescribed = o == 0 and schedule.first_split >= base
        if is_prescribed:
            a = schedule.first_split
        only_action = NONE if schedule.learns_all_actions else a
        update_node(bounds, rules, o, x, q_o, zeta, kappa, alpha_b, only_action)
        if is_prescribed:
            bounds.greedy[o] = a
        if a < base or np.isnan(bounds.threshold[o, a - base]):
            return
        m = a - base
        side = 0 if x[rules.feature[m]] <= bounds.threshold[o, m] else 1
        if bounds.child[o, m, side] < 0 and bounds.child_visits[o, m, side] < schedule.min_states_per_node:
            return
        o = np.int64(child_node(bounds, rules, o, m, side))


# -- behaviour ------------------------------------------------------------------------------------------------------


@njit(cache=True, inline="always")
def choose_base_action(tables, x, k):
    """Update Q over bounds in a base state x [n] and return the base action to take there."""
    episode, counters, schedule, rng = tables.episode, tables.counters[0], tables.schedule[0], tables.rng
    row = base_state_row(tables, x, k)
    if counters.episode_kind == EPISODE_UNDECIDED:
        kind = EPISODE_EXPLORES if uniform(rng, 0.0, 1.0) < 0.5 else EPISODE_DISCOVERS
        counters.episode_kind = kind if uniform(rng, 0.0, 1.0) < schedule.exploring_share else EPISODE_FOLLOWS_TREE
        counters.random_action_share = uniform(rng, 0.0, 1.0) ** 3  # mostly few random actions, sometimes all
    # A tree must serve the states it leads to, not those that random actions lead to; each once per episode, so that
    # waiting in one state does not outweigh the others.
    if (
        counters.episode_kind == EPISODE_FOLLOWS_TREE
        and schedule.learns_tree
        and tables.state_episode[row] != counters.episode
    ):
        update_bounds_table(tables, x, row)
        for c in range(len(x)):
            tables.moments[0, c] += 1.0
            tables.moments[1, c] += x[c]
            tables.moments[2, c] += x[c] * x[c]
    tables.state_episode[row] = counters.episode
    is_unchanged = True
    for c in range(len(x)):
        is_unchanged = is_unchanged and tables.last_x[c] == x[c]
        tables.last_x[c] = x[c]
    counters.steps_without_change = counters.steps_without_change + 1 if is_unchanged else 0
    tree_action = greedy_base_action(tables.bounds, tables.rules, root_node(tables.bounds, tables.rules), x)
    guide_action = _guide_action(tables, x)
    intended = np.int64(tree_action)
    if schedule.teacher_share > 0.0 and uniform(rng, 0.0, 1.0) < schedule.teacher_share:
        intended = np.int64(guide_action) if guide_action >= 0 else _best_action(tables.q_star, row, tables.priority)
    # Half of the exploring episodes deviate from the intended actions, the other half from the best known ones.
    action = intended
    if counters.episode_kind == EPISODE_DISCOVERS:
        action = _best_action(tables.q_star, row, tables.priority)
    if counters.episode_kind != EPISODE_FOLLOWS_TREE and uniform(rng, 0.0, 1.0) < counters.random_action_share:
        action = _least_tried_action(tables.tries, row, rng)
    tables.tries[row, action] += 1
    t = counters.recorded_steps
    episode.row[t], episode.action[t] = row, action
    episode.tree_action[t], episode.guide_action[t] = tree_action, guide_action
    episode.deviates[t] = action != intended
    return action


@njit(cache=True)
def _best_action(q, row, priority):
    """Return the base action with the largest value; among equal ones that of the highest priority [B]."""
    best = 0
    for b in range(1, q.shape[1]):
        advantage = q[row, b] - q[row, best]
        if advantage > 1e-9 or (advantage > -1e-9 and priority[b] > priority[best]):
            best = b
    return best


@njit(cache=True)
def _least_tried_action(tries, row, rng):
    """Return the base action taken least often in a base state, a random one among equals."""
    action, ties = 0, 1
    for b in range(1, tries.shape[1]):
        if tries[row, b] < tries[row, action]:
            action, ties = b, 1
        elif tries[row, b] == tries[row, action]:
            ties += 1
            if uniform(rng, 0.0, 1.0) * ties < 1.0:
                action = b
    return action


@njit(cache=True, inline="always")
def record_reward(tables, reward):
    """Record the reward of the action that `choose_base_action` returned."""
    counters = tables.counters[0]
    tables.episode.reward[counters.recorded_steps] = reward
    counters.recorded_steps += 1
    counters.base_actions += 1
    counters.episode_return += reward
    counters.absolute_rewards += abs(reward)


# -- loops ----------------------------------------------------------------------------------------------------------


@njit(cache=True)
def next_action(held, x, last_step, k):
    """Take one turn of the loop for an environment that Python steps: learn from its last step, then choose.

    `held` is a `HeldTuple` of `Tables`, `last_step` [2] the reward that led to the base state x [n], and the episode's
    status: STARTED, CONTINUES, TRUNCATED or TERMINATED. Returns the base action to take, or EPISODE_OVER.
    """
    tables = without_refcounts(held.values)
    reward, status = last_step[0], last_step[1]
    if status != STARTED:
        record_reward(tables, reward)
        counters = tables.counters[0]
        is_over = status != CONTINUES or counters.steps_without_change >= MAX_STEPS_WITHOUT_CHANGE
        if is_over or counters.recorded_steps == MAX_RECORDED_STEPS:
            learn_episode(tables, x, status == TERMINATED, is_over, k)
        if is_over:
            return EPISODE_OVER
    return choose_base_action(tables, x, k)


@njit(cache=True)
def run_compiled(tables, episodes, steps, k):
    """Learn for a number of steps in a compiled environment; `k` neighbours stand in for a new base state."""
    tables, episodes = without_refcounts((tables, episodes))
    counters, x = tables.counters[0], episodes.x[0]
    for _ in range(steps):
        action = choose_base_action(tables, x, k)
        reward, terminated, done = step_episode(episodes, 0, action)
        record_reward(tables, reward)
        is_over = done or counters.steps_without_change >= MAX_STEPS_WITHOUT_CHANGE
        if is_over or counters.recorded_steps == MAX_RECORDED_STEPS:
            learn_episode(tables, x, terminated, is_over, k)
        if is_over:
            start_episode(episodes, 0)
