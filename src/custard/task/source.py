"""Where base environments come from: an id, an environment, or a function that makes one."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from custard.core.errors import CustardError, one_line, require_whole
from custard.task.guard import Guarded

__all__ = ["Source", "registered", "source"]

#: Environments whose compiled twin behaves the same bit for bit, seeds included (`custard.envs.native.twin`).
_TWINS = ("CartPole-v0", "CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Pendulum-v1")

#: Steps after which an episode is cut where the environment declares no limit of its own.
DEFAULT_LIMIT = 10_000


@dataclass(frozen=True)
class Source:
    """Makes base environments, one or many, and knows their limits."""

    name: str
    make: Callable[[], gym.Env]
    native: Callable[[int], VectorEnv] | None = None
    lone: bool = False  # a single environment was given: there is only this one
    limit: int | None = None  # declared steps of an episode
    threshold: float | None = None  # declared reward at which the task counts as solved
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrapped: bool = False  # whether wrappers change what is observed or done
    spec: EnvSpec | None = None  # what the id stands for, if one was given

    @property
    def preset(self) -> str:
        """The name by which presets know it; none, if it is not what they were made for."""
        return "" if self.wrapped else self.name

    def vector(self, count: int) -> VectorEnv:
        """`count` environments (one, if only one was given) without autoreset."""
        if self.native is not None:
            return self.native(count)
        makes = [self.make] * (1 if self.lone else count)
        return SyncVectorEnv(makes, autoreset_mode=AutoresetMode.DISABLED)


def source(env: Any, kwargs: Mapping[str, Any] | None = None) -> Source:
    """A source of environments from what a user gives.

    >>> source("custard/PrereqWorld-v0", {"m": 4}).vector(3).num_envs
    3
    """
    kwargs = dict(kwargs or {})
    if isinstance(env, Source):
        return env
    if isinstance(env, str):
        return _from_id(env, kwargs)
    if isinstance(env, VectorEnv):
        raise CustardError(
            "a single environment, its id or a function that makes one is needed, not a vector environment"
        )
    if isinstance(env, gym.Env):
        if kwargs:
            raise CustardError("environment arguments go with an id or a function, not with a finished environment")
        spec = env.spec
        name = spec.id if spec is not None else type(env.unwrapped).__name__
        guarded = Guarded(env, name, borrowed=True)
        made: dict[str, Any] = {"limit": _limit(env), "threshold": _threshold(env), "wrapped": _wrapped(env)}
        return Source(name, lambda: guarded, lone=True, **made)
    if callable(env):
        first = _made(lambda: env(**kwargs), getattr(env, "__name__", "the function"))
        if not isinstance(first, gym.Env):
            raise CustardError(
                f"the function that makes environments returned {type(first).__name__}, not a gymnasium.Env"
            )
        name = first.spec.id if first.spec is not None else type(first.unwrapped).__name__
        return Source(
            name=name,
            make=lambda: Guarded(env(**kwargs), name),
            limit=_limit(first),
            threshold=_threshold(first),
            kwargs=kwargs,
            wrapped=_wrapped(first),
        )
    raise CustardError(
        f"an environment is an id, a gymnasium.Env or a function that makes one, got {type(env).__name__}"
    )


def registered(name: str) -> EnvSpec:
    """What Gymnasium knows of an id; 'module:Id-v0' imports the module first."""
    module, colon, rest = name.rpartition(":")
    try:
        if colon:
            importlib.import_module(module)
        return gym.spec(rest)
    except gym.error.Error as error:
        if colon:
            raise CustardError(f"environment {name!r} was not found: {one_line(error)}") from None
        known = [entry for entry in gym.registry if not entry.startswith(("phys2d", "tabular", "GymV"))]
        raise CustardError(_unknown(name, known)) from None
    except Exception as error:  # a module of the user's may raise anything while it is imported
        raise CustardError(f"environment {name!r} could not be loaded: {one_line(error)}") from None


def _from_id(name: str, kwargs: dict[str, Any]) -> Source:
    spec, native = registered(name), None
    first = _made(lambda: gym.make(name, **kwargs), name)
    limit, others = _limit(first), {key: value for key, value in kwargs.items() if key != "max_episode_steps"}
    first.close()
    if name in _TWINS and not kwargs:

        def native(count: int) -> VectorEnv:
            from custard.envs.native import twin  # compiled code loads when it is used

            made = twin(name)
            assert made is not None
            return made(count, limit, autoreset_mode=AutoresetMode.DISABLED)

    elif spec.namespace == "custard" and (limit is not None or spec.max_episode_steps is None):  # or it was taken away

        def native(count: int) -> VectorEnv:
            return gym.make_vec(
                name, num_envs=count, max_episode_steps=limit, autoreset_mode=AutoresetMode.DISABLED, **others
            )

    return Source(
        name=name,
        make=lambda: Guarded(gym.make(name, disable_env_checker=True, **kwargs), name),  # one was checked above
        native=native,
        limit=limit,
        threshold=spec.reward_threshold,
        kwargs=kwargs,
        spec=spec,
    )


def _made(make: Callable[[], Any], name: str) -> Any:
    try:
        return make()
    except CustardError:
        raise
    except Exception as error:  # whatever a constructor raises is the user's to see, in one line
        raise CustardError(
            f"environment {name!r} could not be made: {type(error).__name__}: {one_line(error)}"
        ) from error


def _unknown(name: str, known: list[str]) -> str:
    stems: dict[str, list[str]] = {}  # versions are much alike and say nothing about what was meant
    for entry in known:
        stems.setdefault(entry.rpartition("-v")[0] or entry, []).append(entry)
    near = difflib.get_close_matches(name.rpartition("-v")[0] or name, stems, n=1)
    best = difflib.get_close_matches(name, stems[near[0]], n=1, cutoff=0.0) if near else []
    hint = f" (did you mean {best[0]!r}?)" if best else ""
    return (
        f"unknown environment {name!r}{hint}. Give the id of a registered environment; "
        "'module:Id-v0' imports a module of yours first."
    )


def _wrapped(env: gym.Env) -> bool:
    inner = env.unwrapped
    return env.observation_space != inner.observation_space or env.action_space != inner.action_space


def _threshold(env: gym.Env) -> float | None:
    return env.spec.reward_threshold if env.spec is not None else None


def _limit(env: gym.Env) -> int | None:
    """The time limit that a wrapper of the environment keeps."""
    spec = env.spec
    if spec is not None and spec.max_episode_steps is not None:
        return int(spec.max_episode_steps) if spec.max_episode_steps > 0 else None
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return int(env._max_episode_steps)
        env = env.env
    return None


def episode_seeds(seed: int, count: int) -> np.ndarray:
    """One environment seed an episode, from one seed: the same episodes whatever runs beside them."""
    require_whole(0, seed=seed)
    return np.random.SeedSequence(seed).generate_state(count).astype(np.int64)
