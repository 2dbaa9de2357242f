"""RobotNav (Roth, Topin, Jamshidi and Veloso 2019): a robot goes to a goal around a hole.

A square of ten by ten, the goal in its far corner, a hole between it and the start. The robot goes one unit towards
the goal or at a right angle to that. The tree learner Conservative Q-Improvement was shown on this world.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from custard.core.errors import CustardError, one_of
from custard.envs.picture import blank, rectangle

__all__ = ["HOLES", "OBSERVATIONS", "RobotNav", "move_robot", "observe_polar", "past_hole", "robot_outcome"]

SIZE = 10.0
GOAL, GOAL_RADIUS = 9.0, 1.0  # both coordinates of the goal
HOLE, HOLE_RADIUS = 4.5, 2.0  # both coordinates of the fixed hole
HOLE_LOW, HOLE_HIGH = 3.0, 6.0  # of each coordinate of a random hole
START_HIGH = 2.0  # of each coordinate of the start
STEP_REWARD, FAILURE_REWARD, GOAL_REWARD = -1.0, -100.0, 0.0
TOWARDS, LEFT = 0, 1  # actions; 2 is to the right of the goal

OBSERVATIONS = ("polar", "positions")
HOLES = ("fixed", "random")


def move_robot(state: Any, action: int) -> None:
    """Move one unit towards the goal, or with the goal on the right (1) or left (2) hand, in place.

    `state` holds x and y of the robot, then of the hole.
    """
    dx, dy = GOAL - state[0], GOAL - state[1]
    distance = math.sqrt(dx * dx + dy * dy)
    dx, dy = dx / distance, dy / distance  # the episode is over within the goal, so the distance is not zero
    if action == TOWARDS:
        state[0] += dx
        state[1] += dy
    elif action == LEFT:
        state[0] -= dy
        state[1] += dx
    else:
        state[0] += dy
        state[1] -= dx


def robot_outcome(state: Any) -> tuple[float, bool]:
    """Return the reward of being where a step led, and whether the episode is over."""
    x, y, hole_x, hole_y = state[0], state[1], state[2], state[3]
    if (x - GOAL) * (x - GOAL) + (y - GOAL) * (y - GOAL) <= GOAL_RADIUS * GOAL_RADIUS:
        return GOAL_REWARD, True
    in_hole = (x - hole_x) * (x - hole_x) + (y - hole_y) * (y - hole_y) <= HOLE_RADIUS * HOLE_RADIUS
    if in_hole or x < 0.0 or y < 0.0 or x > SIZE or y > SIZE:
        return FAILURE_REWARD, True
    return STEP_REWARD, False


def observe_polar(state: Any, out: Any) -> None:
    """Write angle (radians) and distance from the robot to the goal, then to the hole, into `out` [4]."""
    dx, dy = GOAL - state[0], GOAL - state[1]
    out[0], out[1] = math.atan2(dy, dx), math.sqrt(dx * dx + dy * dy)
    dx, dy = state[2] - state[0], state[3] - state[1]
    out[2], out[3] = math.atan2(dy, dx), math.sqrt(dx * dx + dy * dy)


def past_hole(state: Any) -> bool:
    """Return whether the robot is nearer to the goal than the hole's centre is."""
    x, y, hole_x, hole_y = GOAL - state[0], GOAL - state[1], GOAL - state[2], GOAL - state[3]
    return x * x + y * y < hole_x * hole_x + hole_y * hole_y


class RobotNav(gym.Env):
    """Go from a corner to the goal in the opposite one, around the hole.

    `observation="polar"` gives angle and distance to goal and hole, "positions" where robot and hole are and whether
    the hole is passed. `hole="fixed"` puts it at (4.5, 4.5), "random" anywhere in [3, 6]² in every episode.

    >>> env = RobotNav(observation="positions")
    >>> env.reset(seed=0)[0].round(2).tolist()
    [1.27, 0.54, 4.5, 4.5, 0.0]
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}
    action_names = ("towards_goal", "left_of_goal", "right_of_goal")

    def __init__(self, observation: str = "polar", hole: str = "fixed", render_mode: str | None = None) -> None:
        if observation not in OBSERVATIONS:
            raise CustardError(f"RobotNav: {one_of('observation', observation, OBSERVATIONS)}")
        if hole not in HOLES:
            raise CustardError(f"RobotNav: {one_of('hole', hole, HOLES)}")
        self.observation, self.hole, self.render_mode = observation, hole, render_mode
        if observation == "polar":
            self.feature_names: tuple[str, ...] = ("goal_angle", "goal_distance", "hole_angle", "hole_distance")
            self.feature_kinds: tuple[str, ...] = ("real",) * 4
            low, high = [-math.pi, 0.0, -math.pi, 0.0], [math.pi, 15.0, math.pi, 15.0]
        else:
            self.feature_names = ("robot_x", "robot_y", "hole_x", "hole_y", "past_hole")
            self.feature_kinds = ("real",) * 4 + ("binary",)
            low, high = [-1.0] * 2 + [HOLE_LOW] * 2 + [0.0], [SIZE + 1.0] * 2 + [HOLE_HIGH] * 2 + [1.0]
        self.observation_space = spaces.Box(np.array(low), np.array(high), dtype=np.float64)
        self.action_space = spaces.Discrete(3)
        self.state = np.zeros(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Put the robot near its corner, and a random hole somewhere else than before."""
        super().reset(seed=seed)
        for i in range(2):
            self.state[i] = self.np_random.uniform(0.0, START_HIGH)
        for i in range(2, 4):
            self.state[i] = HOLE if self.hole == "fixed" else self.np_random.uniform(HOLE_LOW, HOLE_HIGH)
        return self._observed(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step of one unit."""
        move_robot(self.state, int(action))
        reward, terminated = robot_outcome(self.state)
        return self._observed(), reward, terminated, False, {}

    def _observed(self) -> np.ndarray:
        """Return the observation of the present state, a fresh array."""
        if self.observation == "polar":
            seen = np.zeros(4)
            observe_polar(self.state, seen)
            return seen
        return np.append(self.state, float(past_hole(self.state)))

    def render(self) -> Any:
        """Return the square with the hole (o), the goal (*) and the robot (R), as text or picture."""
        if self.render_mode == "ansi":
            centres = np.arange(0.25, SIZE, 0.5)
            rows = []
            for y in centres[::-1]:
                in_goal = (centres - GOAL) ** 2 + (y - GOAL) ** 2 <= GOAL_RADIUS**2
                in_hole = (centres - self.state[2]) ** 2 + (y - self.state[3]) ** 2 <= HOLE_RADIUS**2
                here = (abs(centres - self.state[0]) <= 0.25) & (abs(y - self.state[1]) <= 0.25)
                rows.append("".join(np.select([here, in_goal, in_hole], ["R", "*", "o"], "·")))
            return "\n".join(rows)
        if self.render_mode == "rgb_array":
            frame = blank(400, 400)
            y, x = np.mgrid[399:-1:-1, 0:400] / 40.0
            frame[(x - GOAL) ** 2 + (y - GOAL) ** 2 <= GOAL_RADIUS**2] = (90, 160, 90)
            frame[(x - self.state[2]) ** 2 + (y - self.state[3]) ** 2 <= HOLE_RADIUS**2] = (90, 60, 40)
            rectangle(frame, 40 * self.state[0] - 6, 394 - 40 * self.state[1], 12, 12, (200, 60, 60))
            return frame
        return None
