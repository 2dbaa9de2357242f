"""Environments brought back to a state: by copying them, or by the same actions after a reset with the same seed."""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["can_copy", "can_repeat", "copy_env"]

#: Attributes that an environment and its wrappers never change.
SHARED_ATTRIBUTES = (
    "observation_space", "action_space", "_observation_space", "_action_space", "spec", "_cached_spec", "metadata",
)  # fmt: skip
COPY_TEST_STEPS, REPEAT_TEST_STEPS = 3, 20


def copy_env(env: Any) -> Any:
    """Return a copy of an environment that shares what never changes: spaces and specification."""
    shared: dict[int, Any] = {}
    layer = env
    while layer is not None:
        for name in SHARED_ATTRIBUTES:
            part = layer.__dict__.get(name)
            if part is not None:
                shared[id(part)] = part
        layer = layer.__dict__.get("env")
    return copy.deepcopy(env, shared)


def can_copy(env: Any) -> bool:
    """Return whether an environment and its copy step alike and independently."""
    try:
        env.action_space.seed(0)
        env.reset(seed=0)
        twin = copy_env(env)
        for _ in range(COPY_TEST_STEPS):
            action = env.action_space.sample()
            result, twin_result = env.step(action), twin.step(action)
            if repr(result[:4]) != repr(twin_result[:4]) or result[2] or result[3]:
                break
            other = copy_env(env)
            env.step(action)
            if len(other.step(action)) != 5:
                return False
            twin = copy_env(env)
        return repr(result[:4]) == repr(twin_result[:4])
    except Exception:  # whatever goes wrong in copying means that it cannot be copied
        return False


def can_repeat(env: Any) -> bool:
    """Return whether the same actions after a reset with the same seed give the same results."""
    try:
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(REPEAT_TEST_STEPS)]
        episodes = []
        for _ in range(2):
            episodes.append([repr(env.reset(seed=1)[0])])
            for action in actions:
                result = env.step(action)
                episodes[-1].append(repr(result[:4]))
                if result[2] or result[3]:
                    break
        return episodes[0] == episodes[1]
    except Exception:  # an environment that breaks on random actions says so when it is really run
        return False
