"""The behaviour policy of CUSTARD (DQN): episodes of base actions that follow a tree, with exploration, compiled.

Some episodes follow the tree as it is: they visit the states that a tree must serve. The others explore, each with its
own share of random actions; their other actions are the tree's in half of them and the critic's best in the others.

`CompiledSteps` steps native environments inside the compiled loop. `PythonSteps` steps any Gymnasium environment by
whole episodes, each with its own seed, so that a run can be resumed. `custard.experts.transitions` has the same two
classes for many environments side by side and a network as the policy: here an episode's policy depends on its kind,
which the compiled loop reads at every step, so that the two loops stay apart.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.core.numba_tools import without_refcounts
from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import uniform
from custard.nn import networks
from custard.nn.networks import Weights, encode_row, forward_row
from custard.nn.replay import Transitions, make_transitions
from custard.task.compiled_rollouts import world_of
from custard.task.problem import Problem
from custard.tree.compiled import leaf_of

__all__ = ["Behaviour", "CompiledSteps", "PythonSteps", "make_behaviour", "tree_actions"]

UNDECIDED, FOLLOWS_TREE, EXPLORES_FROM_TREE, EXPLORES_FROM_CRITIC = range(4)  # kinds of episode
MAX_UNCHANGED_STEPS = 32  # consecutive steps without any change of the state after which an episode is abandoned


class Episode(NamedTuple):
    """The present episode; arrays of one element, since compiled code changes them."""

    kind: np.ndarray  # int64
    elapsed: np.ndarray  # int64: steps so far
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
    room: np.ndarray  # scratch: the critic's layers
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
    kind, elapsed, unchanged = (np.zeros(1, np.int64) for _ in range(3))
    episode = Episode(kind, elapsed, unchanged, np.ones(1), np.full(n, np.nan))
    inputs = np.zeros(critic[0].shape[0] - 1, np.float32)
    return Behaviour(
        tree, critic, np.stack([np.zeros(n), np.ones(n)]), frequencies, inputs, networks.scratch(critic), rng,
        np.ones(1), episode, n_base,
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
        return int(np.argmax(forward_row(behaviour.critic, behaviour.inputs, behaviour.room, True)[1:]))
    return behaviour.tree[4][leaf_of(behaviour.tree, x)]


@njit(cache=True)
def _follows_tree(episode):
    """Return whether the present step follows the tree, in a state other than the one before."""
    return episode.kind[0] == FOLLOWS_TREE and episode.unchanged[0] == 0


@njit(cache=True)
def _count_step(episode, ended, limit):
    """Count a step; return whether the episode is over, and if so prepare for the next one."""
    episode.elapsed[0] += 1
    over = ended or episode.elapsed[0] >= limit or episode.unchanged[0] >= MAX_UNCHANGED_STEPS
    if over:
        episode.kind[0] = UNDECIDED
        episode.elapsed[0] = 0
        episode.unchanged[0] = 0
    return over


@njit(cache=True)
def _collect_compiled(behaviour, place, has_limit, state, env_rng, x, rows, on_tree):
    """Fill all rows with steps of a native environment.

    behaviour: what chooses actions
    place: `world_of` of the environment
    has_limit: whether the environment declares a time limit
    state, env_rng, x: [n_state], [4], [n] of the environment, changed in place
    rows: Transitions to fill
    on_tree: [T] bool to fill: `_follows_tree`
    """
    behaviour, rows, (world, params, limit, _) = without_refcounts((behaviour, rows, place))
    episode = behaviour.episode
    for t in range(len(on_tree)):
        rows.x[t] = x
        action = _choose_action(behaviour, x)
        on_tree[t] = _follows_tree(episode)
        rows.action[t] = action
        rows.reward[t], rows.terminated[t] = advance(world, params, state, action, env_rng)
        rows.truncated[t] = has_limit and episode.elapsed[0] + 1 >= limit
        observe(world, state, x)
        rows.after[t] = x
        if _count_step(episode, rows.terminated[t], limit):
            begin(world, state, env_rng)
            observe(world, state, x)


class CompiledSteps:
    """Steps of a native environment."""

    def __init__(self, problem: Problem, seed: int) -> None:
        venv: Any = problem.source.make_vec(1)
        venv.reset(seed=seed)
        self.place, self.has_limit = world_of(venv), problem.source.time_limit is not None
        self.state, self.rng, self.x = venv.state[0], venv.rng[0], venv.x[0]

    def collect(self, behaviour: Behaviour, steps: int) -> tuple[Transitions, np.ndarray]:
        """Return the next `steps` transitions, and which of them follow the tree [steps] bool."""
        rows, on_tree = make_transitions(steps, len(self.x)), np.empty(steps, dtype=bool)
        _collect_compiled(behaviour, self.place, self.has_limit, self.state, self.rng, self.x, rows, on_tree)
        return rows, on_tree

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that a checkpoint keeps, not copied."""
        return {"env.state": self.state, "env.rng": self.rng, "env.x": self.x}


class PythonSteps:
    """Steps of any Gymnasium environment."""

    def __init__(self, problem: Problem, seed: int, limit: int) -> None:
        self.env, self.base, self.limit = problem.source.make(), problem.base, limit
        self.seed_and_episodes = np.array([seed, 0], dtype=np.int64)

    def collect(self, behaviour: Behaviour, steps: int) -> tuple[Transitions, np.ndarray]:
        """Return transitions of whole episodes, at least `steps`, and which of them follow the tree [T] bool."""
        rows: list[tuple[Any, ...]] = []
        while len(rows) < steps:
            self._play_episode(behaviour, rows)
        *columns, on_tree = map(np.array, zip(*rows, strict=True))
        return Transitions(*columns), on_tree

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that a checkpoint keeps, not copied."""
        return {"env.seed_and_episodes": self.seed_and_episodes}

    def _play_episode(self, behaviour: Behaviour, rows: list[tuple[Any, ...]]) -> None:
        seed = int(np.random.SeedSequence(self.seed_and_episodes.tolist()).generate_state(1)[0])
        self.seed_and_episodes[1] += 1
        start, over = self.base.actions.start, False
        observation, _ = self.env.reset(seed=seed)
        x = self.base.observe(observation)
        while not over:
            action = int(_choose_action(behaviour, x))
            on_tree = bool(_follows_tree(behaviour.episode))
            observation, reward, terminated, truncated, _ = self.env.step(action + start)
            after = self.base.observe(observation)
            rows.append((x, action, reward, after, bool(terminated), bool(truncated), on_tree))
            over = _count_step(behaviour.episode, bool(terminated or truncated), self.limit)
            x = after
