"""VIPER with backward induction as the expert: the paper's "VIPER (BI)".

Needs an environment with an exact model, or one whose states have a grid (`custard.experts.backward_induction`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from custard.baselines import viper

__all__ = ["PRESETS", "Settings", "solve"]


@dataclass(frozen=True)
class Settings(viper.Settings):
    """Settings of VIPER; only the expert differs."""

    expert: str | Callable[..., Any] = "bi"


PRESETS = viper.PRESETS
solve = viper.solve
