"""Vector actions by number: a choice of them, for an expert that can only choose.

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

LEVELS = 5, 3  # values of a single component, and of each of several: few actions are soon told apart
MOST = 30  # vectors


class ByNumber(gym.ActionWrapper):
    """An environment whose actions are the numbers of given ones."""

    def __init__(self, env: gym.Env, actions: list[Any]) -> None:
        super().__init__(env)
        self.actions, self.action_space = actions, gym.spaces.Discrete(len(actions))

    def action(self, action: Any) -> Any:
        """The action of a number."""
        return self.actions[int(action)]


def choice_of_vectors(actions: Actions) -> np.ndarray:
    """Vectors [A, k]: all, or a grid of them; of many components the middle and either end of each.

    >>> choice_of_vectors(Actions("box", ("heat", "flow"), low=[0, -1], high=[1, 1])).shape
    (9, 2)
    """
    menu = LeafActions(actions)
    few = menu.whole and np.prod(menu.high - menu.low + 1) <= MOST
    levels = LEVELS[0] if len(menu.low) == 1 else LEVELS[1]
    counts = menu.high - menu.low + 1 if few else np.full(len(menu.low), levels)
    grid = [np.linspace(low, high, int(n)) for low, high, n in zip(menu.low, menu.high, counts, strict=True)]
    if menu.whole:
        grid = [np.unique(np.round(values)) for values in grid]
    if np.prod([len(values) for values in grid], dtype=float) <= MOST:
        return np.array(list(product(*grid)))
    middle = (menu.low + menu.high) / 2
    middle = np.floor(middle) if menu.whole else middle
    ends = [
        np.where(np.arange(len(middle)) == c, end, middle) for c in range(len(middle)) for end in (menu.low, menu.high)
    ]
    return np.array([middle, *ends])


def with_numbered_actions(problem: Problem, like: Tree) -> tuple[Problem, Callable[[Tree], Tree]]:
    """The problem with discrete actions, and what its trees are in the problem itself, where `like` is a tree."""
    base, where = problem.base, problem.source
    if base.actions.discrete:
        return problem, lambda tree: tree
    vectors = choice_of_vectors(base.actions)
    own = [base.action(vector) for vector in vectors]
    chosen = replace(where, make=lambda: ByNumber(where.make(), own), make_compiled=None, is_wrapped=True)
    names = numbered("action", len(own))
    discrete = replace(base, actions=Actions("discrete", names), action_space=gym.spaces.Discrete(len(own)))
    return replace(problem, source=chosen, base=discrete), lambda tree: tree_of(
        with_actions(shape_of(tree), vectors), like
    )
