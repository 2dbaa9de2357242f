"""Judging: returns of a tree, or of any policy, over seeded episodes, with an error bar."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError, require_whole
from custard.core.number_format import format_numbers
from custard.core.spaces import Base, describe
from custard.ibmdp.base_environments import BaseEnvironments, base_environments_of
from custard.ibmdp.env import IBMDP
from custard.task.source import DEFAULT_LIMIT, Source, episode_seeds, source
from custard.tree.text import plural
from custard.tree.tree import Tree

__all__ = ["Evaluation", "evaluate", "play", "rollouts"]

RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Undiscounted returns of episodes, one entry each."""

    returns: np.ndarray  # [episodes] float64
    lengths: np.ndarray  # [episodes] int64, base steps
    time_limited: np.ndarray  # [episodes] bool: cut by a time limit
    traversal_limited: np.ndarray  # [episodes] bool: cut because the policy went on asking
    seed: int

    @property
    def episodes(self) -> int:
        """How many episodes were run."""
        return len(self.returns)

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the return over episodes; NaN for a single one."""
        return float(self.returns.std(ddof=1)) if self.episodes > 1 else math.nan

    @cached_property
    def ci95(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of the mean; a single episode has none, so that both ends are NaN."""
        if self.episodes == 1:
            return math.nan, math.nan
        rng = np.random.default_rng(self.seed)
        means = [self.returns[rng.integers(self.episodes, size=self.episodes)].mean() for _ in range(RESAMPLES)]
        low, high = np.percentile(means, [2.5, 97.5])
        return float(low), float(high)

    def to_json(self) -> dict[str, Any]:
        """A plain summary with every return and length; of one episode the spread and its interval are None."""
        several = self.episodes > 1
        return {
            "episodes": self.episodes, "mean": self.mean, "std": self.std if several else None,
            "ci95": list(self.ci95) if several else None,
            "min": float(self.returns.min()), "max": float(self.returns.max()),
            "mean_length": float(self.lengths.mean()), "time_limited": int(self.time_limited.sum()),
            "traversal_limited": int(self.traversal_limited.sum()), "seed": self.seed,
            "returns": self.returns.tolist(), "lengths": self.lengths.tolist(),
        }  # fmt: skip

    def __str__(self) -> str:
        low, high = self.ci95
        cut = f", {int(self.time_limited.sum())} reached the time limit" if self.time_limited.any() else ""
        if self.traversal_limited.any():
            cut += f", {int(self.traversal_limited.sum())} reached the traversal limit"
        mean, std, low_text, high_text = format_numbers(self.mean, self.std, low, high)
        interval = f"95 % interval of the mean {low_text} to {high_text}" if self.episodes > 1 else "no interval"
        return (
            f"return {mean} ± {std} ({interval}) over {self.episodes} {plural('episode', self.episodes)} of "
            f"{self.lengths.mean():.1f} steps{cut}"
        )


def evaluate(
    policy: Tree | Callable[..., Any],
    env: Any,
    episodes: int = 100,
    seed: int = 0,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    features: Callable[[Any], Sequence[float]] | None = None,
    max_steps: int | None = None,
    num_envs: int = 1024,
) -> Evaluation:
    """Run a policy for a number of episodes.

    `policy` is a `Tree` or a function from feature vectors [B, n] to actions [B] (or [B, k]). On an `IBMDP` it is a
    function from bounds and masks to IBMDP actions. `env` is an id, an environment or a function that makes one.
    Episode k starts from a seed of its own, so that policies judged with the same `seed` meet the same episodes, and
    the result does not depend on how many environments run side by side. `max_steps` cuts episodes of environments
    that set no limit themselves (10,000 unless told).

    >>> import custard
    >>> tree = custard.Tree.stump(2, 0.0, 0, 1, *_cartpole())
    >>> result = evaluate(tree, "CartPole-v1", episodes=20, seed=1)
    >>> result.episodes, bool(30 < result.mean < 60)
    (20, True)
    """
    require_whole(1, episodes=episodes, max_steps=max_steps)
    if not isinstance(policy, Tree) and not callable(policy):
        hint = f": Tree.load({str(policy)!r}) reads a tree from its file" if isinstance(policy, (str, Path)) else ""
        raise CustardError(f"a policy is a Tree or a function to actions, not a {type(policy).__name__}{hint}")
    if isinstance(env, IBMDP):
        if not isinstance(policy, Tree):
            return _on_ibmdp(policy, env, episodes, seed)
        env = env.env
    where = source(env, env_kwargs)
    runs = rollouts(
        policy, where, episode_seeds(seed, episodes), features=features, max_steps=max_steps, width=num_envs
    )
    return Evaluation(*runs, np.zeros(episodes, dtype=bool), seed)


def rollouts(
    policy: Tree | Callable[..., Any],
    where: Source,
    seeds: np.ndarray,
    *,
    features: Callable[[Any], Sequence[float]] | None = None,
    max_steps: int | None = None,
    width: int = 1024,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, lengths and whether the time limit cut it, of one episode for each seed."""
    venv = where.vector(min(len(seeds), width if where.native is not None else 16))
    try:
        base = describe(venv, features=features)
        if isinstance(policy, Tree):
            check_fits(policy, base)
            if where.native is not None and features is None:
                from custard.envs.pcg64 import streams  # compiled code loads when it is used
                from custard.task.native_rollouts import native_place, tree_rollouts

                return tree_rollouts(policy, native_place(venv, max_steps), streams(seeds.tolist()))[:3]  # type: ignore[arg-type]
        act = policy.predict if isinstance(policy, Tree) else policy
        limit = max_steps or (None if where.limit is not None else DEFAULT_LIMIT)
        return play(act, base_environments_of(venv, base), seeds, limit)
    finally:
        if not where.lone:
            venv.close()


def play(
    act: Callable[[np.ndarray], Any], parts: BaseEnvironments, seeds: np.ndarray, limit: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One episode for each seed in environments that exist already: returns, lengths, whether a limit cut it."""
    episodes, slots = len(seeds), len(parts.reward)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    cut = np.zeros(episodes, dtype=bool)
    episode = np.arange(slots)  # which episode each slot runs
    active = np.arange(min(slots, episodes))
    waiting = len(active)
    nobody = np.arange(0)
    _start(parts, active, seeds[episode[active]])
    while len(active):
        actions = np.asarray(act(parts.x[active]))
        if actions.shape[:1] != (len(active),):
            given = "one answer" if actions.ndim == 0 else f"{len(actions)} actions"
            raise CustardError(f"the policy returned {given} for {len(active)} observations: one action each is needed")
        parts.move(active, actions, nobody)
        now = episode[active]
        returns[now] += parts.reward[active]
        lengths[now] += 1
        terminated = parts.terminated[active]
        truncated = parts.truncated[active] & ~terminated
        if limit is not None:
            truncated |= ~terminated & (lengths[now] >= limit)
        cut[now] = truncated
        over = active[terminated | truncated]
        if len(over):
            fresh = over[: max(0, episodes - waiting)]
            episode[fresh] = np.arange(waiting, waiting + len(fresh))
            waiting += len(fresh)
            active = np.setdiff1d(active, over[len(fresh) :], assume_unique=True)
            if len(fresh):
                _start(parts, fresh, seeds[episode[fresh]])
    return returns, lengths, cut


def _start(parts: BaseEnvironments, index: np.ndarray, seeds: np.ndarray) -> None:
    """Begin an episode with its own seed in some parts."""
    each: list[int | None] = [None] * len(parts.reward)
    mask = np.zeros(len(parts.reward), dtype=bool)
    mask[index] = True
    for i, seed in zip(index.tolist(), seeds.tolist(), strict=True):
        each[i] = seed
    parts.reset(each, {"reset_mask": mask})


def _on_ibmdp(policy: Callable[..., Any], env: IBMDP, episodes: int, seed: int) -> Evaluation:
    """A policy over bounds, step by step in its IBMDP; its return counts base rewards only."""
    n = env.rules.features.n
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    late, asking = np.zeros(episodes, dtype=bool), np.zeros(episodes, dtype=bool)
    for k, episode_seed in enumerate(episode_seeds(seed, episodes).tolist()):
        observation, info = env.reset(seed=episode_seed)
        over = False
        while not over:
            answer = policy(observation[None, -2 * n :], info["action_mask"][None])
            parameterised = env.rules.parameterised
            action = {key: entry[0] for key, entry in answer.items()} if parameterised else answer[0]
            number = int(np.asarray(action["choice"] if parameterised else action).reshape(()))
            observation, reward, terminated, truncated, info = env.step(action)
            if number < env.rules.n_base:
                returns[k] += reward
                lengths[k] += 1
            over = terminated or truncated
            asking[k] = "traversal_limit" in info
            late[k] = truncated and not asking[k]
    return Evaluation(returns, lengths, late, asking, seed)


def check_fits(tree: Tree, base: Base) -> None:
    """Raise unless a tree speaks of an environment's features and actions."""
    renamed = tree.origin.get("feature_names") and tree.features.n == base.features.n  # by whoever had it learned
    if tree.features.names != base.features.names and not renamed:
        raise CustardError(
            f"the tree asks about {_some(tree.features.names)}, but the environment has {_some(base.features.names)}"
        )
    if tree.actions.kind != base.actions.kind or len(tree.actions.names) != len(base.actions.names):
        raise CustardError(
            f"the tree decides among {_some(tree.actions.names)} ({tree.actions.kind}), but the environment's actions "
            f"are {_some(base.actions.names)} ({base.actions.kind})"
        )
    if tree.actions.start != base.actions.start:
        raise CustardError(
            f"the tree's actions are numbered from {tree.actions.start}, the environment's from {base.actions.start}"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", … ({len(names)})" if len(names) > 6 else "")


def _cartpole() -> tuple[Any, Any]:
    """CartPole's features and actions, for examples."""
    import gymnasium as gym

    base = describe(gym.make("CartPole-v1"))
    return base.features, base.actions
