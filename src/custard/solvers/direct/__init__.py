"""Direct search over trees, for environments that Python steps. Read in this order: `direct` (settings, phases,
judging), `race` (comparing on fresh episodes), `imitate` (trees of an expert), `evolve` (all numbers of a tree),
`refine` (its shape)."""

from custard.solvers.direct.direct import PRESETS, Settings, solve

__all__ = ["PRESETS", "Settings", "solve"]
