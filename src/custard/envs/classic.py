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

__all__ = ["acrobot_done", "mountain_car_done", "step_acrobot", "step_mountain_car", "step_pendulum"]

# MountainCar: position, velocity.
CAR_FORCE, CAR_GRAVITY, CAR_MAX_SPEED, CAR_LEFT_END, CAR_RIGHT_END, CAR_GOAL = 0.001, 0.0025, 0.07, -1.2, 0.6, 0.5
CAR_START = (-0.6, -0.4)


def step_mountain_car(state: Any, action: int) -> None:
    """Take one step of MountainCar in place."""
    position, velocity = state[0], state[1]
    velocity += (action - 1) * CAR_FORCE + math.cos(3 * position) * (-CAR_GRAVITY)
    velocity = min(max(velocity, -CAR_MAX_SPEED), CAR_MAX_SPEED)
    position += velocity
    position = min(max(position, CAR_LEFT_END), CAR_RIGHT_END)
    if position == CAR_LEFT_END and velocity < 0:
        velocity = 0.0
    state[0], state[1] = position, velocity


def mountain_car_done(state: Any) -> bool:
    """Return whether the car is at the flag, moving towards it."""
    return state[0] >= CAR_GOAL and state[1] >= 0.0


# Acrobot: two angles, two angular velocities. Lengths, masses and moments are all one, centres of mass halfway.
ACROBOT_STEP, ACROBOT_GRAVITY, ACROBOT_MAX_SPEED_1, ACROBOT_MAX_SPEED_2 = 0.2, 9.8, 4 * math.pi, 9 * math.pi
ACROBOT_START = 0.1


def step_acrobot(state: Any, action: int, two: float) -> None:
    """Take one step of Acrobot in place (the book's equations): Runge-Kutta of order 4, angles wrapped, speeds cut."""
    torque = action - 1.0
    k, y = np.zeros((4, 4)), state[:4].copy()
    for stage in range(4):
        z = y.copy() if stage == 0 else y + (ACROBOT_STEP / 2.0 if stage < 3 else ACROBOT_STEP) * k[stage - 1]
        theta1, theta2, dtheta1, dtheta2 = z[0], z[1], z[2], z[3]
        d1 = 0.25 + (1.0 + 0.25 + 2 * 0.5 * math.cos(theta2)) + 1.0 + 1.0
        d2 = (0.25 + 0.5 * math.cos(theta2)) + 1.0
        phi2 = 0.5 * ACROBOT_GRAVITY * math.cos(theta1 + theta2 - math.pi / 2.0)
        phi1 = (
            -0.5 * dtheta2**two * math.sin(theta2)
            - 2 * 0.5 * dtheta2 * dtheta1 * math.sin(theta2)
            + (0.5 + 1.0) * ACROBOT_GRAVITY * math.cos(theta1 - math.pi / 2)
            + phi2
        )
        ddtheta2 = (torque + d2 / d1 * phi1 - 0.5 * dtheta1**two * math.sin(theta2) - phi2) / (
            0.25 + 1.0 - d2**two / d1
        )
        k[stage, 0], k[stage, 1], k[stage, 2], k[stage, 3] = dtheta1, dtheta2, -(d2 * ddtheta2 + phi1) / d1, ddtheta2
    y = y + ACROBOT_STEP / 6.0 * (k[0] + 2 * k[1] + 2 * k[2] + k[3])
    for i in range(2):
        while y[i] > math.pi:
            y[i] = y[i] - (math.pi - -math.pi)
        while y[i] < -math.pi:
            y[i] = y[i] + (math.pi - -math.pi)
    state[0], state[1] = y[0], y[1]
    state[2] = min(max(y[2], -ACROBOT_MAX_SPEED_1), ACROBOT_MAX_SPEED_1)
    state[3] = min(max(y[3], -ACROBOT_MAX_SPEED_2), ACROBOT_MAX_SPEED_2)


def acrobot_done(state: Any) -> bool:
    """Return whether the tip is above the line."""
    return -math.cos(state[0]) - math.cos(state[1] + state[0]) > 1.0


# Pendulum: angle, angular velocity.
PENDULUM_MAX_TORQUE, PENDULUM_MAX_SPEED, PENDULUM_STEP = 2.0, 8.0, 0.05
PENDULUM_START = (math.pi, 1.0)


def step_pendulum(state: Any, action: float, two: float) -> float:
    """Take one step of Pendulum in place; return its reward. The torque counts in float32, as in its action space."""
    angle, spin = state[0], state[1]
    torque = np.float32(min(max(np.float32(action), np.float32(-PENDULUM_MAX_TORQUE)), np.float32(PENDULUM_MAX_TORQUE)))
    normal = ((angle + math.pi) % (2 * math.pi)) - math.pi
    effort = np.float32(0.001) * torque ** np.float32(two)
    cost = normal**two + 0.1 * spin**two + np.float64(effort)
    spin = spin + (15.0 * math.sin(angle) + np.float64(np.float32(3.0) * torque)) * PENDULUM_STEP
    spin = min(max(spin, -PENDULUM_MAX_SPEED), PENDULUM_MAX_SPEED)
    state[0], state[1] = angle + spin * PENDULUM_STEP, spin
    return -cost
