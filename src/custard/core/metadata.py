"""Names that Gymnasium's own environments do not carry, and the factors hidden in toy-text's single numbers.

An environment of your own can state the same things itself: attributes `feature_names`, `feature_kinds`,
`feature_units` and `action_names` on the unwrapped environment are read first. Actions are called what an enumeration
`actions` calls them, as in MiniGrid, where nothing else names them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["EnvironmentMetadata", "enum_names", "factor", "feature_units", "metadata_of", "representative"]


@dataclass(frozen=True)
class EnvironmentMetadata:
    """What is known of one environment; whatever does not fit its spaces is ignored."""

    features: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()  # names of features that are 0 or 1 although the space says real
    factors: Callable[[Any], tuple[int, ...]] | None = None  # unwrapped env -> sizes the single number factors into
    units: tuple[str, ...] = ()  # of the features, "" where a number has none


WALKER_JOINTS = ("hip1", "knee1", "hip2", "knee2")
WALKER_FEATURES = (
    "hull_angle", "hull_angular_velocity", "x_velocity", "y_velocity",
    "hip1_angle", "hip1_speed", "knee1_angle", "knee1_speed", "leg1_contact",
    "hip2_angle", "hip2_speed", "knee2_angle", "knee2_speed", "leg2_contact",
    *(f"lidar_{i}" for i in range(10)),
)  # fmt: skip
GRID_FEATURES = ("row", "column")
WALKER_METADATA = EnvironmentMetadata(WALKER_FEATURES, WALKER_JOINTS, binary=("leg1_contact", "leg2_contact"))
HOPPER_JOINTS = ("thigh", "leg", "foot")
CHEETAH_JOINTS = ("back_thigh", "back_shin", "back_foot", "front_thigh", "front_shin", "front_foot")
WALKER2D_JOINTS = ("right_thigh", "right_leg", "right_foot", "left_thigh", "left_leg", "left_foot")
LANDER_FEATURES = (
    "x", "y", "x_velocity", "y_velocity", "angle", "angular_velocity", "left_leg_contact", "right_leg_contact"
)  # fmt: skip
LANDER_CONTACTS = ("left_leg_contact", "right_leg_contact")
LANDER_UNITS = ("", "", "", "", "rad", "", "", "")


def _planar_body(joints: tuple[str, ...]) -> EnvironmentMetadata:
    """Return the names for a body that moves in a plane: height and angles, then velocities; torques of joints."""
    angles = "torso", *joints
    features = "height", *(f"{name}_angle" for name in angles), "x_velocity", "z_velocity"
    units = "m", *("rad",) * len(angles), "m/s", "m/s", *("rad/s",) * len(angles)
    features += tuple(f"{name}_angular_velocity" for name in angles)
    return EnvironmentMetadata(features, tuple(f"{name}_torque" for name in joints), units=units)


def _lake_size(env: Any) -> tuple[int, ...]:
    """Return FrozenLake's rows and columns."""
    return getattr(env, "nrow", 0), getattr(env, "ncol", 0)


def _cliff_size(env: Any) -> tuple[int, ...]:
    """Return CliffWalking's rows and columns."""
    return tuple(getattr(env, "shape", (0,)))


METADATA_BY_NAME = {
    "CartPole": EnvironmentMetadata(
        ("cart_position", "cart_velocity", "pole_angle", "pole_velocity"),
        ("push_left", "push_right"),
        units=("m", "m/s", "rad", "rad/s"),
    ),
    "MountainCar": EnvironmentMetadata(("position", "velocity"), ("push_left", "no_push", "push_right")),
    "MountainCarContinuous": EnvironmentMetadata(("position", "velocity"), ("force",)),
    "Acrobot": EnvironmentMetadata(
        ("cos_theta1", "sin_theta1", "cos_theta2", "sin_theta2", "angular_velocity1", "angular_velocity2"),
        ("torque_minus", "no_torque", "torque_plus"),
        units=("", "", "", "", "rad/s", "rad/s"),
    ),
    "Pendulum": EnvironmentMetadata(
        ("cos_theta", "sin_theta", "angular_velocity"), ("torque",), units=("", "", "rad/s")
    ),
    "LunarLander": EnvironmentMetadata(
        LANDER_FEATURES, ("nothing", "left_engine", "main_engine", "right_engine"), LANDER_CONTACTS, units=LANDER_UNITS
    ),
    "LunarLanderContinuous": EnvironmentMetadata(
        LANDER_FEATURES, ("main_engine", "lateral_engine"), LANDER_CONTACTS, units=LANDER_UNITS
    ),
    "BipedalWalker": WALKER_METADATA,
    "BipedalWalkerHardcore": WALKER_METADATA,
    "Hopper": _planar_body(HOPPER_JOINTS),
    "HalfCheetah": _planar_body(CHEETAH_JOINTS),
    "Walker2d": _planar_body(WALKER2D_JOINTS),
    "Swimmer": EnvironmentMetadata(
        (
            "tip_angle",
            "rotor1_angle",
            "rotor2_angle",
            "x_velocity",
            "y_velocity",
            "tip_angular_velocity",
            "rotor1_angular_velocity",
            "rotor2_angular_velocity",
        ),
        ("rotor1_torque", "rotor2_torque"),
        units=("rad", "rad", "rad", "m/s", "m/s", "rad/s", "rad/s", "rad/s"),
    ),
    "InvertedPendulum": EnvironmentMetadata(
        ("cart_position", "pole_angle", "cart_velocity", "pole_angular_velocity"),
        ("force",),
        units=("m", "rad", "m/s", "rad/s"),
    ),
    "InvertedDoublePendulum": EnvironmentMetadata(
        (
            "cart_position",
            "sin_angle1",
            "sin_angle2",
            "cos_angle1",
            "cos_angle2",
            "cart_velocity",
            "angular_velocity1",
            "angular_velocity2",
            "constraint_force",
        ),
        ("force",),
        units=("m", "", "", "", "", "m/s", "rad/s", "rad/s", "N"),
    ),
    "Reacher": EnvironmentMetadata(
        (
            "cos_joint1",
            "cos_joint2",
            "sin_joint1",
            "sin_joint2",
            "target_x",
            "target_y",
            "angular_velocity1",
            "angular_velocity2",
            "x_from_target",
            "y_from_target",
        ),
        ("joint1_torque", "joint2_torque"),
        units=("", "", "", "", "m", "m", "rad/s", "rad/s", "m", "m"),
    ),
    "CarRacing": EnvironmentMetadata((), ("steering", "gas", "brake")),
    "FrozenLake": EnvironmentMetadata(GRID_FEATURES, ("left", "down", "right", "up"), factors=_lake_size),
    "FrozenLake8x8": EnvironmentMetadata(GRID_FEATURES, ("left", "down", "right", "up"), factors=_lake_size),
    "CliffWalking": EnvironmentMetadata(GRID_FEATURES, ("up", "right", "down", "left"), factors=_cliff_size),
    "CliffWalkingSlippery": EnvironmentMetadata(GRID_FEATURES, ("up", "right", "down", "left"), factors=_cliff_size),
    "Taxi": EnvironmentMetadata(
        ("row", "column", "passenger", "destination"),
        ("south", "north", "east", "west", "pick_up", "drop_off"),
        factors=lambda env: (5, 5, 5, 4),
    ),
    "Blackjack": EnvironmentMetadata(("player_sum", "dealer_card", "usable_ace"), ("stick", "hit")),
}


def metadata_of(env: Any) -> EnvironmentMetadata:
    """Return what custard knows of an environment, single or vector, from its id (or its class, if it has no id)."""
    one = representative(env)
    spec = getattr(one, "spec", None)
    nothing = EnvironmentMetadata()
    if spec is None:
        return METADATA_BY_NAME.get(type(one.unwrapped).__name__.removesuffix("Env"), nothing)
    if spec.namespace not in (None, "custard"):
        return nothing
    name = spec.name
    if isinstance(one.action_space, gym.spaces.Box) and f"{name}Continuous" in METADATA_BY_NAME:
        name = f"{name}Continuous"  # LunarLander with continuous=True
    return METADATA_BY_NAME.get(name, nothing)


def enum_names(env: Any) -> tuple[str, ...]:
    """Return the names in an environment's `actions`, where that numbers its actions: an enumeration from 0 on."""
    actions = getattr(env, "actions", None)
    if not (isinstance(actions, type) and issubclass(actions, Enum)):
        return ()
    names = {member.value: member.name.lower() for member in actions}
    return tuple(names[k] for k in range(len(names))) if set(names) == set(range(len(names))) else ()


def feature_units(env: Any, n: int) -> tuple[str, ...]:
    """Return the unit of each of an environment's n features; "" for each where they are not known."""
    one = representative(env)
    if isinstance(one, gym.Wrapper) and one.has_wrapper_attr("declared_features"):
        given = one.get_wrapper_attr("feature_units")
    else:
        given = getattr(one.unwrapped, "feature_units", None) or metadata_of(env).units
    fits = isinstance(given, (list, tuple)) and len(given) == n and all(isinstance(unit, str) for unit in given)
    return tuple(given) if fits else ("",) * n


def representative(env: Any) -> Any:
    """Return the first of a vector environment's own environments, where it has them; any other environment itself."""
    parts = getattr(env.unwrapped, "envs", None) if isinstance(env, gym.vector.VectorEnv) else None
    return parts[0] if parts else env


def factor(sizes: tuple[int, ...], numbers: np.ndarray) -> np.ndarray:
    """Return the row-major digits of whole numbers, [B] -> [B, len(sizes)].

    >>> factor((4, 4), np.array([0, 6])).tolist()
    [[0.0, 0.0], [1.0, 2.0]]
    """
    return np.stack(np.unravel_index(np.asarray(numbers, dtype=np.int64), sizes), axis=-1).astype(np.float64)
