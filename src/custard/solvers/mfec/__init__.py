"""CUSTARD (MFEC). Read in this order: `mfec` (settings, cycles, judging), `episodes` (behaviour and updates of Q_o),
`bounds_table` (Q over bounds, the policy), `tables` (all arrays, the schedule of a cycle), `runners` (who steps the
environment). `paper` is the form of the paper's appendix, with settings of its own."""

from custard.solvers.mfec.mfec import PRESETS, SETTINGS, Settings, solve

__all__ = ["PRESETS", "SETTINGS", "Settings", "solve"]
