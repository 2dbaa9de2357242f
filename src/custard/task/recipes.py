"""Descriptions of environments as plain data, from which another process makes the same ones."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym

from custard.core.features import is_expressions
from custard.core.processes import find_function

__all__ = [
    "encoder_recipe", "environment_recipe", "function_recipe", "recipe_encoder",
    "recipe_function", "register_again",
]  # fmt: skip

_USER_SCRIPT_MODULE = "__custard_main__"  # the name under which a worker imports the user's script


def function_recipe(function: Any) -> dict[str, str] | None:
    """Return where a function or class can be imported from, or None: lambdas, closures, notebooks.

    Functions of the user's script itself count only where importing the script does nothing but define things.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
    if not module or "<" in name:
        return None
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        return {"file": str(Path(file).resolve()), "name": name} if file and _only_defines(Path(file)) else None
    try:
        found = find_function(f"{module}:{name}")
    except (ImportError, AttributeError):
        return None
    return {"module": module, "name": name} if found is function else None


def recipe_function(recipe: Mapping[str, str]) -> Any:
    """Return the function that `function_recipe` described."""
    if "module" in recipe:
        return find_function(f"{recipe['module']}:{recipe['name']}")
    found = _import_script(recipe["file"])
    for part in recipe["name"].split("."):
        found = getattr(found, part)
    return found


def encoder_recipe(encoder: Any) -> Any:
    """Return how another process gets a user's features=: None, expressions as they are, or a function's recipe."""
    if encoder is None:
        return None
    return (
        [encoder]
        if isinstance(encoder, str)
        else list(encoder)
        if is_expressions(encoder)
        else function_recipe(encoder)
    )


def recipe_encoder(recipe: Any) -> Any:
    """Return the features= that `encoder_recipe` described."""
    return recipe if recipe is None or isinstance(recipe, list) else recipe_function(recipe)


def environment_recipe(env: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how another process makes an environment, given by its id or a function, or None where it cannot."""
    known = env if isinstance(env, str) else function_recipe(env)
    if known is None or not _survives_json(dict(kwargs)):
        return None
    recipe: dict[str, Any] = {"env": known, "kwargs": dict(kwargs), "registration": None}
    if isinstance(env, str) and ":" not in env:
        recipe["registration"] = _registration_as_data(env)
        if recipe["registration"] is None:
            return None
    return recipe


def register_again(registration: Mapping[str, Any] | None) -> None:
    """Register an environment's id, as `environment_recipe` describes it, unless this process knows it already."""
    if registration is None or registration["id"] in gym.registry:
        return
    entry = registration["entry_point"]
    gym.register(**{**registration, "entry_point": entry if isinstance(entry, str) else recipe_function(entry)})


def _registration_as_data(name: str) -> dict[str, Any] | None:
    """Return how an id is registered, as plain data: another process may not import what registers it."""
    spec = gym.spec(name)
    entry = spec.entry_point if isinstance(spec.entry_point, str) else function_recipe(spec.entry_point)
    if entry is None or spec.additional_wrappers:
        return None
    fields = ("reward_threshold", "nondeterministic", "max_episode_steps", "order_enforce", "disable_env_checker")
    data = {"id": spec.id, "entry_point": entry, "kwargs": dict(spec.kwargs)}
    data |= {field: getattr(spec, field) for field in fields}
    return data if _survives_json(data) else None


def _survives_json(value: Any) -> bool:
    """Return whether a value survives JSON as it is."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


@cache
def _import_script(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(_USER_SCRIPT_MODULE, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_USER_SCRIPT_MODULE] = module
    spec.loader.exec_module(module)
    return module


def _only_defines(file: Path) -> bool:
    """Return whether a script's top level only imports, defines, assigns and guards the rest by `__name__`."""
    try:
        body = ast.parse(file.read_text()).body
    except (OSError, SyntaxError, ValueError):
        return False
    plain = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Assign, ast.AnnAssign)
    return all(
        isinstance(node, plain)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.If) and "__name__" in ast.unparse(node.test))
        for node in body
    )
