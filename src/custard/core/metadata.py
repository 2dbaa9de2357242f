"""Names that Gymnasium's own environments do not carry, and the factors hidden in toy-text's single numbers.

An environment of your own can state the same things itself: attributes `feature_names`, `feature_kinds` and
`action_names` on the unwrapped environment are read first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["Known", "factor", "known", "representative"]


@dataclass(frozen=True)
class Known:
    """What is known of one environment; whatever does not fit its spaces is ignored."""

    features: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()  # features that are 0 or 1 although the space says real
    factors: Callable[[Any], tuple[int, ...]] | None = None  # unwrapped env -> sizes the single number factors into


_JOINTS = ("hip1", "knee1", "hip2", "knee2")
_WALKER = (
    "hull_angle", "hull_angular_velocity", "x_velocity", "y_velocity",
    "hip1_angle", "hip1_speed", "knee1_angle", "knee1_speed", "leg1_contact",
    "hip2_angle", "hip2_speed", "knee2_angle", "knee2_speed", "leg2_contact",
    *(f"lidar_{i}" for i in range(10)),
)  # fmt: skip
_GRID = ("row", "column")
_WALKER_KNOWN = Known(_WALKER, _JOINTS, binary=("leg1_contact", "leg2_contact"))
_LANDER = (
    "x", "y", "x_velocity", "y_velocity", "angle", "angular_velocity", "left_leg_contact", "right_leg_contact"
)  # fmt: skip
_CONTACTS = ("left_leg_contact", "right_leg_contact")


def _lake(env: Any) -> tuple[int, ...]:
    return getattr(env, "nrow", 0), getattr(env, "ncol", 0)


def _cliff(env: Any) -> tuple[int, ...]:
    return tuple(getattr(env, "shape", (0,)))


_KNOWN = {
    "CartPole": Known(("cart_position", "cart_velocity", "pole_angle", "pole_velocity"), ("push_left", "push_right")),
    "MountainCar": Known(("position", "velocity"), ("push_left", "no_push", "push_right")),
    "MountainCarContinuous": Known(("position", "velocity"), ("force",)),
    "Acrobot": Known(
        ("cos_theta1", "sin_theta1", "cos_theta2", "sin_theta2", "angular_velocity1", "angular_velocity2"),
        ("torque_minus", "no_torque", "torque_plus"),
    ),
    "Pendulum": Known(("cos_theta", "sin_theta", "angular_velocity"), ("torque",)),
    "LunarLander": Known(_LANDER, ("nothing", "left_engine", "main_engine", "right_engine"), _CONTACTS),
    "LunarLanderContinuous": Known(_LANDER, ("main_engine", "lateral_engine"), _CONTACTS),
    "BipedalWalker": _WALKER_KNOWN,
    "BipedalWalkerHardcore": _WALKER_KNOWN,
    "CarRacing": Known((), ("steering", "gas", "brake")),
    "FrozenLake": Known(_GRID, ("left", "down", "right", "up"), factors=_lake),
    "FrozenLake8x8": Known(_GRID, ("left", "down", "right", "up"), factors=_lake),
    "CliffWalking": Known(_GRID, ("up", "right", "down", "left"), factors=_cliff),
    "CliffWalkingSlippery": Known(_GRID, ("up", "right", "down", "left"), factors=_cliff),
    "Taxi": Known(
        ("row", "column", "passenger", "destination"),
        ("south", "north", "east", "west", "pick_up", "drop_off"),
        factors=lambda env: (5, 5, 5, 4),
    ),
    "Blackjack": Known(("player_sum", "dealer_card", "usable_ace"), ("stick", "hit")),
}


def known(env: Any) -> Known:
    """What custard knows of an environment, single or vector, from its id (or its class, if it has no id)."""
    one = representative(env)
    spec = getattr(one, "spec", None)
    if spec is None:
        return _KNOWN.get(type(one.unwrapped).__name__.removesuffix("Env"), Known())
    return _KNOWN.get(spec.name, Known()) if spec.namespace in (None, "custard") else Known()


def representative(env: Any) -> Any:
    """The first single environment of a vector environment that has parts; any other environment itself."""
    parts = getattr(env.unwrapped, "envs", None) if isinstance(env, gym.vector.VectorEnv) else None
    return parts[0] if parts else env


def factor(sizes: tuple[int, ...], numbers: np.ndarray) -> np.ndarray:
    """Row-major digits of whole numbers, [B] -> [B, len(sizes)].

    >>> factor((4, 4), np.array([0, 6])).tolist()
    [[0.0, 0.0], [1.0, 2.0]]
    """
    return np.stack(np.unravel_index(np.asarray(numbers, dtype=np.int64), sizes), axis=-1).astype(np.float64)
