"""Record a tree's episodes step by step: features, actions, rewards and, where possible, pictures."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.tree.tree import Tree

__all__ = ["Episode", "record_episodes"]

REPLAY_FPS = 25  # pictures per second that a replay needs


@dataclass(frozen=True)
class Episode:
    """One episode. Step t saw x[t], took actions[t] and earned rewards[t]; after the last step came `end`."""

    x: np.ndarray  # [steps, n] float64
    end: np.ndarray  # [n] float64
    actions: np.ndarray  # [steps] or [steps, k]
    rewards: np.ndarray  # [steps]
    frames: tuple[np.ndarray, ...]  # before each step and after the last, [h, w, 3] uint8; empty if there are none
    ending: str  # "terminated", "time limit" or "cut"
    seed: int


def record_episodes(
    tree: Tree,
    env: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    episodes: int = 1,
    seed: int = 0,
    max_steps: int = 1000,
    pictures: int = 0,
    seconds: float = math.inf,
    on_progress: Callable[[int, int], Any] = lambda done, of: None,
) -> list[Episode]:
    """Run a tree in the environment, stepped from Python.

    tree         the policy
    env          the environment's id
    kwargs       arguments of the environment
    episodes     how many
    seed         where the episodes' seeds come from
    max_steps    steps after which an episode is cut
    pictures     if not 0, at most at every so many steps the environment is drawn; where that fails there are no frames
    seconds      after which no further episode begins
    on_progress  called with the number of episodes recorded and of all

    >>> import custard
    >>> features = custard.describe(__import__("gymnasium").make("CartPole-v1")).features
    >>> tree = custard.Tree.leaf(0, features, custard.Actions("discrete", ("left", "right")))
    >>> len(record_episodes(tree, "CartPole-v1")[0].x) < 20
    True
    """
    import gymnasium as gym

    from custard.core.spaces import describe
    from custard.task.guard import Guarded
    from custard.task.history import remembered
    from custard.task.runners import require_fit
    from custard.task.source import episode_seeds, source

    where, features = remembered(tree, source(env, kwargs))
    made, every = where.make(), 0
    if pictures and "rgb_array" in (made.metadata.get("render_modes") or ()):  # others only warn
        quiet = os.environ.get("SDL_VIDEODRIVER")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures without a window
        try:
            rendered = Guarded(gym.make(env, render_mode="rgb_array", **dict(kwargs or {})), where.name)
            rendered.reset(seed=0)
            picture = rendered.render()
            if isinstance(picture, np.ndarray) and picture.dtype == np.uint8:
                every = max(pictures, round(float(rendered.metadata.get("render_fps") or REPLAY_FPS) / REPLAY_FPS))
        except Exception:  # whatever keeps an environment from drawing, its replay does without pictures
            every = 0
        finally:
            if quiet is None:
                os.environ.pop("SDL_VIDEODRIVER", None)
        if every:
            made.close()
            made = where.around(rendered)
    try:
        base = describe(made, features=features)
        require_fit(tree, base)
        recorded, ends_at = [], time.monotonic() + seconds
        for episode_seed in episode_seeds(seed, episodes).tolist():
            recorded.append(_episode(tree, made, base, episode_seed, max_steps, every))
            on_progress(len(recorded), episodes)
            if time.monotonic() >= ends_at:
                break
        return recorded
    finally:
        made.close()


def _episode(tree: Tree, env: Any, base: Any, seed: int, max_steps: int, every: int) -> Episode:
    observation, _ = env.reset(seed=seed)
    x, actions, rewards = [], [], []  # type: ignore[var-annotated]
    frames = [np.array(env.render())] if every else []  # drawing takes most of the time
    ending = "cut"
    while len(x) < max_steps:
        seen = base.observe(observation)
        action = tree.act(seen)
        observation, reward, terminated, truncated, _ = env.step(base.action(action))
        x.append(seen)
        actions.append(action)
        rewards.append(reward)
        if every:
            frames.append(np.array(env.render()) if len(x) % every == 0 else frames[-1])
        if terminated or truncated:
            ending = "terminated" if terminated else "time limit"
            break
    return Episode(
        np.array(x), base.observe(observation), np.array(actions), np.array(rewards), tuple(frames), ending, seed
    )
