"""Whole episodes of a policy that learns between them, several side by side.

Every episode has a seed of its own and is finished before the policy changes. So a run can be resumed after any batch
although the state of an environment cannot be stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from custard.core.spaces import describe
from custard.ibmdp.base_environments import base_environments_of
from custard.task.problem import Problem
from custard.task.runners import MAX_LEARNING_ENVIRONMENTS

__all__ = ["Batch", "WholeEpisodes"]


class Batch(NamedTuple):
    """Steps of whole episodes, one episode after the other: T steps, E episodes, n features."""

    x: np.ndarray  # [T, n] the states before
    action: np.ndarray  # [T] numbered from 0, or [T, k]
    reward: np.ndarray  # [T]
    after: np.ndarray  # [T, n] the states after
    terminated: np.ndarray  # [T] bool: nothing follows
    last: np.ndarray  # [T] bool: the last step of its episode

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return len(self.reward)


class WholeEpisodes:
    """Environments side by side that run whole episodes."""

    def __init__(self, problem: Problem, seed: int, num_envs: int, max_steps: int, limit_terminates: bool) -> None:
        """Make the environments.

        problem           what is to be solved
        seed              of episodes and of sampled actions
        num_envs          environments side by side; where Python steps them at most 8
        max_steps         steps after which an episode is cut
        limit_terminates  whether an episode that the environment truncates counts as terminated
        """
        self.source = problem.source
        self.venv = problem.source.make_vec(
            num_envs if problem.is_compiled else min(num_envs, MAX_LEARNING_ENVIRONMENTS)
        )
        self.parts = base_environments_of(self.venv, describe(self.venv, features=problem.encoder))
        self.start = problem.base.actions.start if problem.base.actions.discrete else 0
        self.max_steps, self.limit_terminates = max_steps, limit_terminates
        self.seed_and_episodes = np.array([seed, 0], dtype=np.int64)  # how many episodes began

    def close(self) -> None:
        """Close the environments, unless they are the user's own."""
        if not self.source.is_single_instance:
            self.venv.close()

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint stores: the arrays themselves, not copies."""
        return {"env.seed_and_episodes": self.seed_and_episodes}

    def collect(self, act: Callable[[np.ndarray, np.random.Generator], np.ndarray], steps: int) -> Batch:
        """Run whole episodes until about so many steps are taken: at most one episode more, at least one episode.

        `act` maps states [B, n] and a generator to actions, [B] numbered from 0 or [B, k].
        """
        parts, slots = self.parts, len(self.parts.reward)
        rng = np.random.default_rng(self.seed_and_episodes.tolist())
        number, length = np.zeros(slots, dtype=np.int64), np.zeros(slots, dtype=np.int64)
        rows: list[tuple[np.ndarray, ...]] = []
        taken, active = 0, np.arange(0)
        while True:
            if taken == 0 or len(active) < slots:
                active = self._start_episodes(active, number, length, steps - taken)
            if not len(active):
                break
            x = parts.x[active].copy()
            actions = np.asarray(act(x, rng))
            parts.move(active, actions + self.start if self.start else actions, np.arange(0))
            length[active] += 1
            taken += len(active)
            terminated, truncated = parts.terminated[active], parts.truncated[active]
            over = terminated | truncated | (length[active] >= self.max_steps)
            terminated = terminated | (truncated & self.limit_terminates)
            rows.append(
                (number[active], x, actions, parts.reward[active].copy(), parts.x[active].copy(), terminated, over)
            )
            active = active[~over]
        numbers, *columns = (np.concatenate(column) for column in zip(*rows, strict=True))
        order = np.argsort(numbers, kind="stable")
        return Batch(*(column[order] for column in columns))

    def _start_episodes(self, active: np.ndarray, number: np.ndarray, length: np.ndarray, left: int) -> np.ndarray:
        """Start as many episodes in free slots as `left` steps allow; return the slots that are active then."""
        committed = int((self.max_steps - length[active]).sum())
        count = (left - committed) // self.max_steps
        if not len(active) and left > 0:
            count = max(1, count)  # one episode may take more than is left
        free = np.setdiff1d(np.arange(len(number)), active, assume_unique=True)[: max(0, count)]
        if not len(free):
            return active
        seeds: list[int | None] = [None] * len(number)
        mask = np.zeros(len(number), dtype=bool)
        mask[free] = True
        for slot in free.tolist():
            seeds[slot] = int(np.random.SeedSequence(self.seed_and_episodes.tolist()).generate_state(1)[0])
            number[slot], length[slot] = self.seed_and_episodes[1], 0
            self.seed_and_episodes[1] += 1
        self.parts.reset(seeds, {"reset_mask": mask})
        return np.sort(np.concatenate([active, free]))
