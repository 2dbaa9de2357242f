"""Simulators: they roll trees out in base environments; compiled ones also value every action in the states met.

`CompiledSimulator` does both in compiled loops, over the native environments or over a learned table of transitions
(`custard.solvers.tpi.table_model`). `PythonSimulator` steps the environment that such a table is learned from.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numba import njit

from custard.core.numba_tools import without_refcounts
from custard.core.threads import in_parts
from custard.envs.native import NativeVectorEnv
from custard.envs.pcg64 import seeded, streams, uniform
from custard.task.compiled_rollouts import (
    MIN_PARALLEL_STEPS,
    World,
    copy_row,
    observe_features,
    roll_out,
    start_episode,
    take_action,
    tree_arrays,
    world_of,
)
from custard.task.problem import Problem
from custard.task.runners import PythonEpisodes
from custard.task.source import DEFAULT_TIME_LIMIT
from custard.tree.compiled import leaf_of
from custard.tree.leaf_actions import LeafActions
from custard.tree.tree import Tree

__all__ = ["CompiledSimulator", "PythonSimulator", "Simulator", "make_simulator", "sample_action_values"]

MIN_EPISODE_CAP = 100  # steps after which episodes without a declared time limit are cut, at the least
ASSUMED_EPISODE_LENGTH = 50.0  # steps, before any episode was run
NO_TRUNCATION, VARYING_TRUNCATION = 0, -1  # values of `PythonSimulator.truncation_step`


class Simulator(Protocol):
    """Runs episodes of trees and counts their steps."""

    steps: int  # environment steps used so far
    max_step_reward: float  # largest reward of a single step so far
    max_episode_steps: int
    mean_episode_length: float  # steps per episode in the last call of `returns`
    is_compiled: bool
    is_table: bool  # whether episodes run in a table learned from the environment
    is_exact: bool  # whether returns are expected ones, the same for every seed
    is_fast: bool  # whether a tree is run in little time
    saved: tuple[str, ...]  # attributes that a checkpoint keeps

    @property
    def max_return(self) -> float:
        """The return of an episode of full length that earns the largest reward seen so far at every step."""

    @property
    def observed_time_limit(self) -> int | None:
        """The step at which the environment truncates episodes, if it was always the same so far."""

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        """Return the return of one episode per seed; with `noise` that share of the actions is random."""

    def visited_states(self, tree: Tree) -> np.ndarray | None:
        """Return the states [N, n] of the tree's episodes, if it was the last one run and they were kept."""

    def shorten_episodes(self, max_steps: int) -> None:
        """Take episodes to be `max_steps` long; where they are stepped from Python they are cut there."""


def make_simulator(problem: Problem, budget: int | None = None) -> Simulator:
    """Return the fastest simulator for a problem; `budget` is the number of steps that the whole search may take."""
    if not problem.is_compiled:
        return PythonSimulator(problem, budget)
    venv = problem.source.make_vec(1)
    assert isinstance(venv, NativeVectorEnv)
    return CompiledSimulator(problem, world_of(venv, DEFAULT_TIME_LIMIT))


class CompiledSimulator:
    """Whole episodes in compiled loops."""

    is_compiled = is_fast = True
    is_exact = is_table = False
    observed_time_limit: int | None = None
    saved: tuple[str, ...] = ("steps", "max_step_reward", "mean_episode_length", "max_episode_steps")

    def __init__(self, problem: Problem, world: World) -> None:
        self.world, self.max_episode_steps = world, world.time_limit
        actions = problem.base.actions
        self.first_action = actions.start if actions.discrete else 0
        leaf_actions = LeafActions(actions)
        leaf = Tree.leaf(leaf_actions.random(np.random.default_rng(0)), problem.base.features, actions)
        self.random_actions = self._as_compiled(leaf_actions.tried(np.random.default_rng(0), leaf))
        self.steps, self.max_step_reward, self.mean_episode_length = 0, -np.inf, ASSUMED_EPISODE_LENGTH

    @property
    def max_return(self) -> float:
        """See `Simulator`."""
        return self.max_step_reward * self.max_episode_steps

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        """See `Simulator`."""
        arrays, rng = tree_arrays(tree), seeded(seeds.astype(np.uint64))
        parts = in_parts(
            lambda a, b: roll_out(arrays, self.world, self.random_actions, rng[a:b], noise),
            len(seeds),
            parallel=len(seeds) * self.mean_episode_length > MIN_PARALLEL_STEPS,
        )
        returns, lengths, _, _, max_rewards = zip(*parts, strict=True)
        steps = sum(int(part.sum()) for part in lengths)
        self.steps += steps
        self.mean_episode_length = steps / max(1, len(seeds))
        self.max_step_reward = max(self.max_step_reward, *max_rewards)
        return np.concatenate(returns)

    def action_values(
        self, tree: Tree, seed: int, count: int, noise: float, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return states x [N, n] that the noisy tree meets, and the value q [N, A] of every action there.

        The value is the return from there on of the action followed by the noisy tree; all actions of a state meet the
        same chance. `count` is the number of states wanted, `noise` the share of random actions, `actions` [A] or
        [A, k] the actions to value.
        """
        episodes = int(np.clip(1.5 * count / max(1.0, self.mean_episode_length), 64, 4096))
        rng = streams([*np.random.SeedSequence(seed).generate_state(episodes).tolist(), seed])
        x, q, steps = sample_action_values(
            tree_arrays(tree), self.world, self.random_actions, self._as_compiled(actions), rng, count, noise
        )
        self.steps += steps
        return x, q

    def visited_states(self, tree: Tree) -> None:
        """See `Simulator`: compiled loops keep no states."""

    def shorten_episodes(self, max_steps: int) -> None:
        """See `Simulator`."""
        self.max_episode_steps, self.mean_episode_length = max_steps, float(max_steps)

    def _as_compiled(self, actions: np.ndarray) -> np.ndarray:
        """Return actions as compiled loops take them: numbers from zero on, or the one component of a vector."""
        return np.ascontiguousarray(actions - self.first_action if actions.ndim == 1 else actions[:, 0])


class PythonSimulator:
    """Gymnasium environments stepped from Python."""

    is_compiled = is_table = is_exact = is_fast = False
    saved: tuple[str, ...] = (*CompiledSimulator.saved, "truncation_step", "episode_cap")

    def __init__(self, problem: Problem, budget: int | None = None) -> None:
        self.actions, self.n_features = problem.base.actions, problem.base.features.n
        self.episode = PythonEpisodes(problem)
        self.env, self.base, self.observe = self.episode.env, self.episode.base, self.episode.observe
        self.leaf_actions = LeafActions(self.actions)
        self.episode_cap = problem.source.time_limit or DEFAULT_TIME_LIMIT  # steps after which we cut an episode
        if budget is not None and problem.source.time_limit is None:
            self.episode_cap = int(np.clip(budget // 20, MIN_EPISODE_CAP, self.episode_cap))
        self.max_episode_steps = self.episode_cap  # less, if the environment itself was seen to truncate earlier
        self.truncation_step = NO_TRUNCATION  # where the environment truncates episodes
        self.steps, self.max_step_reward, self.mean_episode_length = 0, -np.inf, ASSUMED_EPISODE_LENGTH
        self._last_tree: Tree | None = None
        self._visited: list[np.ndarray] = []  # states of its episodes

    @property
    def max_return(self) -> float:
        """See `Simulator`."""
        return self.max_step_reward * self.max_episode_steps

    @property
    def observed_time_limit(self) -> int | None:
        """See `Simulator`."""
        return self.truncation_step if 0 < self.truncation_step < self.episode_cap else None

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        """See `Simulator`."""
        if len(seeds) == 0:
            return np.zeros(0)
        result, before = np.zeros(len(seeds)), self.steps
        if tree is not self._last_tree:
            self._last_tree, self._visited = tree, []
        visit = self._visited.append
        for k, seed in enumerate(seeds.tolist()):
            rng = np.random.default_rng([seed, 1]) if noise else None
            result[k] = self.run_episode(tree.act, seed, rng, noise, lambda x, *_: visit(x))
        self.mean_episode_length = (self.steps - before) / len(seeds)
        return result

    def visited_states(self, tree: Tree) -> np.ndarray | None:
        """See `Simulator`."""
        return np.array(self._visited) if tree is self._last_tree else None

    def shorten_episodes(self, max_steps: int) -> None:
        """See `Simulator`."""
        self.max_episode_steps = self.episode_cap = max_steps
        self.mean_episode_length = float(max_steps)

    def run_episode(
        self,
        act: Callable[[np.ndarray], Any],
        seed: int,
        rng: np.random.Generator | None,
        noise: float,
        on_step: Callable[[np.ndarray, Any, float, np.ndarray, bool], None],
    ) -> float:
        """Run one episode and return its return.

        `act` chooses an action for a feature vector [n]; `rng`, if given, replaces it by a random one with probability
        `noise`. `on_step` is called with feature vector, action, reward, next feature vector and terminated.
        """
        episode, step, over = self.episode, self.episode.step, False
        x = episode.reset(seed)
        while not over and episode.length < self.episode_cap:
            action = act(x) if rng is None or rng.random() >= noise else self.leaf_actions.random(rng)
            next_x, reward, terminated, truncated = step(action)
            if reward > self.max_step_reward:
                self.max_step_reward = reward
            on_step(x, action, reward, next_x, terminated)
            x = next_x
            over = terminated or truncated
        t = episode.length
        if over and truncated and not terminated:
            self.truncation_step = t if self.truncation_step in (NO_TRUNCATION, t) else VARYING_TRUNCATION
        if t > self.max_episode_steps:  # the step at which the first episodes were truncated is not a limit of all
            self.truncation_step, self.max_episode_steps = VARYING_TRUNCATION, self.episode_cap
        self.steps += t
        return episode.total


@njit(cache=True)
def sample_action_values(tree, world, random_actions, actions, rng, count, noise):
    """Sample states of noisy episodes and value actions there: x [N, n], q [N, A] and the steps taken.

    `tree` and `world` are as in `custard.task.compiled_rollouts`; `random_actions` are what noise draws from, `actions`
    [A] are valued. `rng` [episodes + 1, 4] has one stream per episode and one for choosing; `count` is the largest N.
    """
    n = world.n_features
    states, elapsed = np.zeros((count, n)), np.zeros(count, np.int64)
    xs, q = np.zeros((count, n)), np.zeros((count, len(actions)))
    scratch = np.zeros(n), np.zeros(n), np.zeros(4, np.uint64), np.zeros(4, np.uint64)
    met = _sample_states(tree, world, random_actions, rng, states, elapsed, noise, scratch)  # one step per state met
    count = min(count, met)
    steps = met + _value_actions(
        tree, world, random_actions, actions, rng, states[:count], elapsed, noise, xs, q, scratch
    )
    return xs[:count], q[:count], steps


@njit(cache=True)
def _sample_states(tree, world, random_actions, rng, states, elapsed, noise, scratch):
    """Fill `states` by reservoir sampling from noisy episodes, `elapsed` with their times; return how many were met.

    Other arguments as in `sample_action_values`; `scratch` are buffers.
    """
    tree, (kind, params, limit, _), random_actions, rng = without_refcounts((tree, world, random_actions, rng))
    states, elapsed, (state, x, _, _) = without_refcounts((states, elapsed, scratch))
    choosing, count = rng[len(rng) - 1], len(states)
    met = 0
    for k in range(len(rng) - 1):
        start_episode(kind, params, state, rng[k])
        for t in range(limit):
            slot = met if met < count else int(uniform(choosing, 0.0, met + 1.0))
            if slot < count:
                copy_row(state, states[slot])
                elapsed[slot] = t
            met += 1
            observe_features(kind, state, x)
            action = tree[4][leaf_of(tree, x)]
            if uniform(choosing, 0.0, 1.0) < noise:
                action = random_actions[int(uniform(choosing, 0.0, float(len(random_actions))))]
            _, over = take_action(kind, params, state, action, rng[k])
            if over:
                break
    return met


@njit(cache=True)
def _value_actions(tree, world, random_actions, actions, rng, states, elapsed, noise, xs, q, scratch):
    """Fill q with the value of each action in each state, `xs` with the states' features; return the steps taken.

    `states` and `elapsed` are what `_sample_states` fills; other arguments as in `sample_action_values`.
    """
    tree, (kind, params, limit, _), random_actions, actions, rng = without_refcounts(
        (tree, world, random_actions, actions, rng)
    )
    states, elapsed, xs, q, (state, x, noise_rng, env_rng) = without_refcounts((states, elapsed, xs, q, scratch))
    choosing, steps = rng[len(rng) - 1], 0
    for i in range(len(states)):
        observe_features(kind, states[i], xs[i])
        uniform(choosing, 0.0, 1.0)  # every state meets a chance of its own
        uniform(rng[i % (len(rng) - 1)], 0.0, 1.0)
        for a in range(len(actions)):
            copy_row(states[i], state)
            copy_row(choosing, noise_rng)
            copy_row(rng[i % (len(rng) - 1)], env_rng)
            action = actions[a]
            for _ in range(limit - elapsed[i]):
                reward, over = take_action(kind, params, state, action, env_rng)
                q[i, a] += reward
                steps += 1
                if over:
                    break
                observe_features(kind, state, x)
                action = tree[4][leaf_of(tree, x)]
                if uniform(noise_rng, 0.0, 1.0) < noise:
                    action = random_actions[int(uniform(noise_rng, 0.0, float(len(random_actions))))]
    return steps
