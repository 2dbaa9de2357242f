"""Compiled traversals of the tree that a policy network over bounds represents.

A split (an information-gathering action) does not touch the base environment, so from a node and a base state the
policy can be followed to a leaf, greedily or by sampling. With discrete splits the same nodes are met again and again:
a `NodeCache` keeps each of them, and the network's outputs there for as long as the weights stay the same.

Where base actions are vectors the IBMDP has one base action, and further outputs of the network give its vector.

Arguments of compiled functions: `rules` and `policy` are `TraversalRules` and a `PolicyNetwork`, `node` is a `Node`,
`index` that of a node in the `cache` (`NodeCache`). `split` counts splits from 0, `base_state` [n] decides on which
side of it to go. `rng` [4] is a random stream; `sampled` says whether actions are sampled or greedy.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from custard.core.numba_tools import njit_inlined, njit_inner, njit_outer
from custard.envs.pcg64 import uniform
from custard.ibmdp.kernels import narrowed, normalise, project, separable, separates
from custard.ibmdp.splits import Rules
from custard.nn.networks import Weights, encode_row, evaluate, make_layer_outputs
from custard.solvers.ppo.policy import MAX_V_LOGIT, vector_components

__all__ = [
    "NONE", "Node", "NodeCache", "TraversalRules", "apply_split", "cached_leaf", "choose_action", "compile_rules",
    "copy_node", "forget_outputs", "make_nodes", "move_to_root", "network_outputs", "standard_normal", "traverse",
    "v_of_logit", "vector_component",
]  # fmt: skip

NONE = -1
MAX_CACHED_NODES = 20_000
MAX_CACHED_MASK_ENTRIES = 5_000_000  # cached nodes times actions of the IBMDP


# Records: named fields in one array each, since every further array makes calls slower, and compiling.
FEATURE = np.dtype([("low", "f8"), ("high", "f8"), ("width", "f8"), ("is_integer", "?")], align=True)
#: Where a traversal is: the node's depth, its index in the cache (or NONE), and the v of the split chosen last.
PLACE = np.dtype([("depth", "i8"), ("cache_index", "i8"), ("v", "f8")])
#: A cached node: its afforded action with the largest output (NONE before the network is evaluated), and its depth.
CACHED_NODE = np.dtype([("best_action", "i4"), ("depth", "i4")])


# -- data -------------------------------------------------------------------------------------------------------------


class TraversalRules(NamedTuple):
    """The rules of an IBMDP as records, for the reason above (`ibmdp.kernels.CompiledRules` has arrays)."""

    n_base: int
    depth_limit: int
    mask_useless: bool
    parameterised: bool
    features: np.ndarray  # [n] FEATURE
    fractions: np.ndarray  # [p]
    root_bounds: np.ndarray  # [2n] float32: normalised
    root_mask: np.ndarray  # [n_actions] bool
    vector_components: np.ndarray  # [k] VECTOR_COMPONENT; k = 0 where base actions are numbers


class NodeCache(NamedTuple):
    """Nodes visited before, the root first; capacity 0 in the parameterised form, where hardly any is met twice."""

    size: np.ndarray  # [1]
    bounds: np.ndarray  # [C, 2n]: lower, upper
    normalised_bounds: np.ndarray  # [C, 2n]
    mask: np.ndarray  # [C, n_actions]
    children: np.ndarray  # [C, splits, 2]: the cached nodes for x <= threshold and for x > threshold, or NONE
    outputs: np.ndarray  # [C, outputs]: the network's
    nodes: np.ndarray  # [C] CACHED_NODE


class Node(NamedTuple):
    """The current node of a traversal with one base state, and buffers to evaluate the network there."""

    base_state: np.ndarray  # [n]: decides on which side of a split to go; the network does not see it
    bounds: np.ndarray  # [2n]: lower, upper
    normalised_bounds: np.ndarray  # [2n] float32: all that the network sees
    mask: np.ndarray  # [n_actions]
    place: np.ndarray  # [1] PLACE
    vector: np.ndarray  # [k]: the action vector chosen last
    network_input: np.ndarray
    layer_outputs: np.ndarray  # what `evaluate` writes to
    probabilities: np.ndarray  # [n_actions]
    cache: NodeCache


def compile_rules(rules: Rules) -> TraversalRules:
    """Return the rules of an IBMDP for compiled code."""
    low, high = rules.root()
    features = np.rec.fromarrays([low, high, rules.width, rules.features.integer], dtype=FEATURE).view(np.ndarray)
    return TraversalRules(
        rules.n_base, rules.depth_limit, rules.mask_useless, rules.parameterised, features, rules.fractions.copy(),
        rules.normalised(low, high), rules.mask(low, high, 0), vector_components(rules.actions),
    )  # fmt: skip


def make_nodes(rules: TraversalRules, weights: Weights, frequencies: int, count: int = 2) -> list[Node]:
    """Return `count` nodes that share one empty cache."""
    n, n_actions, n_outputs = len(rules.features), len(rules.root_mask), weights[-1].shape[1]
    capacity = 0 if rules.parameterised else min(MAX_CACHED_NODES, MAX_CACHED_MASK_ENTRIES // n_actions)
    cache = NodeCache(
        size=np.zeros(1, dtype=np.int64),
        bounds=np.zeros((capacity, 2 * n)),
        normalised_bounds=np.zeros((capacity, 2 * n), dtype=np.float32),
        mask=np.zeros((capacity, n_actions), dtype=bool),
        children=np.full((capacity, n_actions - rules.n_base, 2), NONE, dtype=np.int32),
        outputs=np.zeros((capacity, n_outputs), dtype=np.float32),
        nodes=np.full(capacity, NONE, dtype=CACHED_NODE),
    )

    def make_node() -> Node:
        return Node(
            base_state=np.zeros(n),
            bounds=np.zeros(2 * n),
            normalised_bounds=np.zeros(2 * n, dtype=np.float32),
            mask=np.zeros(n_actions, dtype=bool),
            place=np.array([(0, NONE, 0.0)], dtype=PLACE),
            vector=np.zeros(len(rules.vector_components)),
            network_input=np.zeros(2 * n * (1 + 2 * frequencies), dtype=np.float32),
            layer_outputs=make_layer_outputs(weights),
            probabilities=np.zeros(n_actions, dtype=np.float32),
            cache=cache,
        )

    return [make_node() for _ in range(count)]


# -- moving from node to node -----------------------------------------------------------------------------------------


@njit_inner
def move_to_root(rules, node):
    """Reset the bounds to the features' own."""
    n = len(rules.features)
    for c in range(n):
        node.bounds[c] = rules.features[c].low
        node.bounds[n + c] = rules.features[c].high
    for j in range(2 * n):
        node.normalised_bounds[j] = rules.root_bounds[j]
    for a in range(len(rules.root_mask)):
        node.mask[a] = rules.root_mask[a]
    node.place[0].depth = 0
    node.place[0].cache_index = 0 if node.cache.size[0] > 0 else NONE


@njit_inlined
def forget_outputs(rules, node):
    """Drop the cached outputs, for new weights; and all nodes but the root, if more than half of the cache is used."""
    cache = node.cache
    if len(cache.nodes) == 0:
        return
    if 2 * cache.size[0] > len(cache.nodes):
        cache.size[0] = 0
    if cache.size[0] == 0:
        move_to_root(rules, node)
        add_to_cache(node)
    for index in range(cache.size[0]):
        cache.nodes[index].best_action = NONE


@njit_inner
def add_to_cache(node):
    """Copy the node to the cache, unless that is full."""
    cache = node.cache
    index = cache.size[0]
    node.place[0].cache_index = NONE
    if index == len(cache.nodes):
        return
    for j in range(cache.bounds.shape[1]):
        cache.bounds[index, j] = node.bounds[j]
        cache.normalised_bounds[index, j] = node.normalised_bounds[j]
    for a in range(cache.mask.shape[1]):
        cache.mask[index, a] = node.mask[a]
    for split in range(cache.children.shape[1]):
        cache.children[index, split, 0] = cache.children[index, split, 1] = NONE
    cache.nodes[index].depth = node.place[0].depth
    cache.nodes[index].best_action = NONE
    cache.size[0] += 1
    node.place[0].cache_index = index


@njit_inner
def cached_child(rules, cache, index, split, base_state):
    """Return the child of a cached node on a base state's side of a split, NONE if it is not cached; and the side."""
    p = len(rules.fractions)
    c = split // p
    threshold = project(
        cache.bounds[index, c], cache.bounds[index, len(base_state) + c], rules.fractions[split - c * p]
    )
    side = 0 if base_state[c] <= threshold else 1
    return cache.children[index, split, side], side


@njit_inner
def cached_leaf(rules, cache, index, split, base_state):
    """Return base action and splits of the greedy traversal behind a split, if all of it is cached: else NONE."""
    n_splits = 0
    while index >= 0:
        index, _ = cached_child(rules, cache, index, split, base_state)
        if index < 0:
            break
        action = cache.nodes[index].best_action
        if action < rules.n_base:  # NONE is less than any action
            return np.int64(action), n_splits
        split = np.int64(action) - rules.n_base
        n_splits += 1
    return np.int64(NONE), n_splits


@njit_inner
def copy_node(source, target):
    """Copy the place in the tree and the base state."""
    for c in range(len(source.base_state)):
        target.base_state[c] = source.base_state[c]
    for j in range(len(source.bounds)):
        target.bounds[j] = source.bounds[j]
        target.normalised_bounds[j] = source.normalised_bounds[j]
    for a in range(len(source.mask)):
        target.mask[a] = source.mask[a]
    target.place[0].depth = source.place[0].depth
    target.place[0].cache_index = source.place[0].cache_index


@njit_inner
def apply_split(rules, node, action):
    """Take an afforded information-gathering action: move to the child on the base state's side of the split.

    The same rule as `custard.ibmdp.kernels.ask`, for one node. In the parameterised form the split is at `node.place`.
    """
    cache, index, side = node.cache, node.place[0].cache_index, 0
    n_base, n, p = rules.n_base, len(node.base_state), len(rules.fractions)
    if index >= 0:
        child, side = cached_child(rules, cache, index, action - n_base, node.base_state)
        if child >= 0:
            for j in range(2 * n):
                node.bounds[j] = cache.bounds[child, j]
                node.normalised_bounds[j] = cache.normalised_bounds[child, j]
            for a in range(cache.mask.shape[1]):
                node.mask[a] = cache.mask[child, a]
            node.place[0].depth = cache.nodes[child].depth
            node.place[0].cache_index = child
            return
    c = (action - n_base) // p
    j = (action - n_base) - c * p
    low, width, is_integer = rules.features[c].low, rules.features[c].width, rules.features[c].is_integer
    v = node.place[0].v if rules.parameterised else rules.fractions[j]
    threshold = project(node.bounds[c], node.bounds[n + c], v)
    lower, upper = narrowed(node.bounds[c], node.bounds[n + c], threshold, node.base_state[c] <= threshold)
    node.bounds[c], node.bounds[n + c] = lower, upper
    node.normalised_bounds[c] = normalise(lower, low, width)
    node.normalised_bounds[n + c] = normalise(upper, low, width)
    node.place[0].depth += 1
    if node.place[0].depth >= rules.depth_limit:
        for a in range(n_base, len(node.mask)):
            node.mask[a] = False
    elif rules.mask_useless:
        for k in range(p):
            if rules.parameterised:
                is_useful = separable(is_integer, low, lower, upper)
            else:
                is_useful = separates(is_integer, low, lower, upper, project(lower, upper, rules.fractions[k]))
            node.mask[n_base + c * p + k] = is_useful
    if index >= 0:
        add_to_cache(node)
        cache.children[index, action - n_base, side] = node.place[0].cache_index


# -- the policy at a node ---------------------------------------------------------------------------------------------


@njit_inner
def v_of_logit(logit):
    """Return v in (0, 1) from an output of the network."""
    return 1.0 / (1.0 + np.exp(-min(max(float(logit), -MAX_V_LOGIT), MAX_V_LOGIT)))


@njit_inner
def standard_normal(rng):
    """Draw a standard normal number (Box and Muller)."""
    u = 1.0 - uniform(rng, 0.0, 1.0)
    return np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * uniform(rng, 0.0, 1.0))


@njit_outer
def vector_component(components, j, output):
    """`vector_action` for component j."""
    component = components[j]
    action = min(max(component.centre + component.half_width * float(output), component.low), component.high)
    return np.rint(action) if component.is_integer else action


@njit_inlined
def network_outputs(policy, node):
    """Return the network's outputs at a node where `greedy_action` evaluated it."""
    index = node.place[0].cache_index
    return node.cache.outputs[index] if index >= 0 else node.layer_outputs[(len(policy.weights) - 1) % 2]


@njit_inner
def greedy_action(policy, node):
    """Return the afforded action with the largest output, evaluating the network unless the cache has its outputs."""
    cache, index = node.cache, node.place[0].cache_index
    if index >= 0 and cache.nodes[index].best_action >= 0:
        return np.int64(cache.nodes[index].best_action)
    encode_row(node.normalised_bounds, policy.frequencies, node.network_input)
    evaluate(policy.weights, node.network_input, node.layer_outputs, False)
    outputs = node.layer_outputs[(len(policy.weights) - 1) % 2]
    best: Any = np.int64(0)
    for a in range(1, len(node.mask)):
        if node.mask[a] and outputs[a] > outputs[best]:
            best = a
    if index >= 0:
        cache.nodes[index].best_action = best
        for j in range(cache.outputs.shape[1]):
            cache.outputs[index, j] = outputs[j]
    return best


@njit_outer
def choose_action(rules, policy, node, rng, sampled):
    """Return an afforded action of the IBMDP: sampled from the policy, or the one with the largest output.

    In the parameterised form further outputs give the v of each feature's split; it is left in `node.place`. Where base
    actions are vectors, the vector of a base action is left in `node.vector`.
    """
    greedy = greedy_action(policy, node)
    outputs = network_outputs(policy, node)
    n_actions = len(node.mask)
    chosen = greedy
    if sampled:
        total = np.float32(0.0)
        for a in range(n_actions):
            node.probabilities[a] = np.exp(outputs[a] - outputs[greedy]) if node.mask[a] else np.float32(0.0)
            total += node.probabilities[a]
        remaining = uniform(rng, 0.0, 1.0) * total
        for a in range(n_actions):
            remaining -= node.probabilities[a]
            if remaining < 0.0 and node.mask[a]:
                chosen = a
                break
    if rules.parameterised and chosen >= rules.n_base:
        logit = outputs[n_actions + chosen - rules.n_base]
        node.place[0].v = v_of_logit(logit + policy.v_spread * standard_normal(rng)) if sampled else v_of_logit(logit)
    elif chosen < rules.n_base:
        first = policy.weights[len(policy.weights) - 1].shape[1] - len(node.vector)
        for j in range(len(node.vector)):
            noise = policy.vector_spread * standard_normal(rng) if sampled else 0.0
            node.vector[j] = vector_component(rules.vector_components, j, outputs[first + j] + noise)
    return chosen


@njit_inner
def traverse(rules, policy, node, rng, sampled):
    """Follow the policy from a node to a leaf: return the base action there, and the number of splits on the way."""
    n_splits = 0
    while True:
        action = choose_action(rules, policy, node, rng, sampled)
        if action < rules.n_base:
            return action, n_splits
        apply_split(rules, node, action)
        n_splits += 1
