"""Where MFEC's episodes come from: a native environment inside the compiled loop, or any Gymnasium environment."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import numpy as np

from custard.errors import CustardError
from custard.lab.source import DEFAULT_LIMIT
from custard.solvers.api import Problem
from custard.solvers.memory import PATIENT, STILL

__all__ = ["Foreign", "Native"]


class Native:
    """A native environment; `run_native` steps it without coming back to Python."""

    def __init__(self, problem: Problem, seed: int, run_native: Any) -> None:
        venv: Any = problem.source.vector(1)
        venv.reset(seed=seed)
        limit = min(venv.limit, DEFAULT_LIMIT) if problem.source.limit is None else venv.limit
        self.fixed = (venv.world, venv.params, limit)
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
    """Any Gymnasium environment: whole episodes, each with a seed of its own, so that a run can be resumed."""

    def __init__(self, problem: Problem, seed: int, decide: Any, go_on: Any, end: Any) -> None:
        self.env, self.base, self.name = problem.source.make(), problem.base, problem.source.name
        self.limit = problem.source.limit or DEFAULT_LIMIT
        self.number = np.array([seed, 0], dtype=np.int64)  # the run's seed, and how many episodes there were
        self.decide, self.go_on, self.end = decide, go_on, end

    def run(self, memory: Any, steps: int, k: int) -> int:
        """Learn from whole episodes until at least so many steps are taken; returns how many were."""
        taken = 0
        while taken < steps:
            taken += self._episode(memory, k)
        return taken

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps: these very arrays."""
        return {"env.number": self.number}

    def _episode(self, memory: Any, k: int) -> int:
        seed = int(np.random.SeedSequence(self.number.tolist()).generate_state(1)[0])
        self.number[1] += 1
        start, step, limit = self.base.actions.start, self.env.step, self.limit
        try:
            observation, _ = self.env.reset(seed=seed)
            action = self.decide(memory, self._features(observation), k)
            for length in range(1, limit + 1):
                observation, reward, terminal, truncated, _ = step(int(action) + start)
                x = self._features(observation)
                if terminal or truncated or length == limit or memory.count[STILL] >= PATIENT:
                    self.end(memory, float(reward), x, bool(terminal), k)
                    break
                action = self.go_on(memory, float(reward), x, k)
        except CustardError:
            raise
        except Exception as error:  # an environment may raise anything; say which one did
            raise CustardError(f"environment {self.name!r} raised {type(error).__name__}: {error}") from error
        return length

    def _features(self, observation: Any) -> np.ndarray:
        x = self.base.observe(observation)
        if np.isnan(x).any():
            bad = self.base.features.names[int(np.flatnonzero(np.isnan(x))[0])]
            raise CustardError(f"environment {self.name!r} gave NaN for feature {bad!r}")
        return x
