"""Roll out trees in compiled worlds, whole episodes in one loop: compiled environments, or a table of transitions.

The results are those of stepping the environments from Python (`custard.task.runners`), many times faster.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numba import njit

from custard.core.numba_tools import without_refcounts
from custard.core.threads import in_parts
from custard.envs.native import NativeVectorEnv, advance, begin, observe
from custard.envs.pcg64 import uniform
from custard.task.policies import LinearPolicy
from custard.task.source import DEFAULT_TIME_LIMIT
from custard.tree.compiled import leaf_of
from custard.tree.tree import Tree

__all__ = [
    "MIN_PARALLEL_EPISODES", "MIN_PARALLEL_STEPS", "TABLE_WORLD_KIND", "World", "copy_row", "observe_features",
    "roll_out", "rollouts_for", "start_episode", "take_action", "tree_arrays", "tree_rollouts", "world_of",
]  # fmt: skip

TABLE_WORLD_KIND = -1  # the kind of world whose transitions are in its parameters (`custard.solvers.tpi`)
MIN_PARALLEL_STEPS, MIN_PARALLEL_EPISODES = 5000, 500  # from which several threads are faster than one


class World(NamedTuple):
    """Where compiled episodes happen."""

    kind: int  # which environment's dynamics, or `TABLE_WORLD_KIND`
    params: np.ndarray
    time_limit: int  # steps per episode
    n_features: int


def world_of(venv: NativeVectorEnv, max_steps: int | None = None) -> World:
    """Return the world of a compiled environment; `max_steps` shortens its episodes."""
    limit = (
        int(min(venv.limit, max_steps or DEFAULT_TIME_LIMIT)) if max_steps or venv.limit > 10**12 else int(venv.limit)
    )
    return World(venv.world, venv.params, limit, venv.state.shape[1])


def tree_arrays(tree: Tree) -> tuple[np.ndarray, ...]:
    """Return a tree's arrays for compiled loops: feature, threshold, left, right, action.

    Discrete actions are numbered from 0; of an action vector its only component is taken.
    """
    start = tree.actions.start if tree.actions.discrete else 0
    action = np.ascontiguousarray(tree.value - start if tree.value.ndim == 1 else tree.value[:, 0])
    return tree.feature, tree.threshold, tree.children_left, tree.children_right, action


def rollouts_for(policy: Tree | LinearPolicy) -> Any:
    """Return the function that rolls out a policy: `tree_rollouts`, or its form for sums and linear leaves."""
    if isinstance(policy, Tree) and not policy.is_linear:
        return tree_rollouts
    from custard.task.linear_rollouts import linear_rollouts

    return linear_rollouts


def tree_rollouts(tree: Tree, world: World, rng: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Run one episode per random stream [N, 4]: returns, lengths, truncated [N], and visits [n_nodes] of each leaf."""
    arrays, run = tree_arrays(tree), cast("Any", roll_out)
    no_actions = np.zeros(1, dtype=arrays[4].dtype)
    parts = in_parts(
        lambda a, b: run(arrays, world, no_actions, rng[a:b], 0.0),
        len(rng),
        parallel=len(rng) >= MIN_PARALLEL_EPISODES,
    )
    returns, lengths, terminated, visits, _ = zip(*parts, strict=True)
    return np.concatenate(returns), np.concatenate(lengths), ~np.concatenate(terminated), sum(visits)


@njit(cache=True, nogil=True)
def roll_out(tree, world, random_actions, rng, noise):
    """Run one episode per random stream.

    tree            what `tree_arrays` returns
    world           a `World`
    random_actions  [A] what random actions are drawn from
    rng             [N, 4] uint64 random streams
    noise           the share of actions that are random

    Returns returns, lengths, terminated [N], visits [n_nodes] of each leaf, and the largest reward of one step.
    """
    n = world[3]
    returns, lengths, terminated = np.zeros(len(rng)), np.zeros(len(rng), np.int64), np.zeros(len(rng), np.bool_)
    visits = np.zeros(len(tree[0]), np.int64)
    scratch = np.zeros(n), np.zeros(n), np.zeros(4, np.uint64)
    max_reward = _roll_out_loop(tree, world, random_actions, rng, noise, returns, lengths, terminated, visits, scratch)
    return returns, lengths, terminated, visits, max_reward


@njit(cache=True, nogil=True)
def _roll_out_loop(tree, world, random_actions, rng, noise, returns, lengths, terminated, visits, scratch):
    """Run the loop of `roll_out`, which keeps the arrays alive: counting references would take half of the time.

    It fills `returns`, `lengths`, `terminated` [N] and `visits` [n_nodes]; `scratch` are buffers.
    """
    (kind, params, limit, _), random_actions, rng, visits = without_refcounts((world, random_actions, rng, visits))
    tree, (state, x, stream) = without_refcounts((tree, scratch))
    max_reward = -np.inf
    for k in range(len(rng)):
        copy_row(rng[k], stream)
        start_episode(kind, params, state, stream)
        total, t, ended = 0.0, 0, False
        while not ended and t < limit:
            observe_features(kind, state, x)
            leaf = leaf_of(tree, x)
            visits[leaf] += 1
            action = tree[4][leaf]
            if noise > 0.0 and uniform(stream, 0.0, 1.0) < noise:
                action = random_actions[int(uniform(stream, 0.0, float(len(random_actions))))]
            reward, ended = take_action(kind, params, state, action, stream)
            total += reward
            max_reward = max(max_reward, reward)
            t += 1
        returns[k], lengths[k], terminated[k] = total, t, ended
    return max_reward


@njit(cache=True)
def copy_row(source, target):
    """Copy by a loop, since numba takes a second longer to compile an assignment of slices."""
    for c in range(len(target)):
        target[c] = source[c]


@njit(cache=True)
def start_episode(kind, params, state, rng):
    """Draw a start state into `state`."""
    if kind == TABLE_WORLD_KIND:
        first = int(params[0, 1])  # the rows of start states: cumulative probability, then features
        draw, row = uniform(rng, 0.0, 1.0), first
        while params[row, 0] < draw and row < len(params) - 1:
            row += 1
        copy_row(params[row, 1:], state)
    else:
        begin(kind, state, rng)


@njit(cache=True, forceinline=True)
def take_action(kind, params, state, action, rng):
    """Change `state` by an action; return the reward and whether the episode terminated."""
    if kind != TABLE_WORLD_KIND:
        return advance(kind, params, state, action, rng)
    # Row 0: number of actions, first start row. Row 1: lows. Row 2: strides. Row 3 + s * A + a: where outcomes begin.
    s = 0
    for c in range(len(state)):
        s += int(state[c] - params[1, c]) * int(params[2, c])
    row = int(params[3 + s * int(params[0, 0]) + int(action), 0])
    draw = uniform(rng, 0.0, 1.0)
    while params[row, 0] < draw:
        row += 1
    copy_row(params[row, 3:], state)
    return params[row, 1], params[row, 2] > 0.5


@njit(cache=True, forceinline=True)
def observe_features(kind, state, x):
    """Write the features of `state` into `x`."""
    if kind == TABLE_WORLD_KIND:
        copy_row(state, x)
    else:
        observe(kind, state, x)
