"""CartPole with a limit of 200 steps, as in the paper: Gymnasium's environment, and its dynamics in compiled form.

The paper's appendix lets the pole fall at 15 degrees; Gymnasium ends the episode at 12, and so does this environment
(`docs/explanation/deviations.md`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

__all__ = ["CartPole", "fallen", "step_cartpole"]

GRAVITY, MASS_CART, MASS_POLE, HALF_LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TOTAL_MASS = MASS_POLE + MASS_CART
POLE_MOMENT = MASS_POLE * HALF_LENGTH
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360
START_RADIUS = 0.05  # each start value is uniform within this distance of zero


def step_cartpole(state: Any, action: int) -> None:
    """Take one Euler step in place: position, velocity, angle, angular velocity. Gymnasium's order of operations."""
    x, x_dot, theta, theta_dot = state[0], state[1], state[2], state[3]
    force = FORCE if action == 1 else -FORCE
    cos, sin = math.cos(theta), math.sin(theta)
    push = (force + POLE_MOMENT * (theta_dot * theta_dot) * sin) / TOTAL_MASS
    theta_acc = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * (cos * cos) / TOTAL_MASS))
    x_acc = push - POLE_MOMENT * theta_acc * cos / TOTAL_MASS
    state[0] = x + TAU * x_dot
    state[1] = x_dot + TAU * x_acc
    state[2] = theta + TAU * theta_dot
    state[3] = theta_dot + TAU * theta_acc


def fallen(state: Any) -> bool:
    """Return whether the cart left the track or the pole leans too far."""
    return (
        state[0] < -X_LIMIT or state[0] > X_LIMIT or state[2] < -ANGLE_LIMIT or state[2] > ANGLE_LIMIT
    )  # fmt: skip


class CartPole(CartPoleEnv):
    """Gymnasium's CartPole with names and a text rendering.

    >>> env = CartPole(render_mode="ansi")
    >>> _ = env.reset(seed=0)
    >>> print(env.render())
    |                                                  |                                                  |
    cart +0.01 (speed -0.02), pole -0.05 rad (speed -0.05)
    """

    metadata = {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 50}
    feature_names = ("cart_position", "cart_velocity", "pole_angle", "pole_velocity")
    action_names = ("push_left", "push_right")

    def render(self) -> Any:
        """Return a picture (`rgb_array`), a window (`human`) or two lines of text (`ansi`)."""
        if self.render_mode != "ansi":
            return super().render()
        if self.state is None:
            return ""
        x, x_dot, theta, theta_dot = (float(value) for value in self.state)
        track = [" "] * 101
        lean = "\\" if theta < -0.05 else "/" if theta > 0.05 else "|"
        track[int(np.clip(round((x / X_LIMIT + 1) * 50), 0, 100))] = lean
        return f"|{''.join(track)}|\ncart {x:+.2f} (speed {x_dot:+.2f}), pole {theta:+.2f} rad (speed {theta_dot:+.2f})"
