"""Trees that lose nothing: is there one of a given depth as good as the best policy, and with how few leaves?

A policy is as good as the best exactly if it takes a best action in every state it visits. So visited states are
labelled one after the other with one of their best actions; each label brings the states it leads to. A branch is given
up as soon as no tree within the limits agrees with the labels so far. For a production task such as PrereqWorld this
walks through all shortest orders and few others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from custard.core.errors import CustardError
from custard.planning.reduced import ReducedMDP, action_values
from custard.planning.solve import value_iteration
from custard.tree.shape import Shape, Split

__all__ = ["Labelled", "best_choices", "lossless_tree"]

MAX_COUNTED_DEPTH = 60  # deeper trees have room for any number of leaves


@dataclass(frozen=True)
class Labelled:
    """The answer, as far as it goes."""

    shape: Shape | None  # a tree as good as the best policy, if one was found
    leaves: int
    complete: bool  # everything was looked through: no such tree exists, or none with fewer leaves


def lossless_tree(problem: ReducedMDP, depth: int, deadline: float, best: np.ndarray | None = None) -> Labelled:
    """Look for the tree of at most `depth` and fewest leaves that returns as much as the best policy.

    best  the result of `best_choices`, where it is known
    """
    if best is None:
        best = best_choices(problem, deadline)
    if best is None:
        return Labelled(None, 0, False)
    starts = tuple(np.flatnonzero(problem.start > 0).tolist())
    limit = 2 ** min(depth, MAX_COUNTED_DEPTH)
    trees = _SmallestTrees(problem, deadline)
    found: Shape | None = None
    stack: list[tuple[dict[int, int], tuple[int, ...]]] = [({}, starts)]
    while stack:
        if time.monotonic() > deadline:
            return Labelled(found, limit + 1, False)
        labels, waiting = stack.pop()
        if len(set(labels.values())) > limit:
            continue
        leaves, shape = trees.smallest(labels, depth)
        if trees.late:
            return Labelled(found, limit + 1, False)
        if leaves > limit:
            continue
        waiting = tuple(s for s in waiting if s not in labels)
        if not waiting:
            if problem.value(problem.decide(shape)[0]) >= problem.optimum - problem.tolerance:
                found, limit = shape, leaves - 1
                if limit < 1:
                    break
            continue
        state, rest = waiting[0], waiting[1:]
        used = set(labels.values())
        options = sorted(np.flatnonzero(best[state]).tolist(), key=lambda a: (a not in used, a), reverse=True)
        for action in options:  # the last one is looked at first: actions in use need no new leaf
            k = state * problem.n_actions + action
            after = problem.successor[problem.pointer[k] : problem.pointer[k + 1]]
            stack.append(({**labels, state: action}, rest + tuple(after.tolist())))
    return Labelled(found, limit + 1, True)


def best_choices(problem: ReducedMDP, deadline: float = np.inf) -> np.ndarray | None:
    """Return which actions are best in each state, [S, A] bool; None if the time left matters to the best policy.

    None as well if they are not known by the deadline.
    """
    mdp = problem.mdp
    if mdp.horizon is not None:
        # A policy that returns the optimum within the horizon must then have ended by then, wherever it began.
        worst = problem.top[problem.start > 0].min() - 2 * problem.tolerance
        deterministic = all((np.diff(matrix.indptr) == 1).all() for matrix in mdp.transitions)
        largest_reward = problem.reward[_continuing(problem)].max(initial=-np.inf)
        may_last = largest_reward * mdp.horizon >= worst or problem.reward.max() > 0
        if not deterministic or may_last or mdp.gamma < 1:
            return None
    if mdp.gamma < 1.0:
        values = problem.top - 0.1 * problem.tolerance
        q = action_values(problem, values, problem.any_action)
    else:
        try:
            values, q = value_iteration(mdp if mdp.horizon is None else replace(mdp, horizon=None), deadline=deadline)
        except CustardError:
            return None
        if time.monotonic() > deadline:
            return None
        values, q = values[problem.states], q[problem.states]
    start = float(problem.start @ np.where(problem.start > 0, values, 0.0))
    if not abs(start - problem.optimum) <= problem.tolerance:
        return None
    with np.errstate(invalid="ignore"):
        return (q >= values[:, None] - problem.tolerance) & np.isfinite(q)


def _continuing(problem: ReducedMDP) -> np.ndarray:
    """Return which (state, action) pairs do not end the episode, [S, A] bool."""
    return (np.diff(problem.pointer) > 0).reshape(problem.n, problem.n_actions)


#: More leaves than any limit, and a shape that does not count: no tree agrees.
NO_TREE: tuple[int, Shape] = (1 << 30, 0)


class _SmallestTrees:
    """The smallest trees that agree with labels, remembered."""

    def __init__(self, problem: ReducedMDP, deadline: float) -> None:
        self.problem, self.deadline, self.late = problem, deadline, False
        self.memory: dict[tuple[tuple[tuple[int, int], ...], int], tuple[int, Shape]] = {}

    def smallest(self, labels: dict[int, int], depth: int) -> tuple[int, Shape]:
        """Return the fewest leaves of a tree that gives states these actions, and such a tree; `NO_TREE` if none."""
        return self._solve(tuple(sorted(labels.items())), depth)

    def _solve(self, labels: tuple[tuple[int, int], ...], depth: int) -> tuple[int, Shape]:
        """Divide (state, action) pairs by each split, and solve both sides with one split less."""
        actions = {action for _, action in labels}
        if len(actions) <= 1:
            return 1, next(iter(actions), 0)
        if 2 ** min(depth, MAX_COUNTED_DEPTH) < len(actions):
            return NO_TREE
        key = (labels, depth)
        known = self.memory.get(key)
        if known is not None:
            return known
        if time.monotonic() > self.deadline:
            self.late = True
            return NO_TREE
        states = np.array([state for state, _ in labels])
        best, seen = NO_TREE, set()
        for split, row in zip(self.problem.splits, self.problem.goes_left[:, states], strict=True):
            signature = row.tobytes() if row[0] else (~row).tobytes()  # either side may be the left one
            if signature in seen or row.all() or not row.any():
                continue
            seen.add(signature)
            left = tuple(label for label, y in zip(labels, row, strict=True) if y)
            right = tuple(label for label, y in zip(labels, row, strict=True) if not y)
            left_leaves, left_shape = self._solve(left, depth - 1)
            if left_leaves >= best[0]:
                continue
            right_leaves, right_shape = self._solve(right, depth - 1)
            if left_leaves + right_leaves < best[0]:
                best = (left_leaves + right_leaves, Split(*split, left_shape, right_shape))
                if best[0] == len(actions):
                    break
        self.memory[key] = best
        return best
