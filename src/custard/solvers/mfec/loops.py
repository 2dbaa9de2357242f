"""Where MFEC's episodes come from: a native environment inside the compiled loop, or any Gymnasium environment."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import numpy as np

from custard.solvers.common.held import hold
from custard.task.problem import Problem
from custard.task.source import DEFAULT_LIMIT

__all__ = ["BEGUN", "GOES_ON", "OVER", "TERMINATED", "TRUNCATED", "loop"]

BEGUN, GOES_ON, TRUNCATED, TERMINATED = -1.0, 0.0, 1.0, 2.0  # what became of an episode
OVER = -1  # instead of an action: the episode is over


def loop(problem: Problem, seed: int, run_native: Any, turn: Any, settings: Any) -> Any:
    """Where episodes come from; `settings` say how many steps there are in all, and whether a time limit is an end."""
    ends = not settings.bootstrap_at_limit
    if problem.native:
        return Native(problem, seed, run_native, ends)
    return Foreign(problem, seed, turn, ends, problem.longest(settings.budget or np.inf))


class Native:
    """A native environment; `run_native` steps it without coming back to Python."""

    def __init__(self, problem: Problem, seed: int, run_native: Any, limit_ends: bool) -> None:
        venv: Any = problem.source.vector(1)
        venv.reset(seed=seed)
        limit = min(venv.limit, DEFAULT_LIMIT) if problem.source.limit is None else venv.limit
        self.fixed = (venv.world, venv.params, limit, limit_ends and problem.source.limit is not None)
        self.state, self.rng, self.x = venv.state[0], venv.rng[0], venv.x[0]
        self.elapsed = np.zeros(1, dtype=np.int64)
        self.run_native = run_native

    def run(self, memory: Any, steps: int, k: int) -> int:
        """Learn for a number of environment steps; returns how many were taken."""
        self.run_native(memory, *self.fixed, self.state, self.rng, self.elapsed, self.x, steps, k)
        return steps

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps: these very arrays."""
        return {"env.state": self.state, "env.rng": self.rng, "env.x": self.x, "env.elapsed": self.elapsed}


class Foreign:
    """Any Gymnasium environment: whole episodes, each with a seed of its own, so that a run can be resumed.

    `turn(held, x, news, k)` is compiled: see `custard.solvers.mfec.episodes.turn`.
    """

    def __init__(self, problem: Problem, seed: int, turn: Any, limit_ends: bool, longest: int) -> None:
        self.env, self.base = problem.source.make(), problem.base
        self.limit, self.limit_ends = longest, limit_ends
        self.number = np.array([seed, 0], dtype=np.int64)  # the run's seed, and how many episodes there were
        self.x, self.news, self.turn = np.zeros(problem.base.features.n), np.zeros(2), turn

    def run(self, memory: Any, steps: int, k: int) -> int:
        """Learn from whole episodes until at least so many steps are taken; returns how many were."""
        held, taken = hold(memory), 0
        while taken < steps:
            taken += self._episode(held, k)
        return taken

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps: these very arrays."""
        return {"env.number": self.number}

    def _episode(self, held: Any, k: int) -> int:
        seed = int(np.random.SeedSequence(self.number.tolist()).generate_state(1)[0])
        self.number[1] += 1
        start, step, observe, turn = self.base.actions.start, self.env.step, self.base.observe, self.turn
        x, news = self.x, self.news
        length = 0
        x[:], news[1] = observe(self.env.reset(seed=seed)[0]), BEGUN
        while (action := turn(held, x, news, k)) != OVER:
            observation, reward, terminated, truncated, _ = step(action + start)
            x[:] = observe(observation)
            length += 1
            ended, cut = terminated or (truncated and self.limit_ends), truncated or length >= self.limit
            news[0], news[1] = reward, TERMINATED if ended else TRUNCATED if cut else GOES_ON
        return length
