"""Direct search over trees, for environments that Python steps. Read in this order: `direct` (phases, judging),
`settings`, `experts` (what trees imitate), `imitate`, `refine` (a tree's shape), `masks` (allowed actions), `state`
(between two units of work); in `solvers/common`: `race`, `evolve`, `linear_trees`."""

from custard.solvers.direct.direct import is_state, solve
from custard.solvers.direct.settings import PRESETS, Settings

__all__ = ["PRESETS", "Settings", "is_state", "searches_directly", "solve"]


def searches_directly(problem: object, settings: Settings) -> bool:
    """Return whether trees are searched by their returns alone: always, for this method."""
    return True
