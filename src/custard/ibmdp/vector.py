"""VectorIBMDP: many IBMDPs at once over any Gymnasium vector environment; the same trajectories as the single one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from custard.core.errors import CustardError
from custard.core.spaces import FeaturesArgument, checked, describe
from custard.ibmdp.base_environments import autoreset_mode, base_environments_of
from custard.ibmdp.env import wrapped_spaces
from custard.ibmdp.kernels import ask, restart
from custard.ibmdp.splits import Rules, normalise

__all__ = ["VectorIBMDP"]


class VectorIBMDP(VectorWrapper):
    """IBMDPs around the environments of a vector environment. Arguments, observations and actions are those of `IBMDP`.

    Ended episodes start again as the base vector environment's autoreset mode says. Infos hold `action_mask` [N,
    n_actions], `discount` [N] and `depth` [N]. The paper's environments and `SyncVectorEnv` let each one move by
    itself. Any other vector environment steps all or none: there `infos["waiting"]` marks the environments that have
    chosen a base action which is still to be taken; until it is, their actions are ignored, their reward is 0 and their
    discount 1.

    >>> import gymnasium as gym, custard
    >>> venv = VectorIBMDP(gym.make_vec("custard/PrereqWorld-v0", num_envs=64, m=7), splits=1)
    >>> observations, infos = venv.reset(seed=0)
    >>> observations.shape, infos["action_mask"].shape
    ((64, 21), (64, 14))
    """

    def __init__(
        self,
        env: VectorEnv,
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
        super().__init__(env)
        self.base = describe(
            env, low=low, high=high, bounds=bounds, features=features, feature_names=feature_names, seed=seed
        )
        self.rules = Rules(
            self.base.features, self.base.actions, splits, zeta, gamma_b, gamma_w, max_depth, mask_useless, max_queries
        )
        single, action = wrapped_spaces(self.rules, self.base.action_space, observation)
        self.single_observation_space, self.single_action_space = single, action
        self.observation_space = batch_space(single, env.num_envs)
        self.action_space = batch_space(action, env.num_envs)
        self.mode = autoreset_mode(env)
        self.base_envs = base_environments_of(env, self.base)

        rules, count = self.rules, env.num_envs
        low, high = rules.root()
        self._constants = (low, high, rules.width, rules.features.integer, rules.fractions)
        self._flags = (
            rules.n_base, rules.depth_limit, rules.max_queries, mask_useless, rules.parameterised,
            float(zeta), float(gamma_w),
        )  # fmt: skip
        self._root_bounds, self._root_mask = rules.normalised(low, high), rules.mask(low, high, 0)
        self._no_v, self._all = np.zeros(count), np.ones(count, dtype=bool)
        self._nobody = np.arange(0)
        self.lower, self.upper = np.tile(low, (count, 1)), np.tile(high, (count, 1))
        self.depth, self.queries = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int32)
        self._obs = np.zeros((count, single.shape[0]), dtype=np.float32)  # type: ignore[index]
        self._mask = np.zeros((count, rules.n_actions), dtype=bool)
        self._acting = np.zeros(count, dtype=np.int64)
        self._over = np.zeros(count, dtype=bool)  # episodes that ended in the last step
        self._waiting = np.zeros(count, dtype=bool)
        self._started = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start all episodes, or those of `options["reset_mask"]`."""
        moved = self.base_envs.reset(seed, options)
        self._restart(moved.index)
        self._over[moved.index] = self._waiting[moved.index] = False
        self._started = True
        return self._obs.copy(), {**moved.infos, **self._infos()}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Ask a question or take a base action in each environment."""
        if not self._started:
            raise CustardError("call reset() before step()")
        rules, base_envs = self.rules, self.base_envs
        numbers, v, values = self._parse_actions(actions)
        resetting = self._nobody
        if self._over.any():
            if self.mode == AutoresetMode.DISABLED:
                raise CustardError('an episode has ended: call reset(options={"reset_mask": ended}) first')
            resetting = np.flatnonzero(self._over)
        busy = self._over | self._waiting
        low, _, width, integer, fractions = self._constants
        reward, discount = np.empty(self.num_envs), np.empty(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.empty(self.num_envs, dtype=bool)
        count, limited = ask(
            numbers, v, busy, self._flags, low, width, integer, fractions, base_envs.x, self.lower, self.upper,
            self.depth, self.queries, self._obs, self._mask, self._acting, reward, discount, truncated,
        )  # fmt: skip
        if count < 0:
            raise CustardError(f"action {numbers[-1 - count]} is outside 0…{rules.n_actions - 1}")
        acting = self._acting[:count]
        too_long = np.flatnonzero(truncated) if limited else self._nobody
        infos: dict[str, Any] = {}
        if len(acting) or len(resetting):
            moved = base_envs.move(acting, values[acting], resetting)
            infos = moved.infos
            index: Any = slice(None) if len(moved.index) == self.num_envs else moved.index  # a slice is quicker
            reward[index], discount[index] = base_envs.reward[index], rules.gamma_b
            terminated[index], truncated[index] = base_envs.terminated[index], base_envs.truncated[index]
            self._restart(moved.index)
            if moved.final_index is not None and moved.final is not None:
                self._add_final(infos, moved.final_index, self._at_root(moved.final))
        if self.mode != AutoresetMode.SAME_STEP:
            self._over = terminated | truncated
        if limited:
            infos["traversal_limit"] = np.zeros(self.num_envs, dtype=bool)
            infos["traversal_limit"][too_long] = True
            self._cut(too_long, infos)
        if base_envs.in_lockstep:
            self._waiting = base_envs.ready.copy()  # type: ignore[attr-defined]
            reward[self._waiting], discount[self._waiting] = 0.0, 1.0
            infos["waiting"] = self._waiting.copy()
        return self._obs.copy(), reward, terminated, truncated, {**infos, **self._infos(), "discount": discount}

    def action_masks(self) -> np.ndarray:
        """Return which actions are afforded now, [N, n_actions] bool."""
        return self._mask.copy()

    @property
    def compiled(self) -> tuple[Any, ...]:
        """What compiled loops need: rules, constants, the root, and the arrays kept up to date in place.

        See `custard.ibmdp.kernels`.
        """
        arrays = (self.base_envs.x, self.lower, self.upper, self.depth, self.queries, self._obs, self._mask)
        return self._flags, self._constants, (self._root_bounds, self._root_mask), arrays

    def _restart(self, index: np.ndarray) -> None:
        """Forget the bounds of the environments `index`, whose base states are new."""
        low, high, width, *_ = self._constants
        bad = restart(
            index, low, high, width, self._root_bounds, self._root_mask, self.base_envs.x, self.lower, self.upper,
            self.depth, self.queries, self._obs, self._mask,
        )  # fmt: skip
        if bad >= 0:
            checked(self.base_envs.x, self.rules.features)

    def _cut(self, limited: np.ndarray, infos: dict[str, Any]) -> None:
        """End the episodes of environments that asked too long, although their base environment has not ended them."""
        if self.base_envs.in_lockstep:  # they cannot be started one by one: go on from the same base state
            self._over[limited] = False
            self._restart(limited)
        elif self.mode == AutoresetMode.SAME_STEP:
            self._add_final(infos, limited, self._obs[limited])
            self.base_envs.move(self._nobody, self._nobody, limited)
            self._restart(limited)

    def _at_root(self, x: np.ndarray) -> np.ndarray:
        """Return the observations of base states [B, n] of which nothing is known yet."""
        features = self.rules.features
        bounds = np.tile(self._root_bounds, (len(x), 1))
        if self._obs.shape[1] == 2 * features.n:
            return bounds
        return np.concatenate([normalise(x, features.low, self.rules.width).astype(np.float32), bounds], axis=1)

    def _add_final(self, infos: dict[str, Any], index: np.ndarray, observations: np.ndarray) -> None:
        """Add the last observations of episodes that started again in the same step."""
        final = infos.setdefault("final_obs", np.full(self.num_envs, None, dtype=object))
        present = infos.setdefault("_final_obs", np.zeros(self.num_envs, dtype=bool))
        present[index] = True
        for i, observation in zip(index, observations, strict=True):
            final[i] = observation

    def _infos(self) -> dict[str, Any]:
        """Return what every step's infos hold."""
        return {
            "action_mask": self._mask.copy(), "_action_mask": self._all,
            "depth": self.depth.copy(), "_depth": self._all, "_discount": self._all,
        }  # fmt: skip

    def _parse_actions(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return action numbers [N], v [N] (parameterised form only) and the base actions' values [N] or [N, k]."""
        count = self.num_envs
        try:
            if not self.rules.parameterised:
                numbers = np.asarray(actions, dtype=np.int64).reshape(count)
                return numbers, self._no_v, numbers + self.rules.actions.start
            numbers = np.asarray(actions["choice"], dtype=np.int64).reshape(count)
            v = np.asarray(actions["v"], dtype=np.float64).reshape(count)
            if not self.rules.actions.discrete:
                return numbers, v, np.asarray(actions["base"]).reshape(count, -1)
            return numbers, v, numbers + self.rules.actions.start
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CustardError(f"actions of this vector IBMDP look like {self.action_space}") from error
