"""Wrap a user's environment so that its errors, and rewards that are not finite, become one clear line."""

from __future__ import annotations

import weakref
from contextlib import suppress
from math import isfinite
from typing import Any

import gymnasium as gym

from custard.core.errors import CustardError, one_line

__all__ = ["Guarded"]


class Guarded(gym.Wrapper):
    """Reports an environment's errors with its name and the step at which they happened.

    >>> Guarded(gym.make("CartPole-v1"), "mine").step(0)
    Traceback (most recent call last):
    custard.core.errors.CustardError: environment 'mine' raised ResetNeeded at step 1: Cannot call env.step() before ...
    """

    def __init__(self, env: gym.Env, name: str, owned: bool = True) -> None:
        super().__init__(env)
        self.name, self.steps = name, 0
        # An environment may hold a window, a process or a connection. One that we made ourselves (`owned`) is closed
        # once, at the latest when it is garbage-collected.
        self._closing = weakref.finalize(self, _close, env) if owned else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self.steps = 0
        try:
            answer = self.env.reset(seed=seed, options=options)
        except Exception as error:  # an environment may raise anything
            raise self._as_custard_error(error, "on reset") from error
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise CustardError(
                f"environment {self.name!r} must return an observation and a dictionary on reset, as Gymnasium's do"
            )
        return answer

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        self.steps += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            gain = float(reward)
        except Exception as error:
            raise self._as_custard_error(error, f"at step {self.steps}") from error
        if not isfinite(gain):
            raise CustardError(f"environment {self.name!r} gave the reward {gain} at step {self.steps}")
        return observation, gain, terminated, truncated, info

    def close(self) -> None:
        """Close the environment, once; the user's own stays open."""
        if self._closing is not None:
            self._closing()

    def _as_custard_error(self, error: Exception, when: str) -> CustardError:
        if isinstance(error, CustardError):
            return error
        return CustardError(f"environment {self.name!r} raised {type(error).__name__} {when}: {one_line(error)}")


def _close(env: gym.Env) -> None:
    with suppress(Exception):
        env.close()
