"""Episodes in a vector environment that the user made: one per sub-environment, side by side, each by its own seed.

A sub-environment whose episode is over is either restarted alone with the next seed (`options["reset_mask"]`), where
the vector environment is known to support that, or ignored until all others have ended too. So what Gymnasium's
autoreset does in between, in the same step or in the next one, belongs to no episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import create_empty_array, iterate

from custard.core.errors import CustardError, one_line
from custard.core.metadata import representative
from custard.core.spaces import Base
from custard.ibmdp.base_environments import autoreset_mode
from custard.task.episodes import EpisodeRequest, Episodes, mask_rows, random_action, raw_act
from custard.task.guard import MAX_REWARD_SIZE
from custard.tree.leaf_actions import LeafActions

__all__ = ["FirstOfVector", "VectorRunner", "play_side_by_side", "require_seeds"]

ActMany = Callable[[np.ndarray], Any]  # feature vectors [B, n] -> B actions


class FirstOfVector(gym.Env):
    """The first sub-environment of a vector environment as an environment; the others repeat what it does.

    For what looks at one episode only: probes, and what a step costs.
    """

    def __init__(self, venv: Any) -> None:
        self.venv, self.core = venv, representative(venv)
        self.observation_space, self.action_space = venv.single_observation_space, venv.single_action_space
        self.spec = getattr(self.core, "spec", None)
        self.can_restart_one = can_restart_one(venv)

    @property
    def unwrapped(self) -> Any:
        """The sub-environment itself, where it is in this process: it names features and actions."""
        return self if self.core is self.venv else self.core.unwrapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the same episode everywhere."""
        count = self.venv.num_envs
        observations, infos = self.venv.reset(seed=None if seed is None else [seed] * count, options=options)
        return self._first_observation(observations), _action_mask_info(infos, 0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take the same action everywhere."""
        actions = np.array([action] * self.venv.num_envs, dtype=self.venv.action_space.dtype)
        observations, rewards, terminated, truncated, infos = self.venv.step(actions)
        over = np.asarray(terminated | truncated, dtype=bool)
        if over[1:].any() and not over[0] and self.can_restart_one:
            self.venv.reset(options={"reset_mask": over})
        return (
            self._first_observation(observations),
            float(rewards[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            _action_mask_info(infos, 0),
        )

    def _first_observation(self, observations: Any) -> Any:
        return next(iter(iterate(self.venv.observation_space, observations)))


class VectorRunner:
    """Runs episodes in the sub-environments of one vector environment."""

    def __init__(self, venv: VectorEnv, base: Base, name: str) -> None:
        """`name` is what the environment is called in messages."""
        self.venv, self.base, self.name = venv, base, name
        require_seeds(venv, base, name)

    def run(self, requests: Sequence[EpisodeRequest]) -> list[Episodes]:
        """Run all requests; their episodes in order."""
        return [self._run_request(request) for request in requests]

    def _run_request(self, request: EpisodeRequest) -> Episodes:
        act = raw_act(request.policy, self.base)
        return play_side_by_side(self.venv, self.base, lambda x: [act(row) for row in x], request, self.name)

    def close(self) -> None:
        """Leave the environment to whoever made it."""


def can_restart_one(venv: VectorEnv) -> bool:
    """Return whether single sub-environments can be reset: without autoreset they must, Gymnasium's own always can."""
    return autoreset_mode(venv) == AutoresetMode.DISABLED or type(venv) in (SyncVectorEnv, AsyncVectorEnv)


def require_seeds(venv: Any, base: Base, name: str) -> None:
    """Raise unless `reset(seed=[…])` gives every sub-environment the episode of its own seed."""
    count = venv.num_envs
    seeds = list(range(1, count + 1))
    how = "gym.make_vec(id, num_envs, vectorization_mode='sync' or 'async') makes one that does"
    try:
        first, second = (base.encode(venv.reset(seed=given)[0], count) for given in (seeds, [*seeds[1:], *seeds[:1]]))
    except CustardError:
        raise
    except Exception as error:  # it may raise anything
        raise CustardError(
            f"vector environment {name!r} does not take one seed per sub-environment in reset "
            f"({one_line(error)}): {how}"
        ) from None
    if not np.array_equal(np.roll(first, -1, axis=0), second):
        raise CustardError(
            f"vector environment {name!r} does not start the same episode from the same seed in every sub-environment: "
            f"{how}"
        )


class _Slots:
    """Which episode each of the B sub-environments runs, and what they show now.

    episode     [B] int64      the number of its episode, -1 for none
    x           [B, n]         features
    masks       B times [A]    the actions allowed, or None where it does not say
    generators  by slot        draw the random actions of its episode, if the request asks for any
    """

    def __init__(self, venv: Any, base: Base, request: EpisodeRequest, name: str) -> None:
        """Begin the first episodes; the arguments are those of `play_side_by_side`."""
        self.venv, self.base, self.request, self.name = venv, base, request, name
        self.count, self.total, self.begun = venv.num_envs, len(request.seeds), 0
        self.seeds, self.restarts = request.seeds.tolist() or [0], can_restart_one(venv)
        self.episode = np.full(self.count, -1)
        self.x = np.zeros((self.count, base.features.n))
        self.masks: list[Any] = [None] * self.count
        self.generators: dict[int, np.random.Generator] = {}
        self._begin_episodes(np.arange(self.count))

    def _begin_episodes(self, slots: np.ndarray) -> None:
        """Begin the next episodes in free sub-environments; what has none left is reset too, and ignored."""
        fresh = slots[: self.total - self.begun]
        self.episode[slots] = -1
        self.episode[fresh] = np.arange(self.begun, self.begun + len(fresh))
        self.begun += len(fresh)
        # Sub-environments without an episode get a seed as well: some vector environments want one for each.
        of_slot = [self.seeds[max(0, int(k))] for k in self.episode]
        options = None
        if len(slots) < self.count:
            mask = np.zeros(self.count, dtype=bool)
            mask[slots] = True
            options = {"reset_mask": mask}
        with _errors_in_one_line(self.name):
            observations, infos = self.venv.reset(seed=of_slot, options=options)
        self.x[slots] = self.base.encode(observations, self.count)[slots]
        for i in slots.tolist():
            self.masks[i] = _action_mask_of(infos, i)
        for i in fresh.tolist():
            if self.request.noise:
                self.generators[i] = np.random.default_rng([of_slot[i], 1])

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take one step everywhere; return rewards, terminated and truncated, [B] each."""
        with _errors_in_one_line(self.name):
            observations, rewards, terminated, truncated, infos = self.venv.step(actions)
        self.x = self.base.encode(observations, self.count)
        self.masks = [_action_mask_of(infos, i) for i in range(self.count)]
        return np.asarray(rewards, np.float64), np.asarray(terminated, bool), np.asarray(truncated, bool)

    def begin_next(self, ended: np.ndarray) -> None:
        """Begin further episodes where that is possible; `ended` [B] bool says what the last step ended."""
        are_running, are_left = bool((self.episode >= 0).any()), self.begun < self.total
        if self.restarts:
            # Without autoreset, ended sub-environments must not be stepped again, also those without an episode.
            free = np.flatnonzero(self.episode < 0) if are_left else np.flatnonzero((self.episode < 0) & ended)
            if len(free) and (are_left or are_running):
                self._begin_episodes(free)
        elif are_left and not are_running:
            self._begin_episodes(np.arange(self.count))


def play_side_by_side(venv: Any, base: Base, act_many: ActMany, request: EpisodeRequest, name: str) -> Episodes:
    """Run one episode per seed; an episode depends on its seed and the policy alone, as in `play_episodes`.

    venv      the vector environment, which takes a list of seeds in reset
    base      its features and actions
    act_many  the policy, for feature vectors [B, n]; the request's own is not called
    request   the seeds, and what is asked about their episodes
    name      what the environment is called in messages
    """
    total, limit = len(request.seeds), request.max_steps or np.inf
    leaf_actions, start = LeafActions(base.actions), base.actions.start
    actions: Any = np.array(create_empty_array(venv.single_action_space, n=venv.num_envs, fn=np.zeros))
    if base.actions.discrete:
        actions += start
    returns, weights, lengths = np.zeros(total), np.ones(total), np.zeros(total, dtype=np.int64)
    terminated, truncated = np.zeros(total, dtype=bool), np.zeros(total, dtype=bool)
    forbidden = np.zeros(total, dtype=np.int64)
    states: list[list[np.ndarray]] = [[] for _ in range(total)]
    met_masks: list[list[Any]] = [[] for _ in range(total)]
    slots = _Slots(venv, base, request, name)
    while (active := np.flatnonzero(slots.episode >= 0)).size:
        running = slots.episode[active]
        chosen = _require_one_action_each(act_many(slots.x[active]), len(active))
        for i, k, action in zip(active.tolist(), running.tolist(), chosen, strict=True):
            mask = slots.masks[i] if base.actions.discrete else None
            if request.keep_states:
                states[k].append(slots.x[i].copy())
                met_masks[k].append(mask)
            if request.noise and slots.generators[i].random() < request.noise:
                action = random_action(leaf_actions, slots.generators[i], mask)
            if mask is not None and not mask[action - start]:
                forbidden[k] += 1
            actions[i] = base.action(action)
        rewards, over, cut = slots.step(actions.copy())
        gains = rewards[active]
        if not (np.abs(gains) <= MAX_REWARD_SIZE).all():
            bad = gains[~(np.abs(gains) <= MAX_REWARD_SIZE)][0]
            raise CustardError(f"vector environment {name!r} gave the reward {bad}: a finite number is needed")
        returns[running] += weights[running] * gains
        weights[running] *= request.gamma
        lengths[running] += 1
        terminated[running] = over[active]
        truncated[running] = ~over[active] & (cut[active] | (lengths[running] >= limit))
        slots.episode[active[terminated[running] | truncated[running]]] = -1
        slots.begin_next(over | cut)
    met = np.array([row for rows in states for row in rows]).reshape(-1, base.features.n)
    allowed = mask_rows([mask for rows in met_masks for mask in rows])
    return Episodes(returns, lengths, terminated, truncated, forbidden, met, allowed)


@contextmanager
def _errors_in_one_line(name: str) -> Any:
    """Turn whatever a vector environment raises into one line with its name."""
    try:
        yield
    except CustardError:
        raise
    except (Exception, SystemExit) as error:
        raise CustardError(f"vector environment {name!r} raised {type(error).__name__}: {one_line(error)}") from error


def _require_one_action_each(answer: Any, count: int) -> Any:
    """Return the actions of a policy; raise unless there is one per observation."""
    actions = answer if isinstance(answer, list) else np.asarray(answer)
    size = 0 if isinstance(actions, np.ndarray) and actions.ndim == 0 else len(actions)
    if size != count:
        given = "one answer" if size == 0 else f"{size} actions"
        raise CustardError(f"the policy returned {given} for {count} observations: one action each is needed")
    return actions if isinstance(actions, list) or actions.ndim > 1 else actions.tolist()


def _action_mask_info(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """Return the action mask of one sub-environment as its own info has it."""
    mask = _action_mask_of(infos, i)
    return {} if mask is None else {"action_mask": mask}


def _action_mask_of(infos: dict[str, Any], i: int) -> Any:
    """Return which actions a sub-environment allows now, [A] bool, or None where it does not say."""
    if "action_mask" not in infos or not infos.get("_action_mask", np.ones(i + 1, dtype=bool))[i]:
        return None
    return np.asarray(infos["action_mask"][i], dtype=bool)
