"""Keeping the best tree: extracted trees are judged on rollouts, and the better one stays.

Learning over bounds oscillates between trees, so the last one is rarely the best one. Every method that extracts trees
while it learns can hand them to a `Selection`. Its episodes have seeds apart from those of any evaluation, the same for
all trees, so that trees are compared on the same episodes; their steps are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from custard.envs.pcg64 import streams
from custard.solvers.common.paired import paired_gain
from custard.task.evaluate import rollouts
from custard.task.native_rollouts import native_place, tree_rollouts
from custard.task.problem import Problem
from custard.task.source import episode_seeds
from custard.tree.simplify import simplify
from custard.tree.store import ARRAYS
from custard.tree.tree import Tree

__all__ = ["Judged", "Selection", "better"]

COMPILED_SHARE, STEPPED_SHARE = 4, 10  # judging one tree takes one part in so many of a budget, at the most
LONGER = 8  # times as many compiled episodes for a tree that does equally well in all of them, though others do not


@dataclass
class Judged:
    """A tree with the returns of its selection episodes, in the order of their seeds."""

    tree: Tree  # as extracted
    small: Tree  # simplified
    returns: np.ndarray
    visits: np.ndarray  # [nodes of small]: base states that ended in each leaf

    @property
    def reachable(self) -> int:
        """How many leaves of the simplified tree were reached in its selection episodes."""
        return int((self.visits > 0).sum())

    @property
    def mean(self) -> float:
        """The mean return so far."""
        return float(self.returns.mean()) if len(self.returns) else float("nan")

    @property
    def size(self) -> tuple[int, int, int]:
        """Leaves, then depth, of the simplified tree; then the leaves of the tree as extracted."""
        return self.small.n_leaves, self.small.depth, self.tree.n_leaves


def better(a: Judged, b: Judged, margin: float = 1.0) -> bool:
    """Whether a should replace b on the episodes both have run: it returns more (if larger, clearly), or is smaller and
    not clearly worse.

    "Clearly" is `margin` standard errors of the paired difference. A smaller tree can win only by having fewer leaves
    (or as many and less depth), so small losses cannot add up for ever.
    """
    k = min(len(a.returns), len(b.returns))
    gain, error = paired_gain(a.returns[:k], b.returns[:k], margin)
    if a.size < b.size:
        return gain >= -error
    if a.size > b.size:
        return gain > error
    return gain > 0


@dataclass
class Selection:
    """The best of the trees shown so far. Episodes are added only while a tree could still win."""

    problem: Problem
    most: int = 512  # episodes the winner has run at the end
    first: int = 8  # episodes every tree runs
    margin: float = 1.0  # standard errors by which a smaller tree may be worse, and a larger one must be better
    budget: float = np.inf  # environment steps of the whole run
    steps: int = 0  # environment steps spent on judging
    best: Judged | None = None
    last: float = float("nan")  # mean return of the tree shown last
    varies: bool = False  # whether returns of one tree ever differed
    improved: int = 0  # how often the best tree was replaced
    known: dict[bytes, float] = field(default_factory=dict)  # trees judged before, and their means

    def __post_init__(self) -> None:
        native = self.problem.source.native if self.problem.native and self.problem.base.actions.discrete else None
        self.usual, self.longest = self.most, self.most * (LONGER if native is not None else 1)
        self.seeds = episode_seeds(self.problem.seeds("selection")["selection"], self.longest)
        self.native: Any = native(1) if native is not None else None
        self.streams = streams(self.seeds.tolist()) if native is not None else None

    def show(self, tree: Tree) -> bool:
        """Judge a tree; whether it is the best from now on."""
        small = simplify(tree)
        name = b"".join(np.ascontiguousarray(getattr(small, part)).tobytes() for part in ARRAYS)
        if name in self.known:
            self.last = self.known[name]
            if self.best is not None and small == self.best.small and tree.n_leaves < self.best.tree.n_leaves:
                self.best.tree = tree  # the same decisions, asked for more briefly
            return False
        judged = Judged(tree, small, np.zeros(0), np.zeros(small.n_nodes, dtype=np.int64))
        while len(judged.returns) < self.most:
            # Where nothing has ever varied from episode to episode, a few show as much as many.
            self.extend(judged, max(self.first if self.varies or self.best is None else 1, 2 * len(judged.returns)))
            self._afford(judged)
            self.varies = self.varies or bool((judged.returns != judged.returns[0]).any())
            if self.best is not None and self.varies:
                self.extend(self.best, self.most)
            if self._hopeless(judged) or (not self.varies and len(judged.returns) >= 2 * self.first):
                break
        self.known[name] = self.last = judged.mean
        enough = self.best is None or not self.varies or len(judged.returns) >= self.most
        if not enough or (self.best is not None and not better(judged, self.best, self.margin)):
            return False
        self.best = judged
        self.improved += 1
        self._longer()
        return True

    def _afford(self, judged: Judged) -> None:
        """Where episodes are long for the budget, fewer of them must do."""
        if self.most <= self.usual and self.budget < np.inf:
            steps = judged.visits.sum() / len(judged.returns)
            share = COMPILED_SHARE if self.native is not None else STEPPED_SHARE
            affordable = max(2, int(self.budget / share / max(1, steps)))
            self.most, self.usual = min(self.most, affordable), min(self.usual, affordable)

    def _longer(self) -> None:
        """A best tree that never fails, where others do, may fail seldom: judge it, and all from now on, for longer."""
        while self.best is not None and self.varies and not self.varying and self.most < self.longest:
            if self.steps + self.best.visits.sum() > self.budget:  # as many episodes again take as many steps again
                break
            self.most = min(self.longest, 2 * len(self.best.returns))
            self.extend(self.best, self.most)

    @property
    def asks(self) -> bool:
        """Whether the best tree asks anything: one that does not may only mean that nothing was learned yet."""
        return self.best is not None and self.best.small.n_leaves > 1

    @property
    def varying(self) -> bool:
        """Whether the best tree does better in some episodes than in others."""
        return self.best is not None and bool((self.best.returns != self.best.returns[0]).any())

    def replace(self, tree: Tree) -> None:
        """Make a tree the best whatever it returns, for methods that report their last one."""
        small = simplify(tree)
        self.best = Judged(tree, small, np.zeros(0), np.zeros(small.n_nodes, dtype=np.int64))
        self.extend(self.best, self.first)
        self._afford(self.best)
        self.extend(self.best, 8 * self.first)
        self.last = self.best.mean

    @property
    def nearly_perfect(self) -> bool:
        """Whether the best tree does its most in at least four of five episodes, though returns vary."""
        returns = self.best.returns if self.best is not None else np.zeros(0)
        return self.varies and 5 * int((returns == returns.max(initial=-np.inf)).sum()) >= 4 * len(returns)

    def challenge(self, tree: Tree) -> bool:
        """Judge a tree where the best one is nearly perfect and no larger; whether that is the case.

        Something can only be gained in the episodes where that one does less. They come first, then all until as much
        is lost.
        """
        small, best = simplify(tree), self.best
        if best is None or small.n_leaves < best.small.n_leaves or not self.nearly_perfect:
            return False
        most = best.returns == best.returns.max()
        order, gained, done, count = np.argsort(most, kind="stable"), 0.0, 0, int((~most).sum())
        while count > 0 and done < len(order):
            index = order[done : done + count]
            returns, lengths, _ = self._run(small, self.seeds[index])
            self.steps += int(lengths.sum())
            gained += float((returns - best.returns[index]).sum())
            if gained <= 0.0:
                return True
            done += count
            count = max(8, done)
        if gained > 0.0:
            self.replace(tree)
            assert self.best is not None
            self.extend(self.best, len(best.returns))
            self.improved += 1
            self._longer()
        return True

    def surely_above(self, threshold: float | None) -> bool:
        """Whether the best tree's mean return exceeds a threshold by more than two standard errors."""
        if threshold is None or self.best is None:
            return False
        returns = self.best.returns
        return bool(returns.mean() - 2.0 * returns.std() / np.sqrt(len(returns)) >= threshold)

    def _hopeless(self, judged: Judged) -> bool:
        """Whether more episodes would hardly make a tree the best: it is worse by more than chance."""
        if self.best is None:
            return False
        k = len(judged.returns)
        if (judged.returns == self.best.returns[:k]).all() and judged.size >= self.best.size:
            return k >= 64
        gain, error = paired_gain(judged.returns, self.best.returns[:k], margin=2.0)
        return gain < -error

    def extend(self, judged: Judged, count: int) -> None:
        """Run a tree until it has `count` episodes."""
        done = len(judged.returns)
        count = min(count, self.most)
        if count <= done:
            return
        if self.native is not None:
            assert self.streams is not None
            place = native_place(self.native)
            returns, lengths, _, visits = tree_rollouts(judged.small, place, self.streams[done:count])
            judged.visits += visits
        else:

            def act(x: np.ndarray) -> np.ndarray:
                leaf = judged.small.apply(x)
                judged.visits += np.bincount(leaf, minlength=judged.small.n_nodes)
                return judged.small.value[leaf]

            returns, lengths, _ = self._run(act, self.seeds[done:count])
        judged.returns = np.concatenate([judged.returns, returns])
        self.steps += int(lengths.sum())

    def _run(self, policy: Any, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        longest = self.problem.longest(self.budget)
        return rollouts(policy, self.problem.source, seeds, features=self.problem.encoder, max_steps=longest)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything as arrays."""
        names = list(self.known)
        data: dict[str, Any] = {
            "selection.numbers": np.array([self.steps, self.improved, self.varies, self.most, self.usual]),
            "selection.last": np.array(self.last),
            "selection.names": np.frombuffer(b"".join(names), dtype=np.uint8).copy(),
            "selection.lengths": np.array([len(name) for name in names], dtype=np.int64),
            "selection.means": np.array([self.known[name] for name in names]),
        }
        if self.best is not None:
            data |= {f"best.{part}": getattr(self.best.tree, part) for part in ARRAYS}
            data |= {"best.low": self.best.tree.features.low, "best.high": self.best.tree.features.high}
            data |= {"best.returns": self.best.returns, "best.visits": self.best.visits.copy()}
        return data

    def restore(self, data: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.steps, self.improved, varies, self.most, self.usual = (int(n) for n in data["selection.numbers"])
        self.varies = bool(varies)
        self.last = float(data["selection.last"])
        text, lengths = data["selection.names"].tobytes(), data["selection.lengths"].tolist()
        ends = np.cumsum(lengths).tolist()
        names = [text[end - size : end] for end, size in zip(ends, lengths, strict=True)]
        self.known = dict(zip(names, data["selection.means"].tolist(), strict=True))
        if "best.feature" in data:
            features = replace(self.problem.base.features, low=data["best.low"], high=data["best.high"])
            parts = [data[f"best.{part}"] for part in ARRAYS]
            tree = Tree(*parts, features=features, actions=self.problem.base.actions)
            self.best = Judged(tree, simplify(tree), data["best.returns"], data["best.visits"].copy())
