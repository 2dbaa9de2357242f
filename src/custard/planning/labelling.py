"""Trees that lose nothing: is there one of a given depth as good as the best policy, and with how few leaves?

A policy is as good as the best exactly if it takes a best action in every state it visits. So visited states are
labelled one after the other with one of their best actions; each label brings the states it leads to. A branch is given
up as soon as no tree within the limits agrees with the labels so far. For a production task such as PrereqWorld this
walks through all shortest orders and few others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP
from custard.planning.exhaustive import Node
from custard.planning.reduced import Reduced
from custard.planning.solve import value_iteration

__all__ = ["Labelled", "lossless_tree"]


@dataclass(frozen=True)
class Labelled:
    """The answer, as far as it goes."""

    node: Node | None  # a tree as good as the best policy, if one was found
    leaves: int
    complete: bool  # everything was looked through: no such tree exists, or none with fewer leaves


def lossless_tree(problem: Reduced, depth: int, deadline: float, most_leaves: int | None = None) -> Labelled:
    """Look for the tree of at most `depth` and fewest leaves that returns as much as the best policy."""
    best = best_choices(problem)
    if best is None:
        return Labelled(None, 0, False)
    starts = tuple(np.flatnonzero(problem.start > 0).tolist())
    limit = min(most_leaves or 2**depth, 2**depth)
    shapes = _Shapes(problem, deadline)
    found: Node | None = None
    stack: list[tuple[dict[int, int], tuple[int, ...]]] = [({}, starts)]
    while stack:
        if time.monotonic() > deadline:
            return Labelled(found, limit + 1, False)
        labels, waiting = stack.pop()
        if len(set(labels.values())) > limit:
            continue
        leaves, _ = shapes.smallest(labels, depth, limit)
        if shapes.late:
            return Labelled(found, limit + 1, False)
        if leaves > limit:
            continue
        waiting = tuple(s for s in waiting if s not in labels)
        if not waiting:
            _, node = shapes.smallest(labels, depth, limit)
            choice = _apply(problem, node)
            if problem.value(choice) >= problem.optimum - problem.tolerance:
                found, limit = node, leaves - 1
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


def best_choices(problem: Reduced) -> np.ndarray | None:
    """Which actions are best in each state, [S, A] bool; None if the time left matters to the best policy."""
    mdp = problem.mdp
    if mdp.horizon is not None:
        # A policy that returns the optimum within the horizon must then be one that has ended by then.
        deterministic = all((np.diff(matrix.indptr) == 1).all() for matrix in mdp.transitions)
        dearest = problem.reward[_staying(problem)].max(initial=-np.inf)
        if not deterministic or dearest * mdp.horizon >= problem.optimum or problem.reward.max() > 0 or mdp.gamma < 1:
            return None
    try:
        values, q = value_iteration(_endless(mdp))
    except CustardError:
        return None
    values, q = values[problem.states], q[problem.states]
    start = float(problem.start @ np.where(problem.start > 0, values, 0.0))
    if not abs(start - problem.optimum) <= problem.tolerance:
        return None
    with np.errstate(invalid="ignore"):
        return (q >= values[:, None] - problem.tolerance) & np.isfinite(q)


def _staying(problem: Reduced) -> np.ndarray:
    """Which (state, action) pairs do not end the episode, [S, A] bool."""
    return (np.diff(problem.pointer) > 0).reshape(problem.n, problem.n_actions)


def _endless(mdp: FiniteMDP) -> FiniteMDP:
    import dataclasses

    return mdp if mdp.horizon is None else dataclasses.replace(mdp, horizon=None)


def _apply(problem: Reduced, node: Node) -> np.ndarray:
    from custard.planning.candidates import decide

    return decide(problem, node)[0]


class _Shapes:
    """The smallest trees that agree with labels, remembered."""

    def __init__(self, problem: Reduced, deadline: float) -> None:
        self.problem, self.deadline, self.late = problem, deadline, False
        self.memory: dict[tuple[tuple[tuple[int, int], ...], int], tuple[int, Node]] = {}

    def smallest(self, labels: dict[int, int], depth: int, limit: int) -> tuple[int, Node]:
        """The fewest leaves (more than any limit if impossible) and such a tree."""
        return self._solve(tuple(sorted(labels.items())), depth)

    def _solve(self, labels: tuple[tuple[int, int], ...], depth: int) -> tuple[int, Node]:
        kinds = {action for _, action in labels}
        if len(kinds) <= 1:
            return 1, next(iter(kinds), 0)
        if 2**depth < len(kinds):
            return _NONE
        key = (labels, depth)
        known = self.memory.get(key)
        if known is not None:
            return known
        if time.monotonic() > self.deadline:
            self.late = True
            return _NONE
        states = np.array([state for state, _ in labels])
        answers = self.problem.yes[:, states]
        best, seen = _NONE, set()
        for q in range(len(answers)):
            row = answers[q]
            sign = row.tobytes() if row[0] else (~row).tobytes()
            if sign in seen or row.all() or not row.any():
                continue
            seen.add(sign)
            left = tuple(label for label, y in zip(labels, row, strict=True) if y)
            right = tuple(label for label, y in zip(labels, row, strict=True) if not y)
            a, a_node = self._solve(left, depth - 1)
            if a >= best[0]:
                continue
            b, b_node = self._solve(right, depth - 1)
            if a + b < best[0]:
                best = (a + b, (q, a_node, b_node))
                if a + b == len(kinds):
                    break
        self.memory[key] = best
        return best


_NONE: tuple[int, Node] = (1 << 30, 0)
