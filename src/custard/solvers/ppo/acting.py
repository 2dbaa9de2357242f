"""Compiled rollouts of a network over bounds, and imagined nodes to learn from.

For a base state that was met every question's answer is known. So beside the environment's own steps there are walks
(`walking`), and `imagine`: one traversal to learn from. Each node on it is stored as a row, with the
greedy walk behind every question that is afforded there: which leaf action it would end in, and after how many
questions.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from custard.core.numba_tools import inner, once, outer
from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import uniform
from custard.solvers.ppo.acting_data import ACTION_SPREAD, AT, BEST, GREED, LOW, NONE, SPREAD, WIDTH, V
from custard.solvers.ppo.walking import (
    choose,
    component,
    copy_node,
    led_to,
    normal,
    refresh,
    squash,
    to_answer,
    to_root,
    walk,
)

__all__ = ["choose", "component", "note", "refresh", "run_native", "think"]


@inner
def write_scaled(game, u, row):
    """An action vector in a row to learn from: components from -1 to 1."""
    for j in range(len(u)):
        row[j] = (u[j] - game.vector[2, j]) / game.vector[3, j]


@inner
def follow(game, known, o, question, x):
    """The greedy walk behind a question asked at a known node, as far as all of it is known: else action NONE."""
    asked = 0
    while o >= 0:
        o, _ = led_to(game, known, o, question, x)
        if o < 0:
            break
        action = known.number[o, BEST]
        if action < game.flags[0]:  # NONE is less than any action
            return np.int64(action), asked
        question = np.int64(action) - game.flags[0]
        asked += 1
    return np.int64(NONE), asked


@once
def imagine(game, weights, node, child, rng, epsilon, rows, i, t):
    """A traversal for the node's base state, each node of it a row from t on; returns the next free row.

    With a probability of `epsilon` the next question is any that is afforded.
    """
    n_base, n, steps, k = game.flags[0], len(node.x), rows.acts.shape[1], len(node.mask)
    parameterised = game.flags[3]
    draw = epsilon >= 0.0  # true: a constant here would have `choose` and `walk` compiled twice
    to_root(game, node)
    while True:
        a = choose(game, weights, node, rng, draw)
        v = node.knob[V]
        z = node.known.z[node.number[AT]] if node.number[AT] >= 0 else node.room[(len(weights) - 1) % 2]
        for j in range(2 * n):
            rows.obs[i, t, j] = node.obs[j]
        for c in range(n):
            rows.x[i, t, c] = (node.x[c] - game.box[LOW, c]) / game.box[WIDTH, c]
        rows.learns[i, t] = True
        rows.acts[i, t] = False
        splits = 0
        first = weights[len(weights) - 1].shape[1] - len(node.u)
        for j in range(len(node.u)):
            child.u[j] = component(game, j, z[first + j])
        write_scaled(game, child.u, rows.vectors[i, t, 0])
        for j in range(len(node.u)):
            rows.vector_noise[i, t, j] = normal(rng)
            child.u[j] = component(game, j, z[first + j] + node.knob[ACTION_SPREAD] * rows.vector_noise[i, t, j])
        write_scaled(game, child.u, rows.vectors[i, t, 1])
        for b in range(k):
            rows.mask[i, t, b] = node.mask[b]
            if b < n_base or not node.mask[b]:
                continue
            splits += 1
            leaf, asked = follow(game, node.known, node.number[AT], b - n_base, node.x)
            if leaf >= 0:
                rows.leaf[i, t, b], rows.asked[i, t, b] = leaf, asked
                continue
            # The question at the greedy v, then (in the parameterised form) at a varied one.
            noise = 0.0
            for turn in range(2 if parameterised else 1):
                copy_node(node, child)
                if parameterised:
                    noise = normal(rng) if turn else 0.0
                    child.knob[V] = squash(z[k + b - n_base] + node.knob[SPREAD] * noise)
                to_answer(game, child, b)
                leaf, asked = walk(game, weights, child, rng, not draw)
                if turn:
                    rows.noise[i, t, b - n_base] = noise
                    rows.varied_leaf[i, t, b - n_base], rows.varied_asked[i, t, b - n_base] = leaf, asked
                else:
                    rows.leaf[i, t, b], rows.asked[i, t, b] = leaf, asked
                write_scaled(game, child.u, rows.vectors[i, t, 2 + (turn * n + b - n_base) % (2 * n)])
        t += 1
        if splits > 0 and uniform(rng, 0.0, 1.0) < epsilon:  # any question
            skip = int(uniform(rng, 0.0, float(splits)))
            a = n_base
            while not node.mask[a] or skip > 0:
                if node.mask[a]:
                    skip -= 1
                a += 1
            v = uniform(rng, 0.0, 1.0)
        if a < n_base or t == steps:
            return t
        node.knob[V] = v
        to_answer(game, node, a)


@once
def think(game, weights, node, child, rng, x, plan, planned, explores, epsilon, rows, i, t):
    """Before a base action in environment i: rows to learn from (unless it explores), then the action to take.

    `plan` holds the policy's own action here and how many questions it took, `planned` its vector. Returns the row of
    the base action, and the action; a vector is in `node.u`.
    """
    for c in range(len(x)):
        node.x[c] = x[c]
    if plan[0] < 0:
        to_root(game, node)
        plan[0], plan[1] = walk(game, weights, node, rng, uniform(rng, 0.0, 1.0) >= node.knob[GREED])
        for j in range(len(planned)):
            planned[j] = node.u[j]
    last, action, own = t, plan[0], True
    if explores > 0.0:
        rows.learns[i, t] = False
        for c in range(len(x)):
            rows.x[i, t, c] = (x[c] - game.box[LOW, c]) / game.box[WIDTH, c]
        if uniform(rng, 0.0, 1.0) < explores:
            action = int(uniform(rng, 0.0, float(game.flags[0])))
            own = len(planned) == 0
    else:
        last = imagine(game, weights, node, child, rng, epsilon, rows, i, t) - 1
    for j in range(len(planned)):
        node.u[j] = planned[j]
        if not own:  # anything between the bounds; where there are none, about as far from 0 as learning starts
            bounded = game.vector[0, j] > -np.inf and game.vector[1, j] < np.inf
            node.u[j] = component(game, j, uniform(rng, -1.0, 1.0) if bounded else normal(rng))
    write_scaled(game, node.u, rows.u[i, last])
    rows.follows[i, last] = own and action == plan[0]
    rows.acts[i, last] = True
    rows.action[i, last] = action
    return last, action


@once
def note(game, weights, node, rng, plan, planned, rows, i, t, reward, after, terminated, over):
    """Write what came of a base action into its row; `plan` becomes the policy's own action where it led."""
    for c in range(len(after)):
        node.x[c] = after[c]
        rows.after[i, t, c] = (after[c] - game.box[LOW, c]) / game.box[WIDTH, c]
    to_root(game, node)
    plan[0], plan[1] = walk(game, weights, node, rng, uniform(rng, 0.0, 1.0) >= node.knob[GREED])
    for j in range(len(planned)):
        planned[j] = node.u[j]
    write_scaled(game, planned, rows.meant_u[i, t])
    rows.reward[i, t] = reward
    rows.terminated[i, t] = terminated
    rows.over[i, t] = over
    rows.meant[i, t] = plan[0]
    rows.meant_asked[i, t] = plan[1]


@outer
def run_native(
    game, weights, node, child, rng, world, params, limit, limit_ends, state, env_rng, x, elapsed, total, plans,
    planned, explores, epsilon, rows, ended,
):  # fmt: skip
    """Fill all rows from native environments; counts base actions, and ended episodes' returns into `ended` [2]."""
    taken = 0
    refresh(game, node)
    for i in range(rows.acts.shape[0]):
        t = np.int64(0)
        while t < rows.acts.shape[1]:
            t, number = think(
                game, weights, node, child, rng[i], x[i], plans[i], planned[i], explores[i], epsilon, rows, i, t
            )
            action = node.u[0] if len(node.u) else float(number)
            reward, terminated = advance(world, params, state[i], action, env_rng[i])
            observe(world, state[i], x[i])
            elapsed[i] += 1
            total[i] += reward
            taken += 1
            over = terminated or elapsed[i] >= limit
            ends = terminated or (over and limit_ends)
            note(game, weights, node, rng[i], plans[i], planned[i], rows, i, t, reward, x[i], ends, over)
            if over:
                if explores[i] == 0.0:
                    ended[0] += total[i]
                    ended[1] += 1
                begin(world, state[i], env_rng[i])
                observe(world, state[i], x[i])
                elapsed[i], total[i] = 0, 0.0
                plans[i, 0] = -1
            t += 1
    return taken
