"""Trees that imitate a teacher on its own states and on the states that the trees themselves meet (DAgger).

Every round fits trees of several sizes to one data set, runs them, and adds the states they met; after a few rounds
only the sizes that return most go on. The fit is greedy (CART): a state counts as much as the teacher's second-best
action loses, and for action vectors as all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.core.spaces import Base
from custard.solvers.common.race import Racer
from custard.task.episodes import joined_masks
from custard.tree.export.sklearn import from_sklearn
from custard.tree.tree import Tree

__all__ = ["Imitation", "Teacher", "allowed_scores", "imitations"]

MAX_FIT_STATES = 30_000
MAX_ROUNDS = 25
ALL_SIZES_ROUNDS = 4  # after which the worse half of the sizes is left out
TEACHER_EPISODES = 20  # before the first round
STUDENT_EPISODES = 6  # of each tree in its round, at most
MIN_ROUNDS = 5  # for which trees run fewer episodes where steps are few


@dataclass(frozen=True, eq=False)
class Teacher:
    """What trees imitate."""

    predict: Callable[[np.ndarray], np.ndarray]  # feature vectors [B, n] -> actions [B] or [B, k]
    scores: Callable[[np.ndarray], np.ndarray] | None  # [B, n] -> [B, A]: how good actions are, if it says so
    states: Callable[[int], tuple[np.ndarray, np.ndarray]]
    """Number of fresh episodes -> states met [M, n] and what was allowed there [M, A], or [M, 0]."""


@dataclass(eq=False)
class Imitation:
    """What came of one round."""

    trees: list[tuple[float, Tree]]  # with the mean return of a few episodes
    states: np.ndarray  # [M, n]: all that were met so far


def imitations(
    teacher: Teacher,
    base: Base,
    racer: Racer,
    max_leaves: Sequence[int],
    max_depth: int,
    seed: int,
    max_steps: float,
) -> Iterator[Imitation]:
    """Yield the trees of every round, as many rounds as environment steps allow.

    `max_leaves` are the sizes that every round fits, `max_depth` limits them all, `max_steps` are the environment steps
    that it may take.
    """
    rng, begun = np.random.default_rng(seed), racer.steps
    parts = [teacher.states(2)]
    parts.append(teacher.states(int(np.clip(max_steps / (MIN_ROUNDS * racer.recent_length), 1, TEACHER_EPISODES))))
    sizes, means = list(max_leaves), dict[int, list[float]]()
    for number in range(MAX_ROUNDS):
        x, masks = np.concatenate([part[0] for part in parts]), joined_masks([part[1] for part in parts])
        chosen = rng.permutation(len(x))[:MAX_FIT_STATES]
        fits = [(size, fit_trees(teacher, x[chosen], base, size, max_depth, masks[chosen])) for size in sizes]
        trees = [tree for _, fitted in fits for tree in fitted]
        affordable = max_steps / (MIN_ROUNDS * len(trees) * racer.recent_length)
        results = racer.screen(trees, int(np.clip(affordable, 1, STUDENT_EPISODES)), keep_states=True)
        parts += [(result.states, result.masks) for result in results]
        parts.append(teacher.states(1))
        scored = [(float(result.returns.mean()), tree) for result, tree in zip(results, trees, strict=True)]
        yield Imitation(scored, np.concatenate([part[0] for part in parts]))
        if racer.steps - begun > max_steps:
            break
        for size, fitted in fits:
            means.setdefault(size, []).extend(mean for mean, _ in scored[: len(fitted)])
            scored = scored[len(fitted) :]
        if number + 1 == ALL_SIZES_ROUNDS:
            sizes = sorted(sizes, key=lambda size: -float(np.mean(means[size])))[: (len(sizes) + 1) // 2]


def fit_trees(
    teacher: Teacher, x: np.ndarray, base: Base, max_leaves: int, max_depth: int, masks: np.ndarray
) -> list[Tree]:
    """Return trees with at most so many leaves that do what the teacher does in states x [N, n].

    `masks` [N, A] say which actions are allowed there, [N, 0] that all are: the best allowed one is imitated.
    """
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    seen = base.features.extend(x)

    def grown(estimator: Any, target: np.ndarray, weight: np.ndarray | None) -> Tree:
        return from_sklearn(estimator.fit(seen, target, sample_weight=weight), base.features, base.actions)

    actions = teacher.predict(x)
    scores = None if teacher.scores is None else allowed_scores(teacher.scores(x), masks)
    if scores is not None and masks.shape[1]:
        actions = scores.argmax(axis=1) + base.actions.start
    if max_leaves < 2 or max_depth < 1:
        value = np.bincount(actions).argmax() if base.actions.discrete else np.median(actions, axis=0)
        return [Tree.leaf(value, base.features, base.actions)]
    limits: dict[str, Any] = {"max_leaf_nodes": max_leaves, "max_depth": max_depth, "random_state": 0}
    if not base.actions.discrete:
        return [grown(DecisionTreeRegressor(**limits), actions, None)]
    if scores is None:
        return [grown(DecisionTreeClassifier(**limits), actions, None)]
    ordered = np.sort(scores, axis=1)
    margin = ordered[:, -1] - ordered[:, -2] + 1e-12 if ordered.shape[1] > 1 else np.ones(len(x))
    capped = np.minimum(margin, np.median(margin))
    return [
        grown(DecisionTreeClassifier(criterion=criterion, **limits), actions, weight)
        for criterion, weight in (("gini", margin), ("entropy", margin), ("gini", capped))
    ]


def allowed_scores(scores: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return scores of actions [N, A], those of forbidden ones below all others of their state by a usual difference.

    >>> allowed_scores(np.array([[3.0, 1.0, 2.0]]), np.array([[False, True, True]])).tolist()
    [[-1.0, 1.0, 2.0]]
    """
    if not masks.shape[1]:
        return scores
    some = masks.any(axis=1, keepdims=True)
    lowest = np.where(masks, scores, np.inf).min(axis=1, keepdims=True)
    usual = float((scores.max(axis=1) - scores.min(axis=1)).mean()) or 1.0
    return np.where(masks | ~some, scores, lowest - usual)
