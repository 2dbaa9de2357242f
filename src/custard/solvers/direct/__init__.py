"""Direct search over trees, for environments that Python steps. Read in this order: `direct` (settings, phases,
judging), `experts` (what trees imitate), `imitate`, `plain` (trees with plain tests), `sums` (trees over weighted
sums), `state` (between two units of work); in `solvers/common`: `race`, `evolve`, `linear_trees`."""

from custard.solvers.direct.direct import PRESETS, Settings, budget_for_time, is_state, solve

__all__ = ["PRESETS", "Settings", "budget_for_time", "is_state", "searches_directly", "solve"]


def searches_directly(problem: object, settings: Settings) -> bool:
    """Return whether trees are searched by their returns alone: always, for this method."""
    return True
