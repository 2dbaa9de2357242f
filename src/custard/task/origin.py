"""The environment and the features that a tree comes from, as its file says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from custard.core.errors import CustardError, one_line
from custard.core.processes import find_function
from custard.tree.tree import Tree

__all__ = ["environment_of", "features_of", "named_features"]


def environment_of(
    tree: Tree, env: Any, kwargs: Mapping[str, Any], how: str = "--env CartPole-v1"
) -> tuple[Any, dict[str, Any]]:
    """Return the environment that was given, or else the one the tree was learned in, with its arguments."""
    learned_in = tree.origin.get("env")
    if isinstance(env, str) and not env.strip():
        raise CustardError(f"the environment's name is empty: name one, as in {how}, or leave it out")
    if env is None and not isinstance(learned_in, str):
        raise CustardError(f"the tree does not say where it was learned: name the environment, as in {how}")
    same = env is None or (isinstance(env, str) and env == learned_in)
    own = (tree.origin.get("env_kwargs") or {}) if same else {}
    if not isinstance(own, dict):
        raise CustardError(f"the tree's env_kwargs must be an object, not {own!r}: name the environment")
    return (learned_in if env is None else env), {**own, **kwargs}


def features_of(tree: Tree) -> Callable[[Any], Sequence[float]] | None:
    """Return the user's function that made the tree's features, or None if there is none that can be imported."""
    name = tree.origin.get("features")
    if not isinstance(name, str) or re.fullmatch(r"[\w.]+:[\w.]+", name) is None:
        return None
    return named_features(name, "the tree's features")


def named_features(name: str, what: str) -> Callable[[Any], Sequence[float]]:
    """Return the function that "module:function" names; `what` says who named it."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise CustardError(f"{what} must be given as module:function, not {name!r}")
    try:
        found = find_function(name)
    except Exception as error:  # a module of the user's may raise anything while it is imported
        raise CustardError(f"{what} {name} could not be imported: {one_line(error)}") from None
    if not callable(found):
        raise CustardError(f"{what} {name} is a {type(found).__name__}, not a function")
    return found
