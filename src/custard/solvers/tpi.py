"""Tree policy iteration: the paper's two agents, with the tree agent solved exactly.

Leaf agent: what each base action is worth under the present tree, in the states that tree meets, measured by trying
every action there and then following the tree (`simulate`). Tree agent: given those values, the tree that collects
most, less |zeta| for every question, is an ordinary optimal-tree problem (`custard.tree.fit`). A tree so found, or a
small change to the present one, replaces it only if its true return is higher on episodes both have run.

A round is: value, fit, compare, then polish by small changes; it depends on nothing but the trees it starts from and
its own seed, so that a run can stop and go on between rounds. Rounds use fresh episodes, so that luck does not add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from custard.errors import CustardError
from custard.lab.source import episode_seeds
from custard.solvers.api import Problem, Snapshot
from custard.solvers.mutate import Shape, mutated, part_at, paths, random_shape, replaced, shape_of, tree_of
from custard.solvers.simulate import Simulator, simulator
from custard.solvers.tabular import Expert
from custard.tree.fit import fit_tree
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "solve"]


@dataclass(frozen=True)
class Settings:
    """Tree policy iteration's settings; None means chosen from the environment."""

    budget: int | None = None
    """Environment steps: 40 million compiled, 500,000 otherwise."""

    zeta: float = -1e-3
    """The price of a question, in shares of what the best action gains over the worst."""

    episodes: int | None = None
    """Episodes two trees are compared on in a round: at most 64 compiled, as many as the budget allows otherwise."""

    states: int | None = None
    """States in which actions are valued: 1,500 compiled, 150 otherwise."""

    noise: float = 0.1
    """How often the tree acts at random while its actions are valued: it should hold up near its own path too."""

    cuts: int = 15
    """Thresholds a feature in a fit."""

    polish: int | None = None
    """Small changes tried in a round: 300 compiled, 40 otherwise."""

    patience: int = 8
    """Rounds without a better tree after which the run ends."""


SHAKEN = 0.2  # the share of random actions under which perfect trees are compared
FIRST_DEPTH, LAST_DEPTH = 3, 5  # without a depth limit trees grow while that pays

PRESETS: dict[str, dict[str, dict[str, object]]] = {"tuned": {}}


@dataclass(frozen=True)
class Candidate:
    """A tree and its returns on a list of episodes, without and with random actions in between."""

    tree: Tree
    returns: np.ndarray
    shaken: float  # the mean return if some actions are random: tells trees apart that are perfect without

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    def beats(self, other: Candidate) -> bool:
        """More return on the same episodes; or as much from a smaller tree; or from one as small and steadier."""
        slack = 1e-9 * max(1.0, abs(other.mean))
        if abs(self.mean - other.mean) > slack:
            return self.mean > other.mean
        if (self.tree.n_leaves, self.tree.depth) != (other.tree.n_leaves, other.tree.depth):
            return (self.tree.n_leaves, self.tree.depth) < (other.tree.n_leaves, other.tree.depth)
        return self.shaken > other.shaken + 1e-3 * abs(other.shaken)

    def clearly_beats(self, other: Candidate) -> bool:
        """Beats it by more than the standard error of the difference, so that luck does not replace the best tree."""
        difference = self.returns - other.returns
        error = float(difference.std()) / np.sqrt(len(difference))
        return self.beats(other) and (float(difference.mean()) >= error or self.mean == other.mean)


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Rounds of tree policy iteration until nothing better is found."""
    if not problem.base.actions.discrete:
        raise CustardError("tpi needs discrete actions")
    search = Search(problem, settings)
    if state is not None:
        search.restore(state)
    while not search.message:
        search.round()
        yield search.snapshot()


class Search:
    """The present tree, the best tree, and how to go on."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem, self.settings = problem, settings
        self.sim: Simulator = simulator(problem)
        self.expert = Expert(problem)
        compiled = problem.source.native is not None
        self.budget = settings.budget or (40_000_000 if compiled else 500_000)
        self.polish = settings.polish or (300 if compiled else 40)
        self.deepest = LAST_DEPTH if problem.max_depth is None else problem.max_depth
        self.depth = min(FIRST_DEPTH, self.deepest)
        self.seed = problem.seeds("tpi")["tpi"]
        actions = problem.base.actions
        self.actions = range(actions.start, actions.start + actions.n)
        self.blank = Tree.leaf(actions.start, problem.base.features, actions)
        self.spend = int(0.8 * self.budget)  # the rest is for judging what the last round finds
        whole = self.budget // self.longest()  # about how many episodes the budget buys
        self.episodes = settings.episodes or int(np.clip(whole // 300, 4, 64 if compiled else 512))
        self.states = settings.states or int(
            np.clip(whole // (20 * problem.base.actions.n), 20, 1500 if compiled else 150)
        )
        self.present, self.best = self.blank, self.blank
        self.value, self.number, self.stale, self.message = -np.inf, 0, 0, ""

    def longest(self) -> int:
        """About how long an episode may be: the declared limit, or a few random ones where there is none."""
        if self.problem.source.limit is not None:
            return self.sim.limit
        self.sim.returns(self.blank, episode_seeds(self.seed, 4), 1.0)
        return max(1, self.sim.steps // 2)

    def round(self) -> None:
        """One round, starting from the present tree."""
        rng = np.random.default_rng([self.seed, self.number])
        seeds = episode_seeds(int(rng.integers(2**31)), self.episodes)
        if self.stale == 2 and self.depth < self.deepest:
            self.depth, self.present = self.depth + 1, self.best  # nothing better of this depth: allow one more
        fresh = self.number == 0 or self.stale in (3, 5, 7)
        tree = self.start(rng, seeds) if fresh else self.present
        self.depth = max(self.depth, tree.depth)
        now = self.measured(tree, seeds)
        x = np.zeros((0, self.problem.base.features.n))
        if self.sim.values_actions:
            x, q = self.sim.action_values(tree, int(rng.integers(2**31)), self.states, self.settings.noise)
            for other in self.fits(tree, x, q):
                if self.sim.steps < self.spend:
                    now = self.compared(other, now, seeds)
        now = self.polished(now, rng, seeds, x)
        self.present = now.tree
        self.judge(now.tree, rng)
        self.number += 1
        self.finish()

    def start(self, rng: np.random.Generator, seeds: np.ndarray) -> Tree:
        """A new tree to begin from: fitted to random behaviour, or the best of some random ones."""
        trees = []
        x = np.zeros((0, self.problem.base.features.n))
        if self.sim.values_actions:
            x, q = self.sim.action_values(self.blank, int(rng.integers(2**31)), self.states, 1.0)
            trees += list(self.fits(self.blank, x, q))
        if len(x) == 0:
            x = self.problem.base.features.low + rng.random((100, x.shape[1])) * self.spread()
        if self.expert.possible:
            share = self.budget // 10 if self.number == 0 else self.budget // 50
            used = self.expert.steps
            self.expert.learn(share, int(rng.integers(2**31)))
            for depth in sorted({self.depth, self.deepest}):
                trees += list(self.expert.trees(depth, int(rng.integers(2**31))))
            self.sim.steps += self.expert.steps - used
        trees += [tree_of(random_shape(rng, x, self.actions, self.depth), self.blank) for _ in range(self.polish // 3)]
        few = seeds[: max(2, len(seeds) // 8)]
        ranked = [(-np.inf, 0, 0, self.blank)]
        for tree in map(simplify, trees):
            if self.sim.steps < self.spend // 2 or self.number > 0:
                ranked.append((float(self.sim.returns(tree, few).mean()), -tree.n_leaves, -tree.depth, tree))
        return max(ranked, key=lambda entry: entry[:3])[3]

    def spread(self) -> np.ndarray:
        features = self.problem.base.features
        return np.where(features.unbounded, 2.0, features.high - features.low)

    def fits(self, tree: Tree, x: np.ndarray, q: np.ndarray) -> Iterator[Tree]:
        """The best tree for the measured values, and the present one with one branch refitted."""
        if len(x) < 2:
            return
        q = q - q.max(axis=1, keepdims=True)
        price = -self.settings.zeta * float(-q.min(axis=1).mean())
        features, actions, cuts = self.problem.base.features, self.problem.base.actions, self.settings.cuts
        for depth in sorted({self.depth, max(0, self.depth - 1)}):
            yield fit_tree(x, q, features, actions, max_depth=depth, price=price, cuts=cuts).tree
        shape, where = shape_of(tree), tree.apply(x)
        nodes = {path: self._under(tree, path) for path in paths(shape) if path}
        for path, node in nodes.items():
            inside = np.isin(where, node)
            if inside.sum() >= 10:
                part = fit_tree(
                    x[inside], q[inside], features, actions, max_depth=self.depth - len(path), price=price, cuts=cuts
                )
                yield tree_of(replaced(shape, path, shape_of(part.tree)), self.blank)

    @staticmethod
    def _under(tree: Tree, path: tuple[int, ...]) -> list[int]:
        """The leaves below a path."""
        node = 0
        for side in path:
            node = int(tree.children_left[node] if side == 2 else tree.children_right[node])
        found, stack = [], [node]
        while stack:
            at = stack.pop()
            if tree.feature[at] < 0:
                found.append(at)
            else:
                stack += [int(tree.children_left[at]), int(tree.children_right[at])]
        return found

    def compared(self, tree: Tree, now: Candidate, seeds: np.ndarray) -> Candidate:
        """The better of two on the same episodes; a fifth of them decides whether the rest is run."""
        first = max(4, len(seeds) // 5)
        some = self.sim.returns(tree, seeds[:2])
        if some.max() < now.returns.min():
            return now  # clearly worse: not worth more episodes
        some = np.concatenate([some, self.sim.returns(tree, seeds[2:first])])
        if some.mean() < now.returns[:first].mean() - 1e-9 * max(1.0, abs(now.mean)):
            return now
        other = self.measured(tree, seeds, np.concatenate([some, self.sim.returns(tree, seeds[first:])]))
        return other if other.beats(now) else now

    def measured(self, tree: Tree, seeds: np.ndarray, returns: np.ndarray | None = None) -> Candidate:
        """A tree with its returns; where they are perfect, also how it stands being shaken."""
        returns = self.sim.returns(tree, seeds) if returns is None else returns
        shaken = float(self.sim.returns(tree, seeds, SHAKEN).mean()) if self.perfect(float(returns.mean())) else 0.0
        return Candidate(tree, returns, shaken)

    def polished(self, now: Candidate, rng: np.random.Generator, seeds: np.ndarray, x: np.ndarray) -> Candidate:
        """Small changes, kept if the true return rises."""
        if len(x) == 0:
            x = self.problem.base.features.low + rng.random((100, x.shape[1])) * self.spread()
        shape = shape_of(now.tree)
        for _ in range(self.polish):
            if self.sim.steps >= self.spend:
                break
            changed: Shape = mutated(shape, rng, x, self.actions, self.depth)
            if rng.random() < 0.3:
                changed = mutated(changed, rng, x, self.actions, self.depth)
            after = self.compared(tree_of(changed, self.blank), now, seeds)
            if after is not now:
                now, shape = after, changed
        return now

    def judge(self, tree: Tree, rng: np.random.Generator) -> None:
        """Keep the tree if it beats the best one on episodes neither was chosen on."""
        tree = simplify(tree)
        seeds = episode_seeds(int(rng.integers(2**31)), 8 * self.episodes)
        best = self.measured(self.best, seeds)
        new = self.compared(tree, best, seeds)
        small = self.smaller(new, seeds)
        better = small.tree is not best.tree and (small.clearly_beats(best) or self.number == 0)
        self.stale = 0 if better else self.stale + 1
        self.best, self.value = (small.tree, small.mean) if better else (best.tree, best.mean)

    def smaller(self, now: Candidate, seeds: np.ndarray) -> Candidate:
        """Drop questions that the return does not need."""
        going = True
        while going:
            going = False
            shape = shape_of(now.tree)
            for path in paths(shape):
                part = part_at(shape, path)
                if isinstance(part, tuple):
                    for child in part[2:]:
                        other = self.compared(tree_of(replaced(shape, path, child), self.blank), now, seeds)
                        if other is not now:
                            now, going = other, True
                            break
                if going:
                    break
        return now

    def finish(self) -> None:
        """Decide whether to go on."""
        if self.perfect(self.value) and self.stale >= 2 and self.confirmed():
            self.message = "every step earns the most a step has earned"
        elif self.stale >= self.settings.patience:
            self.message = f"no better tree in {self.stale} rounds"
        elif self.sim.steps >= self.spend:
            self.message = "budget used"

    def perfect(self, mean: float) -> bool:
        """Whether episodes with this mean last as long as they may and earn the most ever seen at every step."""
        most = self.sim.most_a_step * self.sim.limit
        return self.sim.most_a_step > 0 and mean >= most - 1e-9 * most

    def confirmed(self) -> bool:
        """Whether that holds on many more episodes: a rare failure sends the search on."""
        seeds = episode_seeds(
            int(np.random.default_rng([self.seed, self.number, 1]).integers(2**31)), 64 * self.episodes
        )
        self.value = float(self.sim.returns(self.best, seeds).mean())
        return self.perfect(self.value)

    def snapshot(self) -> Snapshot:
        """Where the search stands."""
        metrics = {"round": float(self.number), "stale": float(self.stale), "leaves": float(self.best.n_leaves)}
        return Snapshot(
            self.sim.steps, self.best, self.value, self.budget, metrics, message=self.message, state=self.state
        )

    def state(self) -> dict[str, np.ndarray]:
        """All that the next round depends on."""
        numbers = np.array([self.number, self.stale, self.sim.steps, self.depth, bool(self.message)])
        trees = {
            f"{name}_{part}": getattr(tree, part)
            for name, tree in (("present", self.present), ("best", self.best))
            for part in ("feature", "threshold", "children_left", "children_right", "value")
        }
        return {"numbers": numbers, "floats": np.array([self.value, self.sim.most_a_step]), **trees}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state."""
        self.number, self.stale, self.sim.steps, self.depth = (int(entry) for entry in state["numbers"][:4])
        self.value, self.sim.most_a_step = (float(entry) for entry in state["floats"])
        parts = ("feature", "threshold", "children_left", "children_right", "value")
        features, actions = self.problem.base.features, self.problem.base.actions
        self.present, self.best = (
            Tree(**{part: state[f"{name}_{part}"] for part in parts}, features=features, actions=actions)  # type: ignore[arg-type]
            for name in ("present", "best")
        )
        if state["numbers"][4]:
            self.finish()
