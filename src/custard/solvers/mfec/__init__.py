"""CUSTARD (MFEC)."""

from custard.solvers.mfec.mfec import PRESETS, Settings, solve

__all__ = ["PRESETS", "Settings", "solve"]
