"""Requests for episodes cut into chunks of plain data, and the function that runs a chunk in another process."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from custard.core.spaces import describe
from custard.task.episodes import EpisodeRequest, Episodes, play_episodes
from custard.task.policies import policy_data, policy_from_data
from custard.task.recipes import recipe_encoder, recipe_function, register_again

__all__ = [
    "MAX_ATTEMPTS_PER_CHUNK", "MAX_WORKER_BYTES", "Chunk", "chunks_of", "joined_chunks", "serve_episodes", "too_slow",
]  # fmt: skip

MAX_ATTEMPTS_PER_CHUNK = 3  # times the same episodes are given to a worker that then dies
MAX_WORKER_BYTES = 4 << 30  # memory at which a worker is replaced: its environment leaks
CHUNKS_PER_WORKER = 4  # parts into which a request is cut for each worker, so that all end at about the same time

Chunk = tuple[int, dict[str, Any]]  # the request's number, and what `serve_episodes`' function takes


def chunks_of(requests: Sequence[EpisodeRequest], workers: int) -> list[Chunk]:
    """Cut all requests into chunks for a number of workers."""
    chunks: list[Chunk] = []
    for number, request in enumerate(requests):
        pieces = max(1, min(len(request.seeds), CHUNKS_PER_WORKER * workers))
        common = {**vars(request), "policy": policy_data(request.policy)}
        chunks += [(number, {**common, "seeds": seeds}) for seeds in np.array_split(request.seeds, pieces)]
    return chunks


def joined_chunks(chunks: Sequence[Chunk], results: Mapping[int, Episodes], requests: int) -> list[Episodes]:
    """Return the episodes of each request from those of its chunks, by the chunks' numbers."""
    parts: list[list[Episodes]] = [[] for _ in range(requests)]
    for k, (number, _) in enumerate(chunks):
        parts[number].append(results[k])
    return [Episodes.joined(each) for each in parts]


def serve_episodes(setup: Mapping[str, Any], tick: Callable[[], None]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Make the environment that `setup` describes; returns the function that runs episodes in it.

    `setup` holds "env" (an id, or where a function that makes it is imported from), "registration" (of the id, if this
    process may not know it), "kwargs", "history" (if past steps are features, as `with_history` writes it) and
    "features" (where the user's features= function is imported from, their expressions, or None).
    """
    from custard.task.history import history_from_recipe
    from custard.task.source import source

    register_again(setup["registration"])
    env = setup["env"] if isinstance(setup["env"], str) else recipe_function(setup["env"])
    made = history_from_recipe(source(env, setup["kwargs"]), setup.get("history")).make()
    encoder = recipe_encoder(setup["features"])
    base = describe(made, features=encoder)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        policy = policy_from_data(request.pop("policy"), base.features, base.actions)
        episodes = play_episodes(made, base, EpisodeRequest(policy, **request), tick)
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"episodes": vars(episodes), "bytes": 1024 * kilobytes}

    return answer


def too_slow(name: str, seconds: float) -> str:
    """Say that a step of an environment took too long."""
    return (
        f"environment {name!r} took more than {seconds:g} seconds for one step: "
        "step_timeout= (--step-timeout) allows more"
    )
