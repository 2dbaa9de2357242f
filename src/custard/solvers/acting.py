"""Compiled rollouts of a network over bounds: walks down the tree it is, and imagined nodes to learn from.

A question does not touch the base environment, and for a base state that was met every question's answer is known. So
beside the environment's own steps there are two kinds of descents here, both free:

* `walk`: follow the network from a node until it acts, greedily or by sampling.
* `imagine`: one traversal to learn from. Each node on it is stored as a row, with the greedy walk behind every question
  that is afforded there: which leaf action it would end in, and after how many questions.

The transition rule is `custard.ibmdp.kernels.ask`, on arrays for one environment.

Where base actions are vectors the IBMDP has one base action, and further outputs of the network say which vector it is.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.actions import Actions
from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import uniform
from custard.ibmdp.kernels import ask
from custard.ibmdp.splits import Rules
from custard.solvers.networks import Weights, encode_row, forward_row, scratch

__all__ = [
    "SQUASH", "Game", "Node", "Rows", "make_game", "make_node", "make_rows", "note", "run_native", "think",
    "vector_action", "vector_rules",
]  # fmt: skip


SQUASH = 4.0  # v lies between 0.018 and 0.982


class Game(NamedTuple):
    """What compiled code needs to know of an IBMDP."""

    flags: tuple  # n_base, depth limit, max_queries, mask_useless, parameterised, zeta, gamma_w
    low: np.ndarray
    high: np.ndarray
    width: np.ndarray
    integer: np.ndarray
    fractions: np.ndarray
    root_bounds: np.ndarray  # [2n] float32
    root_mask: np.ndarray  # [n_actions] bool
    frequencies: int  # of the network's input
    vector: np.ndarray  # [5, k]: `vector_rules` of base actions that are vectors; k = 0 where they are numbers


class Node(NamedTuple):
    """A place in the tree for one base state, in the form `ask` wants: arrays for one environment."""

    x: np.ndarray  # [1, n]: the base state; the network does not see it
    lower: np.ndarray
    upper: np.ndarray
    depth: np.ndarray
    queries: np.ndarray
    obs: np.ndarray  # [1, 2n] float32: the normalised bounds, all that the network sees
    mask: np.ndarray  # [1, n_actions]
    action: np.ndarray
    v: np.ndarray
    busy: np.ndarray
    acting: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    truncated: np.ndarray
    inputs: np.ndarray  # the network's input
    room: np.ndarray  # for the network's layers
    pi: np.ndarray  # [n_actions]: probabilities
    spread: np.ndarray  # [2]: standard deviations of v before it is squashed, and of action vectors before scaling
    greed: np.ndarray  # [1]: how often the environment gets the greedy tree's action instead of a sampled one
    u: np.ndarray  # [k]: the action vector chosen last


class Rows(NamedTuple):
    """What an iteration learns from, [environments, steps, ...]: a row is a node visited, or a base action."""

    obs: np.ndarray  # [2n] float32: the node
    mask: np.ndarray  # [n_actions]
    leaf: np.ndarray  # [n_actions]: the base action that the walk behind each question ends in
    asked: np.ndarray  # [n_actions]: how many questions that takes
    noise: np.ndarray  # [n]: how v was varied, and what it led to (parameterised form; else nothing)
    varied_leaf: np.ndarray  # [n]
    varied_asked: np.ndarray  # [n]
    x: np.ndarray  # [n] float32: the base state, scaled
    learns: np.ndarray  # whether the node is to be learned from
    acts: np.ndarray  # whether a base action was taken; the following fields say more of it
    action: np.ndarray
    reward: np.ndarray
    after: np.ndarray  # [n] float32: the next base state, scaled
    meant: np.ndarray  # the policy's base action there
    meant_asked: np.ndarray  # after so many questions
    terminated: np.ndarray
    over: np.ndarray  # terminated or truncated
    follows: np.ndarray  # whether the action was the policy's own
    vectors: np.ndarray  # [2 + 2n, k] action vectors, scaled: the greedy one here and a varied one, then those behind
    vector_noise: np.ndarray  # [k]        the questions and those behind the varied questions; how it was varied
    u: np.ndarray  # [k]: the action vector taken, scaled
    meant_u: np.ndarray  # [k]: the policy's action vector at the next base state, scaled


def make_game(rules: Rules, frequencies: int) -> Game:
    """The rules of an IBMDP for compiled code."""
    f = rules.features
    low, high = rules.root()
    flags = (
        rules.n_base, rules.depth_limit, int(rules.max_queries or 1000), rules.mask_useless, rules.parameterised,
        float(rules.zeta), float(rules.gamma_w),
    )  # fmt: skip
    root_mask = rules.mask(low, high, 0)
    arrays = (low, high, rules.width, f.integer, rules.fractions, rules.normalised(low, high), root_mask)
    vector = vector_rules(rules.actions)
    return Game(flags, *(np.ascontiguousarray(a) for a in arrays), frequencies, vector)  # type: ignore[call-arg,arg-type]


def vector_rules(actions: Actions) -> np.ndarray:
    """How a network's outputs become action vectors, [5, k]: low, high, middle, half the width, whether whole.

    A component without bounds counts from 0 in ones. Whole numbers have half of one more on either side.
    """
    if actions.discrete:
        return np.zeros((5, 0))
    assert actions.low is not None
    assert actions.high is not None
    low, high, whole = actions.low, actions.high, np.full(actions.size, float(actions.kind == "multi"))
    bounded = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        middle = np.where(bounded, 0.5 * (low + high), np.clip(0.0, low, high))
        half = np.where(bounded & (high > low), 0.5 * (high - low + whole), 1.0)
    return np.stack([low, high, middle, half, whole])


def vector_action(z: Any, low: Any, high: Any, middle: Any, half: Any, whole: Any) -> Any:
    """An action's component in the environment's units, from the network's output."""
    action = np.minimum(np.maximum(middle + half * z, low), high)
    return np.where(whole > 0.0, np.rint(action), action)


def make_node(game: Game, weights: Weights) -> Node:
    """A node to walk with."""
    n, k = len(game.low), len(game.root_mask)
    inputs = np.zeros(2 * n * (1 + 2 * game.frequencies), dtype=np.float32)
    return Node(
        np.zeros((1, n)), np.zeros((1, n)), np.zeros((1, n)), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64),
        np.zeros((1, 2 * n), dtype=np.float32), np.zeros((1, k), dtype=bool), np.zeros(1, dtype=np.int64), np.zeros(1),
        np.zeros(1, dtype=bool), np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1), np.zeros(1, dtype=bool),
        inputs, scratch(weights), np.zeros(k, dtype=np.float32), np.zeros(2), np.zeros(1),
        np.zeros(game.vector.shape[1]),
    )  # fmt: skip


def make_rows(game: Game, envs: int, steps: int) -> Rows:
    """Room for one iteration's rows."""
    n, k = len(game.low), len(game.root_mask)

    def zeros(dtype: Any, *more: int) -> np.ndarray:
        return np.zeros((envs, steps, *more), dtype=dtype)

    f, i, b = np.float32, np.int32, np.bool_
    v, u = n if game.flags[4] else 0, game.vector.shape[1]
    return Rows(
        zeros(f, 2 * n), zeros(b, k), zeros(i, k), zeros(i, k), zeros(f, v), zeros(i, v), zeros(i, v), zeros(f, n),
        zeros(b), zeros(b), zeros(i), zeros(f), zeros(f, n), zeros(i), zeros(i), zeros(b), zeros(b), zeros(b),
        zeros(f, 2 + 2 * n, u), zeros(f, u), zeros(f, u), zeros(f, u),
    )  # fmt: skip


@njit(cache=True, inline="always")
def to_root(game, node):
    """Forget all bounds."""
    n = len(game.low)
    for c in range(n):
        node.lower[0, c] = game.low[c]
        node.upper[0, c] = game.high[c]
    for j in range(2 * n):
        node.obs[0, j] = game.root_bounds[j]
    for a in range(len(game.root_mask)):
        node.mask[0, a] = game.root_mask[a]
    node.depth[0] = 0
    node.queries[0] = 0


@njit(cache=True, inline="always")
def copy_node(source, target):
    """The same place for the same base state."""
    for c in range(source.x.shape[1]):
        target.x[0, c] = source.x[0, c]
        target.lower[0, c] = source.lower[0, c]
        target.upper[0, c] = source.upper[0, c]
    for j in range(source.obs.shape[1]):
        target.obs[0, j] = source.obs[0, j]
    for a in range(source.mask.shape[1]):
        target.mask[0, a] = source.mask[0, a]
    target.depth[0] = source.depth[0]
    target.queries[0] = source.queries[0]


@njit(cache=True, inline="always")
def to_answer(game, node, action):
    """Ask a question, given by its number, of the node's base state."""
    node.action[0] = action
    ask(
        node.action, node.v, node.busy, game.flags, game.low, game.width, game.integer, game.fractions, node.x,
        node.lower, node.upper, node.depth, node.queries, node.obs, node.mask, node.acting, node.reward, node.discount,
        node.truncated,
    )  # fmt: skip


@njit(cache=True)
def squash(z):
    """v in (0, 1) from any number."""
    return 1.0 / (1.0 + np.exp(-min(max(float(z), -SQUASH), SQUASH)))


@njit(cache=True)
def normal(rng):
    """A standard normal number (Box and Muller)."""
    u = 1.0 - uniform(rng, 0.0, 1.0)
    return np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * uniform(rng, 0.0, 1.0))


@njit(cache=True)
def component(game, j, z):
    """`vector_action` for one component."""
    low, high, middle, half, whole = game.vector[:, j]
    action = min(max(middle + half * float(z), low), high)
    return np.rint(action) if whole > 0.0 else action


@njit(cache=True)
def write_scaled(game, u, row):
    """An action vector in a row to learn from: components from -1 to 1."""
    for j in range(len(u)):
        row[j] = (u[j] - game.vector[2, j]) / game.vector[3, j]


@njit(cache=True)
def choose(game, weights, node, rng, sampled):
    """An afforded action: drawn from the softmax of the network's outputs, or the one with the largest.

    In the parameterised form further outputs say where each feature is split; v is left in the node. So is the action
    vector, where base actions are vectors.
    """
    encode_row(node.obs[0], game.frequencies, node.inputs)
    z = forward_row(weights, node.inputs, node.room, False)
    k = node.mask.shape[1]
    best = 0
    for a in range(1, k):
        if node.mask[0, a] and z[a] > z[best]:
            best = a
    chosen = best
    if sampled:
        total = np.float32(0.0)
        for a in range(k):
            node.pi[a] = np.exp(z[a] - z[best]) if node.mask[0, a] else np.float32(0.0)
            total += node.pi[a]
        left = uniform(rng, 0.0, 1.0) * total
        for a in range(k):
            left -= node.pi[a]
            if left < 0.0 and node.mask[0, a]:
                chosen = a
                break
    if game.flags[4] and chosen >= game.flags[0]:
        middle = z[k + chosen - game.flags[0]]
        node.v[0] = squash(middle + node.spread[0] * normal(rng)) if sampled else squash(middle)
    elif chosen < game.flags[0]:
        first = len(z) - len(node.u)
        for j in range(len(node.u)):
            node.u[j] = component(game, j, z[first + j] + (node.spread[1] * normal(rng) if sampled else 0.0))
    return chosen


@njit(cache=True)
def walk(game, weights, node, rng, sampled):
    """Follow the policy from a node until it acts: the base action, and how many questions were asked."""
    asked = 0
    while True:
        a = choose(game, weights, node, rng, sampled)
        if a < game.flags[0]:
            return a, asked
        to_answer(game, node, a)
        asked += 1


@njit(cache=True)
def imagine(game, weights, node, child, rng, epsilon, rows, i, t):
    """A traversal for the node's base state, each node of it a row from t on; returns the next free row.

    With a probability of `epsilon` the next question is any that is afforded.
    """
    n_base, n, steps = game.flags[0], len(game.low), rows.acts.shape[1]
    parameterised = game.flags[4]
    draw = not node.busy[0]  # true: a constant here would have `choose` and `walk` compiled twice
    to_root(game, node)
    while True:
        a = choose(game, weights, node, rng, draw)
        v = node.v[0]
        z = node.room[(len(weights) - 1) % 2]
        for j in range(2 * n):
            rows.obs[i, t, j] = node.obs[0, j]
        for c in range(n):
            rows.x[i, t, c] = (node.x[0, c] - game.low[c]) / game.width[c]
        rows.learns[i, t] = True
        rows.acts[i, t] = False
        splits = 0
        first = weights[len(weights) - 1].shape[1] - len(node.u)
        for j in range(len(node.u)):
            child.u[j] = component(game, j, z[first + j])
        write_scaled(game, child.u, rows.vectors[i, t, 0])
        for j in range(len(node.u)):
            rows.vector_noise[i, t, j] = normal(rng)
            child.u[j] = component(game, j, z[first + j] + node.spread[1] * rows.vector_noise[i, t, j])
        write_scaled(game, child.u, rows.vectors[i, t, 1])
        for b in range(node.mask.shape[1]):
            rows.mask[i, t, b] = node.mask[0, b]
            if b < n_base or not node.mask[0, b]:
                continue
            splits += 1
            copy_node(node, child)
            if parameterised:
                child.v[0] = squash(z[node.mask.shape[1] + b - n_base])
            to_answer(game, child, b)
            rows.leaf[i, t, b], rows.asked[i, t, b] = walk(game, weights, child, rng, not draw)
            write_scaled(game, child.u, rows.vectors[i, t, 2 + (b - n_base) % n])
            if parameterised:
                noise = normal(rng)
                copy_node(node, child)
                child.v[0] = squash(z[node.mask.shape[1] + b - n_base] + node.spread[0] * noise)
                to_answer(game, child, b)
                rows.noise[i, t, b - n_base] = noise
                leaf, asked = walk(game, weights, child, rng, not draw)
                rows.varied_leaf[i, t, b - n_base], rows.varied_asked[i, t, b - n_base] = leaf, asked
                write_scaled(game, child.u, rows.vectors[i, t, 2 + n + b - n_base])
        t += 1
        if splits > 0 and uniform(rng, 0.0, 1.0) < epsilon:  # any question
            skip = int(uniform(rng, 0.0, float(splits)))
            a = n_base
            while not node.mask[0, a] or skip > 0:
                if node.mask[0, a]:
                    skip -= 1
                a += 1
            v = uniform(rng, 0.0, 1.0)
        if a < n_base or t == steps:
            return t
        node.v[0] = v
        to_answer(game, node, a)


@njit(cache=True)
def think(game, weights, node, child, rng, x, plan, planned, explores, epsilon, rows, i, t):
    """Before a base action in environment i: rows to learn from (unless it explores), then the action to take.

    `plan` holds the policy's own action here and how many questions it took, `planned` its vector. Returns the row of
    the base action, and the action; a vector is in `node.u`.
    """
    for c in range(len(x)):
        node.x[0, c] = x[c]
    if plan[0] < 0:
        to_root(game, node)
        plan[0], plan[1] = walk(game, weights, node, rng, uniform(rng, 0.0, 1.0) >= node.greed[0])
        for j in range(len(planned)):
            planned[j] = node.u[j]
    last, action, own = t, plan[0], True
    if explores > 0.0:
        rows.learns[i, t] = False
        for c in range(len(x)):
            rows.x[i, t, c] = (x[c] - game.low[c]) / game.width[c]
        if uniform(rng, 0.0, 1.0) < explores:
            action = int(uniform(rng, 0.0, float(game.flags[0])))
            own = len(planned) == 0
    else:
        last = imagine(game, weights, node, child, rng, epsilon, rows, i, t) - 1
    for j in range(len(planned)):
        node.u[j] = planned[j]
        if not own:  # anything between the bounds; where there are none, about as far from 0 as learning starts
            bounded = game.vector[0, j] > -np.inf and game.vector[1, j] < np.inf
            node.u[j] = component(game, j, uniform(rng, -1.0, 1.0) if bounded else normal(rng))
    write_scaled(game, node.u, rows.u[i, last])
    rows.follows[i, last] = own and action == plan[0]
    rows.acts[i, last] = True
    rows.action[i, last] = action
    return last, action


@njit(cache=True)
def note(game, weights, node, rng, plan, planned, rows, i, t, reward, after, terminated, over):
    """Write what came of a base action into its row; `plan` becomes the policy's own action where it led."""
    for c in range(len(after)):
        node.x[0, c] = after[c]
        rows.after[i, t, c] = (after[c] - game.low[c]) / game.width[c]
    to_root(game, node)
    plan[0], plan[1] = walk(game, weights, node, rng, uniform(rng, 0.0, 1.0) >= node.greed[0])
    for j in range(len(planned)):
        planned[j] = node.u[j]
    write_scaled(game, planned, rows.meant_u[i, t])
    rows.reward[i, t] = reward
    rows.terminated[i, t] = terminated
    rows.over[i, t] = over
    rows.meant[i, t] = plan[0]
    rows.meant_asked[i, t] = plan[1]


@njit(cache=True)
def run_native(
    game, weights, node, child, rng, world, params, limit, state, env_rng, x, elapsed, total, plans, planned, explores,
    epsilon, rows, ended,
):  # fmt: skip
    """Fill all rows from native environments; counts base actions, and ended episodes' returns into `ended` [2]."""
    taken = 0
    for i in range(rows.acts.shape[0]):
        t = np.int64(0)
        while t < rows.acts.shape[1]:
            t, number = think(
                game, weights, node, child, rng[i], x[i], plans[i], planned[i], explores[i], epsilon, rows, i, t
            )
            action = node.u[0] if len(node.u) else float(number)
            reward, terminated = advance(world, params, state[i], action, env_rng[i])
            observe(world, state[i], x[i])
            elapsed[i] += 1
            total[i] += reward
            taken += 1
            over = terminated or elapsed[i] >= limit
            note(game, weights, node, rng[i], plans[i], planned[i], rows, i, t, reward, x[i], terminated, over)
            if over:
                if explores[i] == 0.0:
                    ended[0] += total[i]
                    ended[1] += 1
                begin(world, state[i], env_rng[i])
                observe(world, state[i], x[i])
                elapsed[i], total[i] = 0, 0.0
                plans[i, 0] = -1
            t += 1
    return taken
