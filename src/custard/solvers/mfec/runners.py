"""Where MFEC's episodes come from: a native environment inside the compiled loop, or any Gymnasium environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.core.numba_tools import hold
from custard.solvers.common.bounds_survey import default_splits
from custard.task.compiled_episodes import CompiledEpisodes
from custard.task.problem import Problem
from custard.task.runners import PythonEpisodes

__all__ = ["CONTINUES", "EPISODE_OVER", "STARTED", "TERMINATED", "TRUNCATED", "default_budget", "run_episodes"]

STARTED, CONTINUES, TRUNCATED, TERMINATED = -1.0, 0.0, 1.0, 2.0  # status of an episode after a step
EPISODE_OVER = -1  # returned instead of an action
NATIVE_BUDGET, PYTHON_BUDGET = 10_000_000, 1_000_000  # environment steps, by who steps the environment


def default_budget(problem: Problem) -> int:
    """Return the environment steps of a run without a given budget: twice as many where thresholds are finer."""
    budget = NATIVE_BUDGET if problem.is_compiled else PYTHON_BUDGET
    features = problem.base.features
    return 2 * budget if default_splits(features, problem.max_depth) > default_splits(features) else budget


def run_episodes(
    episodes: CompiledEpisodes | PythonEpisodes, run_compiled: Any, next_action: Any, tables: Any, steps: int, k: int
) -> int:
    """Learn for `steps` environment steps, where Python steps to the end of an episode; return how many were taken.

    episodes: the environment
    run_compiled, next_action: the learner's loop in a compiled environment, and one turn of it for one that Python
        steps: see `custard.solvers.mfec.episodes`
    tables: what is learned
    k: neighbours of a new base state
    """
    if not isinstance(episodes, PythonEpisodes):
        run_compiled(tables, episodes, steps, k)
        return steps
    held, taken, start = hold(tables), 0, episodes.base.actions.start
    x, last_step = np.zeros(episodes.base.features.n), np.zeros(2)
    while taken < steps:
        x[:], last_step[1] = episodes.reset(), STARTED
        while (action := next_action(held, x, last_step, k)) != EPISODE_OVER:
            x[:], last_step[0], terminated, truncated = episodes.step(action + start)
            last_step[1] = TERMINATED if terminated else TRUNCATED if truncated else CONTINUES
        taken += episodes.length
    return taken
