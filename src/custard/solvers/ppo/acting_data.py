"""What compiled rollouts of a network over bounds work with: the game's rules, nodes, and rows to learn from."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from custard.core.actions import Actions
from custard.ibmdp.splits import Rules
from custard.nn.networks import Weights, scratch

__all__ = [
    "ACTION_SPREAD", "AT", "BEST", "DEEP", "DEPTH", "GREED", "HIGH", "LOW", "NONE", "SPREAD", "SQUASH", "WIDTH", "Game",
    "Known", "Node", "Rows", "V", "make_game", "make_nodes", "make_rows", "vector_action", "vector_rules",
]  # fmt: skip

SQUASH = 4.0  # v lies between 0.018 and 0.982
NONE = -1
ROOM = 20_000  # nodes known at most
LOW, HIGH, WIDTH = range(3)  # rows of `Game.box`
DEPTH, AT = range(2)  # entries of `Node.number`
V, SPREAD, ACTION_SPREAD, GREED = range(4)  # entries of `Node.knob`
BEST, DEEP = range(2)  # columns of `Known.number`


class Game(NamedTuple):
    """What compiled code needs to know of an IBMDP. Few arrays: every one makes calls slower, and compiling."""

    flags: tuple  # n_base, depth limit, mask_useless, parameterised
    box: np.ndarray  # [3, n]: low, high, width
    integer: np.ndarray  # [n]
    fractions: np.ndarray  # [p]
    root_bounds: np.ndarray  # [2n] float32
    root_mask: np.ndarray  # [n_actions] bool
    frequencies: int  # of the network's input
    vector: np.ndarray  # [5, k]: `vector_rules` of base actions that are vectors; k = 0 where they are numbers


class Known(NamedTuple):
    """Nodes met before, the root first; no room in the parameterised form, where hardly any is met twice."""

    size: np.ndarray  # [1]
    bounds: np.ndarray  # [C, 2n]: lower, upper
    obs: np.ndarray  # [C, 2n]
    mask: np.ndarray  # [C, n_actions]
    child: np.ndarray  # [C, questions, 2]: where the answers yes and no lead, or NONE
    z: np.ndarray  # [C, outputs]: what the network says
    number: np.ndarray  # [C, 2]: the afforded action with the largest output (NONE: the network was not asked); depth


class Node(NamedTuple):
    """A place in the tree for one base state."""

    x: np.ndarray  # [n]: the base state; the network does not see it
    bounds: np.ndarray  # [2n]: lower, upper
    obs: np.ndarray  # [2n] float32: the normalised bounds, all that the network sees
    mask: np.ndarray  # [n_actions]
    number: np.ndarray  # [2]: depth, and the node's number among the known ones, or NONE
    knob: np.ndarray  # [4]: the v chosen last; deviations of v before it is squashed and of action vectors before
    #                        they are scaled; how often the environment gets the greedy tree's action, not a sampled one
    u: np.ndarray  # [k]: the action vector chosen last
    inputs: np.ndarray  # the network's input
    room: np.ndarray  # for the network's layers
    pi: np.ndarray  # [n_actions]: probabilities
    known: Known


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
    low, high = rules.root()
    return Game(
        (rules.n_base, rules.depth_limit, rules.mask_useless, rules.parameterised), np.stack([low, high, rules.width]),
        np.array(rules.features.integer), rules.fractions.copy(), rules.normalised(low, high), rules.mask(low, high, 0),
        frequencies, vector_rules(rules.actions),
    )  # fmt: skip


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


def make_nodes(game: Game, weights: Weights, count: int = 2) -> list[Node]:
    """Nodes to walk with, which know the same."""
    n, k, outputs = game.box.shape[1], len(game.root_mask), weights[-1].shape[1]
    room = 0 if game.flags[3] else min(ROOM, 5_000_000 // k)
    known = Known(
        np.zeros(1, dtype=np.int64), np.zeros((room, 2 * n)), np.zeros((room, 2 * n), dtype=np.float32),
        np.zeros((room, k), dtype=bool), np.full((room, k - game.flags[0], 2), NONE, dtype=np.int32),
        np.zeros((room, outputs), dtype=np.float32), np.full((room, 2), NONE, dtype=np.int32),
    )  # fmt: skip

    def node() -> Node:
        return Node(
            np.zeros(n), np.zeros(2 * n), np.zeros(2 * n, dtype=np.float32), np.zeros(k, dtype=bool),
            np.array([0, NONE]), np.zeros(4), np.zeros(game.vector.shape[1]),
            np.zeros(2 * n * (1 + 2 * game.frequencies), dtype=np.float32), scratch(weights),
            np.zeros(k, dtype=np.float32), known,
        )  # fmt: skip

    return [node() for _ in range(count)]


def make_rows(game: Game, envs: int, steps: int) -> Rows:
    """Room for one iteration's rows."""
    n, k = game.box.shape[1], len(game.root_mask)

    def zeros(dtype: Any, *more: int) -> np.ndarray:
        return np.zeros((envs, steps, *more), dtype=dtype)

    f, i, b = np.float32, np.int32, np.bool_
    v, u = n if game.flags[3] else 0, game.vector.shape[1]
    return Rows(
        zeros(f, 2 * n), zeros(b, k), zeros(i, k), zeros(i, k), zeros(f, v), zeros(i, v), zeros(i, v), zeros(f, n),
        zeros(b), zeros(b), zeros(i), zeros(f), zeros(f, n), zeros(i), zeros(i), zeros(b), zeros(b), zeros(b),
        zeros(f, 2 + 2 * n, u), zeros(f, u), zeros(f, u), zeros(f, u),
    )  # fmt: skip
