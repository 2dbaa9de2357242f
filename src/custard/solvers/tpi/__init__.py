"""Tree policy iteration."""

from custard.solvers.tpi.search import PRESETS, Settings, solve

__all__ = ["PRESETS", "Settings", "solve"]
