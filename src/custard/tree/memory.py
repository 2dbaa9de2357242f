"""What a tree must remember: the past observations and actions among its features, where it was learned with a history.

`tree.origin["history"]` says how many steps. The order of its features is in `custard.core.history`.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

from custard.core.errors import CustardError
from custard.core.history import MAX_HISTORY, first_action
from custard.tree.tree import Tree

__all__ = ["MemoryLayout", "history_of", "memory_of"]


@dataclass(frozen=True)
class MemoryLayout:
    """How a tree's observation is made of the present one and of past steps."""

    steps: int  # that are remembered
    n: int  # features of the present observation
    first_action: tuple[float, ...]  # what stands for the actions before the first one, one number per component

    @property
    def step_size(self) -> int:
        """The numbers of one remembered step: its features and its action."""
        return self.n + len(self.first_action)

    @property
    def size(self) -> int:
        """The numbers of the present observation and of all remembered steps."""
        return self.n + self.steps * self.step_size


def history_of(tree: Tree) -> int:
    """Return how many past steps are among a tree's features; 0 for a tree without memory.

    >>> from custard import Actions, Features
    >>> history_of(Tree.leaf(0, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b"))))
    0
    """
    steps = tree.origin.get("history") or 0
    if not isinstance(steps, Integral) or isinstance(steps, bool) or not 0 <= int(steps) <= MAX_HISTORY:
        raise CustardError(f"the tree's history must be a whole number from 0 to {MAX_HISTORY}, not {steps!r}")
    return int(steps)


def memory_of(tree: Tree) -> MemoryLayout | None:
    """Return what a tree must remember; None for a tree without memory."""
    steps = history_of(tree)
    if steps == 0:
        return None
    first = tuple(first_action(tree.actions).tolist())
    n, rest = divmod(tree.features.n_raw - steps * len(first), steps + 1)
    names = tree.features.names
    if n < 1 or rest or names[n] != f"{names[0]}[-1]":
        raise CustardError(
            f"the tree says that it was learned with history={steps}, but its {tree.features.n_raw} features do not fit"
        )
    return MemoryLayout(steps, n, first)
