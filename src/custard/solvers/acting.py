"""Compiled rollouts of a network over bounds: walks down the tree it is, and imagined nodes to learn from.

A question does not touch the base environment, and for a base state that was met every question's answer is known. So
beside the environment's own steps there are two kinds of descents here, both free:

* `walk`: follow the network from a node until it acts, greedily or by sampling.
* `imagine`: one traversal to learn from. Each node on it is stored as a row, with the greedy walk behind every question
  that is afforded there: which leaf action it would end in, and after how many questions.

With discrete splits nodes are met again and again: each is kept (`Known`), and what the network says there for as long
as its weights stay the same.

Where base actions are vectors the IBMDP has one base action, and further outputs of the network say which vector it is.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import njit

from custard.borrowed import borrowed
from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import uniform
from custard.ibmdp.kernels import _normalise, _project, _separable, _separates
from custard.solvers.acting_data import (
    ACTION_SPREAD,
    AT,
    BEST,
    DEEP,
    DEPTH,
    GREED,
    HIGH,
    LOW,
    NONE,
    SPREAD,
    SQUASH,
    WIDTH,
    V,
)
from custard.solvers.networks import encode_row, forward_row

__all__ = ["choose", "component", "note", "refresh", "run_native", "think"]

#: For functions that only compiled code calls: without a way in from Python they compile sooner.
inner: Any = partial(njit, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)()


@inner
def to_root(game, node):
    """Forget all bounds."""
    n = game.box.shape[1]
    for c in range(n):
        node.bounds[c] = game.box[LOW, c]
        node.bounds[n + c] = game.box[HIGH, c]
    for j in range(2 * n):
        node.obs[j] = game.root_bounds[j]
    for a in range(len(game.root_mask)):
        node.mask[a] = game.root_mask[a]
    node.number[DEPTH] = 0
    node.number[AT] = 0 if node.known.size[0] > 0 else NONE


@njit(cache=True)
def refresh(game, node):
    """For new weights: what the network said is forgotten; and all nodes but the root, if most of the room is used."""
    known = node.known
    if len(known.number) == 0:
        return
    if 2 * known.size[0] > len(known.number):
        known.size[0] = 0
    if known.size[0] == 0:
        to_root(game, node)
        remember(node)
    for o in range(known.size[0]):
        known.number[o, BEST] = NONE


@inner
def remember(node):
    """Keep the node's place, if there is room."""
    known = node.known
    o = known.size[0]
    node.number[AT] = NONE
    if o == len(known.number):
        return
    for j in range(known.bounds.shape[1]):
        known.bounds[o, j] = node.bounds[j]
        known.obs[o, j] = node.obs[j]
    for a in range(known.mask.shape[1]):
        known.mask[o, a] = node.mask[a]
    for q in range(known.child.shape[1]):
        known.child[o, q, 0] = known.child[o, q, 1] = NONE
    known.number[o, DEEP] = node.number[DEPTH]
    known.number[o, BEST] = NONE
    known.size[0] += 1
    node.number[AT] = o


@inner
def led_to(game, known, o, question, x):
    """Where a question asked at a known node leads, or NONE if that is not known; and which answer it has."""
    p = len(game.fractions)
    c = question // p
    v_p = _project(known.bounds[o, c], known.bounds[o, len(x) + c], game.fractions[question - c * p])
    side = 0 if x[c] <= v_p else 1
    return known.child[o, question, side], side


@inner
def copy_node(source, target):
    """The same place for the same base state."""
    for c in range(len(source.x)):
        target.x[c] = source.x[c]
    for j in range(len(source.bounds)):
        target.bounds[j] = source.bounds[j]
        target.obs[j] = source.obs[j]
    for a in range(len(source.mask)):
        target.mask[a] = source.mask[a]
    target.number[DEPTH] = source.number[DEPTH]
    target.number[AT] = source.number[AT]


@inner
def to_answer(game, node, action):
    """Ask an afforded question, given by its number, of the node's base state: the rule of `custard.ibmdp.kernels`."""
    n_base, depth_limit, mask_useless, parameterised = game.flags
    known, o, side, n, p = node.known, node.number[AT], 0, len(node.x), len(game.fractions)
    if o >= 0:
        below, side = led_to(game, known, o, action - n_base, node.x)
        if below >= 0:
            for j in range(2 * n):
                node.bounds[j] = known.bounds[below, j]
                node.obs[j] = known.obs[below, j]
            for a in range(known.mask.shape[1]):
                node.mask[a] = known.mask[below, a]
            node.number[DEPTH] = known.number[below, DEEP]
            node.number[AT] = below
            return
    c = (action - n_base) // p
    j = (action - n_base) - c * p
    low, width = game.box[LOW, c], game.box[WIDTH, c]
    v_p = _project(node.bounds[c], node.bounds[n + c], node.knob[V] if parameterised else game.fractions[j])
    if node.x[c] <= v_p:
        node.bounds[n + c] = min(node.bounds[n + c], v_p)
        node.obs[n + c] = _normalise(node.bounds[n + c], low, width)
    else:
        node.bounds[c] = max(node.bounds[c], v_p)
        node.obs[c] = _normalise(node.bounds[c], low, width)
    lower, upper = node.bounds[c], node.bounds[n + c]
    node.number[DEPTH] += 1
    if node.number[DEPTH] >= depth_limit:
        for a in range(n_base, len(node.mask)):
            node.mask[a] = False
    elif mask_useless:
        for k in range(p):
            if parameterised:
                useful = _separable(game.integer[c], low, lower, upper)
            else:
                useful = _separates(game.integer[c], low, lower, upper, _project(lower, upper, game.fractions[k]))
            node.mask[n_base + c * p + k] = useful
    if o >= 0:
        remember(node)
        known.child[o, action - n_base, side] = node.number[AT]


@inner
def squash(z):
    """v in (0, 1) from any number."""
    return 1.0 / (1.0 + np.exp(-min(max(float(z), -SQUASH), SQUASH)))


@inner
def normal(rng):
    """A standard normal number (Box and Muller)."""
    u = 1.0 - uniform(rng, 0.0, 1.0)
    return np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * uniform(rng, 0.0, 1.0))


@njit(cache=True)
def component(game, j, z):
    """`vector_action` for one component."""
    low, high, middle, half, whole = game.vector[:, j]
    action = min(max(middle + half * float(z), low), high)
    return np.rint(action) if whole > 0.0 else action


@inner
def write_scaled(game, u, row):
    """An action vector in a row to learn from: components from -1 to 1."""
    for j in range(len(u)):
        row[j] = (u[j] - game.vector[2, j]) / game.vector[3, j]


@inner
def outputs(game, weights, node):
    """What the network says at a node, and the afforded action with the largest output."""
    known, o = node.known, node.number[AT]
    if o >= 0 and known.number[o, BEST] >= 0:
        return known.z[o], np.int64(known.number[o, BEST])
    encode_row(node.obs, game.frequencies, node.inputs)
    z = forward_row(weights, node.inputs, node.room, False)
    best: Any = np.int64(0)
    for a in range(1, len(node.mask)):
        if node.mask[a] and z[a] > z[best]:
            best = a
    if o >= 0:
        known.number[o, BEST] = best
        for j in range(len(z)):
            known.z[o, j] = z[j]
    return z, best


@njit(cache=True)
def choose(game, weights, node, rng, sampled):
    """An afforded action: drawn from the softmax of the network's outputs, or the one with the largest.

    In the parameterised form further outputs say where each feature is split; v is left in the node. So is the action
    vector, where base actions are vectors.
    """
    z, best = outputs(game, weights, node)
    k = len(node.mask)
    chosen = best
    if sampled:
        total = np.float32(0.0)
        for a in range(k):
            node.pi[a] = np.exp(z[a] - z[best]) if node.mask[a] else np.float32(0.0)
            total += node.pi[a]
        left = uniform(rng, 0.0, 1.0) * total
        for a in range(k):
            left -= node.pi[a]
            if left < 0.0 and node.mask[a]:
                chosen = a
                break
    if game.flags[3] and chosen >= game.flags[0]:
        middle = z[k + chosen - game.flags[0]]
        node.knob[V] = squash(middle + node.knob[SPREAD] * normal(rng)) if sampled else squash(middle)
    elif chosen < game.flags[0]:
        first = len(z) - len(node.u)
        for j in range(len(node.u)):
            node.u[j] = component(game, j, z[first + j] + (node.knob[ACTION_SPREAD] * normal(rng) if sampled else 0.0))
    return chosen


@inner
def walk(game, weights, node, rng, sampled):
    """Follow the policy from a node until it acts: the base action, and how many questions were asked."""
    asked = 0
    while True:
        a = choose(game, weights, node, rng, sampled)
        if a < game.flags[0]:
            return a, asked
        to_answer(game, node, a)
        asked += 1


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


@inner
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
def run_native(
    game, weights, node, child, rng, world, params, limit, state, env_rng, x, elapsed, total, plans, planned, explores,
    epsilon, rows, ended,
):  # fmt: skip
    """Fill all rows from native environments; counts base actions, and ended episodes' returns into `ended` [2]."""
    game, weights, node, child, rows = borrowed((game, weights, node, child, rows))
    rng, params, state, env_rng, x, plans, planned = borrowed((rng, params, state, env_rng, x, plans, planned))
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
            note(game, weights, node, rng[i], plans[i], planned[i], rows, i, t, reward, x[i], terminated, over)
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
