"""CUSTARD (DQN)."""

from custard.solvers.dqn.dqn import PRESETS, Settings, solve

__all__ = ["PRESETS", "Settings", "solve"]
