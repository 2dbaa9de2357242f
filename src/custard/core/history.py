"""Past observations and actions as features: their names and order, and what the first steps of an episode hold.

With a history of H steps a state is the vector

    present features, then for each step back k = 1 … H: the features k steps ago, the action taken k steps ago

called `position`, `position[-1]`, `action[-1]`, `position[-2]`, … At the start of an episode, where nothing has passed
yet, the first observation stands for the earlier ones, so that differences are 0, and the earlier actions are the first
action (discrete), the least of each component (whole numbers) or 0 within its bounds (reals). Real actions are kept as
float32 holds them, which is what most environments are given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError, require_whole
from custard.core.features import BINARY, INTEGER, REAL, Features

__all__ = ["MAX_HISTORY", "Memory", "action_values", "first_action", "history_features", "require_history"]

MAX_HISTORY = 100  # steps back
MAX_HISTORY_FEATURES = 100_000  # of one state, present and past together


def require_history(steps: Any) -> None:
    """Raise unless a history is a whole number of steps that can be remembered."""
    require_whole(0, MAX_HISTORY, history=steps)


def history_features(features: Features, actions: Actions, steps: int) -> Features:
    """Return the features of the observation, then those of each past step, with its action.

    >>> car = Features(("position",), [-1], [1])
    >>> history_features(car, Actions("discrete", ("left", "right")), 2).names
    ('position', 'position[-1]', 'action[-1]', 'position[-2]', 'action[-2]')
    """
    require_history(steps)
    total = features.n + steps * (features.n + actions.size)
    if total > MAX_HISTORY_FEATURES:
        raise CustardError(
            f"history={steps} makes {total:,} features of {features.n:,}: at most {MAX_HISTORY_FEATURES:,} are possible"
        )
    called = _action_names(features, actions)
    names, kinds = list(features.names), list(features.kinds)
    low, high = [features.low], [features.high]
    action_low, action_high, action_kinds = _action_bounds(actions)
    for k in range(1, steps + 1):
        names += [f"{name}[-{k}]" for name in (*features.names, *called)]
        kinds += [*features.kinds, *action_kinds]
        low += [features.low, action_low]
        high += [features.high, action_high]
    return Features(tuple(names), np.concatenate(low), np.concatenate(high), tuple(kinds), dict(features.origin))


def first_action(actions: Actions) -> np.ndarray:
    """Return what stands for the actions before an episode's first one, [size] float64.

    >>> first_action(Actions("box", ("gas", "brake"), low=[-1, 0.5], high=[1, 1])).tolist()
    [0.0, 0.5]
    """
    if actions.discrete:
        return np.array([float(actions.start)])
    assert actions.low is not None
    assert actions.high is not None
    if actions.kind == "multi":
        return actions.low.copy()
    return _as_float32(np.clip(np.zeros(actions.size), actions.low, actions.high))


def action_values(actions: Actions, action: Any) -> np.ndarray:
    """Return an action as features have it, [size] float64."""
    values = np.asarray(action, dtype=np.float64).reshape(-1)
    return _as_float32(values) if actions.kind == "box" else values


class Memory:
    """The present features and those of the last steps, as one vector.

    >>> memory = Memory(Actions("discrete", ("left", "right")), 1)
    >>> memory.begin(np.array([0.5])).tolist(), memory.push(1, np.array([0.7])).tolist()
    ([0.5, 0.5, 0.0], [0.7, 0.5, 1.0])
    """

    def __init__(self, actions: Actions, steps: int) -> None:
        self.actions, self.steps, self.first = actions, steps, first_action(actions)
        self.state = np.zeros(0)
        self.n = 0

    def begin(self, x: np.ndarray) -> np.ndarray:
        """Begin an episode with its first features [n]; return the whole vector, a new array."""
        self.n = len(x)
        self.state = np.concatenate([x, *[x, self.first] * self.steps])
        return self.state.copy()

    def push(self, action: Any, x: np.ndarray) -> np.ndarray:
        """Add an action and the features [n] that it led to; return the whole vector, a new array."""
        kept = len(self.state) - self.n - len(self.first)  # all but the present features and the oldest step
        taken = action_values(self.actions, action)
        self.state = np.concatenate([x, self.state[: self.n], taken, self.state[self.n : kept]])
        return self.state.copy()


def _as_float32(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
        return values.astype(np.float32).astype(np.float64)


def _action_names(features: Features, actions: Actions) -> list[str]:
    """Return what past actions are called before their [-k]: action, or action_NAME for each of several components."""
    stem = "action"
    while any(name == stem or name.startswith(f"{stem}_") for name in features.names):
        stem = f"taken_{stem}"
    if actions.size == 1:
        return [stem]
    return [f"{stem}_{name.removeprefix('action_')}" for name in actions.names]


def _action_bounds(actions: Actions) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return low [size], high [size] and kinds of past actions as features."""
    if actions.discrete:
        low, high = np.array([float(actions.start)]), np.array([float(actions.start + actions.n - 1)])
    else:
        assert actions.low is not None
        assert actions.high is not None
        low, high = actions.low, actions.high
    if actions.kind == "box":
        return low, high, [REAL] * len(low)
    pairs = zip(low.tolist(), high.tolist(), strict=True)
    return low, high, [BINARY if pair == (0.0, 1.0) else INTEGER for pair in pairs]
