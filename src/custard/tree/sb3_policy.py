"""A tree as Stable-Baselines3 sees a model: something whose `predict` takes observations and returns actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from custard.core.errors import CustardError

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["SB3Policy"]


class SB3Policy:
    """Answers `predict(observation, state, episode_start, deterministic)` as Stable-Baselines3's models do.

    Pass it to `stable_baselines3.common.evaluation.evaluate_policy`. With `env` (an environment, not a vector of them)
    observations of any space are read and actions have the space's own shape and type; without it observations must be
    arrays whose entries are the tree's features.

    >>> import gymnasium as gym
    >>> from custard import Tree, describe
    >>> base = describe(gym.make("FrozenLake-v1"))
    >>> tree = Tree.stump(0, 1.5, 1, 2, base.features, base.actions)  # row ≤ 1.5: down, else right
    >>> SB3Policy(tree, gym.make("FrozenLake-v1")).predict(np.array([3, 14]))
    (array([1, 2]), None)
    """

    def __init__(self, tree: Tree, env: Any = None) -> None:
        self.tree = tree
        self.base = self.space = None
        if env is not None:
            from custard.core.spaces import describe

            self.base, self.space = describe(env), env.observation_space
            if self.base.features.n != tree.features.n:
                raise CustardError(
                    f"the tree has {tree.features.n} features, the environment {self.base.features.n}: another one"
                )

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """Return the actions for one observation or a batch, and the state as it was given: a tree has none."""
        x, single = self._features(observation)
        actions = np.asarray(self.tree.predict(x))
        if self.base is not None:
            space = self.base.action_space
            actions = actions.reshape(len(x), *(space.shape or ())).astype(space.dtype)
        return (actions[0] if single else actions), state

    def _features(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Return observations as rows of features [B, n], and whether there was only one."""
        n = self.tree.features.n
        if self.base is None:
            x = np.asarray(observation)
            single = x.size == n and (x.ndim < 2 or x.shape[0] != 1)
            try:
                return x.reshape(1 if single else len(x), n), single
            except (ValueError, TypeError):
                raise CustardError(
                    f"observations of shape {x.shape} are not {n} numbers each: pass the environment, "
                    "as in tree.as_sb3(env)"
                ) from None
        single = self.space is not None and _shape(observation) == _sample_shape(self.space)
        if single:
            return self.base.observe(observation)[None], True
        count = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        return self.base.encode(observation, count), False


def _shape(observation: Any) -> Any:
    """Return the shape of an observation, or of each entry of a dictionary or tuple."""
    if isinstance(observation, dict):
        return {key: np.shape(value) for key, value in observation.items()}
    return [np.shape(value) for value in observation] if isinstance(observation, tuple) else np.shape(observation)


def _sample_shape(space: Any) -> Any:
    """Return the shape that one observation of a space has."""
    if isinstance(space, dict) or hasattr(space, "spaces"):
        parts = space.spaces
        return {k: v.shape for k, v in parts.items()} if isinstance(parts, dict) else [part.shape for part in parts]
    return space.shape
