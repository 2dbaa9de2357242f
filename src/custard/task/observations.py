"""What is wrong with an observation that is not what its space declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from custard.core.errors import shortened

__all__ = ["observation_fault"]


def observation_fault(space: gym.Space, observation: Any, part_name: str = "") -> str | None:
    """Return what is wrong with an observation, or None.

    Numbers outside a Box's bounds are not a fault: many environments declare bounds that they do not keep. Spaces that
    only a `features=` function can read (Text, Graph, …) are not checked.

    >>> observation_fault(spaces.Discrete(3), 7)
    'an observation that does not fit its space Discrete(3): 7 is not one of 0…2'
    >>> observation_fault(spaces.Box(0, 1, (3,)), np.zeros((1, 3)))
    'an observation that does not fit its space Box(0.0, 1.0, (3,), float32): its shape is (1, 3), not (3,)'
    >>> observation_fault(spaces.Dict(a=spaces.Discrete(2)), {"a": 1}) is None
    True
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, Mapping):
            return _fault_message(space, part_name, f"a {type(observation).__name__} is no dictionary")
        missing = [str(key) for key in space.spaces if key not in observation]
        if missing:
            return _fault_message(space, part_name, f"it lacks {', '.join(map(repr, missing))}")
        parts = ((str(key), part, observation[key]) for key, part in space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        if not isinstance(observation, (tuple, list)) or len(observation) != len(space.spaces):
            return _fault_message(
                space, part_name, f"{len(space.spaces)} parts are needed, got {_short_repr(observation)}"
            )
        parts = ((str(k), part, observation[k]) for k, part in enumerate(space.spaces))
    else:
        return _plain_fault(space, observation, part_name)
    faults = (
        observation_fault(part, value, f"{part_name}.{name}" if part_name else name) for name, part, value in parts
    )
    return next((fault for fault in faults if fault is not None), None)


def _plain_fault(space: gym.Space, observation: Any, part_name: str) -> str | None:
    """Return what is wrong with an observation of a space of numbers."""
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return None
    try:
        array = np.asarray(observation)
    except (ValueError, TypeError):
        return _fault_message(space, part_name, f"{_short_repr(observation)} is no array of numbers")
    if array.dtype.kind not in "biuf":
        return _fault_message(space, part_name, f"{_short_repr(observation)} is no array of numbers")
    shape = space.shape or ()
    if array.shape != shape:
        return _fault_message(space, part_name, f"its shape is {array.shape}, not {shape}")
    if isinstance(space, spaces.Box):
        return None
    if isinstance(space, spaces.MultiBinary):
        low, high = np.zeros(shape), np.ones(shape)
    elif isinstance(space, spaces.Discrete):
        low, high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
    else:
        low, high = space.start, space.start + space.nvec - 1
    wrong = ~((array >= low) & (array <= high) & (array == np.floor(array)))
    if not wrong.any():
        return None
    first = np.flatnonzero(wrong.reshape(-1))[0]
    value, smallest, largest = (np.broadcast_to(part, shape).reshape(-1)[first] for part in (array, low, high))
    return _fault_message(space, part_name, f"{value} is not one of {int(smallest)}…{int(largest)}")


def _fault_message(space: gym.Space, part_name: str, what: str) -> str:
    part = f" (part {part_name!r})" if part_name else ""
    return f"an observation that does not fit its space {shortened(str(space), 200)}{part}: {what}"


def _short_repr(value: Any) -> str:
    return shortened(f"{type(value).__name__} {value!r}", 100)
