"""IBMDP: one base environment, wrapped. The paper's section "Iterative Bounding MDPs", line by line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from custard.core.errors import CustardError
from custard.core.spaces import Base, FeaturesArgument, describe
from custard.ibmdp.splits import Rules, narrowed, normalise

__all__ = ["IBMDP", "wrapped_spaces"]


class IBMDP(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """An iterative bounding MDP around a base environment.

    The observation is `[base (n), lower (n), upper (n)]`, each in [0, 1]; `observation="bounds"` leaves the base part
    out, and a policy that sees only the bounds is a decision tree for the base environment. Base actions come first,
    then the questions "is feature c <= v?", v being one of `splits` values between the current bounds. With
    `splits="parameterised"` an action is `{"choice": number, "v": [v]}`, and `"base": vector` where the base action
    is one.

    A question costs `zeta` and tightens one bound; a base action acts, and the bounds start afresh. `info["discount"]`
    is `gamma_w` for a question and `gamma_b` for a base action; `info["action_mask"]` and `action_masks()` say which
    actions are afforded: no question beyond `max_depth`, nor (`mask_useless`) one that no remaining value could
    answer differently. Asking one all the same changes nothing and costs `zeta`; after `max_queries` questions in a
    row the episode is truncated with `info["traversal_limit"]`, so that no policy asks for ever.

    >>> import gymnasium as gym
    >>> env = IBMDP(gym.make("CartPole-v1"), splits=3, low=[-2, -2, -.14, -1.4], high=[2, 2, .14, 1.4], max_depth=2)
    >>> int(env.action_space.n)
    14
    >>> _ = env.reset(seed=0)
    >>> observation, reward, *_, info = env.step(2 + 1 * 3 + 1)  # is cart_velocity <= 0?
    >>> observation[4:].tolist(), reward, info["discount"]
    ([0.0, 0.0, 0.0, 0.0, 1.0, 0.5, 1.0, 1.0], -0.01, 1.0)
    """

    def __init__(
        self,
        env: gym.Env,
        splits: int | str = 1,
        *,
        zeta: float = -0.01,
        gamma_b: float = 0.99,
        gamma_w: float = 1.0,
        max_depth: int | None = None,
        low: Any = None,
        high: Any = None,
        bounds: str | None = None,
        features: FeaturesArgument = None,
        feature_names: Sequence[str] | None = None,
        observation: str = "full",
        mask_useless: bool = True,
        max_queries: int | None = None,
        seed: int = 0,
    ) -> None:
        settings = {
            key: value for key, value in locals().items() if key not in ("self", "env", "__class__")
        }  # so that `spec` can make this wrapper again
        gym.utils.RecordConstructorArgs.__init__(self, **settings)
        gym.Wrapper.__init__(self, env)
        self.base: Base = describe(
            env, low=low, high=high, bounds=bounds, features=features, feature_names=feature_names, seed=seed
        )
        self.rules = Rules(
            self.base.features, self.base.actions, splits, zeta, gamma_b, gamma_w, max_depth, mask_useless, max_queries
        )
        self.observation_space, self.action_space = wrapped_spaces(self.rules, self.base.action_space, observation)
        self._bounds_only = observation == "bounds"
        self.x = np.full(self.rules.features.n, np.nan)  # the base state s_b
        self.lower, self.upper = self.rules.root()
        self.depth = self.queries = 0
        self._root_mask = self._mask = self.rules.mask(self.lower, self.upper, 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode: a base start state and no information."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._enter_state(observation)
        return self._observe(), {**info, **self._info()}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Ask a question or take a base action."""
        if np.isnan(self.x[0]):
            raise CustardError("call reset() before step()")
        number, v, value = self._parse_action(action)
        if number < self.rules.n_base:
            return self._act(value)
        return self._ask(number, v)

    def action_masks(self) -> np.ndarray:
        """Return which actions are afforded now, [n_actions] bool (the name sb3-contrib's MaskablePPO looks for)."""
        return self._mask.copy()

    def _ask(self, number: int, v: float) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take an information-gathering action: narrow one bound and charge zeta."""
        if self._mask[number]:
            asked = self.rules.thresholds(self.lower[None], self.upper[None], np.array([number]), np.array([v]))
            c, v_p = (int(asked[0][0]), float(asked[1][0]))
            self.lower[c], self.upper[c] = narrowed(self.lower[c], self.upper[c], v_p, self.x[c] <= v_p)
            self.depth += 1
            self._mask = self.rules.mask(self.lower, self.upper, self.depth)
        self.queries += 1
        truncated = self.queries >= self.rules.max_queries  # type: ignore[operator]
        info = {**self._info(), "discount": self.rules.gamma_w}
        if truncated:
            info["traversal_limit"] = True
        return self._observe(), self.rules.zeta, False, truncated, info

    def _act(self, value: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a base action and forget the bounds."""
        observation, reward, terminated, truncated, info = self.env.step(self.base.action(value))
        self._enter_state(observation)
        report = {**self._info(), "discount": self.rules.gamma_b}
        return self._observe(), float(reward), bool(terminated), bool(truncated), {**info, **report}

    def _enter_state(self, observation: Any) -> None:
        """Enter a base state: nothing is known of it yet."""
        self.x = self.base.observe(observation)
        self.lower, self.upper = self.rules.root()
        self.depth = self.queries = 0
        self._mask = self._root_mask

    def _observe(self) -> np.ndarray:
        """Return the observation: the base state, unless it is left out, and the bounds."""
        bounds = self.rules.normalised(self.lower, self.upper)
        if self._bounds_only:
            return bounds
        base = normalise(self.x, self.rules.features.low, self.rules.width).astype(np.float32)
        return np.concatenate([base, bounds])

    def _info(self) -> dict[str, Any]:
        """Return what every step's info holds."""
        return {"action_mask": self.action_masks(), "depth": self.depth}

    def _parse_action(self, action: Any) -> tuple[int, float, Any]:
        """Return the action number, v (parameterised form only) and the base action's value."""
        start = self.rules.actions.start
        if not self.rules.parameterised:
            number = int(action)
            if not 0 <= number < self.rules.n_actions:
                raise CustardError(f"action {action!r} is outside 0…{self.rules.n_actions - 1}")
            return number, 0.0, number + start
        try:
            number, v = int(action["choice"]), float(np.asarray(action["v"]).reshape(()))
            value = number + start if self.rules.actions.discrete else action["base"]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CustardError(f"an action of this IBMDP looks like {self.action_space}: got {action!r}") from error
        if not 0 <= number < self.rules.n_actions or not 0.0 <= v <= 1.0:
            raise CustardError(f"action {action!r} needs choice in 0…{self.rules.n_actions - 1} and v in [0, 1]")
        return number, v, value


def wrapped_spaces(rules: Rules, base_action: gym.Space, observation: str) -> tuple[gym.Space, gym.Space]:
    """Return S_w and A_w of one IBMDP as Gymnasium spaces."""
    if observation not in ("full", "bounds"):
        raise CustardError(f'observation={observation!r} is not known: choose "full" or "bounds"')
    parts = 3 if observation == "full" else 2
    observations = spaces.Box(0.0, 1.0, (parts * rules.features.n,), dtype=np.float32)
    if not rules.parameterised:
        return observations, spaces.Discrete(rules.n_actions)
    action: dict[str, gym.Space] = {
        "choice": spaces.Discrete(rules.n_actions),
        "v": spaces.Box(0.0, 1.0, (1,), dtype=np.float32),
    }
    if not rules.actions.discrete:
        action["base"] = base_action
    return observations, spaces.Dict(action)
