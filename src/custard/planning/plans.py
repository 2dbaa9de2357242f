"""What planning reports: the best tree so far and what is proved about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from custard.task.problem import Snapshot
from custard.tree.tree import Tree

__all__ = ["Plan", "finite", "snapshot_of"]


@dataclass(frozen=True)
class Plan:
    """The best tree so far and what is proved about it."""

    tree: Tree
    value: float  # its exact expected return (plus zeta per split on the way, if zeta was given)
    bound: float  # no tree of the depth has more
    optimum: float  # the best policy's return, without a tree
    optimal: bool  # the value is proved best
    fewest: bool  # and so is the number of leaves among the trees of that value
    explored: int  # partial trees looked at
    message: str

    @property
    def gap(self) -> float:
        """How much better a tree could still be."""
        return 0.0 if self.optimal else self.bound - self.value


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it: None where it is infinite."""
    return value if np.isfinite(value) else None


def snapshot_of(item: Plan) -> Snapshot:
    """Return a plan as what a method reports."""
    metrics = {
        "bound": item.bound, "gap": item.gap, "optimum": item.optimum, "optimal": float(item.optimal),
        "fewest_leaves": float(item.fewest), "explored": float(item.explored), "depth": float(item.tree.depth),
        "leaves": float(item.tree.n_leaves),
    }  # fmt: skip
    return Snapshot(0, item.tree, item.value, None, metrics, message=item.message)
