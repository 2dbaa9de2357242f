"""Wrap a user's environment so that its errors, and answers that are not what it declares, become one clear line."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

from custard.core.errors import CustardError, one_line, shortened
from custard.task.observations import observation_fault

__all__ = ["MAX_REWARD_SIZE", "Guarded"]

#: The largest reward of one step: sums and squares of returns must stay finite numbers.
MAX_REWARD_SIZE = 1e100


class Guarded(gym.Wrapper):
    """Reports an environment's errors with its name and the step at which they happened.

    >>> Guarded(gym.make("CartPole-v1"), "mine").step(0)
    Traceback (most recent call last):
    custard.core.errors.CustardError: environment 'mine' raised ResetNeeded at step 1: Cannot call env.step() before ...
    """

    def __init__(self, env: gym.Env, name: str, owned: bool = True) -> None:
        super().__init__(env)
        self.name, self.steps = name, 0
        space = env.observation_space
        # What most observations are: an array of this shape, whose numbers need no further check.
        self._plain_shape = space.shape if isinstance(space, gym.spaces.Box) else None
        # An environment may hold a window, a process or a connection. One that we made ourselves (`owned`) is closed
        # once, at the latest when it is garbage-collected.
        self._closing = weakref.finalize(self, _close_env, env) if owned else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self.steps = 0
        try:
            answer = self.env.reset(seed=seed, options=options)
        except (Exception, SystemExit) as error:  # an environment may raise anything
            raise self._as_custard_error(error) from error
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise CustardError(
                f"environment {self.name!r} must return an observation and a dictionary on reset, as Gymnasium's do"
            )
        self._check_observation(answer[0])
        return answer

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        self.steps += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            gain = float(reward)
        except (Exception, SystemExit) as error:
            raise self._as_custard_error(error) from error
        is_plain = type(observation) is np.ndarray and observation.shape == self._plain_shape
        if not is_plain or observation.dtype.kind not in "fiub":
            self._check_observation(observation)
        if not -MAX_REWARD_SIZE <= gain <= MAX_REWARD_SIZE or isinstance(reward, (str, bytes)):
            raise self._bad_reward_error(reward, gain)
        if terminated is not True and terminated is not False:
            terminated = self._flag_as_bool("terminated", terminated)
        if truncated is not True and truncated is not False:
            truncated = self._flag_as_bool("truncated", truncated)
        if type(info) is not dict and not isinstance(info, dict):
            raise CustardError(
                f"environment {self.name!r} must return a dictionary as the last part of a step, not "
                f"{type(info).__name__} ({self._when_in_episode})"
            )
        return observation, gain, terminated, truncated, info

    def close(self) -> None:
        """Close the environment, once; the user's own stays open."""
        if self._closing is not None:
            self._closing()

    @property
    def _when_in_episode(self) -> str:
        return f"at step {self.steps}" if self.steps else "on reset"

    def _check_observation(self, observation: Any) -> None:
        fault = observation_fault(self.env.observation_space, observation)
        if fault is not None:
            raise CustardError(f"environment {self.name!r} gave {fault} {self._when_in_episode}")

    def _flag_as_bool(self, name: str, value: Any) -> bool:
        """Return `terminated` or `truncated` as a bool; anything but a truth value, or 0 or 1, is refused."""
        if isinstance(value, (np.bool_, int, np.integer)) and value in (0, 1):
            return bool(value)
        shown = shortened(f"{type(value).__name__} {one_line(value)}", 100)
        raise CustardError(
            f"environment {self.name!r} gave {name} = {shown} {self._when_in_episode}: it must be True or False"
        )

    def _bad_reward_error(self, reward: Any, gain: float) -> CustardError:
        if isinstance(reward, (str, bytes)):
            return CustardError(f"environment {self.name!r} gave the text {reward!r} as reward {self._when_in_episode}")
        what = f"environment {self.name!r} gave the reward {gain:g} {self._when_in_episode}"
        if not np.isfinite(gain):
            return CustardError(what)
        return CustardError(f"{what}: rewards beyond ±{MAX_REWARD_SIZE:g} are too large to add, so divide them")

    def _as_custard_error(self, error: BaseException) -> CustardError:
        if isinstance(error, CustardError):
            return error
        said = one_line(error)
        return CustardError(
            f"environment {self.name!r} raised {type(error).__name__} {self._when_in_episode}"
            + (f": {said}" if said else "")
        )


def _close_env(env: gym.Env) -> None:
    with suppress(Exception, SystemExit):
        env.close()
