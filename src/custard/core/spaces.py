"""From Gymnasium spaces to features and actions: what custard knows of a base environment, as plain data.

| observation space | features |
|---|---|
| Box, any shape | one real feature per entry (integer if the dtype is) |
| Discrete | one integer feature; for Gymnasium's toy-text environments its factors (row, column, …) |
| MultiBinary | binary features |
| MultiDiscrete | integer features |
| Tuple, Dict of these | theirs, one after the other, with prefixed names; text in them is left out, with a warning |
| anything else | a `features=` function from one observation to numbers |

| action space | leaves | IBMDP form |
|---|---|---|
| Discrete | one action | discrete or parameterised |
| MultiDiscrete, MultiBinary | a vector of whole numbers | parameterised |
| Box | a vector of reals | parameterised |
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from custard.core.actions import Actions, named
from custard.core.errors import CustardError, one_line
from custard.core.features import BINARY, INTEGER, REAL, Features, is_expressions
from custard.core.metadata import EnvironmentMetadata, enum_names, factor, metadata_of, representative

__all__ = ["Base", "FeaturesArgument", "checked", "describe", "estimate_bounds"]

#: A user's features: a function from one observation to numbers, or expressions over the observation's own entries.
FeaturesArgument = Callable[[Any], Sequence[float]] | Sequence[str] | str | None

#: Encode(observations, count): `count` observations as the space batches them -> [count, n] float64.
Encode = Callable[[Any, int], np.ndarray]


@dataclass(frozen=True)
class Base:
    """A base environment as the rest of custard sees it."""

    features: Features
    actions: Actions
    encode: Encode  # many observations -> [count, n]
    observe: Callable[[Any], np.ndarray]  # one observation -> [n]
    action_space: gym.Space  # of one environment

    def action(self, value: Any) -> Any:
        """Return a leaf's value as the environment's own action."""
        if self.actions.discrete:
            return int(value)
        shaped = np.asarray(value)
        if shaped.size != self.actions.size:
            names = ", ".join(self.actions.names)
            raise CustardError(f"an action is one number for each of {names}, got an array of shape {shaped.shape}")
        shaped = shaped.reshape(self.action_space.shape)
        return shaped.astype(self.action_space.dtype)


def describe(
    env: Any,
    *,
    low: Any = None,
    high: Any = None,
    bounds: str | None = None,
    features: FeaturesArgument = None,
    feature_names: Sequence[str] | None = None,
    seed: int = 0,
) -> Base:
    """Return the features, actions and encoder of a Gymnasium environment, single or vector.

    `low` and `high` replace declared bounds; `bounds="estimate"` fills infinite ones from seeded random rollouts.
    `features` maps one observation to a vector of numbers where the space's own entries are not what a person would
    ask about; or it is a list of expressions such as "tilt = angle + 0.5*rate" (`custard.core.expressions`), which
    are added to the space's own entries. Bounds may still be infinite afterwards: `Features.require_bounded` says so
    where that matters.

    >>> import gymnasium as gym
    >>> base = describe(gym.make("FrozenLake-v1"))
    >>> base.features.names, base.actions.names[0], base.observe(6).tolist()
    (('row', 'column'), 'left', [1.0, 2.0])
    """
    if bounds not in (None, "declared", "estimate"):
        raise CustardError(f'bounds={bounds!r} is not known: choose "declared" or "estimate"')
    vector = isinstance(env, gym.vector.VectorEnv)
    observation_space = env.single_observation_space if vector else env.observation_space
    action_space = env.single_action_space if vector else env.action_space
    core = representative(env).unwrapped
    metadata = metadata_of(env)
    expressions = features if is_expressions(features) else None
    if features is None or expressions is not None:
        described, read = _declared_features(env, observation_space) or _features_of(observation_space, core, metadata)
        read_one = lambda observation: read(observation, 1)[0]  # noqa: E731
    else:
        if not callable(features):
            raise CustardError(
                f"features= takes a function of one observation or a list of expressions, not {type(features).__name__}"
            )
        described, read, read_one = _custom_features(observation_space, features, feature_names)
    if feature_names is not None:
        if len(feature_names) != described.n:
            raise CustardError(f"feature_names has {len(feature_names)} names, but there are {described.n} features")
        described = replace(described, names=tuple(feature_names))
    if expressions is not None:
        from custard.core.expressions import with_expressions  # the parser loads when it is used

        described = with_expressions(described, expressions)  # type: ignore[arg-type]
    described = described.with_bounds(low, high)
    base = Base(
        features=described,
        actions=_actions_of(action_space, getattr(core, "action_names", None) or metadata.actions or enum_names(core)),
        encode=lambda observations, count: extended(read(observations, count), described),
        observe=lambda observation: extended(read_one(observation), described),
        action_space=action_space,
    )
    if bounds == "estimate" and described.unbounded.any():
        base = replace(base, features=estimate_bounds(env, base, seed=seed))
    return base


def extended(x: np.ndarray, features: Features) -> np.ndarray:
    """Return base states [n_raw] or [B, n_raw], checked, with their derived features."""
    return features.extend(checked(x, features.raw)) if features.derived else checked(x, features)


def checked(x: np.ndarray, features: Features) -> np.ndarray:
    """Return base states [n] or [B, n], refused if any is not a number or of the wrong length."""
    if x.shape[-1] != features.n:
        raise CustardError(f"the environment gave {x.shape[-1]} features where {features.n} were declared")
    if np.isnan(x).any():
        name = features.names[int(np.argwhere(np.isnan(x))[0, -1])]
        raise CustardError(f"the environment gave NaN for feature {name!r}: a tree cannot compare it")
    return x


def estimate_bounds(env: Any, base: Base, *, seed: int = 0, steps: int = 10_000, margin: float = 0.05) -> Features:
    """Replace infinite bounds by the range seen in seeded random rollouts, widened by `margin` of it on each side."""
    low, high = base.features.low.copy(), base.features.high.copy()
    seen_low, seen_high = np.full(base.features.n, np.inf), np.full(base.features.n, -np.inf)
    seeds = np.random.SeedSequence(seed).generate_state(2)
    vector = isinstance(env, gym.vector.VectorEnv)
    count = env.num_envs if vector else 1
    env.action_space.seed(int(seeds[0]))
    observation, _ = env.reset(seed=int(seeds[1]))
    for _ in range(max(1, steps // count)):
        x = base.encode(observation, count) if vector else base.observe(observation)[None]
        seen_low, seen_high = np.fmin(seen_low, x.min(axis=0)), np.fmax(seen_high, x.max(axis=0))
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if not vector and (terminated or truncated):
            observation, _ = env.reset()
    open_ended = base.features.unbounded
    if not np.isfinite(seen_low[open_ended]).all() or not np.isfinite(seen_high[open_ended]).all():
        raise CustardError("bounds could not be estimated: random rollouts gave values that are not finite numbers")
    pad = margin * np.maximum(seen_high - seen_low, 1e-6)
    low[open_ended] = (seen_low - pad)[open_ended]
    high[open_ended] = (seen_high + pad)[open_ended]
    origin = {**base.features.origin, "bounds": "estimate", "seed": seed, "steps": steps, "margin": margin}
    return replace(base.features, low=low, high=high, origin=origin)


def _declared_features(env: Any, space: gym.Space) -> tuple[Features, Encode] | None:
    """Return the features that a wrapper (`custard.task.history.History`) declares; None without one."""
    one = representative(env)
    if not isinstance(one, gym.Wrapper) or not one.has_wrapper_attr("declared_features"):
        return None
    described = one.get_wrapper_attr("declared_features")
    if not isinstance(described, Features) or space.shape != (described.n,):
        return None  # another wrapper changes the observation
    return described, lambda observations, count: _encode(space, observations, count)


def _features_of(space: gym.Space, core: Any, metadata: EnvironmentMetadata) -> tuple[Features, Encode]:
    """Return the features of an observation space and how its observations become numbers."""
    if isinstance(space, spaces.Discrete) and metadata.factors is not None:
        sizes = metadata.factors(core)
        if int(np.prod(sizes)) == space.n and space.start == 0:
            last = np.array(sizes) - 1
            described = Features(metadata.features, np.zeros(len(sizes)), last, (INTEGER,) * len(sizes))
            return described, lambda observations, count: factor(sizes, np.asarray(observations).reshape(count))
    _warn_of_text(space)
    names, low, high, kinds = _flatten(space, "")
    own_names = getattr(core, "feature_names", None) or metadata.features
    if len(own_names) == len(names):
        names = list(own_names)
        kinds = [BINARY if name in metadata.binary else kind for name, kind in zip(names, kinds, strict=True)]
        kinds = list(getattr(core, "feature_kinds", None) or kinds)
    return Features(tuple(names), np.array(low), np.array(high), tuple(kinds)), lambda obs, count: _encode(
        space, obs, count
    )


def _custom_features(
    space: gym.Space, function: Callable[[Any], Any], names: Any
) -> tuple[Features, Encode, Callable[[Any], np.ndarray]]:
    """Return the features that a user's function makes, and how it is applied to many observations and to one."""

    def one(observation: Any) -> np.ndarray:
        try:
            return np.asarray(function(observation), dtype=np.float64).reshape(-1)
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            raise CustardError(f"features= failed on an observation: {one_line(error)}") from error

    def encode(observations: Any, count: int) -> np.ndarray:
        batch = gym.vector.utils.batch_space(space, count)
        return np.stack([one(observation) for observation in gym.vector.utils.iterate(batch, observations)])

    space.seed(0)
    n = len(one(space.sample()))
    if names is None:
        names = tuple(f"feature_{i}" for i in range(n))
    if len(names) != n:
        raise CustardError(f"features= gives {n} numbers, but feature_names has {len(names)} names")
    return Features(tuple(names), np.full(n, -np.inf), np.full(n, np.inf), origin={"features": "custom"}), encode, one


def _actions_of(space: gym.Space, names: Sequence[str]) -> Actions:
    """Return the actions of an action space, with these names if they fit."""
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise CustardError(f"two actions are called {twice!r}: names must differ")
    if isinstance(space, spaces.Discrete):
        return Actions("discrete", named(names, int(space.n), "action", int(space.start)), start=int(space.start))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        size = int(np.prod(space.shape))
        return Actions("box", named(names, size, "action"), low=space.low.reshape(-1), high=space.high.reshape(-1))
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(space.start).reshape(-1)
        high = start + space.nvec.reshape(-1) - 1
        return Actions("multi", named(names, len(high), "action"), low=start, high=high)
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return Actions("multi", named(names, size, "action"), low=np.zeros(size), high=np.ones(size))
    raise CustardError(
        f"action space {space} is not supported: custard needs Discrete, MultiDiscrete, MultiBinary or a real Box"
    )


def _parts(space: spaces.Tuple | spaces.Dict) -> dict[Any, gym.Space]:
    """Return the parts of a space that become features, by their keys: all but text.

    >>> list(_parts(spaces.Dict(image=spaces.Box(0, 1, (2,)), mission=spaces.Text(9))))
    ['image']
    """
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    return {key: part for key, part in parts if not _is_text(part)}


def _is_text(space: gym.Space) -> bool:
    return space.dtype is not None and np.dtype(space.dtype).kind == "U"


def _warn_of_text(space: gym.Space) -> None:
    """Say which parts of observations are left out."""
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        kept = _parts(space)
        keys = space.spaces if isinstance(space, spaces.Dict) else range(len(space.spaces))
        left_out = [key for key in keys if key not in kept]
        if left_out and kept:
            warnings.warn(
                f"text in observations is left out: {', '.join(map(repr, left_out))}; features= can make numbers of it",
                stacklevel=2,
            )


def _flatten(space: gym.Space, prefix: str) -> tuple[list[str], list[float], list[float], list[str]]:
    """Return the names, low, high and kinds of a space's entries in the order `_encode` puts them."""
    if isinstance(space, (spaces.Tuple, spaces.Dict)) and (parts := _parts(space)):
        names: list[str] = []
        low: list[float] = []
        high: list[float] = []
        kinds: list[str] = []
        for key, part in parts.items():
            label = str(key) if isinstance(space, spaces.Dict) else f"item{key}"
            a, b, c, d = _flatten(part, f"{prefix}_{label}" if prefix else label)
            names, low, high, kinds = names + a, low + b, high + c, kinds + d
        return names, low, high, kinds
    stem = prefix or "obs"
    if isinstance(space, spaces.Discrete):
        first, last = int(space.start), int(space.start + space.n - 1)
        return [stem], [first], [last], [BINARY if (first, last) == (0, 1) else INTEGER]
    if isinstance(space, spaces.Box):
        whole = not np.issubdtype(space.dtype, np.floating)
        bounds = np.stack([space.low.reshape(-1), space.high.reshape(-1)]).astype(np.float64)
    elif isinstance(space, spaces.MultiBinary):
        whole, bounds = True, np.repeat([[0.0], [1.0]], int(np.prod(space.shape)), axis=1)
    elif isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(space.start, dtype=np.float64).reshape(-1)
        whole, bounds = True, np.stack([start, start + space.nvec.reshape(-1) - 1])
    else:
        raise CustardError(
            f"observation space {space} is not supported: custard needs Box, Discrete, MultiBinary, MultiDiscrete, "
            "or Tuple and Dict of these. Pass features=, a function from an observation to a vector of numbers."
        )
    shape = space.shape
    assert shape is not None
    scalar = bool(prefix) and bounds.shape[1] == 1
    names = [stem] if scalar else ["_".join([stem, *map(str, where)]) for where in np.ndindex(*shape)]
    kinds = [
        REAL if not whole else (BINARY if (lo, hi) == (0.0, 1.0) else INTEGER)
        for lo, hi in zip(*bounds.tolist(), strict=True)
    ]
    return names, *bounds.tolist(), kinds


def _encode(space: gym.Space, observations: Any, count: int) -> np.ndarray:
    """Return `count` observations of a supported space as rows of numbers, widened to float64."""
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        return np.concatenate([_encode(part, observations[key], count) for key, part in _parts(space).items()], axis=1)
    try:
        # A copy: an environment may hand out an array that it changes later.
        return np.array(observations, dtype=np.float64).reshape(count, -1)
    except (TypeError, ValueError):
        raise CustardError(
            f"an observation does not fit its space {space}: got {type(observations).__name__}"
        ) from None
