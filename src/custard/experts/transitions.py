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
from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.base_environments import base_environments_of
from custard.nn.networks import encode_row, evaluate, scratch
from custard.nn.replay import Transitions, make_transitions
from custard.task.compiled_rollouts import world_of
from custard.task.problem import Problem
from custard.task.source import DEFAULT_TIME_LIMIT

__all__ = ["CompiledSteps", "PythonSteps"]

MAX_PYTHON_ENVS = 8  # side by side


class PythonSteps:
    """Steps of environments that Python steps."""

    def __init__(self, problem: Problem, count: int, rng: np.random.Generator) -> None:
        self.source, self.actions, self.rng = problem.source, problem.base.actions, rng
        self.venv = problem.source.make_vec(min(count, MAX_PYTHON_ENVS))
        self.count = self.venv.num_envs
        self.parts = base_environments_of(self.venv, describe(self.venv, features=problem.encoder))
        self.parts.reset(int(rng.integers(2**31)), None)
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
            rows.terminated[part] = parts.terminated
            rows.truncated[part] = parts.truncated | (self.limit is not None and self.elapsed >= self.limit)
            over = np.flatnonzero(rows.terminated[part] | rows.truncated[part])
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

    def __init__(self, problem: Problem, count: int, rng: np.random.Generator) -> None:
        venv: Any = problem.source.make_vec(count)
        venv.reset(seed=int(rng.integers(2**31)))
        self.count, self.n_actions, self.place = count, problem.base.actions.n, world_of(venv)
        self.state, self.env_rng, self.x = venv.state, venv.rng, venv.x
        self.elapsed, self.rng = np.zeros(count, dtype=np.int64), streams([int(rng.integers(2**31))])[0]

    def collect(self, network: Any, epsilon: float, rounds: int) -> Transitions:
        """Step every environment `rounds` times, epsilon-greedily, or at random without a network."""
        n = self.x.shape[1]
        rows = make_transitions(rounds * self.count, n)
        if network is None:
            unused = np.zeros((n + 1, self.n_actions), np.float32)
            weights, scaling, epsilon = (unused, unused, unused), (np.zeros(n), np.ones(n), 0), 1.0
        else:
            weights, scaling = network.advantage_layers, (network.shift, network.scale, network.frequencies)
        room = scratch(weights), np.zeros(n), np.zeros(weights[0].shape[0] - 1, np.float32)
        envs = self.state, self.env_rng, self.elapsed, self.x
        _collect_compiled(self.place, envs, self.rng, weights, scaling, room, epsilon, self.n_actions, rows)
        return rows

    def close(self) -> None:
        """Nothing to close."""


@njit(cache=True)
def _collect_compiled(place, envs, rng, weights, scaling, room, epsilon, n_actions, rows):
    """Fill all rows: one step of every environment after the other.

    place: `world_of` of the environments
    envs: their states, random streams, elapsed steps and features, a row each, changed in place
    rng: [4] the random stream of actions
    weights: layers up to the advantages
    scaling: what is subtracted from features [n] and what they are divided by [n]; frequencies of the encoding
    room: scratch for the layers, the scaled features and the input
    epsilon: probability of a random action; 1: no network is evaluated
    n_actions: actions are 0 … n_actions - 1
    rows: Transitions to fill
    """
    (world, params, limit, _), (states, env_rng, elapsed, xs) = without_refcounts((place, envs))
    weights, (shift, scale, frequencies), (layers, z, inputs) = without_refcounts((weights, scaling, room))
    rows = without_refcounts(rows)
    count = len(states)
    for k in range(len(rows.reward)):
        i = k % count
        x = xs[i]
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
        reward, terminated = advance(world, params, states[i], action, env_rng[i])
        observe(world, states[i], x)
        elapsed[i] += 1
        rows.action[k], rows.reward[k] = action, reward
        for c in range(len(x)):
            rows.after[k, c] = x[c]
        rows.terminated[k], rows.truncated[k] = terminated, elapsed[i] >= limit
        if terminated or elapsed[i] >= limit:
            begin(world, states[i], env_rng[i])
            observe(world, states[i], x)
            elapsed[i] = 0
