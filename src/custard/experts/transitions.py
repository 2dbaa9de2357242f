"""Transitions for a DQN expert to learn from: environments side by side, actions random or a network's best.

`CompiledSteps` steps native environments without returning to Python, `PythonSteps` any others.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from custard.core.numba_tools import without_refcounts
from custard.core.spaces import describe
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.base_environments import base_environments_of
from custard.nn.networks import encode_row, evaluate, make_layer_outputs
from custard.nn.replay import Transitions, make_transitions
from custard.task.compiled_episodes import make_compiled_episodes, start_episode, step_episode
from custard.task.problem import Problem
from custard.task.runners import MAX_LEARNING_ENVIRONMENTS
from custard.task.source import DEFAULT_TIME_LIMIT

__all__ = ["CompiledSteps", "PythonSteps"]


class PythonSteps:
    """Steps of environments that Python steps."""

    def __init__(self, problem: Problem, count: int, rng: np.random.Generator, bootstrap_at_limit: bool) -> None:
        self.source, self.actions, self.rng = problem.source, problem.base.actions, rng
        self.venv = problem.source.make_vec(min(count, MAX_LEARNING_ENVIRONMENTS))
        self.count = self.venv.num_envs
        self.parts = base_environments_of(self.venv, describe(self.venv, features=problem.encoder))
        self.parts.reset(int(rng.integers(2**31)), None)
        self.bootstrap_at_limit = bootstrap_at_limit
        self.limit = None if problem.source.time_limit is not None else DEFAULT_TIME_LIMIT
        self.elapsed = np.zeros(self.count, dtype=np.int64)

    def collect(self, network: Any, epsilon: float, rounds: int) -> Transitions:
        """Step every environment `rounds` times, epsilon-greedily, or at random without a network."""
        parts, rng, everyone, nobody = self.parts, self.rng, np.arange(self.count), np.arange(0)
        rows = make_transitions(rounds * self.count, parts.x.shape[1])
        for k in range(rounds):
            part = slice(k * self.count, (k + 1) * self.count)
            rows.x[part] = parts.x
            actions = rng.integers(self.actions.n, size=self.count)
            if network is not None:
                is_greedy = rng.random(self.count) >= epsilon
                actions = np.where(is_greedy, network.q(parts.x).argmax(axis=1), actions)
            parts.move(everyone, actions + self.actions.start, nobody)
            self.elapsed += 1
            rows.action[part], rows.reward[part], rows.after[part] = actions, parts.reward, parts.x
            done = parts.terminated | parts.truncated | (self.limit is not None and self.elapsed >= self.limit)
            rows.ended[part] = parts.terminated if self.bootstrap_at_limit else done
            over = np.flatnonzero(done)
            if len(over):
                self.elapsed[over] = 0
                parts.move(nobody, nobody, over)
        return rows

    def close(self) -> None:
        """Close the environments, unless they are the user's own."""
        if not self.source.is_single_instance:
            self.venv.close()


class CompiledSteps:
    """Steps of native environments."""

    def __init__(self, problem: Problem, count: int, rng: np.random.Generator, bootstrap_at_limit: bool) -> None:
        self.count, self.n_actions, self.bootstrap_at_limit = count, problem.base.actions.n, bootstrap_at_limit
        seed = int(rng.integers(2**31))
        self.episodes = make_compiled_episodes(problem, seed, limit_terminates=False, count=count)
        self.rng = streams([int(rng.integers(2**31))])[0]

    def collect(self, network: Any, epsilon: float, rounds: int) -> Transitions:
        """Step every environment `rounds` times, epsilon-greedily, or at random without a network."""
        n = self.episodes.x.shape[1]
        rows = make_transitions(rounds * self.count, n)
        if network is None:
            unused = np.zeros((n + 1, self.n_actions), np.float32)
            weights, scaling, epsilon = (unused, unused, unused), (np.zeros(n), np.ones(n), 0), 1.0
        else:
            weights, scaling = network.advantage_layers, (network.shift, network.scale, network.frequencies)
        buffers = make_layer_outputs(weights), np.zeros(n), np.zeros(weights[0].shape[0] - 1, np.float32)
        is_end = not self.bootstrap_at_limit
        _collect_compiled(self.episodes, is_end, self.rng, weights, scaling, buffers, epsilon, self.n_actions, rows)
        return rows

    def close(self) -> None:
        """Nothing to close."""


@njit(cache=True)
def _collect_compiled(episodes, limit_is_end, rng, weights, scaling, buffers, epsilon, n_actions, rows):
    """Fill all rows: one step of every environment after the other.

    episodes: `CompiledEpisodes`
    limit_is_end: whether nothing follows a time limit
    rng: [4] the random stream of actions
    weights: layers up to the advantages
    scaling: what is subtracted from features [n] and what they are divided by [n]; frequencies of the encoding
    buffers: scratch for the layers, the scaled features and the input
    epsilon: probability of a random action; 1: no network is evaluated
    n_actions: actions are 0 … n_actions - 1
    rows: Transitions to fill
    """
    weights, (shift, scale, frequencies), (layers, z, inputs) = without_refcounts((weights, scaling, buffers))
    episodes, rows = without_refcounts((episodes, rows))
    count = len(episodes.x)
    for k in range(len(rows.reward)):
        i = k % count
        x = episodes.x[i]
        for c in range(len(x)):
            rows.x[k, c] = x[c]
        action = int(uniform(rng, 0.0, float(n_actions)))
        if epsilon < 1.0 and uniform(rng, 0.0, 1.0) >= epsilon:
            for c in range(len(x)):
                z[c] = (x[c] - shift[c]) / scale[c]
            encode_row(z, frequencies, inputs)
            evaluate(weights, inputs, layers, True)
            advantage, action = layers[(len(weights) - 1) % 2], 0
            for b in range(1, n_actions):
                if advantage[b] > advantage[action]:
                    action = b
        reward, terminated, done = step_episode(episodes, i, action)
        rows.action[k], rows.reward[k] = action, reward
        for c in range(len(x)):
            rows.after[k, c] = x[c]
        rows.ended[k] = terminated or (done and limit_is_end)
        if done:
            start_episode(episodes, i)
