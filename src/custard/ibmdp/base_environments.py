"""How the base environments under a vector IBMDP are moved, some at a time.

In an IBMDP some environments act while others still ask. Three kinds of base vector environment allow that in
different ways:

* `CompiledEnvironments`: the compiled environments step any subset.
* `SingleEnvironments`: a `SyncVectorEnv` is a list of environments; each is stepped by itself.
* `LockstepEnvironments`: any other vector environment steps all its environments or none. One that has chosen a base
  action waits until all have; Gymnasium's next-step autoreset is the precedent for a step whose action is ignored.

Each keeps the present base states in `x` [N, n] and the last results in `reward`, `terminated`, `truncated` [N].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import create_empty_array, iterate

from custard.core.seeds import seeds_for
from custard.core.spaces import Base

__all__ = ["BaseEnvironments", "Moved", "base_environments_of"]


@dataclass
class Moved:
    """What a call moved: environments, Gymnasium's infos, and the last states of episodes that restarted at once."""

    index: np.ndarray
    infos: dict[str, Any] = field(default_factory=dict)
    final: np.ndarray | None = None  # [len(final_index), n]
    final_index: np.ndarray | None = None


class BaseEnvironments(Protocol):
    """The base environments of a vector IBMDP."""

    in_lockstep: bool  # whether one that acts may have to wait for the others
    x: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def reset(self, seed: Any, options: dict[str, Any] | None) -> Moved:
        """Start episodes: everywhere, or where `options["reset_mask"]` says."""

    def move(self, acting: np.ndarray, values: Any, resetting: np.ndarray) -> Moved:
        """Take base actions in the environments `acting` and start new episodes in those `resetting`."""


def base_environments_of(env: gym.vector.VectorEnv, base: Base) -> BaseEnvironments:
    """Return the base environments of a vector environment, each moved as its kind allows."""
    if hasattr(env, "step_some"):
        return CompiledEnvironments(env, base)
    if type(env) is SyncVectorEnv:  # a subclass may do more in its step
        return SingleEnvironments(env, base)
    return LockstepEnvironments(env, base)


def autoreset_mode(env: gym.vector.VectorEnv) -> AutoresetMode:
    """Return the declared autoreset mode; Gymnasium's default where none is declared."""
    return AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))


class CompiledEnvironments:
    """Compiled environments."""

    in_lockstep = False

    def __init__(self, env: Any, base: Base) -> None:
        self.env, self.base = env, base
        self.has_custom_features = base.features.origin.get("features") == "custom" or bool(base.features.derived)
        self.x = np.full((env.num_envs, base.features.n), np.nan) if self.has_custom_features else env.x
        self.reward, self.terminated, self.truncated = env.reward, env.terminated, env.truncated
        self.mode = autoreset_mode(env)

    def reset(self, seed: Any, options: dict[str, Any] | None) -> Moved:
        """Start episodes: everywhere, or where `options["reset_mask"]` says."""
        self.env.reset(seed=seed, options=options)
        mask = None if options is None else options.get("reset_mask")
        return self._moved_with_features(self.env.everyone if mask is None else np.flatnonzero(mask))

    def move(self, acting: np.ndarray, values: Any, resetting: np.ndarray) -> Moved:
        """Take base actions in the environments `acting` and start new episodes in those `resetting`."""
        self.env.step_some(acting, values)
        if self.mode == AutoresetMode.SAME_STEP:
            over = acting[self.terminated[acting] | self.truncated[acting]]
            if len(over):
                self._moved_with_features(over)
                moved = Moved(acting, final=self.x[over].copy(), final_index=over)
                flags = self.terminated[over], self.truncated[over]
                self.env.reset_some(over)
                self.terminated[over], self.truncated[over] = flags
                return self._moved_with_features(acting, moved)
        if len(resetting):
            self.env.reset_some(resetting)
            self.reward[resetting] = 0.0
            return self._moved_with_features(np.concatenate([acting, resetting]))
        return self._moved_with_features(acting)

    def _moved_with_features(self, index: np.ndarray, moved: Moved | None = None) -> Moved:
        """Return what moved, after the features of a user's own function are computed for it."""
        if self.has_custom_features and len(index):
            self.x[index] = self.base.encode(self.env.observations()[index], len(index))
        return moved or Moved(index)


class SingleEnvironments:
    """The environments of a `SyncVectorEnv`, stepped one by one."""

    in_lockstep = False

    def __init__(self, env: gym.vector.SyncVectorEnv, base: Base) -> None:
        self.env, self.base, count = env, base, env.num_envs
        self.x, self.reward = np.full((count, base.features.n), np.nan), np.zeros(count)
        self.terminated, self.truncated = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        self.mode = autoreset_mode(env)

    def reset(self, seed: Any, options: dict[str, Any] | None) -> Moved:
        """Start episodes: everywhere, or where `options["reset_mask"]` says."""
        count = self.env.num_envs
        mask = None if options is None else options.get("reset_mask")
        rest = None if options is None else {k: v for k, v in options.items() if k != "reset_mask"}
        seeds = seeds_for(seed, count)
        moved = Moved(np.arange(count) if mask is None else np.flatnonzero(mask))
        for i in moved.index:
            self._restart(i, moved.infos, seed=seeds[i], options=rest)
        return moved

    def move(self, acting: np.ndarray, values: Any, resetting: np.ndarray) -> Moved:
        """Take base actions in the environments `acting` and start new episodes in those `resetting`."""
        moved = Moved(np.concatenate([acting, resetting]) if len(resetting) else acting)
        last: dict[int, np.ndarray] = {}
        for i, value in zip(acting.tolist(), values, strict=True):
            result = self.env.envs[i].step(self.base.action(value))
            observation, self.reward[i], self.terminated[i], self.truncated[i], info = result
            self.x[i] = self.base.observe(observation)
            if self.mode == AutoresetMode.SAME_STEP and (self.terminated[i] or self.truncated[i]):
                last[i] = self.x[i].copy()
                moved.infos = self.env._add_info(moved.infos, {"final_info": info}, i)
                flags = self.terminated[i], self.truncated[i]
                self._restart(i, moved.infos)
                self.terminated[i], self.truncated[i] = flags
            elif info:
                moved.infos = self.env._add_info(moved.infos, info, i)
        for i in resetting.tolist():
            self._restart(i, moved.infos)
            self.reward[i] = 0.0
        if last:
            moved.final_index, moved.final = np.array(list(last)), np.stack(list(last.values()))
        return moved

    def _restart(self, i: int, infos: dict[str, Any], **how: Any) -> None:
        """Start an episode in environment i, its info added to the others'."""
        observation, info = self.env.envs[i].reset(**how)
        self.x[i] = self.base.observe(observation)
        self.terminated[i] = self.truncated[i] = False
        if info:
            self.env._add_info(infos, info, i)


class LockstepEnvironments:
    """A vector environment that steps all its environments or none."""

    in_lockstep = True

    def __init__(self, env: gym.vector.VectorEnv, base: Base) -> None:
        self.env, self.base, count = env, base, env.num_envs
        self.x, self.reward = np.full((count, base.features.n), np.nan), np.zeros(count)
        self.terminated, self.truncated = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        self.everyone, self.nobody = np.arange(count), np.arange(0)
        self.ready = np.zeros(count, dtype=bool)
        self.actions: Any = np.array(create_empty_array(env.single_action_space, n=count, fn=np.zeros))
        if base.actions.discrete:
            self.actions += base.actions.start

    def reset(self, seed: Any, options: dict[str, Any] | None) -> Moved:
        """Start episodes: everywhere, or where `options["reset_mask"]` says."""
        mask = None if options is None else options.get("reset_mask")
        observations, infos = self.env.reset(seed=seed, options=options)
        index = self.everyone if mask is None else np.flatnonzero(mask)
        self.x[index] = self.base.encode(observations, len(self.everyone))[index]
        self.terminated[index] = self.truncated[index] = self.ready[index] = False
        return Moved(index, infos)

    def move(self, acting: np.ndarray, values: Any, resetting: np.ndarray) -> Moved:
        """Take base actions in the environments `acting` and start new episodes in those `resetting`."""
        if len(acting):
            self.actions[acting] = np.asarray(values).reshape(len(acting), *self.actions.shape[1:])
        self.ready[acting] = self.ready[resetting] = True
        if not self.ready.all():
            return Moved(self.nobody)
        self.ready[:] = False
        observations, self.reward, self.terminated, self.truncated, infos = self.env.step(self.actions)
        self.x = np.ascontiguousarray(self.base.encode(observations, len(self.everyone)))
        moved = Moved(self.everyone, dict(infos))
        final = moved.infos.pop("final_obs", None)
        if final is not None:
            moved.infos.pop("_final_obs", None)
            over = np.flatnonzero(self.terminated | self.truncated)
            if not (
                isinstance(final, np.ndarray) and final.dtype.hasobject
            ):  # some vector environments hand out one batched array
                final = list(iterate(self.env.observation_space, final))
            moved.final_index = over
            moved.final = np.stack([self.base.observe(final[i]) for i in over]) if len(over) else None
        return moved
