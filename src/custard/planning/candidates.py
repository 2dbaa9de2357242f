"""Good trees, quickly: fits to Q-values, and climbing on the exact return. They give the search its incumbents.

Trees here are nested: an action number, or (question, left, right) with a question's number in the reduced problem.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.planning.evaluate import visits
from custard.planning.exhaustive import Node, grow
from custard.planning.reduced import Reduced, best_actions
from custard.tree.tree import Tree

__all__ = ["climb", "count_leaves", "decide", "fit", "grown", "refits"]

EXACT_DEPTH = 3  # fits look through all trees up to here, and through the most promising first questions beyond
BEAM = 3
MANY_ACTIONS = 6  # beyond, climbing tries two random actions a new leaf


def decide(problem: Reduced, node: Node) -> tuple[np.ndarray, np.ndarray]:
    """The action [S] and the number of questions [S] of each state."""
    choice, depth = np.zeros(problem.n, dtype=np.int64), np.zeros(problem.n, dtype=np.int64)
    stack = [(node, np.ones(problem.n, dtype=bool), 0)]
    while stack:
        part, where, level = stack.pop()
        if isinstance(part, tuple):
            yes = problem.yes[part[0]]
            stack += [(part[1], where & yes, level + 1), (part[2], where & ~yes, level + 1)]
        else:
            choice[where], depth[where] = part, level
    return choice, depth


def count_leaves(node: Node) -> int:
    """The number of leaves."""
    return count_leaves(node[1]) + count_leaves(node[2]) if isinstance(node, tuple) else 1


def grown(problem: Reduced, node: Node) -> Tree:
    """The `Tree` of a nested one."""

    def spelled(part: Node) -> Node:
        if not isinstance(part, tuple):
            return part
        return (*problem.questions[part[0]], spelled(part[1]), spelled(part[2]))

    return grow(spelled(node), problem.mdp.features, problem.mdp.actions)


def fit(problem: Reduced, gain: np.ndarray, where: np.ndarray, depth: int, price: float = 0.0) -> tuple[float, Node]:
    """The tree of at most `depth` over the states `where` (numbers) that collects most of gain [S, A]."""
    total = gain[where].sum(axis=0)
    best: tuple[float, Node] = (float(total.max()), int(total.argmax()))
    yes = problem.yes[:, where]
    useful = np.flatnonzero(yes.any(axis=1) & ~yes.all(axis=1)) if len(where) else np.arange(0)
    if depth == 0 or len(useful) == 0:
        return best
    enough = 1e-12 * max(1.0, abs(best[0])) + price
    left = yes[useful] @ gain[where]
    stump = left.max(axis=1) + (total - left).max(axis=1)
    if depth == 1:
        q = int(stump.argmax())
        if stump[q] > best[0] + enough:
            return float(stump[q]), (int(useful[q]), int(left[q].argmax()), int((total - left[q]).argmax()))
        return best
    if depth > EXACT_DEPTH:
        ahead = [sum(fit(problem, gain, where[side], 2)[0] for side in (y, ~y)) for y in yes[useful]]
        useful = useful[np.argsort(-np.array(ahead), kind="stable")[:BEAM]]
    for q in useful.tolist():
        y = problem.yes[q, where]
        a, a_node = fit(problem, gain, where[y], depth - 1, price)
        b, b_node = fit(problem, gain, where[~y], depth - 1, price)
        if a + b > best[0] + enough:
            best = (a + b, (q, a_node, b_node))
    return best


def refits(problem: Reduced, depth: int, rounds: int, rng: np.random.Generator) -> Iterator[Node]:
    """Policy iteration over trees: fit to Q* first, then to each tree's own Q where it goes itself."""
    everything = np.full(problem.n, (1 << problem.n_actions) - 1, dtype=np.int64)
    q = _finite(best_actions(problem, problem.top, everything))
    weight = _visits(problem, q.argmax(axis=1))
    spread = weight.sum() / problem.n
    for round_ in range(rounds):
        lead = q - q.max(axis=1, keepdims=True)
        mixed = weight + spread * (0.01 if round_ % 3 else 0.3) * (1.0 if round_ < 3 else rng.random(problem.n))
        _, node = fit(problem, lead * mixed[:, None], np.arange(problem.n), depth)
        yield node
        choice, _ = decide(problem, node)
        values = problem.top.copy()
        problem.bound(1 << choice, np.zeros(problem.n), values, -np.inf)
        if round_ % 4 == 3:
            q = _finite(best_actions(problem, problem.top, everything))
            weight = _visits(problem, q.argmax(axis=1)) * rng.exponential(size=problem.n)
        else:
            q = _finite(best_actions(problem, values, everything))
            weight = 0.5 * weight + 0.5 * _visits(problem, choice)


def _finite(q: np.ndarray) -> np.ndarray:
    low = q[np.isfinite(q)].min(initial=0.0)
    return np.where(np.isfinite(q), q, low - 10.0 * max(1.0, abs(low)))


def _visits(problem: Reduced, choice: np.ndarray) -> np.ndarray:
    full = np.zeros(problem.mdp.n_states, dtype=np.int64)
    full[problem.states] = choice
    try:
        occupancy, _ = visits(full, problem.mdp)
    except CustardError:  # it never ends: every state counts alike
        return np.ones(problem.n)
    return occupancy[problem.states]


def climb(
    problem: Reduced, node: Node, depth: int, price: float, rng: np.random.Generator, deadline: float
) -> tuple[Node, float]:
    """Change one thing at a time while the exact objective (return, then fewer leaves) gets better."""

    def score(part: Node, cutoff: float) -> float:
        choice, level = decide(problem, part)
        return problem.bound(1 << choice, price * level, problem.top.copy(), cutoff)

    best, leaves = score(node, -np.inf), count_leaves(node)
    better = True
    while better and time.monotonic() < deadline:
        better = False
        moves = list(_moves(problem, node, depth, rng))
        rng.shuffle(moves)  # type: ignore[arg-type]
        for path, part in moves:
            if time.monotonic() > deadline:
                break
            trial = _put(node, path, part)
            count = count_leaves(trial)
            value = score(trial, best - problem.tolerance)
            if value > best + problem.tolerance or (value >= best - problem.tolerance and count < leaves):
                node, best, leaves, better = trial, value, count, True
                break
    return node, best


def kicked(problem: Reduced, node: Node, depth: int, rng: np.random.Generator) -> Node:
    """The tree after one to three random changes."""
    for _ in range(int(rng.integers(1, 4))):
        moves = list(_moves(problem, node, depth, rng))
        path, part = moves[int(rng.integers(len(moves)))]
        node = _put(node, path, part)
    return node


def _moves(problem: Reduced, node: Node, depth: int, rng: np.random.Generator) -> Iterator[tuple[tuple[int, ...], Any]]:
    stack: list[tuple[tuple[int, ...], Node]] = [((), node)]
    questions, n_actions = len(problem.questions), problem.n_actions
    while stack:
        path, part = stack.pop()
        if isinstance(part, tuple):
            stack += [((*path, 1), part[1]), ((*path, 2), part[2])]
            for q in range(questions):
                if q != part[0]:
                    yield path, (q, part[1], part[2])
            yield path, (part[0], part[2], part[1])
            yield path, part[1]
            yield path, part[2]
        else:
            for a in range(n_actions):
                if a != part:
                    yield path, a
            if len(path) < depth:
                others = [a for a in range(n_actions) if a != part]
                for q in range(questions):
                    for a in others if n_actions <= MANY_ACTIONS else rng.choice(others, 2).tolist():
                        yield path, (q, a, part)
                        yield path, (q, part, a)


def _put(node: Node, path: tuple[int, ...], part: Node) -> Node:
    if not path:
        return part
    kids = list(node)
    kids[path[0]] = _put(node[path[0]], path[1:], part)
    return tuple(kids)
