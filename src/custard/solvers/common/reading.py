"""Trees read off a network over bounds, and smaller ones: splits that gain less than a leaf costs are not asked."""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.ibmdp.splits import Rules
from custard.nn import networks
from custard.nn.networks import Weights
from custard.tree.extract import BoundsPolicy, extract
from custard.tree.shape import Shape, Split, tree_of
from custard.tree.tree import LEAF, Tree

__all__ = ["NODES", "extract_limited", "pruned", "read_off"]

NODES = 2000  # of a tree at most: one that would have more asks nothing more from there on


def read_off(
    weights: Weights, frequencies: int, rules: Rules, noise: float = 0.0, rng: np.random.Generator | None = None
) -> tuple[Tree, np.ndarray]:
    """The tree of the greedy policy over bounds, and the base action that the policy prefers at each of its nodes.

    With `noise` each node's values are perturbed first, by that many times their own spread.
    """
    base, acts = rules.n_base, []

    def policy(bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        hidden = networks.encode(bounds, frequencies)
        q = networks.dueling(networks.forward(weights, hidden, lambda h: np.maximum(h, 0.0)))
        if rng is not None:
            q = q + noise * q.std(axis=1, keepdims=True) * rng.gumbel(size=q.shape)
        acts.append(q[:, :base].argmax(axis=1))
        return np.where(mask, q, -np.inf).argmax(axis=1)

    return extract_limited(policy, rules), np.concatenate(acts)


def extract_limited(policy: BoundsPolicy, rules: Rules) -> Tree:
    """Algorithm 1 for a policy that asks nothing more once its tree has NODES nodes; `origin["cut"]` counts where."""
    nodes = cut = 0

    def limited(bounds: np.ndarray, mask: np.ndarray) -> Any:
        nonlocal nodes, cut
        nodes += len(bounds)
        if nodes > NODES:
            cut += int(mask[:, rules.n_base :].any(axis=1).sum())
            mask[:, rules.n_base :] = False
        return policy(bounds, mask)

    tree = extract(limited, rules)
    return tree.with_origin(cut=cut + tree.origin.get("cut", 0)) if cut else tree


def pruned(tree: Tree, acts: np.ndarray, x: np.ndarray, q: np.ndarray, price: float) -> Tree:
    """The tree without the questions that gain less than `price` for each leaf they cost.

    `acts` [nodes] is the base action that the policy would take at each node, x [N, n] are states that trees met and
    q [N, A] what actions are worth there. From the leaves up, a question gives way to a leaf, or to one of its
    branches where that serves for both. A branch that none of the states takes is left out.
    """
    rows: list[np.ndarray] = [np.zeros(0, dtype=np.int64)] * tree.n_nodes
    rows[0] = np.arange(len(x))
    for node in range(tree.n_nodes):
        if tree.feature[node] != LEAF:
            yes = x[rows[node], tree.feature[node]] <= tree.threshold[node]
            rows[tree.children_left[node]], rows[tree.children_right[node]] = rows[node][yes], rows[node][~yes]
    start, cost = tree.actions.start, (price + 1e-9) * len(x)
    kept: list[tuple[Shape, float, int]] = [(0, 0.0, 1)] * tree.n_nodes  # what remains, its value, its leaves
    for node in range(tree.n_nodes - 1, -1, -1):
        leaf = (int(acts[node]) + start, float(q[rows[node], acts[node]].sum()), 1)
        if tree.feature[node] == LEAF:
            kept[node] = leaf
            continue
        left, right = int(tree.children_left[node]), int(tree.children_right[node])
        if len(rows[node]) and not (len(rows[left]) and len(rows[right])):
            kept[node] = kept[left] if len(rows[left]) else kept[right]
            continue
        question = Split(int(tree.feature[node]), float(tree.threshold[node]), kept[left][0], kept[right][0])
        options = [(question, kept[left][1] + kept[right][1], kept[left][2] + kept[right][2]), leaf]
        for (shape, value, leaves), other in ((kept[left], rows[right]), (kept[right], rows[left])):
            options.append((shape, value + float(q[other, _act(shape, x[other]) - start].sum()), leaves))
        kept[node] = max(options, key=lambda option: option[1] - cost * option[2])
    return tree_of(kept[0][0], tree)


def _act(shape: Shape, x: np.ndarray) -> np.ndarray:
    """The actions of nested tuples for states [N, n]."""
    if not isinstance(shape, Split):
        return np.full(len(x), shape)
    yes = x[:, shape.feature] <= shape.threshold
    out = np.empty(len(x), dtype=np.int64)
    out[yes], out[~yes] = _act(shape.left, x[yes]), _act(shape.right, x[~yes])
    return out
