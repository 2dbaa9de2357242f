"""A method's settings: the preset's for an environment, then what the user gave, checked against their types."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from types import ModuleType, UnionType
from typing import Any

import numpy as np

from custard.core.errors import CustardError, one_of

__all__ = ["settings_for"]


def settings_for(
    module: ModuleType, env: str, preset: str | None, given: Mapping[str, Any], what: str = "setting"
) -> Any:
    """A method's settings: the preset's for this environment, then what the user gave.

    `PRESETS[preset]` maps an environment's name without version ("CartPole"), or "" for any, to settings.
    """
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]] = getattr(module, "PRESETS", {"tuned": {}})
    chosen = preset or "tuned"
    if chosen not in presets:
        raise CustardError(one_of("preset", chosen, presets))
    namespace, _, name = env.rpartition("/")
    name = (name.rpartition("-v")[0] or name) if namespace in ("", "custard") else ""  # others only sound alike
    merged = {**presets[chosen].get("", {}), **presets[chosen].get(name, {}), **given}
    fields = {field.name: field for field in dataclasses.fields(module.Settings)}
    for key in merged:
        if key not in fields:
            raise CustardError(one_of(what, key, fields))
    hints = typing.get_type_hints(module.Settings)
    return module.Settings(**{key: _fitting(key, value, hints[key]) for key, value in merged.items()})


def _fitting(key: str, value: Any, wanted: Any) -> Any:
    """The value, if it has the type its setting declares (a whole number may stand for a real one)."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        raise CustardError(f"{key}={value!r} must be a finite number")
    if key == "zeta" and isinstance(value, (int, float)) and value > 0:
        raise CustardError(f"zeta={value!r} must be zero or a negative number: it is the price of a question")
    options = typing.get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    plain = [option for option in options if isinstance(option, type) and option is not Any]
    if int in plain and isinstance(value, (int, float)) and value < 0:
        raise CustardError(f"{key}={value!r} must not be negative")
    if len(plain) < len(options) or any(
        isinstance(value, option) and not _is_bool_for_number(value, option) for option in plain
    ):
        return value
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if int in plain and isinstance(value, float) and value == int(value):
        return int(value)
    names = " or ".join("None" if option is type(None) else option.__name__ for option in plain)
    raise CustardError(f"{key}={value!r} must be {names}")


def _is_bool_for_number(value: Any, option: type) -> bool:
    return isinstance(value, bool) and option in (int, float)
