"""Trees rolled out in base environments: their returns, and what each action is worth where they go.

`Native` does both in compiled loops over the native environments' rows of state. `Foreign` steps Gymnasium
environments, and values actions by copying environments, where that is possible. Both count environment steps.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import copy
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numba import njit

from custard.envs.native import NativeVectorEnv, advance, begin, observe
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.parts import parts_of
from custard.lab.evaluate import play
from custard.lab.source import DEFAULT_LIMIT
from custard.solvers.api import Problem
from custard.spaces import describe
from custard.tree.tree import Tree

__all__ = ["Simulator", "simulator"]


class Simulator(Protocol):
    """Base environments to try trees in."""

    steps: int  # environment steps used so far
    most_a_step: float  # the largest reward of a single step seen so far
    limit: int  # steps of an episode at the most
    values_actions: bool  # whether `action_values` works here

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        """The return of one episode for each seed; with `noise` that share of the actions is random."""

    def action_values(self, tree: Tree, seed: int, count: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        """States x [N, n] that the tree meets if it acts at random with probability `noise`, and q [N, A]: the return
        from there on of each action first, then the same noisy tree, all actions meeting the same chance."""


def simulator(problem: Problem) -> Simulator:
    """The quickest simulator for a problem."""
    native = problem.source.native is not None and problem.encoder is None
    return Native(problem) if native else Foreign(problem)


class Native:
    """Compiled rollouts."""

    values_actions = True

    def __init__(self, problem: Problem) -> None:
        venv = problem.source.vector(1)
        assert isinstance(venv, NativeVectorEnv)
        self.world, self.params, self.n = venv.world, venv.params, problem.base.features.n
        self.limit = int(min(venv.limit, DEFAULT_LIMIT))
        self.n_actions = problem.base.actions.n
        self.steps, self.most_a_step = 0, -np.inf

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        place = self.world, self.params, self.limit, self.n
        result, steps, most = _returns(_arrays(tree), place, self.n_actions, streams(seeds.tolist()), noise)
        self.steps += steps
        self.most_a_step = max(self.most_a_step, most)
        return result

    def action_values(self, tree: Tree, seed: int, count: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        episodes = np.random.SeedSequence(seed).generate_state(64).tolist()
        rng = streams([*episodes, seed])
        place = self.world, self.params, self.limit, self.n
        x, q, steps = _action_values(_arrays(tree), place, self.n_actions, rng, count, noise)
        self.steps += steps
        return x, q


class Foreign:
    """Gymnasium environments, stepped from Python."""

    def __init__(self, problem: Problem, width: int = 8) -> None:
        self.problem, self.base = problem, problem.base
        self.venv = problem.source.vector(width)
        self.own = describe(self.venv, features=problem.encoder)
        self.parts = parts_of(self.venv, self.own)
        self.limit = problem.source.limit or DEFAULT_LIMIT
        self.n_actions = problem.base.actions.n
        self.steps, self.most_a_step = 0, -np.inf
        self.values_actions = isinstance(self.venv, gym.vector.SyncVectorEnv) and _copies(self.venv.envs[0])

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        if len(seeds) == 0:
            return np.zeros(0)
        limit = None if self.problem.source.limit else DEFAULT_LIMIT
        rng = np.random.default_rng(seeds)

        def act(x: np.ndarray) -> np.ndarray:
            other = rng.integers(self.n_actions, size=len(x)) + self.base.actions.start
            return np.where(rng.random(len(x)) < noise, other, tree.predict(x))

        returns, lengths, _ = play(
            act if noise else tree.predict, self.parts, self.own, seeds, limit, self.problem.source.name
        )
        self.steps += int(lengths.sum())
        self.most_a_step = max(self.most_a_step, float((returns / np.maximum(lengths, 1)).max()))
        return returns

    def action_values(self, tree: Tree, seed: int, count: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        env = self.venv.envs[0]  # type: ignore[attr-defined]
        start, n_actions = self.base.actions.start, self.n_actions
        xs: list[np.ndarray] = []
        qs: list[list[float]] = []
        while len(xs) < count:
            observation, _ = env.reset(seed=int(rng.integers(2**31)))
            over, t = False, 0
            gap = int(rng.integers(1, 30))  # a state now and then, so that episodes differ
            while not over and t < self.limit:
                x = self.own.observe(observation)
                if gap == 0 and len(xs) < count:
                    chance = int(rng.integers(2**31))
                    xs.append(x)
                    qs.append([self._follow(copy.deepcopy(env), tree, a, chance, noise, t) for a in range(n_actions)])
                    gap = int(rng.integers(1, 60))
                else:
                    gap = max(0, gap - 1)
                action = int(rng.integers(n_actions)) + start if rng.random() < noise else tree.act(x)
                observation, _, terminated, truncated, _ = env.step(action)
                self.steps += 1
                t += 1
                over = terminated or truncated
            if len(xs) == 0 and t < 2:
                break
        return np.array(xs).reshape(-1, self.base.features.n), np.array(qs).reshape(-1, n_actions)

    def _follow(self, env: Any, tree: Tree, action: int, chance: int, noise: float, t: int) -> float:
        """The return of an action in a copied environment, then of the noisy tree; the same chance for all actions."""
        rng = np.random.default_rng(chance)
        if hasattr(env.unwrapped, "_np_random"):
            env.unwrapped._np_random = np.random.default_rng(chance)
        total, over, start = 0.0, False, self.base.actions.start
        chosen = action + start
        while not over and t < self.limit:
            observation, reward, terminated, truncated, _ = env.step(chosen)
            total += float(reward)
            self.steps += 1
            t += 1
            over = terminated or truncated
            random = rng.random() < noise
            other = int(rng.integers(self.n_actions)) + start
            chosen = other if random else tree.act(self.own.observe(observation))
        return total


def _copies(env: Any) -> bool:
    """Whether a copied environment goes its own way: the same step in both gives the same, and leaves the other be."""
    try:
        env.reset(seed=0)
        twin = copy.deepcopy(env)
        action = env.action_space.sample()
        a, b = env.step(action), twin.step(action)
        third = copy.deepcopy(env)
        env.step(action)
        c = third.step(action)
        return repr(a[:4]) == repr(b[:4]) and len(c) == 5
    except Exception:  # whatever goes wrong in copying, it means: not this way
        return False


def _arrays(tree: Tree) -> tuple[np.ndarray, ...]:
    return tree.feature, tree.threshold, tree.children_left, tree.children_right, tree.value - tree.actions.start


@njit(cache=True)
def _decide(tree, x):
    feature, threshold, left, right, value = tree
    node = 0
    while feature[node] >= 0:
        node = left[node] if x[feature[node]] <= threshold[node] else right[node]
    return value[node]


@njit(cache=True)
def _returns(tree, place, n_actions, rng, noise):
    world, params, limit, n = place
    result = np.zeros(len(rng))
    state, x = np.zeros(n), np.zeros(n)
    steps, most = 0, -np.inf
    for k in range(len(rng)):
        begin(world, state, rng[k])
        for _ in range(limit):
            observe(world, state, x)
            action = _decide(tree, x)
            if noise > 0.0 and uniform(rng[k], 0.0, 1.0) < noise:
                action = int(uniform(rng[k], 0.0, float(n_actions)))
            reward, over = advance(world, params, state, action, rng[k])
            result[k] += reward
            most = max(most, reward)
            steps += 1
            if over:
                break
    return result, steps, most


@njit(cache=True)
def _action_values(tree, place, n_actions, rng, count, noise):
    """Reservoir-sample states of noisy episodes (all rows of `rng` but the last), then value every action there."""
    world, params, limit, n = place
    chance = rng[len(rng) - 1]
    states, elapsed = np.zeros((count, n)), np.zeros(count, np.int64)
    state, x = np.zeros(n), np.zeros(n)
    seen = steps = 0
    for k in range(len(rng) - 1):
        begin(world, state, rng[k])
        for t in range(limit):
            slot = seen if seen < count else int(uniform(chance, 0.0, seen + 1.0))
            if slot < count:
                states[slot] = state
                elapsed[slot] = t
            seen += 1
            observe(world, state, x)
            action = _decide(tree, x)
            if uniform(chance, 0.0, 1.0) < noise:
                action = int(uniform(chance, 0.0, float(n_actions)))
            _, over = advance(world, params, state, action, rng[k])
            steps += 1
            if over:
                break
    count = min(count, seen)
    xs, q = np.zeros((count, n)), np.zeros((count, n_actions))
    luck, moves = np.zeros(4, np.uint64), np.zeros(4, np.uint64)
    for i in range(count):
        observe(world, states[i], xs[i])
        uniform(chance, 0.0, 1.0)
        for a in range(n_actions):
            state[:] = states[i]
            luck[:] = chance
            moves[:] = rng[i % (len(rng) - 1)]
            action = a
            for _ in range(limit - elapsed[i]):
                reward, over = advance(world, params, state, action, moves)
                q[i, a] += reward
                steps += 1
                if over:
                    break
                observe(world, state, x)
                action = _decide(tree, x)
                if uniform(luck, 0.0, 1.0) < noise:
                    action = int(uniform(luck, 0.0, float(n_actions)))
    return xs, q, steps
