"""Trees that imitate a teacher on its own states and on the states that the trees themselves meet (DAgger).

Every round fits trees of several sizes to one data set, runs them, and adds the states they met; after a few rounds
only the sizes that return most go on. Further rounds fit trees to random parts of all states: such trees agree with the
teacher about equally often and return very different amounts, so the best of many is far better than a usual one. The
fit is greedy (CART): a state counts as much as the teacher's second-best action loses, and for action vectors as all
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.core.processes import cores
from custard.core.spaces import Base
from custard.solvers.common.race import Racer
from custard.task.episodes import Episodes, joined_masks
from custard.tree.export.sklearn import from_sklearn
from custard.tree.tree import Tree

__all__ = ["Imitation", "Teacher", "allowed_scores", "imitations"]

MAX_FIT_STATES = 10_000
MAX_ALL_STATES_ROUNDS = 25
ALL_SIZES_ROUNDS = 4  # after which the worse half of the sizes is left out
TEACHER_EPISODES = 20  # before the first round
STUDENT_EPISODES = 6  # of each tree in its round, at most
MIN_AFFORDABLE_ROUNDS = 5  # for which trees run fewer episodes where steps are few
ALL_STATES_STEPS_SHARE = 0.5  # of the steps, for rounds that fit trees to all states; random parts have the rest
MAX_SUBSET_ROUNDS, SUBSETS_PER_ROUND = 20, 3
SUBSET_SHARES = 0.2, 0.9  # of all states, in a random part


@dataclass(frozen=True, eq=False)
class Teacher:
    """What trees imitate."""

    predict: Callable[[np.ndarray], np.ndarray]  # feature vectors [B, n] -> actions [B] or [B, k]
    scores: Callable[[np.ndarray], np.ndarray] | None  # [B, n] -> [B, A]: how good actions are, if it says so
    states: Callable[[int], tuple[np.ndarray, np.ndarray]]
    """Number of fresh episodes -> states met [M, n] and what was allowed there [M, A], or [M, 0]."""
    name: str = ""


@dataclass(eq=False)
class Imitation:
    """What came of one round."""

    share: float  # of all rounds and steps that imitation may take
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
    parts.append(
        teacher.states(int(np.clip(max_steps / (MIN_AFFORDABLE_ROUNDS * racer.recent_length), 1, TEACHER_EPISODES)))
    )
    sizes, means = list(max_leaves), {size: list[float]() for size in max_leaves}

    def fitted(share: float = 1.0) -> list[tuple[int, Tree]]:
        """Return trees of all sizes for a random part of the states."""
        x, masks = np.concatenate([part[0] for part in parts]), joined_masks([part[1] for part in parts])
        rows = rng.permutation(len(x))[: min(MAX_FIT_STATES, int(np.ceil(share * len(x))))]
        return [
            (size, tree) for size in sizes for tree in fit_trees(teacher, x[rows], base, size, max_depth, masks[rows])
        ]

    def share_of(rounds: int) -> float:
        """Return the share of what imitation may take, after so many rounds."""
        return max(
            rounds / (MAX_ALL_STATES_ROUNDS + MAX_SUBSET_ROUNDS), min(1.0, (racer.steps - begun) / max(1.0, max_steps))
        )

    def screened(found: list[tuple[int, Tree]], keeps: bool) -> tuple[list[Episodes], list[tuple[float, Tree]]]:
        """Run a few episodes of each tree; return what came of them, and the trees with their mean returns."""
        affordable = max_steps / (MIN_AFFORDABLE_ROUNDS * len(found) * racer.recent_length)
        episodes = int(np.clip(affordable, 1, STUDENT_EPISODES))
        results = racer.screen([tree for _, tree in found], episodes, keep_states=keeps)
        for (size, _), result in zip(found, results, strict=True):
            means[size].append(float(result.returns.mean()))
        return results, [(float(r.returns.mean()), tree) for r, (_, tree) in zip(results, found, strict=True)]

    for number in range(MAX_ALL_STATES_ROUNDS):
        results, scored = screened(fitted(), keeps=True)
        parts += [(result.states, result.masks) for result in results]
        parts.append(teacher.states(1))
        yield Imitation(share_of(number + 1), scored, np.concatenate([part[0] for part in parts]))
        if racer.steps - begun > ALL_STATES_STEPS_SHARE * max_steps:
            break
        if number + 1 == ALL_SIZES_ROUNDS:
            sizes = sorted(sizes, key=lambda size: -float(np.mean(means[size])))[: (len(sizes) + 1) // 2]
    sizes = sorted({max(sizes, key=lambda size: float(np.mean(means[size]))), max(max_leaves)})
    for number in range(MAX_ALL_STATES_ROUNDS, MAX_ALL_STATES_ROUNDS + MAX_SUBSET_ROUNDS):
        if racer.steps - begun > max_steps:
            break
        shares = rng.uniform(*SUBSET_SHARES, size=SUBSETS_PER_ROUND)
        found = [entry for share in shares.tolist() for entry in fitted(share)]
        _, scored = screened(found, keeps=False)
        yield Imitation(share_of(number + 1), scored, np.concatenate([part[0] for part in parts]))


def fit_trees(
    teacher: Teacher, x: np.ndarray, base: Base, max_leaves: int, max_depth: int, masks: np.ndarray
) -> list[Tree]:
    """Return trees with at most so many leaves that do what the teacher does in states x [N, n].

    `masks` [N, A] say which actions are allowed there, [N, 0] that all are: the best allowed one is imitated.
    """
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    actions = teacher.predict(x)
    scores = None if teacher.scores is None else allowed_scores(teacher.scores(x), masks)
    if scores is not None and masks.shape[1]:
        actions = scores.argmax(axis=1) + base.actions.start
    limits: dict[str, Any] = {"max_leaf_nodes": max_leaves, "max_depth": max_depth, "random_state": 0}
    if max_leaves < 2 or max_depth < 1:
        value = np.bincount(actions).argmax() if base.actions.discrete else np.median(actions, axis=0)
        return [Tree.leaf(value, base.features, base.actions)]
    if not base.actions.discrete:
        fits: list[tuple[Any, np.ndarray | None]] = [(DecisionTreeRegressor(**limits), None)]
    elif scores is None:
        fits = [(DecisionTreeClassifier(**limits), None)]
    else:
        ordered = np.sort(scores, axis=1)
        margin = ordered[:, -1] - ordered[:, -2] + 1e-12 if ordered.shape[1] > 1 else np.ones(len(x))
        kinds = ("gini", margin), ("entropy", margin), ("gini", np.minimum(margin, np.median(margin)))
        fits = [(DecisionTreeClassifier(criterion=criterion, **limits), weight) for criterion, weight in kinds]
    seen = base.features.extend(x)
    with ThreadPoolExecutor(cores()) as pool:  # fitting lets go of the interpreter lock
        grown = pool.map(lambda fit: fit[0].fit(seen, actions, sample_weight=fit[1]), fits)
        return [from_sklearn(estimator, base.features, base.actions) for estimator in grown]


def allowed_scores(scores: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return scores of actions [N, A], those of forbidden ones below all others of their state by a usual difference.

    >>> allowed_scores(np.array([[3.0, 1.0, 2.0]]), np.array([[False, True, True]])).tolist()
    [[-1.0, 1.0, 2.0]]
    """
    if not masks.shape[1]:
        return scores
    allows_any = masks.any(axis=1, keepdims=True)
    lowest = np.where(masks, scores, np.inf).min(axis=1, keepdims=True)
    usual_difference = float((scores.max(axis=1) - scores.min(axis=1)).mean()) or 1.0
    return np.where(masks | ~allows_any, scores, lowest - usual_difference)
