"""Environments whose past observations and actions are features too, so that a tree can remember."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from custard.core.errors import CustardError
from custard.core.features import is_expressions
from custard.core.history import Memory, history_features, require_history
from custard.core.metadata import feature_units
from custard.core.spaces import FeaturesArgument, describe
from custard.task.origin import features_of
from custard.task.recipes import encoder_recipe, recipe_encoder
from custard.task.source import Maker, Source
from custard.tree.memory import history_of
from custard.tree.tree import Tree

__all__ = ["History", "history_from_recipe", "remembered", "spread_bounds", "with_history"]


class History(gym.Wrapper):
    """Shows the present observation, and the observations and actions of the last steps, as one vector of features.

    The features are named `position[-1]`, `action[-1]`, …; `custard.core.history` has their order, and what they hold
    in an episode's first steps.

    >>> env = History(gym.make("MountainCar-v0"), 1)
    >>> describe(env).features.names
    ('position', 'velocity', 'position[-1]', 'velocity[-1]', 'action[-1]')
    """

    def __init__(
        self,
        env: gym.Env,
        steps: int,
        features: Callable[[Any], Sequence[float]] | None = None,
        feature_names: Sequence[str] | None = None,
    ) -> None:
        """Wrap an environment.

        env            the environment
        steps          how many past steps are shown
        features       function from one observation to numbers, where these and their past are to be shown
        feature_names  of the present features, where the environment's own do not suit
        """
        super().__init__(env)
        require_history(steps)
        self.history_steps = int(steps)
        self.inner = describe(env, features=features, feature_names=feature_names)
        self.declared_features = history_features(self.inner.features, self.inner.actions, self.history_steps)
        low, high = self.declared_features.low, self.declared_features.high
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float64)
        units = feature_units(env, self.inner.features.n)
        past = (*units, *[""] * self.inner.actions.size)
        self.feature_units = (*units, *past * self.history_steps)
        self._memory = Memory(self.inner.actions, self.history_steps)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; its first observation stands for those before it."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._memory.begin(self.inner.observe(observation)), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action and remember it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._memory.push(action, self.inner.observe(observation)), reward, terminated, truncated, info


def with_history(
    env_source: Source, steps: int, features: FeaturesArgument = None, feature_names: Sequence[str] | None = None
) -> Source:
    """Return a source of the same environments with `steps` past steps among their features.

    `features` and `feature_names` concern the present observation, as in `History`; expressions are left to whoever
    describes the environment, since they may be about past steps. Compiled code cannot step such an environment.

    >>> from custard.task.source import source
    >>> with_history(source("CartPole-v1"), 2).make().observation_space.shape
    (14,)
    """
    require_history(steps)
    if not steps:
        return env_source
    if env_source.history:
        raise CustardError(f"{env_source.name} shows {env_source.history} past steps already: leave out history=")
    if env_source.vector is not None:
        raise CustardError("history= needs an id, a single environment or a function that makes one, not a vector one")
    function: Any = None if is_expressions(features) else features
    make, recipe, encoder = env_source.make, getattr(env_source.make, "recipe", None), encoder_recipe(function)
    if recipe is not None and (function is None or encoder is not None):
        names = None if feature_names is None else [str(name) for name in feature_names]
        recipe = {**recipe, "history": {"steps": int(steps), "features": encoder, "names": names}}
    else:
        recipe = None

    def around(env: gym.Env) -> gym.Env:
        return History(env, steps, function, feature_names)

    return replace(
        env_source, make=Maker(lambda: around(make()), recipe), make_compiled=None, is_wrapped=True, history=int(steps),
        without_history=env_source, around=around,
    )  # fmt: skip


def history_from_recipe(env_source: Source, recipe: Mapping[str, Any] | None) -> Source:
    """Return the source with the history that `with_history` put into its recipe."""
    if recipe is None:
        return env_source
    return with_history(env_source, recipe["steps"], recipe_encoder(recipe["features"]), recipe["names"])


def remembered(
    policy: Any, env_source: Source, features: FeaturesArgument = None, history: int | None = None
) -> tuple[Source, FeaturesArgument]:
    """Return the source with the past steps that a policy needs, and the features= that are still to be applied to it.

    A tree says itself how many steps it was learned with, and which function made its features; for other policies
    `history` and `features` do.
    """
    if history is None and isinstance(policy, Tree):
        history = history_of(policy)
    if features is None and isinstance(policy, Tree) and not env_source.history:
        features = features_of(policy)
    if env_source.history or not history:
        return env_source, features
    names = policy.origin.get("feature_names") if isinstance(policy, Tree) else None
    return with_history(env_source, history, features, names), features if is_expressions(features) else None


def spread_bounds(given: Any, env: gym.Env) -> Any:
    """Return bounds of the present features (one number, a list or by name) as bounds of the past ones too.

    >>> spread_bounds({"velocity": -1}, History(gym.make("MountainCar-v0"), 2))
    {'velocity[-1]': -1, 'velocity[-2]': -1, 'velocity': -1}
    """
    names, steps = env.get_wrapper_attr("inner").features.names, env.get_wrapper_attr("history_steps")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        values = [given] * len(names) if np.ndim(given) == 0 else list(given)
        if len(values) != len(names):
            return given  # one for each feature, past ones included
        given = dict(zip(names, values, strict=True))
    past = {f"{name}[-{k}]": value for name, value in given.items() if name in names for k in range(1, steps + 1)}
    return {**past, **given}
