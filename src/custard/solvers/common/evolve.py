"""All numbers of a tree moved at once by direct search on the return; which features it asks about stays.

The parameters are the thresholds, the weights of sums and, where actions are vectors, the values and gains of leaves.
Each is measured in a unit that matters: a share of how much the feature, or the sum, varies among the states that reach
the node, or of an action's range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from custard.core.sums import Sum
from custard.experts.direct_search import DirectSearchSettings, SearchProgress, direct_search
from custard.solvers.common.linear_trees import with_sums, within_bounds
from custard.solvers.common.race import Racer
from custard.tree.leaf_actions import LeafActions
from custard.tree.tree import LEAF, Tree

__all__ = ["Arm", "parametrise"]

TEST_SEARCH_UNIT = 0.3  # in deviations of what is tested among the states that reach the node
MIN_LOCAL_DEVIATION_SHARE = 0.05  # of the deviation among all states, where few states reach a node
LEAF_SEARCH_UNIT = 0.2  # in shares of an action component's range


def parametrise(tree: Tree, states: np.ndarray, moves_sums: bool = False) -> tuple[Callable[[np.ndarray], Tree], int]:
    """Return the function from parameters [k] to trees around this one (zeros are the tree itself), and k.

    `states` [M, n_raw] say how far a number has to move to matter. Weights of sums are parameters if `moves_sums`.
    """
    features, spread = tree.features, states.std(axis=0)
    sums = features.derived if moves_sums else ()
    spread = np.where(spread > 0.0, spread, 1.0)
    splits, leaves = np.flatnonzero(tree.feature != LEAF), np.flatnonzero(tree.feature == LEAF)
    extended = features.extend(states)
    threshold_unit = TEST_SEARCH_UNIT * local_deviation(tree, extended)[splits]
    weights = [np.array([weight for _, weight in entry.terms]) for entry in sums]
    weight_units = [
        TEST_SEARCH_UNIT * extended[:, features.n_raw + k].std() / spread[sorted(entry.raw_features())]
        for k, entry in enumerate(sums)
    ]
    is_box = not tree.actions.discrete
    box = LeafActions(tree.actions)
    value_unit = LEAF_SEARCH_UNIT * (box.high - box.low) if is_box else np.zeros(0)
    has_gain = np.zeros((0, 0, 0), dtype=bool) if tree.gains is None else tree.gains != 0.0
    gain_unit = (value_unit[:, None] / spread) if is_box else np.zeros((0, 0))
    sizes = [len(splits), sum(map(len, weights)), tree.value[leaves].size if is_box else 0, int(has_gain.sum())]

    def moved(parameters: np.ndarray) -> Tree:
        tests, shifts, values, gains = np.split(parameters, np.cumsum(sizes)[:-1])
        threshold = tree.threshold.copy()
        threshold[splits] += threshold_unit * tests
        changed = replace(tree, threshold=threshold)
        if sums:
            steps = np.split(shifts, np.cumsum([len(row) for row in weights])[:-1])
            entries = []
            for entry, row, unit, step in zip(sums, weights, weight_units, steps, strict=True):
                numbers = (row + unit * step).tolist()
                terms = zip(entry.terms, numbers, strict=True)
                entries.append(Sum(tuple((index, number or 1e-12) for (index, _), number in terms), entry.constant))
            changed = replace(changed, features=with_sums(features, entries))
        if not is_box:
            return changed
        value = tree.value.astype(np.float64)
        value[leaves] += value_unit * values.reshape(len(leaves), -1)
        if tree.gains is None:
            value[leaves] = np.clip(value[leaves], box.low, box.high)
            if tree.actions.kind == "multi":
                value = np.rint(value).astype(np.int64)
            return replace(changed, value=value)
        new_gains = tree.gains.copy()
        new_gains[has_gain] += (np.broadcast_to(gain_unit, new_gains.shape)[has_gain]) * gains
        return replace(changed, value=within_bounds(tree, value, new_gains), gains=new_gains)

    return moved, sum(sizes)


def local_deviation(tree: Tree, states: np.ndarray) -> np.ndarray:
    """Return the deviation of what each split tests among the states [M, n] that reach it, [nodes]; zero for leaves."""
    overall = states.std(axis=0)
    rows: list[np.ndarray] = [np.zeros(0, dtype=np.int64)] * tree.n_nodes
    rows[0] = np.arange(len(states))
    deviation = np.zeros(tree.n_nodes)
    for node in np.flatnonzero(tree.feature != LEAF):
        feature, here = tree.feature[node], states[rows[node]]
        below = here[:, feature] <= tree.threshold[node]
        rows[tree.children_left[node]], rows[tree.children_right[node]] = rows[node][below], rows[node][~below]
        own = float(here[:, feature].std()) if len(here) > 1 else 0.0
        floor = MIN_LOCAL_DEVIATION_SHARE * overall[feature]
        deviation[node] = np.clip(own, floor, overall[feature]) if overall[feature] > 0 else 1.0
    return deviation


@dataclass(eq=False)
class Arm:
    """A tree whose numbers are searched for, in parts: one of several that race."""

    start: Tree  # at parameters zero
    tree: Tree  # the best so far
    seed: int  # of the search, as long as it goes on
    steps: int = 0  # environment steps spent on it
    search: dict[str, np.ndarray] = field(default_factory=dict)  # what the search needs to go on

    @classmethod
    def begin(cls, tree: Tree, *seed: int) -> Arm:
        """Return a search that begins at a tree; the numbers are its seed."""
        return cls(tree, tree, int(np.random.SeedSequence(seed).generate_state(1)[0]))

    def improve(
        self, racer: Racer, settings: DirectSearchSettings, states: np.ndarray, moves_sums: bool = False
    ) -> Iterator[SearchProgress]:
        """Search on until `settings.steps` are spent in all; yields where the search stands. See `parametrise`."""
        policy_of, size = parametrise(self.start, states, moves_sums)
        if size == 0:
            return
        for progress in direct_search(
            policy_of, size, racer, settings, self.seed, racer.max_steps, None, self.search or None
        ):
            if progress.parameters is not None:
                self.tree = policy_of(progress.parameters)
            self.steps = progress.steps
            yield progress
        self.search = dict(progress.state)
