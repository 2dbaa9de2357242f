"""Walks down the tree that a network over bounds is, compiled.

A question does not touch the base environment, so from a node and a base state the network can be followed until it
acts, greedily or by sampling. With discrete splits nodes are met again and again: each is kept (`Known`), and what the
network says there for as long as its weights stay the same.

Where base actions are vectors the IBMDP has one base action, and further outputs of the network say which vector it is.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import numpy as np

from custard.core.numba_tools import inner, once, outer
from custard.envs.pcg64 import uniform
from custard.ibmdp.kernels import narrowed, normalise, project, separable, separates
from custard.nn.networks import encode_row, evaluate
from custard.solvers.ppo.acting_data import (
    ACTION_SPREAD,
    AT,
    BEST,
    DEEP,
    DEPTH,
    HIGH,
    LOW,
    NONE,
    SPREAD,
    SQUASH,
    WIDTH,
    V,
)

__all__ = ["choose", "component", "copy_node", "led_to", "normal", "refresh", "squash", "to_answer", "to_root", "walk"]


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


@once
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
    v_p = project(known.bounds[o, c], known.bounds[o, len(x) + c], game.fractions[question - c * p])
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
    v_p = project(node.bounds[c], node.bounds[n + c], node.knob[V] if parameterised else game.fractions[j])
    lower, upper = narrowed(node.bounds[c], node.bounds[n + c], v_p, node.x[c] <= v_p)
    node.bounds[c], node.bounds[n + c] = lower, upper
    node.obs[c], node.obs[n + c] = normalise(lower, low, width), normalise(upper, low, width)
    node.number[DEPTH] += 1
    if node.number[DEPTH] >= depth_limit:
        for a in range(n_base, len(node.mask)):
            node.mask[a] = False
    elif mask_useless:
        for k in range(p):
            if parameterised:
                useful = separable(game.integer[c], low, lower, upper)
            else:
                useful = separates(game.integer[c], low, lower, upper, project(lower, upper, game.fractions[k]))
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


@outer
def component(game, j, z):
    """`vector_action` for one component."""
    low, high, middle, half, whole = game.vector[:, j]
    action = min(max(middle + half * float(z), low), high)
    return np.rint(action) if whole > 0.0 else action


@inner
def ask_network(game, weights, node):
    """The afforded action with the largest output; outputs are in `known.z` if the node is known, else in its room."""
    known, o = node.known, node.number[AT]
    if o >= 0 and known.number[o, BEST] >= 0:
        return np.int64(known.number[o, BEST])
    encode_row(node.obs, game.frequencies, node.inputs)
    evaluate(weights, node.inputs, node.room, False)
    z = node.room[(len(weights) - 1) % 2]
    best: Any = np.int64(0)
    for a in range(1, len(node.mask)):
        if node.mask[a] and z[a] > z[best]:
            best = a
    if o >= 0:
        known.number[o, BEST] = best
        for j in range(known.z.shape[1]):
            known.z[o, j] = z[j]
    return best


@outer
def choose(game, weights, node, rng, sampled):
    """An afforded action: drawn from the softmax of the network's outputs, or the one with the largest.

    In the parameterised form further outputs say where each feature is split; v is left in the node. So is the action
    vector, where base actions are vectors.
    """
    best = ask_network(game, weights, node)
    z = node.known.z[node.number[AT]] if node.number[AT] >= 0 else node.room[(len(weights) - 1) % 2]
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
        first = weights[len(weights) - 1].shape[1] - len(node.u)
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
