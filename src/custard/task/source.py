"""Where base environments come from: an id, an environment (single or vector), or a function that makes one."""

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
from custard.task.recipes import environment_recipe
from custard.task.vector_episodes import FirstOfVector

__all__ = ["DEFAULT_TIME_LIMIT", "MAX_EPISODES_PER_CALL", "Source", "episode_seeds", "registered_spec", "source"]

#: Environments whose compiled twin behaves the same bit for bit, seeds included (`custard.envs.native.twin`).
_COMPILED_TWIN_IDS = ("CartPole-v0", "CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Pendulum-v1")

#: Wrappers that `gym.make` adds and that change nothing.
_HARMLESS_WRAPPERS = (gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker)

#: Libraries that environments of Gymnasium need; the extra that installs one has its name in small letters.
OPTIONAL_ENV_LIBRARIES = ("Box2D", "MuJoCo")

#: Steps after which an episode is cut where the environment declares no limit of its own.
DEFAULT_TIME_LIMIT = 10_000

#: Episodes in one call: what is measured of them stays in memory.
MAX_EPISODES_PER_CALL = 10_000_000


@dataclass(frozen=True)
class Maker:
    """Makes one environment; `recipe` says in plain data how another process makes the same."""

    build: Callable[[], gym.Env]
    recipe: Mapping[str, Any] | None = None  # "env": an id or a function's recipe; "kwargs". None: no other process can

    def __call__(self) -> gym.Env:
        """Make an environment."""
        return self.build()


@dataclass(frozen=True)
class Source:
    """Makes base environments, one or many, and holds what they declare about themselves."""

    name: str
    make: Callable[[], gym.Env]
    make_compiled: Callable[[int], VectorEnv] | None = None  # makes that many compiled environments
    is_single_instance: bool = False  # the user gave one finished environment: no other can be made
    time_limit: int | None = None  # declared steps per episode
    reward_threshold: float | None = None  # declared return at which the task counts as solved
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    is_wrapped: bool = False  # whether wrappers change the observation or action space
    spec: EnvSpec | None = None  # what Gymnasium registers under the id, if an id was given
    vector: VectorEnv | None = None  # the user's finished vector environment; `make` then gives its first part
    history: int = 0  # past steps among the features (`custard.task.history`)
    without_history: Source | None = None  # the source of the same environments without past steps, where it is known
    around: Callable[[gym.Env], gym.Env] = lambda env: env  # puts the wrapper that shows past steps around one

    @property
    def preset_key(self) -> str:
        """The name under which presets list the environment; empty if wrappers changed it."""
        return "" if self.is_wrapped else self.name

    def max_steps(self, given: int | None) -> int | None:
        """Return the steps after which we cut an episode, as given or by default; None: the environment does."""
        return given or (None if self.time_limit is not None else DEFAULT_TIME_LIMIT)

    def make_vec(self, count: int) -> VectorEnv:
        """Make a vector environment of `count` parts (one, if only one was given) without autoreset."""
        if self.make_compiled is not None:
            return self.make_compiled(count)
        makers = [self.make] * (1 if self.is_single_instance else count)
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)


def source(env: Any, kwargs: Mapping[str, Any] | None = None) -> Source:
    """Return a source of environments from an id, an environment or a function that makes one.

    >>> source("custard/PrereqWorld-v0", {"m": 4}).make_vec(3).num_envs
    3
    """
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)):
        raise CustardError(f"env_kwargs must be a dictionary from names to values, not {kwargs!r}")
    kwargs = dict(kwargs or {})
    if isinstance(env, Source):
        return env
    if isinstance(env, str):
        return _source_from_id(env, kwargs)
    if isinstance(env, (gym.Env, VectorEnv)) and kwargs:
        raise CustardError("environment arguments go with an id or a function, not with a finished environment")
    if isinstance(env, VectorEnv):
        return _source_of_vector_env(env)
    if isinstance(env, gym.Env):
        compiled = _compiled_twin_source(env)
        if compiled is not None:
            return compiled
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        guarded = Guarded(env, name, owned=False)
        return Source(name, lambda: guarded, is_single_instance=True, **_declared_source_arguments(env))
    if callable(env):
        first = _make_or_explain(lambda: env(**kwargs), getattr(env, "__name__", "the function"))
        if not isinstance(first, gym.Env):
            raise CustardError(
                f"the function that makes environments returned {type(first).__name__}, not a gymnasium.Env"
            )
        compiled = _compiled_twin_source(first)
        if compiled is not None:
            return compiled
        name = first.spec.id if first.spec is not None else type(first.unwrapped).__name__
        maker = Maker(lambda: Guarded(env(**kwargs), name), environment_recipe(env, kwargs))
        return Source(name, maker, kwargs=kwargs, **_declared_source_arguments(first))
    raise CustardError(
        f"an environment is an id, a gymnasium.Env or a function that makes one, got {type(env).__name__}"
    )


def _source_of_vector_env(venv: VectorEnv) -> Source:
    """Return the source of a finished vector environment."""
    first = FirstOfVector(venv)
    spec = first.spec or getattr(venv, "spec", None)
    name = spec.id if spec is not None else type(first.unwrapped if first.core is not venv else venv.unwrapped).__name__
    declared = _declared_source_arguments(first.core if isinstance(first.core, gym.Env) else first)
    limit = None if spec is None else spec.max_episode_steps
    if declared["time_limit"] is None and limit is not None and limit > 0:
        declared["time_limit"] = int(limit)
    guarded = Guarded(first, name, owned=False)
    return Source(name, lambda: guarded, is_single_instance=True, vector=venv, **declared)


def _compiled_twin_source(env: gym.Env) -> Source | None:
    """Return the source of the compiled environment that behaves as this one does; None if there is none.

    Its specification must name one, no wrapper may change it, and no plain attribute may differ from a new one's.
    """
    spec, inner = env.spec, env
    if spec is None or not (spec.id in _COMPILED_TWIN_IDS or spec.namespace == "custard"):
        return None
    while isinstance(inner, gym.Wrapper):
        if type(inner) not in _HARMLESS_WRAPPERS:
            return None
        inner = inner.env
    kwargs = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    registered = registered_spec(spec.id)
    if spec.max_episode_steps != registered.max_episode_steps:
        kwargs["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    kwargs = {key: value for key, value in kwargs.items() if registered.kwargs.get(key, registered) is not value}
    try:
        found = _source_from_id(spec.id, kwargs)
        other = gym.make(spec.id, **kwargs).unwrapped
    except CustardError:
        return None
    if found.make_compiled is None or found.time_limit != _time_limit(env) or type(inner) is not type(other):
        return None
    plain = (bool, int, float, str)
    mine, theirs = (
        {key: value for key, value in vars(each).items() if isinstance(value, plain) and key != "render_mode"}
        for each in (inner, other)
    )
    return found if mine == theirs else None


def registered_spec(name: str) -> EnvSpec:
    """Return what Gymnasium registers under an id; 'module:Id-v0' imports the module first."""
    module, colon, rest = name.rpartition(":")
    try:
        if colon:
            importlib.import_module(module)
        return gym.spec(rest)
    except gym.error.Error as error:
        if colon:
            raise CustardError(f"environment {name!r} was not found: {one_line(error)}") from None
        known = [entry for entry in gym.registry if not entry.startswith(("phys2d", "tabular", "GymV"))]
        raise CustardError(_unknown_id_message(name, known)) from None
    except (Exception, SystemExit) as error:  # a module of the user's may raise anything while it is imported
        kind = "SystemExit: " if isinstance(error, SystemExit) else ""
        raise CustardError(f"environment {name!r} could not be loaded: {kind}{one_line(error)}") from None


def _source_from_id(name: str, kwargs: dict[str, Any]) -> Source:
    spec, make_compiled = registered_spec(name), None
    first = _make_or_explain(lambda: gym.make(name, **kwargs), name)
    limit, others = _time_limit(first), {key: value for key, value in kwargs.items() if key != "max_episode_steps"}
    first.close()
    if name in _COMPILED_TWIN_IDS and not kwargs:

        def make_compiled(count: int) -> VectorEnv:
            from custard.envs.native import twin  # compiled code loads when it is used

            made = twin(name)
            assert made is not None
            return made(count, limit, autoreset_mode=AutoresetMode.DISABLED)

    elif spec.namespace == "custard" and (limit is not None or spec.max_episode_steps is None):  # or it was taken away

        def make_compiled(count: int) -> VectorEnv:
            return gym.make_vec(
                name, num_envs=count, max_episode_steps=limit, autoreset_mode=AutoresetMode.DISABLED, **others
            )

    return Source(
        name=name,
        make=Maker(
            lambda: Guarded(gym.make(name, disable_env_checker=True, **kwargs), name),  # one was checked above
            environment_recipe(name, kwargs),
        ),
        make_compiled=make_compiled,
        time_limit=limit,
        reward_threshold=spec.reward_threshold,
        kwargs=kwargs,
        spec=spec,
    )


def _make_or_explain(make: Callable[[], Any], name: str) -> Any:
    """Return what `make` makes, or raise one line that names the environment."""
    try:
        return make()
    except CustardError:
        raise
    except gym.error.DependencyNotInstalled as error:
        for missing in OPTIONAL_ENV_LIBRARIES:
            if missing.lower() in str(error).lower():
                extra = f'pip install "custard-rl[{missing.lower()}]"'
                raise CustardError(f"environment {name!r} needs {missing}: {extra}") from error
        raise CustardError(f"environment {name!r} could not be made: {one_line(error)}") from error
    except (Exception, SystemExit) as error:  # whatever a constructor raises is the user's to see, in one line
        raise CustardError(
            f"environment {name!r} could not be made: {type(error).__name__}: {one_line(error)}"
        ) from error


def _unknown_id_message(name: str, known: list[str]) -> str:
    """Say that an id is unknown, with the nearest known one; versions are compared last, since they look alike."""
    stems: dict[str, list[str]] = {}
    for entry in known:
        stems.setdefault(entry.rpartition("-v")[0] or entry, []).append(entry)
    near = difflib.get_close_matches(name.rpartition("-v")[0] or name, stems, n=1)
    best = difflib.get_close_matches(name, stems[near[0]], n=1, cutoff=0.0) if near else []
    hint = f" (did you mean {best[0]!r}?)" if best else ""
    return (
        f"unknown environment {name!r}{hint}. Give the id of a registered environment; "
        "'module:Id-v0' imports a module of yours first."
    )


def _declared_source_arguments(env: gym.Env) -> dict[str, Any]:
    """Return what an environment declares about itself, as arguments of `Source`."""
    inner = env.unwrapped
    changed = env.observation_space != inner.observation_space or env.action_space != inner.action_space
    threshold = env.spec.reward_threshold if env.spec is not None else None
    declared = {"time_limit": _time_limit(env), "reward_threshold": threshold, "is_wrapped": changed}
    if env.has_wrapper_attr("history_steps"):  # `custard.task.history.History` is among the wrappers
        declared["history"] = env.get_wrapper_attr("history_steps")
    return declared


def _time_limit(env: gym.Env) -> int | None:
    """Return the time limit that the environment's specification or one of its wrappers sets."""
    spec = env.spec
    if spec is not None and spec.max_episode_steps is not None:
        return int(spec.max_episode_steps) if spec.max_episode_steps > 0 else None
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return int(env._max_episode_steps)
        env = env.env
    return None


def episode_seeds(seed: int, count: int) -> np.ndarray:
    """Return one environment seed per episode [count] int64; a longer list begins with the shorter one."""
    require_whole(0, seed=seed)
    require_whole(0, MAX_EPISODES_PER_CALL, episodes=count)
    return np.random.SeedSequence(seed).generate_state(count).astype(np.int64)
