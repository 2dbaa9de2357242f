"""Judge a tree, or any policy: returns over seeded episodes, with a confidence interval."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError, require_whole
from custard.core.history import require_history
from custard.core.number_format import format_numbers, html_table
from custard.core.processes import cores
from custard.core.spaces import FeaturesArgument, describe
from custard.ibmdp.env import IBMDP
from custard.task.episodes import EpisodeRequest, Episodes, play_episodes
from custard.task.history import remembered
from custard.task.origin import environment_of
from custard.task.problem import Problem
from custard.task.runners import require_fit, run_episodes
from custard.task.source import Source, episode_seeds, source
from custard.task.workers import make_runner
from custard.tree.text import plural
from custard.tree.tree import Tree

__all__ = ["Evaluation", "evaluate"]

BOOTSTRAP_RESAMPLES = 2000
TIMED_EPISODES, TIMED_EPISODES_SECONDS = 10, 2.0  # that show how long the others take
MIN_SECONDS_FOR_WORKERS = 8.0  # that the others must take for worker processes to be worth their start
EPISODES_BEFORE_PROGRESS, SECONDS_BETWEEN_PROGRESS = 50, 1.5  # before the first word on it; between two
MIN_EVALUATED_EPISODES = 10  # however long they take


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Returns of episodes, one entry per episode; undiscounted unless `gamma` is below 1."""

    returns: np.ndarray  # [episodes] float64
    lengths: np.ndarray  # [episodes] int64, base steps
    time_limited: np.ndarray  # [episodes] bool: cut by a time limit
    traversal_limited: np.ndarray  # [episodes] bool: cut because the policy asked too many questions in a row
    seed: int
    gamma: float = 1.0  # discount of the returns, per step
    forbidden: int = 0  # steps whose action the environment's own action mask forbade

    @property
    def episodes(self) -> int:
        """The number of episodes."""
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
        """The 95 % bootstrap interval of the mean; NaN at both ends for a single episode."""
        if self.episodes == 1:
            return math.nan, math.nan
        rng = np.random.default_rng(self.seed)
        means = [
            self.returns[rng.integers(self.episodes, size=self.episodes)].mean() for _ in range(BOOTSTRAP_RESAMPLES)
        ]
        low, high = np.percentile(means, [2.5, 97.5])
        return float(low), float(high)

    def to_json(self) -> dict[str, Any]:
        """Return a plain summary with every return and length; std and ci95 are None for a single episode."""
        several = self.episodes > 1
        return {
            "episodes": self.episodes, "mean": self.mean, "std": self.std if several else None,
            "ci95": list(self.ci95) if several else None,
            "min": float(self.returns.min()), "max": float(self.returns.max()),
            "mean_length": float(self.lengths.mean()), "time_limited": int(self.time_limited.sum()),
            "traversal_limited": int(self.traversal_limited.sum()), "forbidden": self.forbidden, "seed": self.seed,
            **({"gamma": self.gamma} if self.gamma != 1.0 else {}),
            "returns": self.returns.tolist(), "lengths": self.lengths.tolist(),
        }  # fmt: skip

    def __repr__(self) -> str:
        mean, std = format_numbers(self.mean, self.std)
        return f"Evaluation(mean={mean}, std={std}, episodes={self.episodes}, seed={self.seed})"

    def _repr_html_(self) -> str:
        low, high = self.ci95
        mean, std, low_text, high_text, least, most = format_numbers(
            self.mean, self.std, low, high, float(self.returns.min()), float(self.returns.max())
        )
        rows = {
            "mean return": mean, "95 % interval": f"{low_text} to {high_text}", "standard deviation": std,
            "lowest, highest": f"{least}, {most}", "episodes": f"{self.episodes:,}",
            "mean length": f"{self.lengths.mean():.1f} steps", "reached the time limit": f"{self.time_limited.sum():,}",
        }  # fmt: skip
        return html_table(rows)

    def __str__(self) -> str:
        low, high = self.ci95
        cut = f", {int(self.time_limited.sum())} reached the time limit" if self.time_limited.any() else ""
        if self.traversal_limited.any():
            cut += f", {int(self.traversal_limited.sum())} reached the traversal limit"
        if self.forbidden:
            cut += f", {self.forbidden} steps took an action that the environment's mask forbids"
        mean, std, low_text, high_text = format_numbers(self.mean, self.std, low, high)
        spread = f" (95 % interval of the mean {low_text} to {high_text}, standard deviation {std})"
        kind = "return" if self.gamma == 1.0 else f"return discounted by {self.gamma:g}"
        return (
            f"{kind} {mean}{spread if self.episodes > 1 else ''} over {self.episodes} "
            f"{plural('episode', self.episodes)} of {self.lengths.mean():.1f} steps{cut}"
        )


def evaluate(
    policy: Tree | Callable[..., Any],
    env: Any = None,
    episodes: int = 100,
    seed: int = 0,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    features: FeaturesArgument = None,
    max_steps: int | None = None,
    num_envs: int = 1024,
    workers: int | None = None,
    gamma: float = 1.0,
    history: int | None = None,
    seconds: float = math.inf,
    on_progress: Callable[[int, int], Any] | None = None,
) -> Evaluation:
    """Run a policy for a number of episodes.

    `policy` is a `Tree` or a function from feature vectors [B, n] to actions [B] (or [B, k]). On an `IBMDP` it is a
    function from bounds and masks to IBMDP actions. `env` is an id, an environment (single or vector) or a function
    that makes one; unless given, the one that the tree was learned in. Episode k has its own seed, derived from `seed`,
    so policies judged with the same `seed` meet the same episodes, and the result does not depend on `num_envs`, how
    many environments run side by side, nor on `workers`, the processes that step a tree's environment where Python
    steps it and it takes long (one per core). `max_steps` cuts episodes of environments that set no limit themselves
    (default 10,000). `gamma` below 1 discounts the returns, per step. `history` adds as many past steps to the features
    of a function; a tree says itself how many it was learned with. After so many `seconds` it stops with the first of
    the episodes, at least 10. `on_progress` is called with the number of episodes run so far and of all, every few
    seconds.

    >>> import custard
    >>> tree = custard.Tree.stump(2, 0.0, 0, 1, *_cartpole_features_and_actions())
    >>> result = evaluate(tree, "CartPole-v1", episodes=20, seed=1)
    >>> result.episodes, bool(30 < result.mean < 60)
    (20, True)
    """
    require_whole(1, episodes=episodes, max_steps=max_steps)
    if not 0.0 < gamma <= 1.0:
        raise CustardError(f"gamma must be above 0 and at most 1, not {gamma}")
    if not isinstance(policy, Tree) and not callable(policy):
        hint = f": custard.load({str(policy)!r}) reads a tree" if isinstance(policy, (str, Path)) else ""
        if isinstance(getattr(policy, "tree", None), Tree):
            hint = ": its .tree is one"
        raise CustardError(f"a policy is a Tree or a function to actions, not a {type(policy).__name__}{hint}")
    if env is None:
        if not isinstance(policy, Tree):
            raise CustardError(
                'a function does not say where it acts: name its environment, as in evaluate(f, "Id-v0")'
            )
        env, env_kwargs = environment_of(policy, None, env_kwargs or {}, 'evaluate(tree, "CartPole-v1")')
    if isinstance(env, IBMDP):
        if not isinstance(policy, Tree):
            return _evaluate_on_ibmdp(policy, env, episodes, seed, gamma)
        env = env.env
    require_history(history)
    seeds = episode_seeds(seed, episodes)
    where, features = remembered(policy, source(env, env_kwargs), features, history)
    pace = _Pace(len(seeds), seconds, on_progress)
    if isinstance(policy, Tree) and where.make_compiled is None:
        runs = _run_stepped_by_python(policy, where, seeds, features, max_steps, workers, gamma, pace)
        unlimited = np.zeros(len(runs.returns), dtype=bool)
        return Evaluation(runs.returns, runs.lengths, runs.truncated, unlimited, seed, gamma, int(runs.forbidden.sum()))
    found = [
        run_episodes(policy, where, seeds[part], features=features, max_steps=max_steps, num_envs=num_envs, gamma=gamma)
        for part in pace.parts(EPISODES_BEFORE_PROGRESS)
    ]
    returns, lengths, truncated = (np.concatenate(parts) for parts in zip(*(one[:3] for one in found), strict=True))
    return Evaluation(returns, lengths, truncated, np.zeros(len(returns), dtype=bool), seed, gamma)


class _Pace:
    """Cuts episodes into parts of a few seconds each, tells how many are run, and stops when the time is over."""

    def __init__(self, episodes: int, seconds: float, on_progress: Callable[[int, int], Any] | None) -> None:
        self.episodes, self.done, self.on_progress = episodes, 0, on_progress
        self.ends_at = time.monotonic() + seconds
        self.in_parts = on_progress is not None or math.isfinite(seconds)

    def parts(self, first: int, least: int = 1, end: int | None = None) -> Iterator[slice]:
        """Yield slices of the episodes up to `end`: `first` of them, then as many as take a few seconds."""
        end = self.episodes if end is None else min(end, self.episodes)
        size = max(first, least) if self.in_parts else end
        while self.done < end and not (self.done >= MIN_EVALUATED_EPISODES and time.monotonic() >= self.ends_at):
            begun = time.monotonic()
            part = slice(self.done, min(end, self.done + size))
            yield part
            self.done = part.stop
            if self.on_progress is not None:
                self.on_progress(self.done, self.episodes)
            seconds = max(1e-3, time.monotonic() - begun)
            size = max(least, int((part.stop - part.start) * min(10.0, SECONDS_BETWEEN_PROGRESS / seconds)))


def _run_stepped_by_python(
    tree: Tree, where: Source, seeds: np.ndarray, features: Any, max_steps: int | None, workers: int | None,
    gamma: float, pace: _Pace,
) -> Episodes:  # fmt: skip
    """Run a tree's episodes in an environment that Python steps: a few here and, if it takes long, the rest by workers.

    Results are the same wherever an episode runs.
    """
    env = where.make()
    base = describe(env, features=features)
    require_fit(tree, base)
    request = EpisodeRequest(tree, seeds, 0.0, where.max_steps(max_steps), gamma=gamma)
    if where.vector is not None:
        runner = make_runner(Problem(where, base, encoder=features))
        return Episodes.joined(
            [runner.run([replace(request, seeds=seeds[part])])[0] for part in pace.parts(EPISODES_BEFORE_PROGRESS)]
        )
    found, begun, seconds = [], time.perf_counter(), 0.0
    while pace.done < min(len(seeds), TIMED_EPISODES) and seconds < TIMED_EPISODES_SECONDS:
        for part in pace.parts(1, end=pace.done + 1):
            found.append(play_episodes(env, base, replace(request, seeds=seeds[part])))
        seconds = time.perf_counter() - begun
    seconds *= (len(seeds) - pace.done) / pace.done  # that the others will take
    if seconds > MIN_SECONDS_FOR_WORKERS and not where.is_single_instance:
        runner = make_runner(Problem(where, base, encoder=features, workers=workers))
        try:
            at_once = 2 * (cores() if workers is None else max(1, workers))
            found += [runner.run([replace(request, seeds=seeds[part])])[0] for part in pace.parts(at_once, at_once)]
        finally:
            runner.close()
    found += [play_episodes(env, base, replace(request, seeds=seeds[part])) for part in pace.parts(1)]
    if not where.is_single_instance:
        env.close()
    return Episodes.joined(found)


def _evaluate_on_ibmdp(policy: Callable[..., Any], env: IBMDP, episodes: int, seed: int, gamma: float) -> Evaluation:
    """Evaluate a policy over bounds, step by step in its IBMDP; its return counts base rewards only."""
    n = env.rules.features.n
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    time_limited, traversal_limited = np.zeros(episodes, dtype=bool), np.zeros(episodes, dtype=bool)
    for k, episode_seed in enumerate(episode_seeds(seed, episodes).tolist()):
        observation, info = env.reset(seed=episode_seed)
        ended = False
        while not ended:
            batch = policy(observation[None, -2 * n :], info["action_mask"][None])
            parameterised = env.rules.parameterised
            action = {key: entry[0] for key, entry in batch.items()} if parameterised else batch[0]
            number = int(np.asarray(action["choice"] if parameterised else action).reshape(()))
            observation, reward, terminated, truncated, info = env.step(action)
            if number < env.rules.n_base:
                returns[k] += gamma ** lengths[k] * reward
                lengths[k] += 1
            ended = terminated or truncated
            traversal_limited[k] = "traversal_limit" in info
            time_limited[k] = truncated and not traversal_limited[k]
    return Evaluation(returns, lengths, time_limited, traversal_limited, seed, gamma)


def _cartpole_features_and_actions() -> tuple[Any, Any]:
    """CartPole's features and actions, for examples."""
    import gymnasium as gym

    base = describe(gym.make("CartPole-v1"))
    return base.features, base.actions
