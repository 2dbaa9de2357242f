"""Compiled environments for a solver's own compiled loop, which steps and restarts them one by one."""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from custard.core.numba_tools import njit_inlined
from custard.envs.native import advance, begin, observe
from custard.task.compiled_rollouts import world_of
from custard.task.problem import Problem

__all__ = ["CompiledEpisodes", "compiled_episodes_of", "make_compiled_episodes", "start_episode", "step_episode"]


class CompiledEpisodes(NamedTuple):
    """Environments side by side and where the present episode of each stands. N environments, n features."""

    kind: int  # which environment's dynamics
    params: np.ndarray
    time_limit: int
    limit_terminates: bool  # whether an episode that reaches the environment's own time limit counts as terminated
    state: np.ndarray  # [N, n_state]
    rng: np.ndarray  # [N, 4]
    x: np.ndarray  # [N, n]
    elapsed: np.ndarray  # [N] steps so far
    returns: np.ndarray  # [N] sum of rewards so far
    is_new: np.ndarray  # [N] bool: no policy has seen the episode yet, which is for the loop to keep up to date

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint stores: the arrays themselves, not copies."""
        return {f"env.{name}": getattr(self, name) for name in ("state", "rng", "x", "elapsed", "returns", "is_new")}


def make_compiled_episodes(
    problem: Problem, seed: int, *, limit_terminates: bool, count: int = 1
) -> CompiledEpisodes:  # fmt: skip
    """Make environments and start an episode in each; `Problem.is_compiled` must hold."""
    venv: Any = problem.source.make_vec(count)
    venv.reset(seed=seed)
    return compiled_episodes_of(venv, limit_terminates and problem.source.time_limit is not None)


def compiled_episodes_of(venv: Any, limit_terminates: bool) -> CompiledEpisodes:
    """Return the environments of a `NativeVectorEnv` that was reset; its arrays are shared."""
    kind, params, time_limit, _ = world_of(venv)
    arrays = venv.state, venv.rng, venv.x, venv.elapsed, np.zeros(venv.num_envs), np.ones(venv.num_envs, dtype=bool)
    return CompiledEpisodes(kind, params, time_limit, limit_terminates, *arrays)


@njit_inlined
def step_episode(episodes, i, action):
    """Take an action in environment i: return the reward, whether it terminates and whether it is done."""
    reward, terminated = advance(episodes.kind, episodes.params, episodes.state[i], action, episodes.rng[i])
    observe(episodes.kind, episodes.state[i], episodes.x[i])
    episodes.elapsed[i] += 1
    episodes.returns[i] += reward
    done = terminated or episodes.elapsed[i] >= episodes.time_limit
    return reward, terminated or (done and episodes.limit_terminates), done


@njit_inlined
def start_episode(episodes, i):
    """Start the next episode of environment i."""
    begin(episodes.kind, episodes.state[i], episodes.rng[i])
    observe(episodes.kind, episodes.state[i], episodes.x[i])
    episodes.elapsed[i], episodes.returns[i] = 0, 0.0
    episodes.is_new[i] = True
