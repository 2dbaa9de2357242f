"""Settings of direct search, and which forms of trees they ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from custard.core.actions import Actions
from custard.core.errors import CustardError, one_of, require_least

__all__ = ["PRESETS", "Forms", "Settings"]

PRESETS: dict[str, dict[str, dict[str, object]]] = {"tuned": {}}


@dataclass(frozen=True)
class Settings:
    """Direct search's settings; None means chosen from the environment."""

    budget: int | None = None
    """Environment steps, those of judging included; unless given, what takes about five minutes."""

    max_leaves: int | None = None
    """The largest number of leaves; 32 unless given."""

    expert: str | Callable[..., Any] | None = None
    """What trees imitate at first: linear, dqn, a file (.npz, or .zip of Stable-Baselines3), a function to Q-values, or
    none. Unless given, a linear policy, against which a DQN races where it is not enough and jax is installed."""

    tests: str = "auto"
    """What splits may ask about: axis (one feature), linear (weighted sums), or auto, whichever is better."""

    leaves: str = "auto"
    """What leaves may hold: constant (an action), linear (for real-valued actions), or auto, whichever is better."""

    digits: int | None = None
    """Digits to which the numbers of sums are rounded if the return allows; 2 or 3 unless given."""

    gamma: float = 1.0
    """The discount of returns, per step."""

    def __post_init__(self) -> None:
        require_least(self, 1, "max_leaves", "digits")
        if not 0.0 < self.gamma <= 1.0:
            raise CustardError(f"gamma must be above 0 and at most 1, not {self.gamma}")
        for name, known in (("tests", ("axis", "linear", "auto")), ("leaves", ("constant", "linear", "auto"))):
            if getattr(self, name) not in known:
                raise CustardError(one_of(name, getattr(self, name), known))


@dataclass(frozen=True)
class Forms:
    """Which forms of trees are searched."""

    has_plain: bool  # plain tests and constant leaves
    has_sums: bool  # weighted sums in tests or leaves
    leaves_are_linear: bool  # whether trees with sums have linear leaves

    @classmethod
    def of(cls, settings: Settings, actions: Actions) -> Forms:
        """Return the forms that settings ask for."""
        if settings.leaves == "linear" and actions.kind != "box":
            raise CustardError(f"linear leaves need real-valued (Box) actions, and these are {actions.kind}")
        if actions.kind == "box":
            wants_sums = settings.leaves != "constant"
            return cls(settings.leaves != "linear" and settings.tests != "linear", wants_sums, wants_sums)
        return cls(settings.tests != "linear", settings.tests != "axis" and actions.discrete, False)
