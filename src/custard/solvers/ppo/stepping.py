"""Where PPO's rows come from: native environments inside a compiled loop, or any Gymnasium environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from custard.core.spaces import describe
from custard.ibmdp.base_environments import base_environments_of
from custard.solvers.ppo.acting import note, refresh, run_native, think
from custard.task.problem import Problem
from custard.task.source import DEFAULT_LIMIT

__all__ = ["Foreign", "Native"]


class Native:
    """Compiled environments, stepped without coming back to Python."""

    def __init__(self, problem: Problem, count: int, seed: int, limit_ends: bool) -> None:
        venv: Any = problem.source.vector(count)
        venv.reset(seed=seed)
        limit = min(venv.limit, DEFAULT_LIMIT) if problem.source.limit is None else venv.limit
        self.fixed, self.count = (
            (venv.world, venv.params, limit, limit_ends and problem.source.limit is not None),
            count,
        )
        self.state, self.rng, self.x, self.elapsed = venv.state, venv.rng, venv.x, venv.elapsed
        self.total, self.plans = np.zeros(count), np.full((count, 2), -1, dtype=np.int64)
        self.planned = np.zeros((count, vector_size(problem)))

    def run(
        self, game: Any, weights: Any, node: Any, child: Any, rng: Any, explores: Any, epsilon: float, rows: Any,
        ended: Any,
    ) -> int:  # fmt: skip
        """Fill the rows; how many base actions that took. Returns of ended episodes are added to `ended`."""
        moving = (self.state, self.rng, self.x, self.elapsed, self.total, self.plans, self.planned)
        return run_native(game, weights, node, child, rng, *self.fixed, *moving, explores, epsilon, rows, ended)

    def break_off(self) -> None:
        """Nothing: these environments' states can be stored."""

    def resume(self) -> None:
        """Nothing: the arrays are all there is."""

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps: these very arrays."""
        names = ("state", "rng", "x", "elapsed", "total", "plans", "planned")
        return {f"env.{name}": getattr(self, name) for name in names}


class Foreign:
    """Any Gymnasium environments. Episodes have seeds of their own and are broken off where a checkpoint may be made.

    So a run can be resumed although the environments' states cannot be stored. An episode broken off is one cut short:
    its last state keeps its value.
    """

    def __init__(self, problem: Problem, count: int, seed: int, limit_ends: bool) -> None:
        venv = problem.source.vector(min(count, 8))
        self.count, self.seed = venv.num_envs, seed
        self.parts = base_environments_of(venv, describe(venv, features=problem.encoder))
        self.actions = problem.base.actions
        self.limit, self.limit_ends = problem.source.limit or DEFAULT_LIMIT, limit_ends
        self.episodes, self.elapsed = np.zeros(self.count, dtype=np.int64), np.zeros(self.count, dtype=np.int64)
        self.total, self.plans = np.zeros(self.count), np.full((self.count, 2), -1, dtype=np.int64)
        self.planned = np.zeros((self.count, vector_size(problem)))
        self.nobody, self.only = np.arange(0), [np.array([i]) for i in range(self.count)]
        self.fresh = True

    def run(
        self, game: Any, weights: Any, node: Any, child: Any, rng: Any, explores: Any, epsilon: float, rows: Any,
        ended: Any,
    ) -> int:  # fmt: skip
        """Fill the rows; how many base actions that took. Returns of ended episodes are added to `ended`."""
        parts, plans, planned, start = self.parts, self.plans, self.planned, self.actions.start

        def decide(i: int, t: int) -> tuple[int, Any]:
            t, number = think(
                game, weights, node, child, rng[i], parts.x[i], plans[i], planned[i], explores[i], epsilon, rows, i, t
            )
            return t, number + start if self.actions.discrete else node.u.copy()

        def learn(i: int, t: int, reward: float, terminated: bool, over: bool) -> None:
            after = parts.x[i]
            note(game, weights, node, rng[i], plans[i], planned[i], rows, i, t, reward, after, terminated, over)
            if over and explores[i] == 0.0:
                ended[:] += (self.total[i], 1.0)

        refresh(game, node)
        return self.steps(rows.acts.shape[1], decide, learn)

    def steps(
        self, length: int, decide: Callable[[int, int], tuple[int, Any]], learn: Callable[..., None]
    ) -> int:  # fmt: skip
        """Step each environment until its rows, `length` of them, are full; how many base actions that took.

        `decide(i, t)` gives the row of environment i's next base action, t or a later one, and the action; or `length`,
        if the rows were full before. `learn(i, t, reward, terminated, over)` is then told what came of it.
        """
        parts, taken = self.parts, 0
        for i in range(self.count):
            if self.fresh:
                self._begin(i)
            t, action = decide(i, 0)
            while t < length:
                parts.move(self.only[i], [action], self.nobody)
                reward, terminated = float(parts.reward[i]), bool(parts.terminated[i])
                self.elapsed[i] += 1
                self.total[i] += reward
                taken += 1
                truncated = bool(parts.truncated[i])
                over = terminated or truncated or self.elapsed[i] >= self.limit
                learn(i, t, reward, terminated or (truncated and self.limit_ends), over)
                if over:
                    self._begin(i)
                if t + 1 == length:
                    break
                t, action = decide(i, t + 1)
        self.fresh = False
        return taken

    def break_off(self) -> None:
        """Start new episodes everywhere before the next rows."""
        self.fresh = True

    def resume(self) -> None:
        """A checkpoint is made where episodes were broken off."""
        self.fresh = True

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps: these very arrays."""
        return {"env.episodes": self.episodes}

    def _begin(self, i: int) -> None:
        seed = int(np.random.SeedSequence([self.seed, i, int(self.episodes[i])]).generate_state(1)[0])
        self.episodes[i] += 1
        mask = np.arange(self.count) == i
        self.parts.reset([seed] * self.count, {"reset_mask": mask})
        self.elapsed[i], self.total[i], self.plans[i] = 0, 0.0, -1


def vector_size(problem: Problem) -> int:
    """How many components base actions have, if they are vectors; else none."""
    return 0 if problem.base.actions.discrete else problem.base.actions.size
