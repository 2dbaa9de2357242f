"""States of equal features as points: what a tree can tell apart, with what compiled searches need of the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from custard.planning.reduced import ReducedMDP, action_values
from custard.planning.relaxation import Model, visits_of
from custard.tree.shape import Shape, Split, map_leaves

__all__ = ["Points", "points_of"]


@dataclass(frozen=True, eq=False)
class Points:
    """P points: states of equal features, which every tree treats alike."""

    model: Model
    x: np.ndarray  # [P, n]
    codes: np.ndarray  # [P, n] int32, each value's rank
    sizes: np.ndarray  # [n], how many values each feature has
    thresholds: tuple[np.ndarray, ...]  # of each feature: one between neighbouring values
    splits: list[tuple[int, float]]  # C times (feature, threshold)
    goes_left: np.ndarray  # [C, P] bool
    top: np.ndarray  # [S], the best values without a tree
    greedy_choice: np.ndarray  # [S], a best action per state without a tree
    tie: float = 1e-12  # losses below this, relative to the return, are none

    @property
    def count(self) -> int:
        """The number of points."""
        return len(self.x)

    @property
    def n_states(self) -> int:
        """The number of states."""
        return len(self.model.point)

    def state_visits(self, choice: np.ndarray, sweeps: int) -> np.ndarray:
        """Return roughly how often each state is visited (discounted) under one action per state, [S]."""
        return visits_of(self.model, choice, sweeps)

    def decide(self, shape: Shape) -> np.ndarray:
        """Return each point's action, [P]."""
        choice = np.zeros(self.count, dtype=np.int64)
        for part, where in self.regions(shape):
            choice[where] = part
        return choice

    def regions(self, shape: Shape) -> list[tuple[Shape, np.ndarray]]:
        """Return each leaf of a shape, left to right, with its points [P] bool."""
        found = []
        stack = [(shape, np.ones(self.count, dtype=bool))]
        while stack:
            part, where = stack.pop()
            if isinstance(part, Split):
                left = self.x[:, part.feature] <= part.threshold
                stack += [(part.right, where & ~left), (part.left, where & left)]
            else:
                found.append((part, where))
        return found

    def settle(self, shape: Shape, lost: np.ndarray) -> Shape:
        """Return a shape whose leaves are words with the allowed action of the least loss [P, A] in each leaf."""
        n_actions = lost.shape[1]
        actions = []
        for words, where in self.regions(shape):
            bits = [(int(words[a >> 6]) >> (a & 63)) & 1 for a in range(n_actions)]
            total = np.maximum(lost[where], 0.0).sum(axis=0)
            actions.append(int(np.where(np.array(bits, dtype=bool), total, np.inf).argmin()))
        numbers = iter(actions)
        return map_leaves(shape, lambda _: next(numbers))


def points_of(problem: ReducedMDP) -> Points:
    """Return the points of a reduced MDP."""
    x, point = np.unique(problem.mdp.x[problem.states], axis=0, return_inverse=True)
    codes = np.empty(x.shape, dtype=np.int32)
    thresholds = []
    for c, column in enumerate(x.T):
        values, codes[:, c] = np.unique(column, return_inverse=True)
        middle = values[:-1] + (values[1:] - values[:-1]) / 2
        thresholds.append(np.where((values[:-1] <= middle) & (middle < values[1:]), middle, values[:-1]))
    splits = [(c, float(t)) for c, own in enumerate(thresholds) for t in own]
    goes_left = np.array([x[:, c] <= t for c, t in splits]).reshape(len(splits), len(x))
    goes_on = np.bincount(
        np.repeat(np.arange(len(problem.pointer) - 1), np.diff(problem.pointer)), problem.probability,
        minlength=len(problem.pointer) - 1,
    )  # fmt: skip
    model = Model(
        problem.pointer, problem.successor, problem.probability, problem.reward, problem.start,
        point.reshape(-1).astype(np.int64), problem.mdp.gamma, bool((goes_on < 1.0 - 1e-9).any()),
    )  # fmt: skip
    greedy = action_values(problem, problem.top, problem.any_action).argmax(axis=1)
    sizes = np.array([len(own) + 1 for own in thresholds], dtype=np.int64)
    return Points(model, x, codes, sizes, tuple(thresholds), splits, goes_left, problem.top, greedy.astype(np.int64))
