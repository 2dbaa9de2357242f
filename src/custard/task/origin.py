"""The environment that a tree comes from, as its file says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from custard.core.errors import CustardError
from custard.tree.tree import Tree

__all__ = ["environment_of"]


def environment_of(
    tree: Tree, env: Any, kwargs: Mapping[str, Any], how: str = "--env CartPole-v1"
) -> tuple[Any, dict[str, Any]]:
    """Return the environment that was given, or else the one the tree was learned in, with its arguments."""
    learned_in = tree.origin.get("env")
    if env is None and not isinstance(learned_in, str):
        raise CustardError(f"the tree does not say where it was learned: name the environment, as in {how}")
    same = env is None or (isinstance(env, str) and env == learned_in)
    own = (tree.origin.get("env_kwargs") or {}) if same else {}
    if not isinstance(own, dict):
        raise CustardError(f"the tree's env_kwargs must be an object, not {own!r}: name the environment")
    return (learned_in if env is None else env), {**own, **kwargs}
