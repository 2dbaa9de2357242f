"""What an expert is: it acts well on the base MDP and rates actions, for VIPER and tree policy iteration to imitate.

A kind of expert is a function that returns an `Expert`; or, if it is trained first, a generator that yields `Progress`
at every check, the last one with the best expert of all checks. `custard.experts.kinds` finds a kind by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError

__all__ = ["Expert", "Progress", "from_action_function", "from_q_function"]


@dataclass(frozen=True)
class Expert:
    """Acts, and rates actions: by Q-values, by the logarithm of their probabilities, or not at all."""

    name: str
    act: Callable[[np.ndarray], np.ndarray]  # feature vectors [B, n] -> action numbers 0…A-1 [B], or vectors [B, k]
    q: Callable[[np.ndarray], np.ndarray] | None  # feature vectors [B, n] -> Q-values [B, A]
    log_policy: Callable[[np.ndarray], np.ndarray] | None = None  # feature vectors [B, n] -> log-probabilities [B, A]
    save: Callable[[str | Path], None] | None = None  # write a file that `custard.experts.kinds.experts` reads


@dataclass(frozen=True)
class Progress:
    """How far an expert's training is."""

    steps: int  # environment steps, those of checks included
    value: float  # mean return of the best expert so far
    expert: Expert | None  # the best expert so far


def from_action_function(function: Callable[[np.ndarray], Any], size: int) -> Expert:
    """Return an expert of vector actions that acts by a function, which is checked.

    >>> from_action_function(lambda x: -x, 1).act(np.array([[1.0], [-1.0]])).tolist()
    [[-1.0], [1.0]]
    """

    def act(x: np.ndarray) -> np.ndarray:
        actions = np.asarray(function(x), dtype=np.float64)
        if actions.shape != (len(x), size) or np.isnan(actions).any():
            raise CustardError(
                f"an expert must give actions of shape [B, {size}], no NaN; for {len(x)} states it gave {actions.shape}"
            )
        return actions

    return Expert("function", act, None)


def from_q_function(
    function: Callable[[np.ndarray], Any],
    n_actions: int,
    name: str = "function",
    save: Callable[[str | Path], None] | None = None,
) -> Expert:
    """Return an expert that acts by a function's Q-values, which are checked.

    >>> from_q_function(lambda x: np.stack([x[:, 0], -x[:, 0]], axis=1), 2).act(np.array([[1.0], [-1.0]]))
    array([0, 1])
    """

    def q(x: np.ndarray) -> np.ndarray:
        values = np.asarray(function(x), dtype=np.float64)
        if values.shape != (len(x), n_actions):
            raise CustardError(
                f"an expert must give Q-values of shape [B, {n_actions}]; for {len(x)} states it gave {values.shape}"
            )
        if np.isnan(values).any():
            raise CustardError("the expert gave NaN for a Q-value")
        return values

    return Expert(name, lambda x: q(x).argmax(axis=1), q, save=save)
