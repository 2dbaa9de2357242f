"""Gymnasium's MountainCar, Acrobot and Pendulum in compiled form: the same order of operations, the same precision.

Learning a tree takes many more steps than running one, and these environments step in plain Python. Each function
moves a row of state in place; `tests/envs/test_classic.py` holds them to Gymnasium's own results bit for bit.

Gymnasium squares with `**`, which is the C library's `pow` and differs from a product once in a thousand times. The
exponent is handed in as `two`, because a compiler that knew it would multiply.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["climb", "climbed", "flip", "flipped", "tilt"]

# MountainCar: position, velocity.
FORCE, GRAVITY, MAX_SPEED, LEFT_END, RIGHT_END, GOAL = 0.001, 0.0025, 0.07, -1.2, 0.6, 0.5
CAR_START = (-0.6, -0.4)


def climb(state: Any, action: int) -> None:
    """One step of MountainCar."""
    position, velocity = state[0], state[1]
    velocity += (action - 1) * FORCE + math.cos(3 * position) * (-GRAVITY)
    velocity = min(max(velocity, -MAX_SPEED), MAX_SPEED)
    position += velocity
    position = min(max(position, LEFT_END), RIGHT_END)
    if position == LEFT_END and velocity < 0:
        velocity = 0.0
    state[0], state[1] = position, velocity


def climbed(state: Any) -> bool:
    """Whether the car is at the flag, moving towards it."""
    return state[0] >= GOAL and state[1] >= 0.0


# Acrobot: two angles, two angular velocities. Lengths, masses and moments are all one, centres of mass halfway.
STEP, EARTH, MAX_FIRST, MAX_SECOND = 0.2, 9.8, 4 * math.pi, 9 * math.pi
ACROBOT_START = 0.1


def flip(state: Any, action: int, two: float) -> None:
    """One step of Acrobot (the book's equations): fourth-order Runge-Kutta, angles wrapped, speeds bounded."""
    torque = action - 1.0
    k, y = np.zeros((4, 4)), state[:4].copy()
    for stage in range(4):
        z = y.copy() if stage == 0 else y + (STEP / 2.0 if stage < 3 else STEP) * k[stage - 1]
        theta1, theta2, dtheta1, dtheta2 = z[0], z[1], z[2], z[3]
        d1 = 0.25 + (1.0 + 0.25 + 2 * 0.5 * math.cos(theta2)) + 1.0 + 1.0
        d2 = (0.25 + 0.5 * math.cos(theta2)) + 1.0
        phi2 = 0.5 * EARTH * math.cos(theta1 + theta2 - math.pi / 2.0)
        phi1 = (
            -0.5 * dtheta2**two * math.sin(theta2)
            - 2 * 0.5 * dtheta2 * dtheta1 * math.sin(theta2)
            + (0.5 + 1.0) * EARTH * math.cos(theta1 - math.pi / 2)
            + phi2
        )
        ddtheta2 = (torque + d2 / d1 * phi1 - 0.5 * dtheta1**two * math.sin(theta2) - phi2) / (
            0.25 + 1.0 - d2**two / d1
        )
        k[stage, 0], k[stage, 1], k[stage, 2], k[stage, 3] = dtheta1, dtheta2, -(d2 * ddtheta2 + phi1) / d1, ddtheta2
    y = y + STEP / 6.0 * (k[0] + 2 * k[1] + 2 * k[2] + k[3])
    for i in range(2):
        while y[i] > math.pi:
            y[i] = y[i] - (math.pi - -math.pi)
        while y[i] < -math.pi:
            y[i] = y[i] + (math.pi - -math.pi)
    state[0], state[1] = y[0], y[1]
    state[2] = min(max(y[2], -MAX_FIRST), MAX_FIRST)
    state[3] = min(max(y[3], -MAX_SECOND), MAX_SECOND)


def flipped(state: Any) -> bool:
    """Whether the tip is above the line."""
    return -math.cos(state[0]) - math.cos(state[1] + state[0]) > 1.0


# Pendulum: angle, angular velocity.
MAX_TORQUE, MAX_SPIN, DT = 2.0, 8.0, 0.05
PENDULUM_START = (math.pi, 1.0)


def tilt(state: Any, action: float, two: float) -> float:
    """One step of Pendulum: its reward. The torque counts in single precision, as in a float32 action space."""
    angle, spin = state[0], state[1]
    torque = np.float32(min(max(np.float32(action), np.float32(-MAX_TORQUE)), np.float32(MAX_TORQUE)))
    normal = ((angle + math.pi) % (2 * math.pi)) - math.pi
    effort = np.float32(0.001) * torque ** np.float32(two)
    cost = normal**two + 0.1 * spin**two + np.float64(effort)
    spin = spin + (15.0 * math.sin(angle) + np.float64(np.float32(3.0) * torque)) * DT
    spin = min(max(spin, -MAX_SPIN), MAX_SPIN)
    state[0], state[1] = angle + spin * DT, spin
    return -cost
