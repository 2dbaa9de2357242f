"""All thresholds, and all leaf vectors, of a tree moved at once by direct search on the return; its splits stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from custard.tree.leaf_actions import LeafActions
from custard.tree.tree import LEAF, Tree

__all__ = ["parametrise"]

THRESHOLD_SCALE = 0.3  # of a parameter's unit, in deviations of the feature among the states that reach the node
MIN_LOCAL_SHARE = 0.05  # of the feature's deviation among all states, where few states reach a node
LEAF_SCALE = 0.2  # of a leaf parameter's unit, in shares of an action component's range


def parametrise(tree: Tree, states: np.ndarray) -> tuple[Callable[[np.ndarray], Tree], int]:
    """Return the function from parameters [k] to trees around this one (zeros are the tree itself), and k.

    `states` [M, n] say how far a threshold has to move to matter.
    """
    splits, leaves = np.flatnonzero(tree.feature != LEAF), np.flatnonzero(tree.feature == LEAF)
    scale = THRESHOLD_SCALE * local_deviation(tree, states)[splits]
    vectors = not tree.actions.discrete
    size = len(splits) + (tree.value[leaves].size if vectors else 0)

    def moved(parameters: np.ndarray) -> Tree:
        threshold = tree.threshold.copy()
        threshold[splits] += scale * parameters[: len(splits)]
        if not vectors:
            return replace(tree, threshold=threshold)
        box, value = LeafActions(tree.actions), tree.value.astype(np.float64)
        step = LEAF_SCALE * (box.high - box.low) * parameters[len(splits) :].reshape(len(leaves), -1)
        value[leaves] = np.clip(value[leaves] + step, box.low, box.high)
        if tree.actions.kind == "multi":
            value = np.rint(value).astype(np.int64)
        return replace(tree, threshold=threshold, value=value)

    return moved, size


def local_deviation(tree: Tree, states: np.ndarray) -> np.ndarray:
    """Return the deviation of each split's feature among the states that reach it, [nodes]; zero for leaves."""
    overall = states.std(axis=0)
    rows: list[np.ndarray] = [np.zeros(0, dtype=np.int64)] * tree.n_nodes
    rows[0] = np.arange(len(states))
    deviation = np.zeros(tree.n_nodes)
    for node in np.flatnonzero(tree.feature != LEAF):
        feature, here = tree.feature[node], states[rows[node]]
        below = here[:, feature] <= tree.threshold[node]
        rows[tree.children_left[node]], rows[tree.children_right[node]] = rows[node][below], rows[node][~below]
        own = float(here[:, feature].std()) if len(here) > 1 else 0.0
        floor = MIN_LOCAL_SHARE * overall[feature]
        deviation[node] = np.clip(own, floor, overall[feature]) if overall[feature] > 0 else 1.0
    return deviation
