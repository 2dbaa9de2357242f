"""The behaviour policy of CUSTARD (DQN): episodes of base actions that follow a tree, with exploration, compiled.

Some episodes follow the tree as it is: they visit the states that a tree must serve. The others explore, each with its
own share of random actions; their other actions are the tree's in half of them and the critic's best in the others.

`custard.experts.transitions` collects from many environments side by side, with a network as the policy: here an
episode's policy depends on its kind, which the compiled loop reads at every step, so that the two loops stay apart.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.core.numba_tools import without_refcounts
from custard.envs.pcg64 import uniform
from custard.nn import networks
from custard.nn.networks import Weights, encode_row, forward_row
from custard.nn.replay import Transitions, make_transitions
from custard.task.compiled_episodes import CompiledEpisodes, start_episode, step_episode
from custard.task.runners import PythonEpisodes
from custard.tree.compiled import leaf_of

__all__ = ["Behaviour", "collect", "make_behaviour", "tree_actions"]

UNDECIDED, FOLLOWS_TREE, EXPLORES_FROM_TREE, EXPLORES_FROM_CRITIC = range(4)  # kinds of episode
MAX_UNCHANGED_STEPS = 32  # consecutive steps without any change of the state after which an episode is abandoned


class Episode(NamedTuple):
    """The present episode; arrays of one element, since compiled code changes them."""

    kind: np.ndarray  # int64
    unchanged: np.ndarray  # int64: consecutive steps in which the state stayed the same
    random_share: np.ndarray  # float64: probability of a random action, if the episode explores
    previous: np.ndarray  # [n] float64: the state before


class Behaviour(NamedTuple):
    """What chooses base actions."""

    tree: Any  # the five arrays of `tree_arrays`
    critic: Weights  # a dueling network over encoded, scaled base states
    scaling: np.ndarray  # [2, n]: what is subtracted from base states, and what they are divided by
    frequencies: int  # of the critic's encoding
    inputs: np.ndarray  # scratch: the critic's input
    layer_outputs: np.ndarray  # scratch: those of the critic
    rng: np.ndarray  # [4] a random stream
    exploring_share: np.ndarray  # [1] probability that an episode explores
    episode: Episode
    n_base: int  # number of base actions


def make_behaviour(tree: Any, critic: Weights, frequencies: int, rng: np.ndarray, n: int, n_base: int) -> Behaviour:
    """Make a behaviour policy that explores in every episode.

    tree: the arrays of `tree_arrays`
    critic: weights over n encoded features with n_base advantages
    frequencies: of the critic's encoding
    rng: [4] a random stream
    """
    episode = Episode(np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1), np.full(n, np.nan))
    inputs = np.zeros(critic[0].shape[0] - 1, np.float32)
    return Behaviour(
        tree, critic, np.stack([np.zeros(n), np.ones(n)]), frequencies, inputs, networks.make_layer_outputs(critic),
        rng, np.ones(1), episode, n_base,
    )  # fmt: skip


@njit(cache=True)
def tree_actions(tree, x):
    """Return the tree's action numbers for base states [B, n]."""
    actions = np.empty(len(x), dtype=np.int32)
    for i in range(len(x)):
        actions[i] = tree[4][leaf_of(tree, x[i])]
    return actions


@njit(cache=True)
def _choose_action(behaviour, x):
    """Return the base action to take in base state x [n]; the first call of an episode draws the episode's kind."""
    rng, episode = behaviour.rng, behaviour.episode
    if episode.kind[0] == UNDECIDED:
        exploring = EXPLORES_FROM_TREE if uniform(rng, 0.0, 1.0) < 0.5 else EXPLORES_FROM_CRITIC
        explores = uniform(rng, 0.0, 1.0) < behaviour.exploring_share[0]
        episode.kind[0] = exploring if explores else FOLLOWS_TREE
        episode.random_share[0] = uniform(rng, 0.0, 1.0) ** 2  # anything from none to all, rather few
    unchanged = True
    for c in range(len(x)):
        unchanged = unchanged and episode.previous[c] == x[c]
        episode.previous[c] = x[c]
    episode.unchanged[0] = episode.unchanged[0] + 1 if unchanged else 0
    if episode.kind[0] != FOLLOWS_TREE and uniform(rng, 0.0, 1.0) < episode.random_share[0]:
        return int(uniform(rng, 0.0, 1.0) * behaviour.n_base)
    if episode.kind[0] == EXPLORES_FROM_CRITIC:
        z = (x - behaviour.scaling[0]) / behaviour.scaling[1]
        encode_row(z, behaviour.frequencies, behaviour.inputs)
        return int(np.argmax(forward_row(behaviour.critic, behaviour.inputs, behaviour.layer_outputs, True)[1:]))
    return behaviour.tree[4][leaf_of(behaviour.tree, x)]


@njit(cache=True)
def _follows_tree(episode):
    """Return whether the present step follows the tree, in a state other than the one before."""
    return episode.kind[0] == FOLLOWS_TREE and episode.unchanged[0] == 0


@njit(cache=True)
def _is_over(episode, done):
    """Return whether an episode is over, done or abandoned; if so, the next one is undecided."""
    over = done or episode.unchanged[0] >= MAX_UNCHANGED_STEPS
    if over:
        episode.kind[0] = UNDECIDED
        episode.unchanged[0] = 0
    return over


@njit(cache=True)
def _collect_compiled(behaviour, episodes, rows, on_tree):
    """Fill `rows` (Transitions) with steps of a compiled environment, `on_tree` [T] with `_follows_tree`."""
    behaviour, episodes, rows = without_refcounts((behaviour, episodes, rows))
    x = episodes.x[0]
    for t in range(len(on_tree)):
        rows.x[t] = x
        rows.action[t] = action = _choose_action(behaviour, x)
        on_tree[t] = _follows_tree(behaviour.episode)
        rows.reward[t], rows.ended[t], done = step_episode(episodes, 0, action)
        rows.after[t] = x
        if _is_over(behaviour.episode, done):
            start_episode(episodes, 0)


def collect(
    episodes: CompiledEpisodes | PythonEpisodes, behaviour: Behaviour, steps: int
) -> tuple[Transitions, np.ndarray]:
    """Return the next `steps` transitions, and which of them follow the tree [steps] bool.

    Where Python steps, they are those of whole episodes, so that a run can be resumed: at least `steps`.
    """
    if not isinstance(episodes, PythonEpisodes):
        columns, on_tree = make_transitions(steps, episodes.x.shape[1]), np.empty(steps, dtype=bool)
        _collect_compiled(behaviour, episodes, columns, on_tree)
        return columns, on_tree
    rows: list[tuple[Any, ...]] = []
    start = episodes.base.actions.start
    while len(rows) < steps:
        x, over = episodes.reset(), False
        while not over:
            action = int(_choose_action(behaviour, x))
            follows_tree = bool(_follows_tree(behaviour.episode))
            after, reward, terminated, truncated = episodes.step(action + start)
            rows.append((x, action, reward, after, terminated, follows_tree))
            over, x = _is_over(behaviour.episode, terminated or truncated), after
    *stacked, on_tree = map(np.array, zip(*rows, strict=True))
    return Transitions(*stacked), on_tree
