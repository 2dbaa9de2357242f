"""Keeping the best tree: extracted trees are judged on rollouts, and the better one stays.

Learning over bounds oscillates between trees, so the last one is rarely the best one. Every method that extracts trees
while it learns can hand them to a `Selection`. Its episodes have seeds apart from those of any evaluation, the same for
all trees, so that trees are compared on the same episodes; their steps are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from custard.lab.evaluate import rollouts
from custard.lab.source import episode_seeds
from custard.solvers.api import Problem
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

__all__ = ["Judged", "Selection", "better"]


@dataclass
class Judged:
    """A tree with the returns of its selection episodes, in the order of their seeds."""

    tree: Tree  # as extracted
    leaves: int  # of its simplified form
    returns: np.ndarray

    @property
    def mean(self) -> float:
        """The mean return so far."""
        return float(self.returns.mean())


def better(a: Judged, b: Judged) -> bool:
    """Whether a should replace b: it returns more, or is smaller and not clearly worse, on the episodes both have run.

    "Clearly" is one standard error of the paired difference. A smaller tree can win only by having fewer leaves, so
    small losses cannot add up for ever.
    """
    k = min(len(a.returns), len(b.returns))
    gain = a.returns[:k] - b.returns[:k]
    mean, error = gain.mean(), gain.std() / np.sqrt(k)
    if a.leaves < b.leaves:
        return bool(mean >= -error)
    if a.leaves > b.leaves:
        return bool(mean > error)
    return bool(mean > 0)


@dataclass
class Selection:
    """The best of the trees shown so far. Episodes are added only while a tree could still win."""

    problem: Problem
    most: int = 512  # episodes the winner has run at the end
    first: int = 32  # episodes every tree runs
    steps: int = 0  # environment steps spent on judging
    best: Judged | None = None
    last: float = float("nan")  # mean return of the tree shown last
    improved: int = 0  # how often the best tree was replaced
    shown: dict[bytes, float] = field(default_factory=dict)  # trees judged before, and their means

    def __post_init__(self) -> None:
        self.seeds = episode_seeds(self.problem.seeds("selection")["selection"], self.most)

    def show(self, tree: Tree) -> bool:
        """Judge a tree; whether it is the best from now on."""
        small = simplify(tree)
        name = b"".join(np.ascontiguousarray(a).tobytes() for a in (small.feature, small.threshold, small.value))
        if name in self.shown:
            self.last = self.shown[name]
            return False
        judged = Judged(tree, small.n_leaves, np.zeros(0))
        while len(judged.returns) < self.most:
            self._extend(judged, max(self.first, 2 * len(judged.returns)))
            if self.best is not None and not better(judged, self.best):
                # Worse by more than chance: no need to run the rest.
                k = len(judged.returns)
                gain = judged.returns - self.best.returns[:k]
                if gain.mean() < -2 * gain.std() / np.sqrt(k) or (gain == 0).all():
                    break
            if judged.returns.std() == 0 and (self.best is None or self.best.returns.std() == 0):
                break  # nothing varies from episode to episode
        self.shown[name] = self.last = judged.mean
        if self.best is None or better(judged, self.best):
            if (
                len(judged.returns) < self.most
                and self.best is not None
                and len(self.best.returns) > len(judged.returns)
            ):
                self._extend(judged, len(self.best.returns))
                if not better(judged, self.best):
                    return False
            self.best = judged
            self.improved += 1
            return True
        return False

    def _extend(self, judged: Judged, count: int) -> None:
        """Run a tree until it has `count` episodes."""
        done = len(judged.returns)
        count = min(count, self.most)
        if count <= done:
            return
        tree = simplify(judged.tree)
        returns, lengths, _ = rollouts(tree, self.problem.source, self.seeds[done:count], features=self.problem.encoder)
        judged.returns = np.concatenate([judged.returns, returns])
        self.steps += int(lengths.sum())

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything as arrays."""
        names = list(self.shown)
        data: dict[str, Any] = {
            "selection.numbers": np.array([self.steps, self.improved]),
            "selection.last": np.array(self.last),
            "selection.names": np.frombuffer(b"".join(names), dtype=np.uint8).copy(),
            "selection.lengths": np.array([len(name) for name in names], dtype=np.int64),
            "selection.means": np.array([self.shown[name] for name in names]),
        }
        if self.best is not None:
            tree = self.best.tree
            for part in ("feature", "threshold", "children_left", "children_right", "value"):
                data[f"best.{part}"] = getattr(tree, part)
            data["best.low"], data["best.high"] = tree.features.low, tree.features.high
            data["best.returns"], data["best.leaves"] = self.best.returns, np.array(self.best.leaves)
        return data

    def restore(self, data: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        from dataclasses import replace

        self.steps, self.improved = (int(value) for value in data["selection.numbers"])
        self.last = float(data["selection.last"])
        ends = np.cumsum(data["selection.lengths"])
        text = data["selection.names"].tobytes()
        names = [text[end - size : end] for end, size in zip(ends, data["selection.lengths"], strict=True)]
        self.shown = dict(zip(names, data["selection.means"].tolist(), strict=True))
        if "best.feature" in data:
            base = self.problem.base
            features = replace(base.features, low=data["best.low"], high=data["best.high"])
            parts = [data[f"best.{p}"] for p in ("feature", "threshold", "children_left", "children_right", "value")]
            tree = Tree(*parts, features=features, actions=base.actions)
            self.best = Judged(tree, int(data["best.leaves"]), data["best.returns"])
