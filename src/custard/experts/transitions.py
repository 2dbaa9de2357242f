"""What a DQN expert learns from: transitions of environments side by side, actions random or a network's best.

`Compiled` plays native environments without coming back to Python, `Stepped` any others.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.core.numba_tools import borrowed
from custard.core.spaces import describe
from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.base_environments import base_environments_of
from custard.nn.networks import encode_row, evaluate, scratch
from custard.task.problem import Problem
from custard.task.source import DEFAULT_LIMIT

__all__ = ["Compiled", "Stepped", "Transitions"]


class Transitions(NamedTuple):
    """One row for each step."""

    x: np.ndarray
    action: np.ndarray  # numbers from zero on
    reward: np.ndarray
    after: np.ndarray  # the next state, before any reset
    terminated: np.ndarray
    truncated: np.ndarray


def _room(rows: int, n: int) -> Transitions:
    flags = np.zeros(rows, dtype=np.bool_), np.zeros(rows, dtype=np.bool_)
    return Transitions(np.zeros((rows, n)), np.zeros(rows, np.int64), np.zeros(rows), np.zeros((rows, n)), *flags)


class Stepped:
    """Environments that Python steps, at most eight of them."""

    def __init__(self, problem: Problem, count: int, rng: np.random.Generator) -> None:
        self.source, self.actions, self.rng = problem.source, problem.base.actions, rng
        self.venv = problem.source.vector(min(count, 8))
        self.count = self.venv.num_envs
        self.parts = base_environments_of(self.venv, describe(self.venv, features=problem.encoder))
        self.parts.reset(int(rng.integers(2**31)), None)
        self.limit = None if problem.source.limit is not None else DEFAULT_LIMIT
        self.elapsed = np.zeros(self.count, dtype=np.int64)

    def run(self, rounds: int, network: Any, epsilon: float) -> Transitions:
        """Step every environment `rounds` times; without a network at random."""
        parts, rng, everyone, nobody = self.parts, self.rng, np.arange(self.count), np.arange(0)
        rows = _room(rounds * self.count, parts.x.shape[1])
        for k in range(rounds):
            part = slice(k * self.count, (k + 1) * self.count)
            rows.x[part] = parts.x
            actions = rng.integers(self.actions.n, size=self.count)
            if network is not None:
                greedy = rng.random(self.count) >= epsilon
                actions = np.where(greedy, network.q(parts.x).argmax(axis=1), actions)
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
        if not self.source.lone:
            self.venv.close()


class Compiled:
    """Native environments."""

    def __init__(self, problem: Problem, count: int, rng: np.random.Generator) -> None:
        venv: Any = problem.source.vector(count)
        venv.reset(seed=int(rng.integers(2**31)))
        limit = min(venv.limit, DEFAULT_LIMIT) if problem.source.limit is None else venv.limit
        self.count, self.n_actions, self.fixed = count, problem.base.actions.n, (venv.world, venv.params, int(limit))
        self.state, self.rng, self.x = venv.state, venv.rng, venv.x
        self.elapsed, self.chance = np.zeros(count, dtype=np.int64), streams([int(rng.integers(2**31))])[0]

    def run(self, rounds: int, network: Any, epsilon: float) -> Transitions:
        """See `Stepped.run`."""
        n = self.x.shape[1]
        rows = _room(rounds * self.count, n)
        if network is None:
            nothing = np.zeros((n + 1, self.n_actions), np.float32)
            weights, scale, epsilon = (nothing, nothing, nothing), (np.zeros(n), np.ones(n), 0), 1.0
        else:
            weights, scale = network.advantage, (network.shift, network.scale, network.frequencies)
        room = scratch(weights), np.zeros(n), np.zeros(weights[0].shape[0] - 1, np.float32)
        places = self.state, self.rng, self.elapsed, self.x, self.chance
        _play(self.fixed, places, weights, scale, room, epsilon, self.n_actions, rows)
        return rows

    def close(self) -> None:
        """Nothing to close."""


@njit(cache=True)
def _play(fixed, places, weights, scaling, room, epsilon, n_actions, rows):
    """Fill all rows, one step of every environment after the other."""
    (world, params, limit), (states, rng, elapsed, xs, chance) = borrowed((fixed, places))
    weights, (shift, scale, frequencies), (hidden, z, row) = borrowed((weights, scaling, room))
    rows = borrowed(rows)
    count = len(states)
    for k in range(len(rows.reward)):
        i = k % count
        x = xs[i]
        for c in range(len(x)):
            rows.x[k, c] = x[c]
        action = int(uniform(chance, 0.0, float(n_actions)))
        if epsilon < 1.0 and uniform(chance, 0.0, 1.0) >= epsilon:
            for c in range(len(x)):
                z[c] = (x[c] - shift[c]) / scale[c]
            encode_row(z, frequencies, row)
            evaluate(weights, row, hidden, True)
            q, action = hidden[(len(weights) - 1) % 2], 0
            for b in range(1, n_actions):
                if q[b] > q[action]:
                    action = b
        reward, terminated = advance(world, params, states[i], action, rng[i])
        observe(world, states[i], x)
        elapsed[i] += 1
        rows.action[k], rows.reward[k] = action, reward
        for c in range(len(x)):
            rows.after[k, c] = x[c]
        rows.terminated[k], rows.truncated[k] = terminated, elapsed[i] >= limit
        if terminated or elapsed[i] >= limit:
            begin(world, states[i], rng[i])
            observe(world, states[i], x)
            elapsed[i] = 0
