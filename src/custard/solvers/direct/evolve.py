"""All numbers of a tree moved at once by direct search on the return; which features it asks about stays.

The parameters are the thresholds and, where actions are vectors, the leaves' vectors. Each is measured in a unit that
matters: a share of the feature's deviation among the states that reach the node, or of an action's range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from custard.experts.direct_search import DirectSearchSettings, SearchProgress, direct_search
from custard.solvers.direct.race import Racer
from custard.tree.leaf_actions import LeafActions
from custard.tree.tree import LEAF, Tree

__all__ = ["Arm", "parametrise"]

THRESHOLD_UNIT = 0.3  # in deviations of the feature among the states that reach the node
MIN_LOCAL_SHARE = 0.05  # of the feature's deviation among all states, where few states reach a node
LEAF_UNIT = 0.2  # in shares of an action component's range


def parametrise(tree: Tree, states: np.ndarray) -> tuple[Callable[[np.ndarray], Tree], int]:
    """Return the function from parameters [k] to trees around this one (zeros are the tree itself), and k.

    `states` [M, n] say how far a threshold has to move to matter.
    """
    splits, leaves = np.flatnonzero(tree.feature != LEAF), np.flatnonzero(tree.feature == LEAF)
    unit = THRESHOLD_UNIT * local_deviation(tree, states)[splits]
    vectors = not tree.actions.discrete
    size = len(splits) + (tree.value[leaves].size if vectors else 0)

    def moved(parameters: np.ndarray) -> Tree:
        threshold = tree.threshold.copy()
        threshold[splits] += unit * parameters[: len(splits)]
        if not vectors:
            return replace(tree, threshold=threshold)
        box, value = LeafActions(tree.actions), tree.value.astype(np.float64)
        step = LEAF_UNIT * (box.high - box.low) * parameters[len(splits) :].reshape(len(leaves), -1)
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


@dataclass(eq=False)
class Arm:
    """A tree whose numbers are searched for, in parts: one of several that race."""

    start: Tree  # at parameters zero
    tree: Tree  # the best so far
    steps: int = 0  # environment steps spent on it
    search: dict[str, np.ndarray] = field(default_factory=dict)  # what the search needs to go on

    def improve(
        self, racer: Racer, settings: DirectSearchSettings, states: np.ndarray, seed: int
    ) -> Iterator[SearchProgress]:
        """Search on until `settings.steps` are spent in all; yields where the search stands."""
        policy_of, size = parametrise(self.start, states)
        if size == 0:
            return
        for progress in direct_search(
            policy_of, size, racer, settings, seed, racer.max_steps, None, self.search or None
        ):
            if progress.parameters is not None:
                self.tree = policy_of(progress.parameters)
            self.steps = progress.steps
            yield progress
        self.search = dict(progress.state)
