"""The few drawing operations the text-book environments need for `rgb_array` rendering."""

from __future__ import annotations

import numpy as np

__all__ = ["blank", "rectangle"]


def blank(height: int, width: int) -> np.ndarray:
    """Return a white picture, [height, width, 3] uint8."""
    return np.full((height, width, 3), 255, dtype=np.uint8)


def rectangle(frame: np.ndarray, x: float, y: float, width: float, height: float, colour: tuple[int, int, int]) -> None:
    """Fill a rectangle in place; what lies outside the picture is cut off."""
    left, top = max(0, round(x)), max(0, round(y))
    frame[top : max(0, round(y + height)), left : max(0, round(x + width))] = colour
