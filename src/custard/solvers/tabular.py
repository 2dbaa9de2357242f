"""Where all features are whole numbers: tabular Q-learning on the base environment, and trees of its greedy policies.

A policy that is optimal everywhere may need a large tree, one of its trajectories a small one. Ties between actions
are broken at random many times over; each policy so made is followed, and the smallest tree that does the same along
its own way is a candidate.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit

from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.parts import Parts, parts_of
from custard.lab.evaluate import play
from custard.lab.source import DEFAULT_LIMIT, episode_seeds
from custard.solvers.api import Problem
from custard.spaces import describe
from custard.tree.fit import fit_tree
from custard.tree.tree import Tree

__all__ = ["Expert"]

LARGEST = 1_000_000  # states a table may have
GAMMA, EXPLORE = 0.999, 0.3


class Expert:
    """A table of action values, learned on the first call of `trees`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        features = problem.base.features
        self.low = np.ceil(features.low)
        sizes = np.floor(features.high) - self.low + 1
        whole = features.integer.all() and not features.unbounded.any() and problem.encoder is None
        self.possible = bool(whole and np.prod(sizes) <= LARGEST)
        self.steps = 0
        if self.possible:
            self.strides = np.concatenate([[1], np.cumprod(sizes)[:-1]]).astype(np.int64)
            self.q = np.zeros((int(np.prod(sizes)), problem.base.actions.n))
            self.visits = np.zeros(self.q.shape)

    def row(self, x: np.ndarray) -> np.ndarray:
        """The table's row of each state, [B, n] -> [B]."""
        return ((x - self.low).astype(np.int64) * self.strides).sum(axis=-1).clip(0, len(self.q) - 1)

    def learn(self, steps: int, seed: int) -> None:
        """Off-policy Q-learning, exploring at random now and then."""
        venv = self.problem.source.vector(1)
        limit = self.problem.source.limit or DEFAULT_LIMIT
        if self.problem.source.native is not None:
            _learn(venv.world, venv.params, limit, self.low, self.strides, self.q, self.visits, steps, streams([seed]))  # type: ignore[attr-defined]
            self.steps += steps
            return
        base = describe(venv)
        parts, rng = parts_of(venv, base), np.random.default_rng(seed)
        nobody, only = np.arange(0), np.arange(1)
        parts.reset([int(rng.integers(2**31))], {"reset_mask": np.ones(1, dtype=bool)})
        t = 0
        for _ in range(steps):
            s = int(self.row(parts.x)[0])
            best = self.q[s] == self.q[s].max()
            a = int(rng.integers(len(best))) if rng.random() < EXPLORE else int(rng.choice(np.flatnonzero(best)))
            parts.move(only, np.array([a + self.problem.base.actions.start]), nobody)
            t += 1
            future = 0.0 if parts.terminated[0] else GAMMA * self.q[int(self.row(parts.x)[0])].max()
            self.visits[s, a] += 1
            self.q[s, a] += _rate(self.visits[s, a]) * (parts.reward[0] + future - self.q[s, a])
            if parts.terminated[0] or parts.truncated[0] or t >= limit:
                parts.reset([int(rng.integers(2**31))], {"reset_mask": np.ones(1, dtype=bool)})
                t = 0
        self.steps += steps

    def trees(self, depth: int, seed: int, count: int = 30, episodes: int = 8) -> Iterator[Tree]:
        """The smallest trees that follow greedy policies along their own way, each with ties broken its own way."""
        rng = np.random.default_rng(seed)
        features, actions = self.problem.base.features, self.problem.base.actions
        venv = self.problem.source.vector(episodes)
        base = describe(venv)
        parts = parts_of(venv, base)
        known = self.visits.min(axis=1) > 0
        gap = self.q.max(axis=1) - self.q.min(axis=1)
        tie = 0.02 * float(np.median(gap[known])) if known.any() else 0.0
        limit = self.problem.source.limit or DEFAULT_LIMIT
        for k in range(count):
            near = self.q >= self.q.max(axis=1, keepdims=True) - (tie if k else 0.0)
            label = (near * (1.0 + rng.random(self.q.shape))).argmax(axis=1)
            x = self._way(label, parts, base, episode_seeds(int(rng.integers(2**31)), episodes), limit)
            rows = self.row(x)
            follow = np.eye(actions.n)[label[rows]]
            yield fit_tree(x, follow, features, actions, max_depth=depth, price=1e-3).tree
            value = self.q[rows] - self.q[rows].max(axis=1, keepdims=True)
            yield fit_tree(x, value, features, actions, max_depth=depth).tree

    def _way(self, label: np.ndarray, parts: Parts, base: Any, seeds: np.ndarray, limit: int) -> np.ndarray:
        """The states a policy meets."""
        met: list[np.ndarray] = []

        def act(x: np.ndarray) -> np.ndarray:
            met.append(x.copy())
            return label[self.row(x)] + self.problem.base.actions.start

        _, lengths, _ = play(act, parts, base, seeds, limit, self.problem.source.name)
        self.steps += int(lengths.sum())
        return np.concatenate(met)


@njit(cache=True)
def _rate(visits):
    return max(0.02, 1.0 / visits**0.6)


@njit(cache=True)
def _learn(world, params, limit, low, strides, q, visits, steps, rng):
    n, n_actions = len(low), q.shape[1]
    state, x = np.zeros(n), np.zeros(n)
    begin(world, state, rng[0])
    observe(world, state, x)
    s = t = 0
    for c in range(n):
        s += int(x[c] - low[c]) * strides[c]
    for _ in range(steps):
        a = int(uniform(rng[0], 0.0, float(n_actions)))
        if uniform(rng[0], 0.0, 1.0) >= EXPLORE:
            for b in range(n_actions):
                if q[s, b] > q[s, a]:
                    a = b
        reward, over = advance(world, params, state, a, rng[0])
        observe(world, state, x)
        after = 0
        for c in range(n):
            after += int(x[c] - low[c]) * strides[c]
        target = reward if over else reward + GAMMA * q[after].max()
        visits[s, a] += 1
        q[s, a] += _rate(visits[s, a]) * (target - q[s, a])
        s = after
        t += 1
        if over or t >= limit:
            begin(world, state, rng[0])
            observe(world, state, x)
            s = t = 0
            for c in range(n):
                s += int(x[c] - low[c]) * strides[c]
