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

__all__ = ["FORMER_SETTING_NAMES", "present_names", "setting_names", "settings_class", "settings_for"]

#: Settings that had another name in version 0.2.0: stored files, rows of results and scripts may still use it.
FORMER_SETTING_NAMES = {
    "averaging": "average_rate", "bar": "min_split_gain", "bar_decay": "min_split_gain_decay",
    "candidates": "thresholds_per_feature", "cells": "grid_cells", "changes": "max_changes",
    "cuts": "thresholds_per_feature", "cycle": "first_cycle_steps", "deepest": "default_max_depth",
    "depth": "default_max_depth", "deviation": "exploration_deviation", "draws": "sampled_trees",
    "every": "iterations_per_extraction", "expand": "min_states_per_node", "explore": "exploring_share",
    "explore_end": "exploring_share_end", "floor": "min_probability", "followed": "tree_state_share",
    "greedy": "greedy_share", "guided": "follow_best_tree", "judging": "max_judging_share", "keep": "keep_best",
    "mask": "mask_useless", "mu": "best_action_weight", "noise": "random_action_share", "p": "max_p_value",
    "phase": "phase_steps", "polish": "max_changes", "prices": "leaf_prices", "questions": "max_splits_per_node",
    "random": "random_action_share", "recall": "remember_outcomes", "samples": "sampled_trees", "slack": "final_slack",
    "spread": "split_spread", "states": "valued_states", "stretch": "visits_per_random_split",
    "uniform": "uniform_weight", "uniform_end": "uniform_weight_end", "variants": "fit_variants",
}  # fmt: skip


def present_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their present names; raise where one is given by both.

    >>> present_names({"draws": 0, "splits": 3})
    {'sampled_trees': 0, 'splits': 3}
    """
    for former, present in FORMER_SETTING_NAMES.items():
        if former in given and present in given:
            raise CustardError(f"{former!r} is the former name of the setting {present!r}: give one of them")
    return {FORMER_SETTING_NAMES.get(name, name): value for name, value in given.items()}


def settings_class(module: ModuleType, preset: str | None = None) -> Any:
    """Return the dataclass of a method's settings under a preset.

    A method of which a preset is a form of its own, such as the paper's, maps that preset to its class in `SETTINGS`;
    every other preset has the method's `Settings`.
    """
    return getattr(module, "SETTINGS", {}).get(preset or "tuned", module.Settings)


def setting_names(module: ModuleType) -> list[str]:
    """Return the names of all settings of a method, those of every preset's form."""
    forms = (module.Settings, *getattr(module, "SETTINGS", {}).values())
    return list(dict.fromkeys(field.name for form in forms for field in dataclasses.fields(form)))


def settings_for(
    module: ModuleType, env: str, preset: str | None, given: Mapping[str, Any], what: str = "setting"
) -> Any:
    """Return a method's settings: the preset's for this environment, then what the user gave.

    module  the method's, with `Settings` and `PRESETS`
    env     the environment's id, or "" for none that presets know
    preset  its name; None for "tuned"
    given   settings by name
    what    what a message calls a setting

    `PRESETS[preset]` maps an environment's name without version ("CartPole"), or "" for any, to settings. A setting
    that the preset's form of the method does not read is an error.
    """
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]] = getattr(module, "PRESETS", {"tuned": {}})
    chosen = preset or "tuned"
    if chosen not in presets:
        raise CustardError(one_of("preset", chosen, presets))
    namespace, _, name = env.rpartition("/")
    name = (name.rpartition("-v")[0] or name) if namespace in ("", "custard") else ""  # others only sound alike
    merged = {**presets[chosen].get("", {}), **presets[chosen].get(name, {}), **present_names(given)}
    accepted = settings_class(module, chosen)
    fields = [field.name for field in dataclasses.fields(accepted)]
    for key in merged:
        if key not in fields:
            if key in setting_names(module):  # of another preset's form
                reads = ", ".join(fields)
                raise CustardError(f"{what} {key!r} is not read under the preset {chosen!r}, which reads {reads}")
            raise CustardError(one_of(what, key, fields))
    hints = typing.get_type_hints(accepted)
    return accepted(**{key: _checked_value(key, value, hints[key]) for key, value in merged.items()})


def _checked_value(key: str, value: Any, wanted: Any) -> Any:
    """Return a setting's value; raise unless it has the declared type (a whole number may stand for a real one)."""
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
        isinstance(value, option) and not _is_bool_given_for_number(value, option) for option in plain
    ):
        return value
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if int in plain and isinstance(value, float) and value == int(value):
        return int(value)
    names = " or ".join("None" if option is type(None) else option.__name__ for option in plain)
    raise CustardError(f"{key}={value!r} must be {names}")


def _is_bool_given_for_number(value: Any, option: type) -> bool:
    return isinstance(value, bool) and option in (int, float)
