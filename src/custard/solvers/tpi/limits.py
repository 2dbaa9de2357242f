"""How long episodes are: surveyed, and found out where an environment does not declare its time limit."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from custard.solvers.tpi.rehearsal import trial_world
from custard.solvers.tpi.simulate import Foreign
from custard.task.source import episode_seeds

if TYPE_CHECKING:
    from custard.solvers.tpi.search import Search

__all__ = ["SHORTEST", "find_limit", "survey"]

SHORTEST = 100  # steps of episodes that would not end by themselves, at the least


def survey(search: Search) -> None:
    """How long episodes are."""
    search.sim.returns(search.blank, episode_seeds(search.seed, 4), 1.0)
    search.surveyed = True
    find_limit(search)
    if search.time_limit is None and search.sim is search.real and search.real.length >= search.real.limit:
        shorten(search)


def find_limit(search: Search) -> None:
    """Where no time limit is declared: the step at which the environment has cut off episodes, always the same.

    Episodes are not cut there by us, so that one which goes on says that it was none.
    """
    if not isinstance(search.real, Foreign) or search.problem.source.limit is not None:
        return
    found = search.real.cut_at if 0 < search.real.cut_at < search.real.cap else None
    if found == search.time_limit:
        return
    if found is None:  # what was perfect in short episodes need not be
        search.sure, search.stale = False, 0
    search.time_limit, search.real.limit = found, found or search.real.cap
    if search.model is not None and search.sim is not search.real:
        search.sim = trial_world(search, search.model)


def shorten(search: Search) -> None:
    """Where no time limit is declared and nothing ends an episode: have episodes that the budget allows many of."""
    search.real.limit = int(np.clip(search.budget // 2500, SHORTEST, search.real.limit))
    if isinstance(search.real, Foreign):
        search.real.cap = search.real.limit
    search.real.length = float(search.real.limit)
    warnings.warn(
        f"{search.problem.source.name} declares no time limit and random episodes do not end: trees are compared "
        f"on episodes of {search.real.limit} steps (max_episode_steps sets another limit)",
        stacklevel=2,
    )
