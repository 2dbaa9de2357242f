"""PotholeWorld (paper, appendix A.3): fifty units of a three-lane road, potholes in the two faster lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from custard.core.errors import CustardError
from custard.envs.picture import blank, rectangle

__all__ = ["LANE_2", "LANE_3", "PotholeWorld", "drive", "pothole_rows", "random_potholes"]

#: The paper's potholes.
LANE_2 = (3.09, 5.97, 7.33, 8.874, 9.98, 11.70, 12.83, 14.62, 16.33, 19.55, 27.56, 31.28, 33.07, 36.30, 37.81, 39.14,
          44.21, 46.81, 49.05)  # fmt: skip
LANE_3 = (0.0, 1.30, 4.53, 17.45, 18.47, 21.42, 23.34, 24.42, 25.70, 29.41, 34.46, 40.45, 42.39, 45.30, 47.87)

ROAD_LENGTH = 50.0
MIN_MOVE, MAX_MOVE = 0.5, 1.0  # a move is uniform between these
SLOW_LANE_LOSS, POTHOLE_PENALTY = 0.1, 5.0  # lane 1 loses a tenth of the reward; a pothole costs five


def drive(potholes: Any, position: float, lane: int, distance: float, length: float) -> tuple[float, float]:
    """Return the next position and the reward of moving `distance` (cut at the road's end) in lane 0, 1 or 2.

    `potholes[lane - 1]` is sorted and padded with infinity. A pothole counts when previous < pothole <= next position;
    one at 0 counts on the first move.
    """
    after = min(position + distance, length)
    reward = after - position
    if lane == 0:
        return after, reward * (1.0 - SLOW_LANE_LOSS)
    row = potholes[lane - 1]
    for i in range(len(row)):
        pothole = row[i]
        if pothole > after:
            break
        if position < pothole or (pothole == 0.0 and position == 0.0):
            return after, reward - POTHOLE_PENALTY
    return after, reward


def pothole_rows(lane2: Sequence[float] | None, lane3: Sequence[float] | None, length: float) -> np.ndarray:
    """Return both lanes' potholes, sorted and padded with infinity, [2, K] float64."""
    lanes = [np.sort(np.array(LANE_2 if lane2 is None else lane2, dtype=np.float64).reshape(-1)),
             np.sort(np.array(LANE_3 if lane3 is None else lane3, dtype=np.float64).reshape(-1))]  # fmt: skip
    for name, lane in zip(("lane2", "lane3"), lanes, strict=True):
        if len(lane) and not (lane[0] >= 0 and lane[-1] <= length):
            raise CustardError(f"PotholeWorld: potholes of {name} must lie in [0, {length}]")
    rows = np.full((2, max(1, *map(len, lanes))), np.inf)
    for row, lane in zip(rows, lanes, strict=True):
        row[: len(lane)] = lane
    return rows


def random_potholes(seed: int, length: float = ROAD_LENGTH) -> tuple[list[float], list[float]]:
    """Return a random instance as the paper describes it: distances Unif(1, 2) from 0 on, each in lane two or three.

    >>> lane2, lane3 = random_potholes(seed=0)
    >>> 25 <= len(lane2) + len(lane3) <= 50
    True
    """
    rng = np.random.default_rng(seed)
    lanes: tuple[list[float], list[float]] = ([], [])
    position = 0.0
    while position <= length:
        lanes[int(rng.integers(2))].append(round(position, 3))
        position += rng.uniform(1.0, 2.0)
    return lanes


class PotholeWorld(gym.Env):
    """One feature (the position), three lanes, moves of Unif(0.5, 1) whatever the lane.

    >>> env = PotholeWorld()
    >>> _ = env.reset(seed=0)
    >>> observation, reward, *_ = env.step(2)  # the pothole at 0 is in lane three
    >>> bool(reward < -4)
    True
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 8}
    feature_names = ("position",)
    action_names = ("lane_1", "lane_2", "lane_3")

    def __init__(
        self,
        lane2: Sequence[float] | None = None,
        lane3: Sequence[float] | None = None,
        length: float = ROAD_LENGTH,
        render_mode: str | None = None,
    ) -> None:
        if not 0 < length < np.inf:
            raise CustardError(f"PotholeWorld: length={length!r} must be a positive number")
        self.length = float(length)
        if lane2 is None and lane3 is None and length < ROAD_LENGTH:
            lane2, lane3 = ([p for p in lane if p <= length] for lane in (LANE_2, LANE_3))
        self.potholes = pothole_rows(lane2, lane3, self.length)
        self.observation_space = spaces.Box(0.0, self.length, (1,), dtype=np.float64)
        self.action_space = spaces.Discrete(3)
        self.position, self.lane = 0.0, 0
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Go to the start of the road."""
        super().reset(seed=seed)
        self.position, self.lane = 0.0, 0
        return np.array([self.position]), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move along one lane."""
        distance = self.np_random.uniform(MIN_MOVE, MAX_MOVE)
        self.lane = int(action)
        self.position, reward = drive(self.potholes, self.position, self.lane, distance, self.length)
        return np.array([self.position]), float(reward), self.position >= self.length, False, {}

    def render(self) -> Any:
        """Return the road with its potholes (o) and the agent (>), as text or picture."""
        scale = 100 / self.length
        holes = [[], *(row[np.isfinite(row)] for row in self.potholes)]
        if self.render_mode == "ansi":
            lines = []
            for lane, row in enumerate(holes):
                line = ["·"] * 101
                for hole in row:
                    line[round(hole * scale)] = "o"
                if lane == self.lane:
                    line[round(self.position * scale)] = ">"
                lines.append("".join(line))
            return "\n".join(lines)
        if self.render_mode == "rgb_array":
            frame = blank(90, 808)
            for lane, row in enumerate(holes):
                rectangle(frame, 0, 30 * lane + 2, 808, 26, (205, 205, 205) if lane else (225, 225, 225))
                for hole in row:
                    rectangle(frame, hole * scale * 8, 30 * lane + 10, 8, 10, (90, 60, 40))
            rectangle(frame, self.position * scale * 8 - 8, 30 * self.lane + 7, 16, 16, (200, 60, 60))
            return frame
        return None
