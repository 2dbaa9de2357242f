"""Trees extracted from a network over bounds, and smaller ones: splits that gain less than a leaf costs are removed."""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.ibmdp.splits import Rules
from custard.nn import networks
from custard.nn.networks import Weights
from custard.tree.extract import BoundsPolicy, extract
from custard.tree.shape import Shape, Split, tree_of
from custard.tree.tree import LEAF, Tree

__all__ = ["MAX_NODES", "extract_from_network", "extract_limited", "prune"]

MAX_NODES = 2000  # nodes of an extracted tree after which no further splits are extracted


def extract_from_network(
    weights: Weights, frequencies: int, rules: Rules, noise: float = 0.0, rng: np.random.Generator | None = None
) -> tuple[Tree, np.ndarray]:
    """Return the tree of the greedy policy over bounds, and the base action of the largest Q at each of its nodes.

    weights: a dueling network Q(o, a) over encoded bounds
    frequencies: of the encoding (`networks.encode`)
    rules: the IBMDP
    noise: with `rng`, Gumbel noise is added to each node's values, scaled by this many times their standard deviation
    """
    n_base, base_actions = rules.n_base, []

    def policy(bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        inputs = networks.encode(bounds, frequencies)
        q = networks.dueling(networks.forward(weights, inputs, networks.relu))
        if rng is not None:
            q = q + noise * q.std(axis=1, keepdims=True) * rng.gumbel(size=q.shape)
        base_actions.append(q[:, :n_base].argmax(axis=1))
        return np.where(mask, q, -np.inf).argmax(axis=1)

    return extract_limited(policy, rules), np.concatenate(base_actions)


def extract_limited(policy: BoundsPolicy, rules: Rules) -> Tree:
    """Extract a policy's tree (Algorithm 1), with base actions only once the tree has MAX_NODES nodes.

    `origin["cut"]` counts the leaves that this limit made.
    """
    nodes = cut = 0

    def limited(bounds: np.ndarray, mask: np.ndarray) -> Any:
        nonlocal nodes, cut
        nodes += len(bounds)
        if nodes > MAX_NODES:
            cut += int(mask[:, rules.n_base :].any(axis=1).sum())
            mask[:, rules.n_base :] = False
        return policy(bounds, mask)

    tree = extract(limited, rules)
    return tree.with_origin(cut=cut + tree.origin.get("cut", 0)) if cut else tree


def prune(tree: Tree, base_actions: np.ndarray, x: np.ndarray, q: np.ndarray, leaf_price: float) -> Tree:
    """Return the tree without the splits that gain less than `leaf_price` for each leaf they cost.

    base_actions: [nodes] the base action that the policy prefers at each node
    x: [N, n] visited base states
    q: [N, A] values of the base actions there
    leaf_price: in units of q, per visited state

    From the leaves up, a split is replaced by a leaf, or by one of its branches if that branch serves both sides as
    well. A branch that no state takes is removed.
    """
    rows: list[np.ndarray] = [np.zeros(0, dtype=np.int64)] * tree.n_nodes  # the states that pass each node
    rows[0] = np.arange(len(x))
    for node in range(tree.n_nodes):
        if tree.feature[node] != LEAF:
            goes_left = x[rows[node], tree.feature[node]] <= tree.threshold[node]
            rows[tree.children_left[node]] = rows[node][goes_left]
            rows[tree.children_right[node]] = rows[node][~goes_left]
    start, cost = tree.actions.start, (leaf_price + 1e-9) * len(x)
    kept: list[tuple[Shape, float, int]] = [(0, 0.0, 1)] * tree.n_nodes  # each node's subtree, its value, its leaves
    for node in range(tree.n_nodes - 1, -1, -1):
        leaf = (int(base_actions[node]) + start, float(q[rows[node], base_actions[node]].sum()), 1)
        if tree.feature[node] == LEAF:
            kept[node] = leaf
            continue
        left, right = int(tree.children_left[node]), int(tree.children_right[node])
        if len(rows[node]) and not (len(rows[left]) and len(rows[right])):
            kept[node] = kept[left] if len(rows[left]) else kept[right]
            continue
        split = Split(int(tree.feature[node]), float(tree.threshold[node]), kept[left][0], kept[right][0])
        options = [(split, kept[left][1] + kept[right][1], kept[left][2] + kept[right][2]), leaf]
        for (shape, value, leaves), other in ((kept[left], rows[right]), (kept[right], rows[left])):
            options.append((shape, value + float(q[other, _predict(shape, x[other]) - start].sum()), leaves))
        kept[node] = max(options, key=lambda option: option[1] - cost * option[2])
    return tree_of(kept[0][0], tree)


def _predict(shape: Shape, x: np.ndarray) -> np.ndarray:
    """Return the actions of a tree given as nested `Split`s, for states [N, n]."""
    if not isinstance(shape, Split):
        return np.full(len(x), shape)
    goes_left = x[:, shape.feature] <= shape.threshold
    actions = np.empty(len(x), dtype=np.int64)
    actions[goes_left] = _predict(shape.left, x[goes_left])
    actions[~goes_left] = _predict(shape.right, x[~goes_left])
    return actions
