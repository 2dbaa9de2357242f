"""Vector actions by number: a grid of them, for an expert that needs discrete actions.

A DQN rates each of a few actions. Where actions are vectors it rates those of a grid, and trees that imitate it have
these at their leaves; tree policy iteration then moves them freely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np

from custard.core.actions import Actions, numbered
from custard.task.problem import Problem
from custard.tree.leaf_actions import LeafActions
from custard.tree.shape import shape_of, tree_of, with_actions
from custard.tree.tree import Tree

__all__ = ["choice_of_vectors", "with_numbered_actions"]

GRID_VALUES_OF_SINGLE_COMPONENT, GRID_VALUES_PER_COMPONENT = 5, 3  # of one component; of several
MAX_ACTION_GRID_VECTORS = 30  # an expert soon tells few actions apart


class NumberedActions(gym.ActionWrapper):
    """An environment whose actions are the numbers of given ones."""

    def __init__(self, env: gym.Env, actions: list[Any]) -> None:
        super().__init__(env)
        self.actions, self.action_space = actions, gym.spaces.Discrete(len(actions))

    def action(self, action: Any) -> Any:
        """Return the action of a number."""
        return self.actions[int(action)]


def choice_of_vectors(actions: Actions) -> np.ndarray:
    """Return vectors [A, k]: all of them, or a grid; for many components the middle and either end of each.

    >>> choice_of_vectors(Actions("box", ("heat", "flow"), low=[0, -1], high=[1, 1])).shape
    (9, 2)
    """
    leaf_actions = LeafActions(actions)
    has_few = leaf_actions.whole and np.prod(leaf_actions.high - leaf_actions.low + 1) <= MAX_ACTION_GRID_VECTORS
    levels = GRID_VALUES_OF_SINGLE_COMPONENT if len(leaf_actions.low) == 1 else GRID_VALUES_PER_COMPONENT
    counts = leaf_actions.high - leaf_actions.low + 1 if has_few else np.full(len(leaf_actions.low), levels)
    grid = [
        np.linspace(low, high, int(n)) for low, high, n in zip(leaf_actions.low, leaf_actions.high, counts, strict=True)
    ]
    if leaf_actions.whole:
        grid = [np.unique(np.round(values)) for values in grid]
    if np.prod([len(values) for values in grid], dtype=float) <= MAX_ACTION_GRID_VECTORS:
        return np.array(list(product(*grid)))
    middle = (leaf_actions.low + leaf_actions.high) / 2
    middle = np.floor(middle) if leaf_actions.whole else middle
    ends = [
        np.where(np.arange(len(middle)) == c, end, middle)
        for c in range(len(middle))
        for end in (leaf_actions.low, leaf_actions.high)
    ]
    return np.array([middle, *ends])


def with_numbered_actions(problem: Problem, like: Tree) -> tuple[Problem, Callable[[Tree], Tree]]:
    """Return the problem with discrete actions, and a function that turns its trees into trees of the problem itself.

    `like` is any tree of the problem itself.
    """
    base, env_source = problem.base, problem.source
    if base.actions.discrete:
        return problem, lambda tree: tree
    vectors = choice_of_vectors(base.actions)
    actions = [base.action(vector) for vector in vectors]
    source = replace(
        env_source, make=lambda: NumberedActions(env_source.make(), actions), make_compiled=None, is_wrapped=True
    )
    names = numbered("action", len(actions))
    discrete = replace(base, actions=Actions("discrete", names), action_space=gym.spaces.Discrete(len(actions)))
    return replace(problem, source=source, base=discrete), lambda tree: tree_of(
        with_actions(shape_of(tree), vectors), like
    )
