"""Functions that several commands share."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from custard.core.errors import CustardError, one_of

if TYPE_CHECKING:
    from custard.report.episodes import Episode
    from custard.tree.tree import Tree

__all__ = [
    "assignments",
    "feature_function",
    "load_tree",
    "one_environment",
    "print_json",
    "watch_episodes",
    "with_settings",
]


def load_tree(path: Path) -> Tree:
    """Load the tree of a file or of a run directory."""
    from custard.tree.loading import load

    return load(path)


def feature_function(name: str | None) -> Callable[[Any], Sequence[float]] | None:
    """Return the function that --features names as module:function."""
    if name is None:
        return None
    from custard.task.origin import named_features

    return named_features(name, "--features")


def one_environment(option: str | None, positional: str | None) -> str | None:
    """Return the environment given by --env or behind the tree; raise if both are given and differ."""
    if option is not None and positional is not None and option != positional:
        raise CustardError(f"two environments are given, {positional} and --env {option}: give one")
    return option if positional is None else positional


def print_json(data: Any) -> None:
    """Print one JSON document; numbers that are not finite become null."""
    print(json.dumps(_finite(data), indent=2, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def assignments(texts: Sequence[str], option: str) -> dict[str, Any]:
    """Parse key=value arguments: values are Python literals, true or false; anything else is text.

    >>> assignments(["m=7", "lane2=[1.5, 3]", "mode=fast", "keep=false"], "--env-args")
    {'m': 7, 'lane2': [1.5, 3], 'mode': 'fast', 'keep': False}
    """
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise CustardError(f"{option} takes key=value, got {text!r}")
        try:
            values[key.replace("-", "_")] = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deep
            values[key.replace("-", "_")] = value
    return values


def with_settings(options: dict[str, Any], settings: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Return a command's options together with the settings of --set; raise for unknown ones and duplicates.

    >>> with_settings({"seed": 0, "budget": None}, {"budget": 1000, "k": 3}, ["budget", "k"])
    {'seed': 0, 'budget': 1000, 'k': 3}
    """
    from custard.task.settings import present_names

    settings = present_names(settings)
    for name in settings:
        if options.get(name) is not None or (name in options and name not in known):
            raise CustardError(f"--set {name}: give it as --{name.replace('_', '-')}")
        if name not in known:
            raise CustardError(one_of("setting", name, known))
    return {**options, **settings}


def watch_episodes(
    tree: Tree, env: str | None, env_args: Sequence[str], episodes: int, seed: int
) -> tuple[str, list[Episode]]:
    """Run a tree in the environment that was named, or else the one it was learned in; return its id and episodes."""
    from custard.report.episodes import record_episodes
    from custard.task.origin import environment_of

    name, kwargs = environment_of(tree, env, assignments(env_args, "--env-args"))
    return name, record_episodes(tree, name, kwargs, episodes=episodes, seed=seed)
