"""CUSTARD (DQN). Read `dqn` (settings, loop, updates), then `node_values` (values of splits), `behaviour` (exploration)
and `judge` (which tree is kept). `paper` is the appendix's own form, with its own settings and loop."""

from custard.solvers.dqn.dqn import PRESETS, SETTINGS, Settings, solve

__all__ = ["PRESETS", "SETTINGS", "Settings", "solve"]
