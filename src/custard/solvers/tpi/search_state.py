"""A search of tree policy iteration as arrays, so that a run can stop and go on between rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from custard.solvers.tpi.simulate import Foreign
from custard.tree.store import ARRAYS
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.tpi.search import Search

__all__ = ["restore", "state_of"]


def state_of(search: Search) -> dict[str, np.ndarray]:
    """All that the next round depends on."""
    numbers = [
        search.number, search.stale, search.real.steps, search.depth, bool(search.message), search.model is not None,
        search.sure, search.mended, search.differ, search.real.limit, getattr(search.real, "cut_at", 0),
        search.time_limit or 0, getattr(search.real, "cap", 0),
    ]  # fmt: skip
    data = {
        f"{name}_{part}": getattr(tree, part)
        for name, tree in (("present", search.present), ("best", search.best))
        for part in ARRAYS
    }
    data["numbers"], data["hard"], data["seen"] = np.array(numbers), search.hard, np.array(search.seen)
    data["floats"] = np.array([search.value, search.real.most_a_step, search.real.length])
    if search.model is not None:
        data |= search.model.state()
    elif search.table is not None:
        data |= {"table_q": search.table.q.copy(), "table_visits": search.table.visits.copy()}
    return data


def restore(search: Search, state: dict[str, np.ndarray]) -> None:
    """Go on from a state."""
    search.number, search.stale, search.real.steps, search.depth = (int(entry) for entry in state["numbers"][:4])
    search.value, search.real.most_a_step, search.real.length = map(float, state["floats"])
    search.present, search.best = (
        Tree(**{part: state[f"{name}_{part}"] for part in ARRAYS}, features=search.features, actions=search.actions)  # type: ignore[arg-type]
        for name in ("present", "best")
    )
    search.hard, search.seen = state["hard"], state["seen"].tolist()
    sure, search.mended, differ, search.real.limit, cut_at, limit, cap = (int(entry) for entry in state["numbers"][6:])
    search.sure, search.differ, search.time_limit = bool(sure), bool(differ), limit or None
    if isinstance(search.real, Foreign):
        search.real.cut_at, search.real.cap = cut_at, cap
    if not state["numbers"][5]:
        search.model = None
    if search.model is not None:
        search.model.restore(state)
    elif "table_q" in state and search.table is not None:
        search.table.q, search.table.visits = state["table_q"].copy(), state["table_visits"].copy()
    elif not search.compiled:
        search.table = None
    if state["numbers"][4]:
        search.finish()
