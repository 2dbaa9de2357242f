"""Action masks of the environment: trees whose leaves hold actions that are allowed in every state they met."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from custard.tree.tree import Tree

__all__ = ["allowed_scores", "with_allowed_leaves"]


def with_allowed_leaves(tree: Tree, states: np.ndarray, masks: np.ndarray) -> Tree:
    """Return a tree whose leaves hold actions that are allowed in every state they met, where there is one.

    A leaf whose action is forbidden in some state gets the action of the nearest leaf (in the order of the nodes) that
    is allowed in all of its states, or any other that is. `states` [M, n] are those that the tree met, `masks` [M, A]
    what was allowed there.

    >>> from custard.core.actions import Actions
    >>> from custard.core.features import Features
    >>> tree = Tree.stump(0, 0.0, 0, 1, Features(("x",), [-1], [1]), Actions("discrete", ("a", "b")))
    >>> met, allowed = np.array([[-0.5], [0.2], [0.7]]), np.array([[0, 1], [1, 1], [1, 1]], dtype=bool)
    >>> with_allowed_leaves(tree, met, allowed).value.tolist()
    [0, 1, 1]
    """
    if not len(states) or not masks.shape[1] or not tree.actions.discrete:
        return tree
    start, value, leaves = tree.actions.start, tree.value.copy(), tree.apply(states)
    present = np.unique(leaves)
    for leaf in present.tolist():
        allowed = masks[leaves == leaf].all(axis=0)
        if allowed[tree.value[leaf] - start] or not allowed.any():
            continue
        others = sorted((abs(other - leaf), int(tree.value[other])) for other in present.tolist())
        near = [action for _, action in others if allowed[action - start]]
        value[leaf] = near[0] if near else start + int(np.flatnonzero(allowed)[0])
    return tree if np.array_equal(value, tree.value) else replace(tree, value=value)


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
