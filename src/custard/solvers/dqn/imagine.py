"""What a split is worth, imagined: nodes reached and subtrees walked by the policy without touching the environment.

From a base state and a Q over bounds everything else follows: which bounds its questions lead to, and which base
action the greedy tree takes below. Nodes are the same for many base states, so each is kept, with the greedy action
there, for as long as the weights stay the same.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.envs.pcg64 import uniform
from custard.ibmdp.kernels import CompiledRules, compiled_rules, narrowed, normalise, threshold_of
from custard.ibmdp.splits import Rules
from custard.nn import networks
from custard.nn.networks import encode_row, forward_row
from custard.solvers.common.key_table import NONE, Keys, find, forget_keys, insert, make_keys

__all__ = ["Imagination", "imagine", "make_imagination", "refresh"]


class Imagination(NamedTuple):
    """Nodes of the policy's tree and beside it. M = n * p questions."""

    lattice: CompiledRules
    width: Any  # [n] what bounds are divided by
    keys: Keys  # lower [n], upper [n], depth
    threshold: Any  # [N, M] of each question; NaN where it is not afforded
    child: Any  # [N, M, 2] int32: the node each answer leads to, or NONE
    best: Any  # [N] int32: the greedy action, or NONE where the present weights have not been asked
    weights: Any  # of Q over bounds
    frequencies: int
    inputs: Any  # room for the network's input, its layers and a key
    room: Any
    key: Any
    rng: Any  # [4] a random stream


def make_imagination(rules: Rules, weights: Any, frequencies: int, rng: np.ndarray, capacity: int) -> Imagination:
    """Nothing imagined yet; at most `capacity` nodes are kept."""
    n, questions = rules.features.n, rules.n_actions - rules.n_base
    return Imagination(
        compiled_rules(rules), rules.width, make_keys(capacity, 2 * n + 1), np.zeros((capacity, questions)),
        np.full((capacity, questions, 2), NONE, dtype=np.int32), np.full(capacity, NONE, dtype=np.int32), weights,
        frequencies, np.zeros(weights[0].shape[0] - 1, dtype=np.float32), networks.scratch(weights),
        np.zeros(2 * n + 1), rng,
    )  # fmt: skip


def refresh(nodes: Imagination, weights: Any) -> Imagination:
    """The same nodes under other weights; all are forgotten when half the room is used."""
    size = int(nodes.keys.size[0])
    nodes.best[:size] = NONE
    if 2 * size > len(nodes.best):
        forget_keys(nodes.keys)
    return nodes._replace(weights=weights)


@njit(cache=True)
def _node(nodes, key):
    """The node with these bounds and this depth; NONE if there is no room."""
    o = find(nodes.keys, key)
    if o >= 0:
        return o
    o = insert(nodes.keys, key)
    if o < 0:
        return o
    lattice = nodes.lattice
    n, p = len(lattice.low), len(lattice.fractions)
    nodes.best[o] = NONE
    afforded = key[2 * n] < lattice.depth_limit
    for c in range(n):
        for j in range(p):
            v_p = threshold_of(lattice, c, j, key[c], key[n + c]) if afforded else np.nan
            nodes.threshold[o, c * p + j] = v_p
            nodes.child[o, c * p + j, 0] = nodes.child[o, c * p + j, 1] = NONE
    return o


@njit(cache=True)
def _root(nodes):
    n = len(nodes.lattice.low)
    for c in range(n):
        nodes.key[c] = nodes.lattice.low[c] + 0.0
        nodes.key[n + c] = nodes.lattice.high[c] + 0.0
    nodes.key[2 * n] = 0.0
    return _node(nodes, nodes.key)


@njit(cache=True)
def _answer(nodes, o, m, x):
    """The node that a base state reaches by asking question m at node o."""
    n, p = len(x), len(nodes.lattice.fractions)
    c, v_p = m // p, nodes.threshold[o, m]
    side = 0 if x[c] <= v_p else 1
    below = nodes.child[o, m, side]
    if below < 0:
        for i in range(2 * n + 1):  # loops: slices would compile their error messages too
            nodes.key[i] = nodes.keys.key[o, i]
        nodes.key[c], nodes.key[n + c] = narrowed(nodes.key[c], nodes.key[n + c], v_p + 0.0, side == 0)
        nodes.key[2 * n] += 1.0
        below = _node(nodes, nodes.key)
        nodes.child[o, m, side] = below
    return below


@njit(cache=True)
def _see(nodes, o, out):
    """What the policy sees at a node: normalised bounds [2n]."""
    lattice = nodes.lattice
    n = len(lattice.low)
    for c in range(n):
        out[c] = normalise(nodes.keys.key[o, c], lattice.low[c], nodes.width[c])
        out[n + c] = normalise(nodes.keys.key[o, n + c], lattice.low[c], nodes.width[c])


@njit(cache=True)
def _greedy(nodes, o):
    """argmax_a Q(o, a) among afforded actions."""
    if nodes.best[o] >= 0:
        return nodes.best[o]
    n, base = len(nodes.lattice.low), nodes.lattice.n_base
    seen = np.empty(2 * n, dtype=np.float32)
    _see(nodes, o, seen)
    encode_row(seen, nodes.frequencies, nodes.inputs)
    advantage = forward_row(nodes.weights, nodes.inputs, nodes.room, True)[1:]
    top = 0
    for a in range(1, len(advantage)):
        if advantage[a] > advantage[top] and (a < base or not np.isnan(nodes.threshold[o, a - base])):
            top = a
    nodes.best[o] = top
    return top


@njit(cache=True)
def _draw(nodes, o, drawn, count):
    """Up to `count` afforded questions of a node, drawn without replacement, into `drawn`; returns how many."""
    found = 0
    total = nodes.threshold.shape[1]
    for m in range(total):
        if not np.isnan(nodes.threshold[o, m]):
            drawn[found] = m
            found += 1
    if found <= count:
        return found
    for i in range(count):
        j = i + int(uniform(nodes.rng, 0.0, 1.0) * (found - i))
        drawn[i], drawn[j] = drawn[j], drawn[i]
    return count


@njit(cache=True)
def _descend(nodes, x, longest, epsilon, drawn):
    """A node on a base state's way: at most a drawn number of questions, some of them random; it ends at a leaf."""
    base = nodes.lattice.n_base
    wanted = int(uniform(nodes.rng, 0.0, 1.0) * (longest + 1))
    o = _root(nodes)
    for _ in range(wanted):
        m = np.int64(-1)
        if uniform(nodes.rng, 0.0, 1.0) < epsilon and _draw(nodes, o, drawn, 1) > 0:
            m = drawn[0]
        else:
            m = np.int64(_greedy(nodes, o)) - base
        if m < 0:
            break
        below = _answer(nodes, o, m, x)
        if below < 0:
            break
        o = below
    return o


@njit(cache=True)
def imagine(nodes, xs, q_o, zeta, longest, epsilon, questions, bounds, target, known):
    """For each base state [K, n] a node on its way, and what every action is worth there.

    A base action is worth Q_o(s_b, a), given as q_o [K, B]; a split zeta, then gamma_w times what the greedy tree makes
    of its answer. All less max_a Q_o(s_b, a), so that what is left is the difference that a tree can make. At most
    `questions` splits are valued at each node; `known` tells which.
    """
    # This loop is where the time goes: arrays are named once, and what is known is looked up without a call.
    base, gamma, p = nodes.lattice.n_base, nodes.lattice.gamma_w, len(nodes.lattice.fractions)
    threshold, child, best = nodes.threshold, nodes.child, nodes.best
    drawn = np.empty(threshold.shape[1], dtype=np.int64)
    for k in range(len(xs)):
        most = q_o[k].max()
        o = _descend(nodes, xs[k], longest, epsilon, drawn)
        _see(nodes, o, bounds[k])
        for a in range(target.shape[1]):
            known[k, a] = a < base
            target[k, a] = q_o[k, a] - most if a < base else 0.0
        for i in range(_draw(nodes, o, drawn, questions)):
            worth, discount = zeta, gamma
            at: Any = np.int64(o)
            m: Any = drawn[i]
            while True:
                below = child[at, m, 0 if xs[k, m // p] <= threshold[at, m] else 1]
                if below < 0:
                    below = _answer(nodes, at, m, xs[k])
                    if below < 0:
                        break
                at = np.int64(below)
                b: Any = np.int64(best[at])
                if b < 0:
                    b = np.int64(_greedy(nodes, at))
                if b < base:
                    target[k, base + drawn[i]] = worth + discount * q_o[k, b] - most
                    known[k, base + drawn[i]] = True
                    break
                worth += discount * zeta
                discount *= gamma
                m = b - base
