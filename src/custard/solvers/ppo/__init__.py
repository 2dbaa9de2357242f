"""CUSTARD (PPO). Read `ppo` (settings, loop), then `update` (equations), `policy` (what the actor's outputs mean),
`traversal` and `rollouts` (compiled); `paper` is the paper's own form, a loop and an update of its own."""

from custard.solvers.ppo.ppo import PRESETS, SETTINGS, Settings, solve

__all__ = ["PRESETS", "SETTINGS", "Settings", "solve"]
