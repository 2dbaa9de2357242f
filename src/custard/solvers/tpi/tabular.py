"""Where all features are whole numbers: values of all states by Q-learning or from counts, and trees of their policies.

A policy that is optimal everywhere may need a large tree, one of its trajectories a small one. Ties between actions
are broken at random many times over; each policy so made is followed, and the smallest tree that does the same along
its own way is a candidate. So are trees that collect most of the values, on the states of the policy and, two times
more, on those that the tree before went to; and trees that are optimal wherever they can be.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import njit

from custard.envs.pcg64 import streams, uniform
from custard.solvers.tpi.learned import GAMMA, Grid
from custard.solvers.tpi.simulate import Compiled
from custard.task.native_rollouts import copy, move, see, start
from custard.task.problem import Problem
from custard.task.source import episode_seeds
from custard.tree.fit import fit_tree
from custard.tree.tree import Tree

__all__ = ["Expert"]

EXPLORE = 0.3
MOST = 20_000  # states a tree is fitted to


class Expert:
    """A table of action values, and trees that follow it."""

    def __init__(self, problem: Problem, grid: Grid) -> None:
        self.features, self.actions, self.grid = problem.base.features, problem.base.actions, grid
        self.q = np.zeros((grid.n_states, grid.n_actions))
        self.visits = np.zeros(self.q.shape)

    def learn(self, sim: Compiled, steps: int, seed: int) -> None:
        """Off-policy Q-learning in a compiled world, exploring at random now and then."""
        _learn(sim.place, self.grid.low, self.grid.strides, self.q, self.visits, steps, streams([seed]))
        sim.steps += steps

    def trees(
        self, sim: Compiled, depth: int, max_leaves: int | None, seed: int, count: int = 30, episodes: int = 8
    ) -> Iterator[Tree]:
        """Trees of greedy policies, each with ties broken its own way."""
        rng = np.random.default_rng(seed)
        known = self.visits.min(axis=1) > 0
        gap = self.q.max(axis=1) - self.q.min(axis=1)
        tie = 0.02 * float(np.median(gap[known])) if known.any() else 0.0
        limits = {"max_depth": depth, "max_leaves": max_leaves}
        if known.any():
            everywhere = rng.permutation(np.flatnonzero(known))[:MOST]
            x, best = self._states(everywhere), self.q[everywhere].max(axis=1, keepdims=True)
            for value in ((self.q[everywhere] >= best - tie).astype(np.float64), self.q[everywhere] - best):
                yield fit_tree(x, value, self.features, self.actions, **limits).tree  # type: ignore[arg-type]
        for k in range(count):
            near = self.q >= self.q.max(axis=1, keepdims=True) - (tie if k else 0.0)
            label = (near * (1.0 + rng.random(self.q.shape))).argmax(axis=1)
            x = self._way(sim, label, int(rng.integers(2**31)), episodes if k else 8 * episodes)
            follow = np.eye(self.actions.n)[label[self.grid.row(x)]]
            yield fit_tree(x, follow, self.features, self.actions, price=1e-3, **limits).tree  # type: ignore[arg-type]
            for again in range(3 if k < 3 else 1):
                value = self.q[self.grid.row(x)]
                value = value - value.max(axis=1, keepdims=True)
                tree = fit_tree(x, value, self.features, self.actions, **limits).tree  # type: ignore[arg-type]
                yield tree
                if again < 2 and k < 3:
                    decided = self._decisions(tree)
                    more = self._way(sim, decided, int(rng.integers(2**31)), 8 * episodes)
                    x = np.concatenate([x, more])[-MOST:]

    def _decisions(self, tree: Tree) -> np.ndarray:
        """What a tree does in every state of the table, from zero on."""
        return tree.predict(self._states(np.arange(self.grid.n_states))) - self.actions.start

    def _states(self, numbers: np.ndarray) -> np.ndarray:
        """The feature vectors of states given by number."""
        sizes = np.append(self.grid.strides[1:], self.grid.n_states) // self.grid.strides
        digits = [numbers // stride % size for stride, size in zip(self.grid.strides, sizes, strict=True)]
        return np.stack(digits, axis=1) + self.grid.low

    def _way(self, sim: Compiled, label: np.ndarray, seed: int, episodes: int) -> np.ndarray:
        """The states a policy meets."""
        rng = streams(episode_seeds(seed, episodes).tolist())
        x, steps = _follow(sim.place, self.grid.low, self.grid.strides, label, rng, MOST)
        sim.steps += steps
        return x


@njit(cache=True)
def _rate(visits):
    return max(0.02, 1.0 / visits**0.6)


@njit(cache=True)
def _number(x, low, strides):
    s = 0
    for c in range(len(x)):
        s += int(x[c] - low[c]) * strides[c]
    return s


@njit(cache=True)
def _follow(place, low, strides, label, rng, most):
    world, params, limit, n = place
    met = np.zeros((most, n))
    state, x = np.zeros(n), np.zeros(n)
    count = steps = 0
    for k in range(len(rng)):
        start(world, params, state, rng[k])
        for _ in range(limit):
            see(world, state, x)
            if count < most:
                copy(x, met[count])
                count += 1
            _, over = move(world, params, state, label[_number(x, low, strides)], rng[k])
            steps += 1
            if over or count >= most:
                break
        if count >= most:
            break
    return met[:count], steps


@njit(cache=True)
def _learn(place, low, strides, q, visits, steps, rng):
    world, params, limit, n = place
    n_actions = q.shape[1]
    state, x = np.zeros(n), np.zeros(n)
    start(world, params, state, rng[0])
    see(world, state, x)
    s, t = _number(x, low, strides), 0
    for _ in range(steps):
        a = int(uniform(rng[0], 0.0, float(n_actions)))
        if uniform(rng[0], 0.0, 1.0) >= EXPLORE:
            for b in range(n_actions):
                if q[s, b] > q[s, a]:
                    a = b
        reward, over = move(world, params, state, a, rng[0])
        see(world, state, x)
        after = _number(x, low, strides)
        target = reward if over else reward + GAMMA * q[after].max()
        visits[s, a] += 1
        q[s, a] += _rate(visits[s, a]) * (target - q[s, a])
        s = after
        t += 1
        if over or t >= limit:
            start(world, params, state, rng[0])
            see(world, state, x)
            s, t = _number(x, low, strides), 0
