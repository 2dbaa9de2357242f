"""Trees that imitate a teacher on its own states and on the states that the trees themselves meet (DAgger).

Every round fits trees of several sizes to one data set, runs them, and adds the states they met. The fit is greedy
(CART): a state counts as much as the teacher's second-best action loses, and for action vectors as all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from custard.core.spaces import Base
from custard.solvers.direct.race import Racer
from custard.task.policies import LinearPolicy
from custard.tree.export.sklearn import from_sklearn
from custard.tree.tree import Tree

__all__ = ["Imitation", "fit_trees", "imitate"]

MAX_FIT_STATES = 40_000
ROUNDS = 25
TEACHER_EPISODES = 20  # before the first round
STUDENT_EPISODES = 6  # of each tree in its round
RECENT_PARTS = 24  # sets of states, the latest ones, that a round fits to, beside the teacher's first


@dataclass(eq=False)
class Imitation:
    """The trees of all rounds, the best first, and the states met."""

    trees: list[Tree] = field(default_factory=list)
    states: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # [M, n]


def imitate(
    teacher: LinearPolicy, base: Base, racer: Racer, max_leaves: Sequence[int], seed: int, max_steps: float
) -> Imitation:
    """Return the trees of all rounds, as many rounds as environment steps allow, ordered by their return.

    `max_leaves` are the sizes that every round fits, `max_steps` the environment steps it may take.
    """
    rng, begun = np.random.default_rng(seed), racer.steps
    parts = [racer.episodes(teacher, TEACHER_EPISODES, keep_states=True).states]
    scored: list[tuple[float, Tree]] = []
    for _ in range(ROUNDS):
        if racer.steps - begun > max_steps:
            break
        x = np.concatenate([parts[0], *parts[1:][-RECENT_PARTS:]])
        x = x[rng.permutation(len(x))[:MAX_FIT_STATES]]
        trees = [tree for leaves in max_leaves for tree in fit_trees(teacher, x, base, leaves)]
        results = racer.screen(trees, STUDENT_EPISODES, keep_states=True)
        scored += [(float(result.returns.mean()), tree) for result, tree in zip(results, trees, strict=True)]
        parts += [result.states for result in results]
        parts.append(racer.episodes(teacher, 1, keep_states=True).states)
    scored.sort(key=lambda entry: -entry[0])
    return Imitation([tree for _, tree in scored], np.concatenate(parts))


def fit_trees(teacher: LinearPolicy, x: np.ndarray, base: Base, max_leaves: int) -> list[Tree]:
    """Return trees with at most so many leaves that do what the teacher does in states x [N, n]."""
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    def grown(estimator: Any, target: np.ndarray, weight: np.ndarray | None) -> Tree:
        return from_sklearn(estimator.fit(x, target, sample_weight=weight), base.features, base.actions)

    if max_leaves < 2:
        actions = teacher.predict(x)
        value = np.bincount(actions).argmax() if base.actions.discrete else np.median(actions, axis=0)
        return [Tree.leaf(value, base.features, base.actions)]
    limits: dict[str, Any] = {"max_leaf_nodes": max_leaves, "random_state": 0}
    if not base.actions.discrete:
        return [grown(DecisionTreeRegressor(**limits), teacher.predict(x), None)]
    scores = teacher.scores(x)
    action = scores.argmax(axis=1) + base.actions.start
    ordered = np.sort(scores, axis=1)
    margin = ordered[:, -1] - ordered[:, -2] + 1e-12 if scores.shape[1] > 1 else np.ones(len(x))
    capped = np.minimum(margin, np.median(margin))
    return [
        grown(DecisionTreeClassifier(criterion=criterion, **limits), action, weight)
        for criterion, weight in (("gini", margin), ("entropy", margin), ("gini", capped))
    ]
