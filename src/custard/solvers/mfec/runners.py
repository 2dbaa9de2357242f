"""Where MFEC's episodes come from: a native environment inside the compiled loop, or any Gymnasium environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.core.numba_tools import hold
from custard.solvers.common.bounds_survey import default_splits
from custard.task.problem import Problem
from custard.task.source import DEFAULT_TIME_LIMIT

__all__ = ["CONTINUES", "EPISODE_OVER", "STARTED", "TERMINATED", "TRUNCATED", "default_budget", "make_runner"]

STARTED, CONTINUES, TRUNCATED, TERMINATED = -1.0, 0.0, 1.0, 2.0  # status of an episode after a step
EPISODE_OVER = -1  # returned instead of an action
NATIVE_BUDGET, PYTHON_BUDGET = 10_000_000, 1_000_000  # environment steps, by who steps the environment


def default_budget(problem: Problem) -> int:
    """Return the environment steps of a run without a given budget: twice as many where thresholds are finer."""
    budget = NATIVE_BUDGET if problem.is_compiled else PYTHON_BUDGET
    features = problem.base.features
    return 2 * budget if default_splits(features, problem.max_depth) > default_splits(features) else budget


def make_runner(
    problem: Problem, seed: int, run_native: Any, next_action: Any, budget: int, bootstrap_at_limit: bool
) -> Any:
    """Return what steps the environment.

    seed: of the environment
    run_native, next_action: the learner's compiled loop, and one turn of it for environments that Python steps
    budget: environment steps in all
    bootstrap_at_limit: whether what would follow a time limit counts; if not, a time limit is a termination
    """
    if problem.is_compiled:
        return NativeRunner(problem, seed, run_native, not bootstrap_at_limit)
    return PythonRunner(problem, seed, next_action, not bootstrap_at_limit, problem.episode_cap(budget))


class NativeRunner:
    """Steps a native environment in `run_native`, without coming back to Python."""

    def __init__(self, problem: Problem, seed: int, run_native: Any, limit_terminates: bool) -> None:
        venv: Any = problem.source.make_vec(1)
        venv.reset(seed=seed)
        limit = min(venv.limit, DEFAULT_TIME_LIMIT) if problem.source.time_limit is None else venv.limit
        self.world = (venv.world, venv.params, limit, limit_terminates and problem.source.time_limit is not None)
        self.state, self.rng, self.x = venv.state[0], venv.rng[0], venv.x[0]
        self.elapsed = np.zeros(1, dtype=np.int64)
        self.run_native = run_native

    def run(self, tables: Any, steps: int, k: int) -> int:
        """Learn for a number of environment steps; return how many were taken."""
        self.run_native(tables, *self.world, self.state, self.rng, self.elapsed, self.x, steps, k)
        return steps

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint keeps: these very arrays."""
        return {"env.state": self.state, "env.rng": self.rng, "env.x": self.x, "env.elapsed": self.elapsed}


class PythonRunner:
    """Steps any Gymnasium environment: whole episodes, each with a seed of its own, so that a run can be resumed.

    `next_action(held, x, last_step, k)` is compiled: see `custard.solvers.mfec.episodes.next_action`.
    """

    def __init__(
        self, problem: Problem, seed: int, next_action: Any, limit_terminates: bool, max_episode_steps: int
    ) -> None:
        self.env, self.base = problem.source.make(), problem.base
        self.max_episode_steps, self.limit_terminates = max_episode_steps, limit_terminates
        self.seed_and_episodes = np.array([seed, 0], dtype=np.int64)  # the run's seed, and how many episodes there were
        self.x, self.last_step, self.next_action = np.zeros(problem.base.features.n), np.zeros(2), next_action

    def run(self, tables: Any, steps: int, k: int) -> int:
        """Learn from whole episodes until at least so many steps are taken; return how many were."""
        held, taken = hold(tables), 0
        while taken < steps:
            taken += self._run_episode(held, k)
        return taken

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint keeps: these very arrays."""
        return {"env.seed_and_episodes": self.seed_and_episodes}

    def _run_episode(self, held: Any, k: int) -> int:
        """Learn from one episode; return its length."""
        seed = int(np.random.SeedSequence(self.seed_and_episodes.tolist()).generate_state(1)[0])
        self.seed_and_episodes[1] += 1
        start, step, observe, next_action = self.base.actions.start, self.env.step, self.base.observe, self.next_action
        x, last_step = self.x, self.last_step
        length = 0
        x[:], last_step[1] = observe(self.env.reset(seed=seed)[0]), STARTED
        while (action := next_action(held, x, last_step, k)) != EPISODE_OVER:
            observation, reward, terminated, truncated, _ = step(action + start)
            x[:] = observe(observation)
            length += 1
            ends = terminated or (truncated and self.limit_terminates)
            is_cut = truncated or length >= self.max_episode_steps
            last_step[0], last_step[1] = reward, TERMINATED if ends else TRUNCATED if is_cut else CONTINUES
        return length
