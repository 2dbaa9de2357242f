"""Whole episodes of a policy in one environment that Python steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from custard.core.spaces import Base
from custard.task.policies import Policy
from custard.tree.leaf_actions import LeafActions
from custard.tree.tree import Tree

__all__ = [
    "EpisodeRequest", "Episodes", "InProcess", "Runner", "action_mask", "affordable_parts", "joined_masks", "mask_rows",
    "observer", "play_episodes", "random_action", "raw_act",
]  # fmt: skip

MAX_CACHED_OBSERVATIONS = 100_000


@dataclass(frozen=True, eq=False)
class EpisodeRequest:
    """Episodes to run: one per seed, all of one policy."""

    policy: Policy
    seeds: np.ndarray  # [N] int64
    noise: float = 0.0  # share of random actions; they depend on the seed alone
    max_steps: int | None = None  # where episodes are cut that the environment does not end before
    keep_states: bool = False  # whether the states met are returned
    gamma: float = 1.0  # discount of the returns, per step


@dataclass(eq=False)
class Episodes:
    """What came of them, in the order of their seeds."""

    returns: np.ndarray  # [N] float64, discounted as the request says
    lengths: np.ndarray  # [N] int64
    terminated: np.ndarray  # [N] bool: the environment ended it
    truncated: np.ndarray  # [N] bool: cut by the environment's time limit or by `max_steps`
    forbidden: np.ndarray  # [N] int64: steps whose action the environment's own action mask forbade
    states: np.ndarray  # [M, n]: the states met, if asked for
    masks: np.ndarray  # [M, A] bool: which actions the environment allowed there; [M, 0] where it has no masks

    @property
    def steps(self) -> int:
        """Environment steps of all episodes."""
        return int(self.lengths.sum())

    @classmethod
    def joined(cls, parts: list[Episodes]) -> Episodes:
        """Put parts together in order."""
        names = ("returns", "lengths", "terminated", "truncated", "forbidden", "states")
        arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        arrays["masks"] = joined_masks([part.masks for part in parts])
        return cls(**arrays)


def joined_masks(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Put masks together; where a part has none, everything is allowed."""
    width = max(part.shape[1] for part in parts)
    return np.concatenate([part if part.shape[1] else np.ones((len(part), width), dtype=bool) for part in parts])


def observer(env: gym.Env, base: Base) -> Callable[[Any], np.ndarray]:
    """Return the function from observations to feature vectors; the few of a Discrete space are encoded once each."""
    if not isinstance(env.observation_space, gym.spaces.Discrete):
        return base.observe
    once = lru_cache(MAX_CACHED_OBSERVATIONS)(base.observe)
    return lambda seen: once(seen) if isinstance(seen, int | np.integer) else base.observe(seen)


def action_mask(env: gym.Env, info: dict[str, Any]) -> Any:
    """Return which actions the environment allows now, [A] bool, or None where it does not say."""
    mask = info.get("action_mask")
    if mask is None and hasattr(env.unwrapped, "action_masks"):
        mask = env.unwrapped.action_masks()
    return mask


def raw_act(policy: Policy, base: Base) -> Callable[[np.ndarray], Any]:
    """Return a policy's function from one feature vector [n]; a tree's sums may differ from the environment's."""
    act, n_raw = policy.act, base.features.n_raw
    if not base.features.derived or not isinstance(policy, Tree):
        return act
    return lambda x: act(x[:n_raw])


def random_action(leaf_actions: LeafActions, rng: Any, mask: Any = None) -> Any:
    """Draw any action, or one of those that a mask [A] allows."""
    allowed = None if mask is None else np.flatnonzero(mask)
    if allowed is None or not len(allowed):
        return leaf_actions.random(rng)
    return leaf_actions.actions.start + int(allowed[int(rng.integers(len(allowed)))])


def play_episodes(
    env: gym.Env, base: Base, request: EpisodeRequest, tick: Callable[[], None] = lambda: None
) -> Episodes:
    """Run one episode per seed; an episode depends on its seed and the policy alone. `tick` is called at every step."""
    observe, action_of, start = observer(env, base), base.action, base.actions.start
    leaf_actions, act, limit = LeafActions(base.actions), raw_act(request.policy, base), request.max_steps or np.inf
    count = len(request.seeds)
    returns, lengths = np.zeros(count), np.zeros(count, dtype=np.int64)
    terminated, truncated = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    forbidden = np.zeros(count, dtype=np.int64)
    states: list[np.ndarray] = []
    masks: list[Any] = []
    for k, seed in enumerate(request.seeds.tolist()):
        rng = np.random.default_rng([seed, 1]) if request.noise else None
        observation, info = env.reset(seed=seed)
        masked = base.actions.discrete and action_mask(env, info) is not None
        total, weight, t, over, cut = 0.0, 1.0, 0, False, False
        while not (over or cut):
            x = observe(observation)
            mask = action_mask(env, info) if masked else None
            if request.keep_states:
                states.append(x)
                masks.append(mask)
            is_greedy = rng is None or rng.random() >= request.noise
            action = act(x) if is_greedy else random_action(leaf_actions, rng, mask)
            if mask is not None and not mask[action - start]:
                forbidden[k] += 1
            observation, reward, over, cut, info = env.step(action_of(action))
            tick()
            t += 1
            total += weight * float(reward)
            weight *= request.gamma
            cut = not over and (cut or t >= limit)
        returns[k], lengths[k], terminated[k], truncated[k] = total, t, over, cut
    met = np.array(states).reshape(-1, base.features.n)
    return Episodes(returns, lengths, terminated, truncated, forbidden, met, mask_rows(masks))


def affordable_parts(
    episodes: np.ndarray, steps_left: Callable[[], float], longest: int, min_episodes: int = 0
) -> Iterator[np.ndarray]:
    """Yield episodes in parts, each as large as the steps that are left allow for the longest ones.

    episodes      their seeds, or numbers
    steps_left    called before each part: environment steps that may still be taken
    longest       steps of an episode, at most
    min_episodes  1: an episode runs even where no steps are left

    >>> budget = iter([25.0, 25.0, 5.0, 5.0, -3.0])
    >>> [part.tolist() for part in affordable_parts(np.arange(9), lambda: next(budget), 10)]
    [[0, 1], [2]]
    """
    while len(episodes) and (steps_left() > 0 or min_episodes):
        count = int(min(len(episodes), max(1, steps_left() / longest)))
        yield episodes[:count]
        episodes, min_episodes = episodes[count:], 0


def mask_rows(masks: Sequence[Any]) -> np.ndarray:
    """Return masks as rows [M, A]; where one is None everything is allowed, and where all are, [M, 0]."""
    known = next((mask for mask in masks if mask is not None), None)
    if known is None:
        return np.ones((len(masks), 0), dtype=bool)
    return np.array([np.ones(len(known)) if mask is None else mask for mask in masks], dtype=bool)


class Runner(Protocol):
    """What runs episodes: in this process, in worker processes, on a cluster. Results do not depend on which."""

    def run(self, requests: Sequence[EpisodeRequest]) -> list[Episodes]:
        """Run all requests; the episodes of each, in order."""

    def close(self) -> None:
        """End what was started for it."""


class InProcess:
    """Runs episodes here, in one environment."""

    def __init__(self, env: gym.Env, base: Base) -> None:
        self.env, self.base = env, base

    def run(self, requests: Sequence[EpisodeRequest]) -> list[Episodes]:
        """Run all requests; the episodes of each, in order."""
        return [play_episodes(self.env, self.base, request) for request in requests]

    def close(self) -> None:
        """Leave the environment to whoever made it."""
