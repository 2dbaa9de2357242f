"""Trees rolled out in compiled worlds, whole episodes in one loop: native environments, or a table of transitions.

The numbers are those that stepping the environments gives (`custard.task.evaluate.rollouts`), had many times faster.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numba import njit

from custard.core.numba_tools import borrowed
from custard.core.threads import in_parts
from custard.envs.native import NativeVectorEnv, advance, begin, observe
from custard.envs.pcg64 import uniform
from custard.task.source import DEFAULT_LIMIT
from custard.tree.compiled import leaf_of
from custard.tree.tree import Tree

__all__ = ["TABLE", "Place", "arrays_of", "copy", "move", "native_place", "roll_out", "see", "start", "tree_rollouts"]

TABLE = -1  # the world whose transitions are in its parameters (`custard.solvers.tpi.table_model`)
MANY, SOME = 5000, 500  # steps, or episodes, from which several threads pay

Place = tuple[int, np.ndarray, int, int]  # number of the world, its parameters, time limit, features


def native_place(venv: NativeVectorEnv, max_steps: int | None = None) -> Place:
    """Where the episodes of a native environment happen."""
    limit = int(min(venv.limit, max_steps or DEFAULT_LIMIT)) if max_steps or venv.limit > 10**12 else int(venv.limit)
    return venv.world, venv.params, limit, venv.state.shape[1]


def arrays_of(tree: Tree) -> tuple[np.ndarray, ...]:
    """A tree as compiled loops take it: actions are numbers from zero on, or the one component of a vector."""
    start = tree.actions.start if tree.actions.discrete else 0
    value = np.ascontiguousarray(tree.value - start if tree.value.ndim == 1 else tree.value[:, 0])
    return tree.feature, tree.threshold, tree.children_left, tree.children_right, value


def tree_rollouts(tree: Tree, place: Place, rng: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns, lengths, whether the time limit cut it, for each stream; and how often each node was a state's leaf."""
    arrays, run = arrays_of(tree), cast("Any", roll_out)
    nothing = np.zeros(1, dtype=arrays[4].dtype)
    parts = in_parts(lambda a, b: run(arrays, place, nothing, rng[a:b], 0.0), len(rng), parallel=len(rng) >= SOME)
    returns, lengths, over, visits, _ = zip(*parts, strict=True)
    return np.concatenate(returns), np.concatenate(lengths), ~np.concatenate(over), sum(visits)


@njit(cache=True, nogil=True)
def roll_out(tree, place, moves, rng, noise):
    """One episode for each stream [N, 4]: returns, lengths, whether it ended by itself; visits of leaves, most reward.

    With `noise` that share of the actions is drawn from `moves`.
    """
    n = place[3]
    returns, lengths, over = np.zeros(len(rng)), np.zeros(len(rng), np.int64), np.zeros(len(rng), np.bool_)
    visits = np.zeros(len(tree[0]), np.int64)
    scratch = np.zeros(n), np.zeros(n), np.zeros(4, np.uint64)
    most = _roll_out(tree, place, moves, rng, noise, returns, lengths, over, visits, scratch)
    return returns, lengths, over, visits, most


@njit(cache=True, nogil=True)
def _roll_out(tree, place, moves, rng, noise, returns, lengths, over, visits, scratch):
    """The loop of `roll_out`, which keeps the arrays alive: counting references would take half of the time."""
    (world, params, limit, _), moves, rng, visits = borrowed((place, moves, rng, visits))
    tree, (state, x, row) = borrowed((tree, scratch))
    most = -np.inf
    for k in range(len(rng)):
        copy(rng[k], row)
        start(world, params, state, row)
        total, t, ended = 0.0, 0, False
        while not ended and t < limit:
            see(world, state, x)
            leaf = leaf_of(tree, x)
            visits[leaf] += 1
            action = tree[4][leaf]
            if noise > 0.0 and uniform(row, 0.0, 1.0) < noise:
                action = moves[int(uniform(row, 0.0, float(len(moves))))]
            reward, ended = move(world, params, state, action, row)
            total += reward
            most = max(most, reward)
            t += 1
        returns[k], lengths[k], over[k] = total, t, ended
    return most


@njit(cache=True)
def copy(source, target):
    """A loop, since an assignment of slices takes numba a second longer to compile."""
    for c in range(len(target)):
        target[c] = source[c]


@njit(cache=True)
def start(world, params, state, rng):
    """Draw a start state into a row."""
    if world == TABLE:
        first = int(params[0, 1])  # the rows of start states: cumulative probability, then features
        pick, row = uniform(rng, 0.0, 1.0), first
        while params[row, 0] < pick and row < len(params) - 1:
            row += 1
        copy(params[row, 1:], state)
    else:
        begin(world, state, rng)


@njit(cache=True, forceinline=True)
def move(world, params, state, action, rng):
    """Take an action in place: reward, whether the episode ends."""
    if world != TABLE:
        return advance(world, params, state, action, rng)
    # Row 0: number of actions, first start row. Row 1: lows. Row 2: strides. Row 3 + s * A + a: where outcomes begin.
    s = 0
    for c in range(len(state)):
        s += int(state[c] - params[1, c]) * int(params[2, c])
    row = int(params[3 + s * int(params[0, 0]) + int(action), 0])
    pick = uniform(rng, 0.0, 1.0)
    while params[row, 0] < pick:
        row += 1
    copy(params[row, 3:], state)
    return params[row, 1], params[row, 2] > 0.5


@njit(cache=True, forceinline=True)
def see(world, state, x):
    """The features of a state."""
    if world == TABLE:
        copy(state, x)
    else:
        observe(world, state, x)
