"""CUSTARD (PPO)."""

from custard.solvers.ppo.ppo import PRESETS, Settings, solve

__all__ = ["PRESETS", "Settings", "solve"]
