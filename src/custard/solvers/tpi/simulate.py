"""Trees rolled out in base environments: their returns, and what each action is worth where they go.

`Compiled` does both in compiled loops over rows of state: of the native environments, or of a table of transitions
learned elsewhere (`custard.solvers.tpi.learned`). `Foreign` steps Gymnasium environments, and values actions by copying
environments or, where they cannot be copied, by repeating an episode up to the state in question.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numba import njit

from custard.core.numba_tools import borrowed
from custard.core.spaces import describe
from custard.core.threads import in_parts
from custard.envs.native import NativeVectorEnv
from custard.envs.pcg64 import seeded, streams, uniform
from custard.task.copies import can_copy, can_repeat, copied
from custard.task.native_rollouts import MANY, Place, arrays_of, copy, move, native_place, roll_out, see, start
from custard.task.problem import Problem
from custard.task.source import DEFAULT_LIMIT
from custard.tree.compiled import leaf_of
from custard.tree.leaf_actions import LeafActions
from custard.tree.tree import Tree

__all__ = ["Compiled", "Foreign", "Simulator", "action_values", "simulator"]

NEVER = -1


class Simulator(Protocol):
    """Base environments to try trees in."""

    steps: int  # environment steps used so far
    most_a_step: float  # the largest reward of a single step seen so far
    limit: int  # steps of an episode at the most
    length: float  # steps of an episode, on average of late
    values_actions: bool  # whether `action_values` works here

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        """The return of one episode for each seed; with `noise` that share of the actions is random."""

    def action_values(
        self, tree: Tree, seed: int, count: int, noise: float, tried: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """States x [N, n] that the tree meets if it acts at random with probability `noise`, and q [N, A]: the return
        from there on of each action tried first, then the same noisy tree, all actions meeting the same chance."""


def simulator(problem: Problem) -> Simulator:
    """The quickest simulator for a problem."""
    if not problem.native:
        return Foreign(problem)
    venv = problem.source.vector(1)
    assert isinstance(venv, NativeVectorEnv)
    return Compiled(problem, native_place(venv, DEFAULT_LIMIT))


class Compiled:
    """Compiled rollouts."""

    values_actions = True
    slow = False  # whether trying a tree takes long all the same

    def __init__(self, problem: Problem, place: Place) -> None:
        self.place, self.limit = place, place[2]
        self.start = problem.base.actions.start if problem.base.actions.discrete else 0
        menu = LeafActions(problem.base.actions)
        nothing = Tree.leaf(menu.random(np.random.default_rng(0)), problem.base.features, problem.base.actions)
        self.moves = self._plain(menu.tried(np.random.default_rng(0), nothing))  # what random actions are drawn from
        self.steps, self.most_a_step, self.length = 0, -np.inf, 50.0

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        """See `Simulator`."""
        arrays, rng = arrays_of(tree), seeded(seeds.astype(np.uint64))
        parts = in_parts(
            lambda a, b: roll_out(arrays, self.place, self.moves, rng[a:b], noise),
            len(seeds),
            parallel=len(seeds) * self.length > MANY,
        )
        results, lengths, _, _, most = zip(*parts, strict=True)
        steps = sum(int(part.sum()) for part in lengths)
        self.steps += steps
        self.length = steps / max(1, len(seeds))
        self.most_a_step = max(self.most_a_step, *most)
        return np.concatenate(results)

    def action_values(
        self, tree: Tree, seed: int, count: int, noise: float, tried: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Simulator`."""
        episodes = int(np.clip(1.5 * count / max(1.0, self.length), 64, 4096))
        rng = streams([*np.random.SeedSequence(seed).generate_state(episodes).tolist(), seed])
        x, q, steps = action_values(arrays_of(tree), self.place, self.moves, self._plain(tried), rng, count, noise)
        self.steps += steps
        return x, q

    def _plain(self, actions: np.ndarray) -> np.ndarray:
        """Actions as compiled loops take them: numbers from zero on, or the one component of a vector."""
        return np.ascontiguousarray(actions - self.start if actions.ndim == 1 else actions[:, 0])


class Foreign:
    """Gymnasium environments, stepped from Python."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.base = problem, problem.base
        self.env = problem.source.make()
        self.own = describe(self.env, features=problem.encoder)
        self.observe = self.own.observe
        if isinstance(self.env.observation_space, gym.spaces.Discrete):  # few observations: encoded once each
            once = lru_cache(100_000)(self.own.observe)
            self.observe = lambda seen: once(seen) if isinstance(seen, int | np.integer) else self.own.observe(seen)
        self.menu = LeafActions(problem.base.actions)
        self.cap = self.limit = problem.source.limit or DEFAULT_LIMIT  # where episodes are cut; how long they may be
        self.cut_at = 0  # the step at which the environment truncates episodes; NEVER if it is not always the same
        self.steps, self.most_a_step, self.length = 0, -np.inf, 50.0
        self.most_steps = np.inf  # that valuing actions may take at a time
        self.copies = can_copy(self.env)
        self.values_actions = self.copies or can_repeat(self.env)
        self.tree: Tree | None = None  # the one run last, and the states it met
        self.met: list[np.ndarray] = []

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        """See `Simulator`."""
        if len(seeds) == 0:
            return np.zeros(0)
        result, before = np.zeros(len(seeds)), self.steps
        self.tree, self.met = tree, self.met if tree is self.tree else []
        meet = self.met.append
        for k, seed in enumerate(seeds.tolist()):
            rng = np.random.default_rng([seed, 1]) if noise else None
            result[k], _ = self.episode(self.env, tree.act, seed, rng, noise, lambda x, *_: meet(x))
        self.length = (self.steps - before) / len(seeds)
        return result

    def episode(
        self, env: Any, act: Callable[[np.ndarray], Any], seed: int, rng: np.random.Generator | None, noise: float,
        see: Callable[..., None] | None = None,
    ) -> tuple[float, int]:  # fmt: skip
        """Return and length of one episode; `see` is shown every state, action, reward, next state and ending."""
        total, t, over = 0.0, 0, False
        observe, action_of, step = self.observe, self.own.action, env.step
        observation, _ = env.reset(seed=seed)
        x = observe(observation)
        while not over and t < self.cap:
            action = act(x) if rng is None or rng.random() >= noise else self.menu.random(rng)
            observation, reward, terminated, truncated, _ = step(action_of(action))
            t += 1
            total += reward
            if reward > self.most_a_step:
                self.most_a_step = reward
            after = observe(observation)
            if see is not None:
                see(x, action, reward, after, bool(terminated))
            x = after
            over = terminated or truncated
        if over and truncated and not terminated:
            self.cut_at = t if self.cut_at in (0, t) else NEVER
        if t > self.limit:  # the step at which the first episodes were truncated is no limit of all
            self.cut_at, self.limit = NEVER, self.cap
        self.steps += t
        return total, t

    def action_values(
        self, tree: Tree, seed: int, count: int, noise: float, tried: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Simulator`."""
        rng = np.random.default_rng(seed)
        xs: list[np.ndarray] = []
        qs: list[list[float]] = []
        leaves = [int(action) if self.base.actions.discrete else action for action in tried]
        empty, end = 0, self.steps + self.most_steps
        while len(xs) < count and empty < 20 and self.steps < end:
            begun = int(rng.integers(2**31))
            observation, _ = self.env.reset(seed=begun)
            taken: list[Any] = []
            over, before = False, len(xs)
            gap = int(rng.integers(0, 1 + int(min(30, self.length / 2))))  # a state now and then: episodes differ
            while not over and len(taken) < self.cap and self.steps < end:
                x = self.observe(observation)
                if gap == 0 and len(xs) < count:
                    chance = int(rng.integers(2**31))
                    xs.append(x)
                    qs.append([self._follow(begun, taken, tree, action, chance, noise) for action in leaves])
                    gap = int(rng.integers(1, 2 + int(min(60, self.length / 2))))
                    if not self.copies:
                        self._again(begun, taken)
                else:
                    gap = max(0, gap - 1)
                action = self.own.action(self.menu.random(rng) if rng.random() < noise else tree.act(x))
                observation, _, terminated, truncated, _ = self.env.step(action)
                taken.append(action)
                self.steps += 1
                over = terminated or truncated
            empty = 0 if len(xs) > before else empty + 1
        return np.array(xs).reshape(-1, self.base.features.n), np.array(qs).reshape(-1, len(tried))

    def _again(self, seed: int, taken: list[Any]) -> None:
        """Bring the environment back to where it was by the same actions from the same seed."""
        self.env.reset(seed=seed)
        for action in taken:
            self.env.step(action)
        self.steps += len(taken)

    def _follow(self, seed: int, taken: list[Any], tree: Tree, action: Any, chance: int, noise: float) -> float:
        """The return of an action, then of the noisy tree, from the present state; the same chance for all actions."""
        rng = np.random.default_rng(chance)
        if self.copies:
            env = copied(self.env)
            if hasattr(env.unwrapped, "_np_random"):
                env.unwrapped._np_random = np.random.default_rng(chance)
        else:
            self._again(seed, taken)
            env = self.env
        total, over, t = 0.0, False, len(taken)
        while not over and t < self.cap:
            observation, reward, terminated, truncated, _ = env.step(self.own.action(action))
            total += reward
            self.steps += 1
            t += 1
            over = terminated or truncated
            random, other = rng.random() < noise, self.menu.random(rng)
            action = other if random else tree.act(self.observe(observation))
        return total


@njit(cache=True)
def action_values(tree, place, moves, tried, rng, count, noise):
    """Reservoir-sample states of noisy episodes (all rows of `rng` but the last), then value every action there."""
    n = place[3]
    states, elapsed = np.zeros((count, n)), np.zeros(count, np.int64)
    xs, q = np.zeros((count, n)), np.zeros((count, len(tried)))
    scratch = np.zeros(n), np.zeros(n), np.zeros(4, np.uint64), np.zeros(4, np.uint64)
    seen = _sampled(tree, place, moves, rng, states, elapsed, noise, scratch)  # a step for each state met
    count = min(count, seen)
    steps = seen + _valued(tree, place, moves, tried, rng, states[:count], elapsed, noise, xs, q, scratch)
    return xs[:count], q[:count], steps


@njit(cache=True)
def _sampled(tree, place, moves, rng, states, elapsed, noise, scratch):
    """States of noisy episodes, as many as there are rows, each as likely; how many were met."""
    tree, (world, params, limit, _), moves, rng = borrowed((tree, place, moves, rng))
    states, elapsed, (state, x, _, _) = borrowed((states, elapsed, scratch))
    chance, count = rng[len(rng) - 1], len(states)
    seen = 0
    for k in range(len(rng) - 1):
        start(world, params, state, rng[k])
        for t in range(limit):
            slot = seen if seen < count else int(uniform(chance, 0.0, seen + 1.0))
            if slot < count:
                copy(state, states[slot])
                elapsed[slot] = t
            seen += 1
            see(world, state, x)
            action = tree[4][leaf_of(tree, x)]
            if uniform(chance, 0.0, 1.0) < noise:
                action = moves[int(uniform(chance, 0.0, float(len(moves))))]
            _, over = move(world, params, state, action, rng[k])
            if over:
                break
    return seen


@njit(cache=True)
def _valued(tree, place, moves, tried, rng, states, elapsed, noise, xs, q, scratch):
    """What each action is worth in each state, into q; the steps taken."""
    tree, (world, params, limit, _), moves, tried, rng = borrowed((tree, place, moves, tried, rng))
    states, elapsed, xs, q, (state, x, luck, chances) = borrowed((states, elapsed, xs, q, scratch))
    chance, steps = rng[len(rng) - 1], 0
    for i in range(len(states)):
        see(world, states[i], xs[i])
        uniform(chance, 0.0, 1.0)  # every state meets a chance of its own
        uniform(rng[i % (len(rng) - 1)], 0.0, 1.0)
        for a in range(len(tried)):
            copy(states[i], state)
            copy(chance, luck)
            copy(rng[i % (len(rng) - 1)], chances)
            action = tried[a]
            for _ in range(limit - elapsed[i]):
                reward, over = move(world, params, state, action, chances)
                q[i, a] += reward
                steps += 1
                if over:
                    break
                see(world, state, x)
                action = tree[4][leaf_of(tree, x)]
                if uniform(luck, 0.0, 1.0) < noise:
                    action = moves[int(uniform(luck, 0.0, float(len(moves))))]
    return steps
