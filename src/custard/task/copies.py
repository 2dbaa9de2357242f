"""Environments brought back to a state: by copying them, or by the same actions after a reset with the same seed."""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["can_copy", "can_repeat", "copied"]

#: What an environment and its wrappers never change.
SHARED = (
    "observation_space", "action_space", "_observation_space", "_action_space", "spec", "_cached_spec", "metadata",
)  # fmt: skip


def copied(env: Any) -> Any:
    """A copy that shares what does not change: spaces and specification."""
    shared: dict[int, Any] = {}
    layer = env
    while layer is not None:
        for name in SHARED:
            part = layer.__dict__.get(name)
            if part is not None:
                shared[id(part)] = part
        layer = layer.__dict__.get("env")
    return copy.deepcopy(env, shared)


def can_copy(env: Any) -> bool:
    """Whether a copied environment goes its own way: the same step in both gives the same, and leaves the other be."""
    try:
        env.action_space.seed(0)
        env.reset(seed=0)
        twin = copied(env)
        for _ in range(3):
            action = env.action_space.sample()
            a, b = env.step(action), twin.step(action)
            if repr(a[:4]) != repr(b[:4]) or a[2] or a[3]:
                break
            third = copied(env)
            env.step(action)
            if len(third.step(action)) != 5:
                return False
            twin = copied(env)
        return repr(a[:4]) == repr(b[:4])
    except Exception:  # whatever goes wrong in copying, it means: not this way
        return False


def can_repeat(env: Any) -> bool:
    """Whether the same actions after a reset with the same seed give the same."""
    try:
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(20)]
        seen = []
        for _ in range(2):
            seen.append([repr(env.reset(seed=1)[0])])
            for action in actions:
                result = env.step(action)
                seen[-1].append(repr(result[:4]))
                if result[2] or result[3]:
                    break
        return seen[0] == seen[1]
    except Exception:  # an environment that breaks on random actions says so when it is really run
        return False
