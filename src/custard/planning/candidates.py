"""Good trees, quickly: fits to Q-values, and climbing on the exact return. They give the search its incumbents.

Trees are shapes (`custard.tree.shape`) over the splits of the reduced problem; leaves are action numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from custard.core.errors import CustardError
from custard.planning.evaluate import visits
from custard.planning.reduced import ReducedMDP, action_values
from custard.tree.shape import Shape, Split, count_leaves, paths, replace_part, subshape

__all__ = ["climb", "fit", "perturbed", "refits"]

MAX_EXHAUSTIVE_DEPTH = 3  # fits try every tree up to here, and beyond it only the most promising first splits
BEAM_WIDTH = 3  # first splits tried beyond that depth
MAX_ACTIONS_PER_MOVE = 6  # with more actions than this, climbing tries two random ones per new leaf


def fit(
    problem: ReducedMDP, gain: np.ndarray, where: np.ndarray, depth: int, price: float = 0.0, deadline: float = np.inf
) -> tuple[float, Shape]:
    """Return what the tree of at most `depth` that collects most collects, and that tree.

    problem   the reduced MDP
    gain      [S, A], what each action collects in each state
    where     numbers of the states that count
    depth     the largest number of splits on a path
    price     what a split must gain to be worth it
    deadline  on `time.monotonic`'s clock; past it the best tree so far is returned
    """
    total = gain[where].sum(axis=0)
    best: tuple[float, Shape] = (float(total.max()), int(total.argmax()))
    goes_left = problem.goes_left[:, where]
    useful = np.flatnonzero(goes_left.any(axis=1) & ~goes_left.all(axis=1)) if len(where) else np.arange(0)
    if depth == 0 or len(useful) == 0:
        return best
    least_gain = 1e-12 * max(1.0, abs(best[0])) + price
    left = goes_left[useful] @ gain[where]
    stump = left.max(axis=1) + (total - left).max(axis=1)
    if depth == 1:
        q = int(stump.argmax())
        if stump[q] > best[0] + least_gain:
            feature, threshold = problem.splits[useful[q]]
            return float(stump[q]), Split(feature, threshold, int(left[q].argmax()), int((total - left[q]).argmax()))
        return best
    if depth > MAX_EXHAUSTIVE_DEPTH:
        ahead = [
            sum(fit(problem, gain, where[side], 2, deadline=deadline)[0] for side in (y, ~y)) for y in goes_left[useful]
        ]
        useful = useful[np.argsort(-np.array(ahead), kind="stable")[:BEAM_WIDTH]]
    for q in useful.tolist():
        if time.monotonic() > deadline:
            break
        y = problem.goes_left[q, where]
        left_total, left_shape = fit(problem, gain, where[y], depth - 1, price, deadline)
        right_total, right_shape = fit(problem, gain, where[~y], depth - 1, price, deadline)
        if left_total + right_total > best[0] + least_gain:
            best = (left_total + right_total, Split(*problem.splits[q], left_shape, right_shape))
    return best


def refits(problem: ReducedMDP, depth: int, rounds: int, rng: np.random.Generator, deadline: float) -> Iterator[Shape]:
    """Yield trees by policy iteration: fit to Q* first, then to each tree's own Q where it goes itself."""
    q = _finite(action_values(problem, problem.top, problem.any_action))
    weight = _state_visits(problem, q.argmax(axis=1))
    spread = weight.sum() / problem.n
    for round_ in range(rounds):
        lead = q - q.max(axis=1, keepdims=True)
        mixed = weight + spread * (0.01 if round_ % 3 else 0.3) * (1.0 if round_ < 3 else rng.random(problem.n))
        _, shape = fit(problem, lead * mixed[:, None], np.arange(problem.n), depth, deadline=deadline)
        yield shape
        choice, _ = problem.decide(shape)
        values = problem.top.copy()
        problem.bound(problem.only(choice), np.zeros(problem.n), values, -np.inf)
        if round_ % 4 == 3:
            q = _finite(action_values(problem, problem.top, problem.any_action))
            weight = _state_visits(problem, q.argmax(axis=1)) * rng.exponential(size=problem.n)
        else:
            q = _finite(action_values(problem, values, problem.any_action))
            weight = 0.5 * weight + 0.5 * _state_visits(problem, choice)


def _finite(q: np.ndarray) -> np.ndarray:
    """Return Q-values with what is not finite replaced by a number well below all others."""
    low = q[np.isfinite(q)].min(initial=0.0)
    return np.where(np.isfinite(q), q, low - 10.0 * max(1.0, abs(low)))


def _state_visits(problem: ReducedMDP, choice: np.ndarray) -> np.ndarray:
    """Return the expected visits of each state under one action per state, [S]; all one if it never terminates."""
    full = np.zeros(problem.mdp.n_states, dtype=np.int64)
    full[problem.states] = choice
    try:
        occupancy, _ = visits(full, problem.mdp)
    except CustardError:
        return np.ones(problem.n)
    return occupancy[problem.states]


def climb(
    problem: ReducedMDP, shape: Shape, depth: int, price: float, rng: np.random.Generator, deadline: float
) -> tuple[Shape, float]:
    """Change one thing at a time while the exact objective (return, then fewer leaves) gets better.

    problem   the reduced MDP
    shape     the tree to start from
    depth     the largest number of splits on a path
    price     what one split on the path costs per visit
    rng       orders the changes
    deadline  on `time.monotonic`'s clock
    """

    def score(candidate: Shape, cutoff: float) -> float:
        choice, level = problem.decide(candidate)
        bound = problem.bound(problem.only(choice), price * level, problem.top.copy(), cutoff)
        return problem.value(choice, price * level) if bound == np.inf else bound

    best, leaves = score(shape, -np.inf), count_leaves(shape)
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        moves = list(_moves(problem, shape, depth, rng))
        rng.shuffle(moves)  # type: ignore[arg-type]
        for path, part in moves:
            if time.monotonic() > deadline:
                break
            candidate = replace_part(shape, path, part)
            count = count_leaves(candidate)
            value = score(candidate, best - problem.tolerance)
            if value > best + problem.tolerance or (value >= best - problem.tolerance and count < leaves):
                shape, best, leaves, improved = candidate, value, count, True
                break
    return shape, best


def perturbed(problem: ReducedMDP, shape: Shape, depth: int, rng: np.random.Generator) -> Shape:
    """Return the tree after one to three random changes."""
    for _ in range(int(rng.integers(1, 4))):
        moves = list(_moves(problem, shape, depth, rng))
        path, part = moves[int(rng.integers(len(moves)))]
        shape = replace_part(shape, path, part)
    return shape


def _moves(
    problem: ReducedMDP, shape: Shape, depth: int, rng: np.random.Generator
) -> Iterator[tuple[tuple[int, ...], Shape]]:
    """Yield every single change, as a path and the part to put there: another split or action, a leaf more or fewer."""
    n_actions = problem.n_actions
    for path in paths(shape):
        part = subshape(shape, path)
        if isinstance(part, Split):
            for split in problem.splits:
                if split != part[:2]:
                    yield path, Split(*split, part.left, part.right)
            yield path, Split(part.feature, part.threshold, part.right, part.left)
            yield path, part.left
            yield path, part.right
        else:
            others = [a for a in range(n_actions) if a != part]
            for a in others:
                yield path, a
            if len(path) < depth:
                for split in problem.splits:
                    for a in others if n_actions <= MAX_ACTIONS_PER_MOVE else rng.choice(others, 2).tolist():
                        yield path, Split(*split, a, part)
                        yield path, Split(*split, part, a)
