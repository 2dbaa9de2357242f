"""Values of all actions at nodes of the tree, computed without touching the environment.

A base state and a Q over bounds determine everything: which bounds each split leads to, and which base action the
greedy tree takes below. So the value of a split at a node is computed by following the greedy tree. Many base states
share their nodes, so each node is cached with its greedy action until the weights change.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from custard.core.numba_tools import njit
from custard.envs.pcg64 import uniform
from custard.ibmdp.kernels import CompiledRules, compiled_rules, narrowed, normalise, threshold_of
from custard.ibmdp.splits import Rules
from custard.nn import networks
from custard.nn.networks import Weights, encode_row, forward_row
from custard.solvers.common.key_table import NONE, Keys, find, forget_keys, insert, make_keys

__all__ = ["NodeCache", "make_node_cache", "node_values", "with_weights"]


class NodeCache(NamedTuple):
    """Nodes that base states reached, N of them at most, and Q over their bounds. M = n * p splits."""

    rules: CompiledRules
    width: Any  # [n] what bounds are divided by
    keys: Keys  # lower [n], upper [n], depth
    threshold: Any  # [N, M] of each split; NaN where it is not afforded
    child: Any  # [N, M, 2] int32: the node left and right of each split, or NONE
    greedy: Any  # [N] int32: the greedy action under the present weights, or NONE where it is not computed yet
    weights: Weights  # of Q over encoded bounds
    frequencies: int  # of the encoding
    inputs: Any  # scratch: the network's input, its layers, and a key
    layer_outputs: Any
    key: Any
    rng: Any  # [4] a random stream


def make_node_cache(rules: Rules, weights: Weights, frequencies: int, rng: np.ndarray, capacity: int) -> NodeCache:
    """Make an empty cache.

    rules: the IBMDP
    weights, frequencies: of Q over bounds, and of its encoding
    rng: [4] a random stream
    capacity: nodes at most
    """
    n, splits = rules.features.n, rules.n_actions - rules.n_base
    return NodeCache(
        compiled_rules(rules), rules.width, make_keys(capacity, 2 * n + 1), np.zeros((capacity, splits)),
        np.full((capacity, splits, 2), NONE, dtype=np.int32), np.full(capacity, NONE, dtype=np.int32), weights,
        frequencies, np.zeros(weights[0].shape[0] - 1, dtype=np.float32), networks.make_layer_outputs(weights),
        np.zeros(2 * n + 1), rng,
    )  # fmt: skip


def with_weights(nodes: NodeCache, weights: Weights) -> NodeCache:
    """Return the cache for new weights: greedy actions are cleared, and all nodes once half the capacity is used."""
    size = int(nodes.keys.size[0])
    nodes.greedy[:size] = NONE
    if 2 * size > len(nodes.greedy):
        forget_keys(nodes.keys)
    return nodes._replace(weights=weights)


@njit(cache=True)
def _find_or_add(nodes, key):
    """Return the node with these bounds and this depth; NONE if it is new and the cache is full."""
    o = find(nodes.keys, key)
    if o >= 0:
        return o
    o = insert(nodes.keys, key)
    if o < 0:
        return o
    rules = nodes.rules
    n, p = len(rules.low), len(rules.fractions)
    nodes.greedy[o] = NONE
    afforded = key[2 * n] < rules.depth_limit
    for c in range(n):
        for j in range(p):
            v_p = threshold_of(rules, c, j, key[c], key[n + c]) if afforded else np.nan
            nodes.threshold[o, c * p + j] = v_p
            nodes.child[o, c * p + j, 0] = nodes.child[o, c * p + j, 1] = NONE
    return o


@njit(cache=True)
def _root(nodes):
    """Return the node whose bounds are those of the features."""
    n = len(nodes.rules.low)
    for c in range(n):
        nodes.key[c] = nodes.rules.low[c] + 0.0
        nodes.key[n + c] = nodes.rules.high[c] + 0.0
    nodes.key[2 * n] = 0.0
    return _find_or_add(nodes, nodes.key)


@njit(cache=True)
def _child_of(nodes, o, m, x):
    """Return the node that base state x [n] reaches by split m at node o; NONE if it is new and the cache is full."""
    n, p = len(x), len(nodes.rules.fractions)
    c, v_p = m // p, nodes.threshold[o, m]
    side = 0 if x[c] <= v_p else 1
    child = nodes.child[o, m, side]
    if child < 0:
        for i in range(2 * n + 1):  # loops: slices would compile their error messages too
            nodes.key[i] = nodes.keys.key[o, i]
        nodes.key[c], nodes.key[n + c] = narrowed(nodes.key[c], nodes.key[n + c], v_p + 0.0, side == 0)
        nodes.key[2 * n] += 1.0
        child = _find_or_add(nodes, nodes.key)
        nodes.child[o, m, side] = child
    return child


@njit(cache=True)
def _write_bounds(nodes, o, out):
    """Write a node's normalised bounds, which the policy observes, into out [2n]."""
    rules = nodes.rules
    n = len(rules.low)
    for c in range(n):
        out[c] = normalise(nodes.keys.key[o, c], rules.low[c], nodes.width[c])
        out[n + c] = normalise(nodes.keys.key[o, n + c], rules.low[c], nodes.width[c])


@njit(cache=True)
def _greedy_action(nodes, o):
    """Return argmax_a Q(o, a) among afforded actions."""
    if nodes.greedy[o] >= 0:
        return nodes.greedy[o]
    n, n_base = len(nodes.rules.low), nodes.rules.n_base
    bounds = np.empty(2 * n, dtype=np.float32)
    _write_bounds(nodes, o, bounds)
    encode_row(bounds, nodes.frequencies, nodes.inputs)
    advantage = forward_row(nodes.weights, nodes.inputs, nodes.layer_outputs, True)[1:]
    best = 0
    for a in range(1, len(advantage)):
        if advantage[a] > advantage[best] and (a < n_base or not np.isnan(nodes.threshold[o, a - n_base])):
            best = a
    nodes.greedy[o] = best
    return best


@njit(cache=True)
def _draw_splits(nodes, o, count, drawn):
    """Draw up to `count` afforded splits of a node without replacement into drawn [M]; return how many."""
    afforded = 0
    for m in range(nodes.threshold.shape[1]):
        if not np.isnan(nodes.threshold[o, m]):
            drawn[afforded] = m
            afforded += 1
    if afforded <= count:
        return afforded
    for i in range(count):
        j = i + int(uniform(nodes.rng, 0.0, 1.0) * (afforded - i))
        drawn[i], drawn[j] = drawn[j], drawn[i]
    return count


@njit(cache=True)
def _draw_node_on_path(nodes, x, max_depth, epsilon, drawn):
    """Return a node on the path of base state x [n], at a random depth of at most `max_depth`.

    Each split on the way is random with probability epsilon, otherwise greedy; the path ends where the greedy action is
    a base action. `drawn` [M] is scratch.
    """
    n_base = nodes.rules.n_base
    depth = int(uniform(nodes.rng, 0.0, 1.0) * (max_depth + 1))
    o = _root(nodes)
    for _ in range(depth):
        m = np.int64(-1)
        if uniform(nodes.rng, 0.0, 1.0) < epsilon and _draw_splits(nodes, o, 1, drawn) > 0:
            m = drawn[0]
        else:
            m = np.int64(_greedy_action(nodes, o)) - n_base
        if m < 0:
            break
        child = _child_of(nodes, o, m, x)
        if child < 0:
            break
        o = child
    return o


@njit(cache=True)
def node_values(nodes, xs, q_o, zeta, max_depth, epsilon, max_splits, bounds, values, known):
    """Draw a node on the path of each base state, and compute the values of the actions there.

    nodes: the cache
    xs: [K, n] base states
    q_o: [K, B] Q_o(s_b, a) of base actions
    zeta: the reward of a split
    max_depth, epsilon: of the drawn nodes, and of the random splits on the way (`_draw_node_on_path`)
    max_splits: splits evaluated at each node, at most
    bounds: [K, 2n] to fill with the nodes' normalised bounds
    values: [K, B + M] to fill with the actions' values
    known: [K, B + M] bool to fill with which values are computed

    The value of a base action is Q_o(s_b, a); that of a split is zeta plus gamma_w times the value that the greedy tree
    reaches below. max_a Q_o(s_b, a) is subtracted from all, which leaves the difference that a tree can make.
    """
    # Most of the time is spent in this loop: arrays are named once, and cached nodes are looked up without a call.
    n_base, gamma_w, p = nodes.rules.n_base, nodes.rules.gamma_w, len(nodes.rules.fractions)
    threshold, child, greedy = nodes.threshold, nodes.child, nodes.greedy
    drawn = np.empty(threshold.shape[1], dtype=np.int64)
    for k in range(len(xs)):
        best = q_o[k].max()
        o = _draw_node_on_path(nodes, xs[k], max_depth, epsilon, drawn)
        _write_bounds(nodes, o, bounds[k])
        for a in range(values.shape[1]):
            known[k, a] = a < n_base
            values[k, a] = q_o[k, a] - best if a < n_base else 0.0
        for i in range(_draw_splits(nodes, o, max_splits, drawn)):
            reward, discount = zeta, gamma_w  # accumulated from node o down to the leaf
            at: Any = np.int64(o)
            m: Any = drawn[i]
            while True:
                below = child[at, m, 0 if xs[k, m // p] <= threshold[at, m] else 1]
                if below < 0:
                    below = _child_of(nodes, at, m, xs[k])
                    if below < 0:
                        break
                at = np.int64(below)
                action: Any = np.int64(greedy[at])
                if action < 0:
                    action = np.int64(_greedy_action(nodes, at))
                if action < n_base:
                    values[k, n_base + drawn[i]] = reward + discount * q_o[k, action] - best
                    known[k, n_base + drawn[i]] = True
                    break
                reward += discount * zeta
                discount *= gamma_w
                m = action - n_base
