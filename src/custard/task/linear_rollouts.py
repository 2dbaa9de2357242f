"""Roll out linear policies, and trees with sums or linear leaves, in compiled environments, as `compiled_rollouts` does
plain trees."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numba import njit

from custard.core.numba_tools import without_refcounts
from custard.core.threads import in_parts
from custard.task.compiled_rollouts import (
    MIN_PARALLEL_EPISODES,
    World,
    copy_row,
    observe_features,
    start_episode,
    take_action,
    tree_arrays,
)
from custard.task.policies import LinearPolicy
from custard.tree.compiled import compiled_sums, leaf_of, sum_value
from custard.tree.linear import require_linear
from custard.tree.tree import LEAF, Tree

__all__ = ["LinearArrays", "linear_arrays", "linear_rollouts", "states_met"]


class LinearArrays(NamedTuple):
    """What a policy computes beyond a tree's five arrays, for compiled loops."""

    constant: np.ndarray  # [m] of each sum
    first: np.ndarray  # [m + 1] where each sum's terms begin
    of_feature: np.ndarray  # [terms] the feature of each term
    weight: np.ndarray  # [terms] its weight
    gains: np.ndarray  # [n_nodes, n_raw] of the only action component, or [0, n_raw]
    low: float
    high: float
    is_argmax: bool  # whether the action is the number of the largest sum


def linear_arrays(policy: Tree | LinearPolicy) -> tuple[tuple[np.ndarray, ...], LinearArrays]:
    """Return the arrays of a policy for compiled loops: those of a tree (`tree_arrays`), and its sums and gains."""
    return _tree_arrays(policy) if isinstance(policy, Tree) else _policy_arrays(policy)


def _policy_arrays(policy: LinearPolicy) -> tuple[tuple[np.ndarray, ...], LinearArrays]:
    """Return a linear policy's arrays: a tree of one leaf with gains, or with a sum per action, the largest of which
    decides."""
    (k, n), weights = policy.weights.shape, policy.weights.astype(np.float64)
    node, no_child = np.full(1, LEAF, dtype=np.int64), np.full(1, -1, dtype=np.int64)
    if not policy.actions.discrete:
        assert policy.actions.low is not None
        assert policy.actions.high is not None
        low, high = float(policy.actions.low[0]), float(policy.actions.high[0])
        none = np.zeros(0), np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        tree = node, np.zeros(1), no_child, no_child, policy.bias[:1].astype(np.float64)
        return tree, LinearArrays(*none, weights[:1].copy(), low, high, False)
    tree = node, np.zeros(1), no_child, no_child, np.zeros(1, dtype=np.int64)
    sums = policy.bias.astype(np.float64), n * np.arange(k + 1), np.tile(np.arange(n), k), weights.ravel()
    return tree, LinearArrays(*sums, np.zeros((0, n)), 0.0, 0.0, True)


def _tree_arrays(tree: Tree) -> tuple[tuple[np.ndarray, ...], LinearArrays]:
    tree = tree.keep_used_sums()
    require_linear(tree, "compiled rollouts need sums of features")
    gains, low, high = np.zeros((0, tree.features.n_raw)), 0.0, 0.0
    if tree.gains is not None:
        assert tree.actions.low is not None
        assert tree.actions.high is not None
        gains, low, high = tree.gains[:, 0].copy(), float(tree.actions.low[0]), float(tree.actions.high[0])
    return tree_arrays(tree), LinearArrays(*compiled_sums(tree.features), gains, low, high, False)


def linear_rollouts(
    policy: Tree | LinearPolicy, world: World, rng: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Run one episode per random stream [N, 4]: returns, lengths, truncated [N], and visits [n_nodes] of each leaf."""
    arrays, nothing = linear_arrays(policy), np.zeros((0, world.n_features))
    parts = in_parts(
        lambda a, b: _roll_out_all(arrays, world, rng[a:b], nothing),
        len(rng),
        parallel=len(rng) >= MIN_PARALLEL_EPISODES,
    )
    returns, lengths, terminated, visits = zip(*parts, strict=True)
    return np.concatenate(returns), np.concatenate(lengths), ~np.concatenate(terminated), np.sum(visits, axis=0)


def states_met(policy: Tree | LinearPolicy, world: World, rng: np.ndarray, steps: int) -> np.ndarray:
    """Return the states [steps, n] met in one episode per random stream [N, 4]; `steps` are those of all episodes."""
    states = np.zeros((steps, world.n_features))
    _roll_out_all(linear_arrays(policy), world, rng, states)
    return states


def _roll_out_all(
    arrays: tuple[tuple[np.ndarray, ...], LinearArrays], world: World, rng: np.ndarray, states: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Run one episode per random stream: returns, lengths, terminated and visits; write what fits into `states`."""
    (tree, linear), n = arrays, world.n_features
    visits = np.zeros(len(tree[0]), np.int64)
    results = np.zeros(len(rng)), np.zeros(len(rng), np.int64), np.zeros(len(rng), np.bool_), visits
    scratch = np.zeros(n), np.zeros(n), np.zeros(n + len(linear.constant)), np.zeros(4, np.uint64)
    cast("Any", _roll_out_linear)(tree, linear, world, rng, results, states, scratch)
    return results


@njit(cache=True, nogil=True)
def _roll_out_linear(tree, linear, world, rng, results, states, scratch):
    """Run one episode per random stream [N, 4]; write `results` (returns, lengths, terminated [N] and visits [n_nodes])
    and as many states as fit into `states`. `tree` and `linear` are what `linear_arrays` returns."""
    (kind, params, limit, _), rng, results = without_refcounts((world, rng, results))
    tree, linear, scratch = without_refcounts((tree, linear, scratch))
    returns, lengths, terminated, visits = results
    state, x, full, stream = scratch
    met = 0
    for k in range(len(rng)):
        copy_row(rng[k], stream)
        start_episode(kind, params, state, stream)
        total, t, ended = 0.0, 0, False
        while not ended and t < limit:
            observe_features(kind, state, x)
            if met < len(states):
                copy_row(x, states[met])
                met += 1
            extend_state(linear, x, full)
            leaf = leaf_of(tree, full)
            visits[leaf] += 1
            action = action_at(tree, linear, leaf, x, full)
            reward, ended = take_action(kind, params, state, action, stream)
            total += reward
            t += 1
        returns[k], lengths[k], terminated[k] = total, t, ended


@njit(cache=True, nogil=True)
def extend_state(linear, x, full):
    """Write the features x [n_raw] and their sums into full [n]."""
    constant, first, index, weight, _, _, _, _ = linear
    for c in range(len(x)):
        full[c] = x[c]
    for k in range(len(constant)):
        full[len(x) + k] = sum_value(x, constant[k], first[k], first[k + 1], index, weight)


@njit(cache=True, nogil=True)
def action_at(tree, linear, leaf, x, full):
    """Return the action at a leaf: a whole number, or an action vector's only component.

    `tree` and `linear` are what `linear_arrays` returns; x [n_raw] are the features, `full` [n] those and their sums.
    """
    _, _, _, _, gains, low, high, is_argmax = linear
    action = tree[4][leaf]
    if is_argmax:
        return tree[4].dtype.type(full[len(x) :].argmax())
    if len(gains) > 0:
        value, is_constant = action * 1.0, True
        for c in range(len(x)):
            if gains[leaf, c] != 0.0:
                value, is_constant = value + gains[leaf, c] * x[c], False
        if not is_constant:
            value = low if value < low else high if value > high else value
            action = tree[4].dtype.type(value)
    return action
