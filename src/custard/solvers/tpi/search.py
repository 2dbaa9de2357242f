"""Tree policy iteration: the paper's two agents, with the tree agent solved exactly.

Leaf agent: what each base action is worth under the present tree, in the states that tree meets, measured by trying
every action there and then following the tree (`simulate`). Tree agent: given those values, the tree that collects
most, less |zeta| for every question, is an ordinary optimal-tree problem (`custard.tree.fit`). A tree so found, or a
small change to the present one, replaces it only if its true return is higher on episodes both have run.

A round is: value, fit, compare, then polish by small changes; it depends on nothing but the trees it starts from, what
was learned of the environment, and its own seed, so that a run can stop and go on between rounds. Rounds use fresh
episodes, so that luck does not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import require_least, require_shares
from custard.solvers.common.candidate import SAME, Candidate
from custard.solvers.common.mutations import mutate_shape, trees_without_one_split
from custard.solvers.tpi.advice import with_expert
from custard.solvers.tpi.learned import Exact, Grid, LearnedModel
from custard.solvers.tpi.limits import SHORTEST, find_limit, survey
from custard.solvers.tpi.perfect import NEARLY, SHRINKS, WORTH, confirmed, harder, many, mend, mending
from custard.solvers.tpi.rehearsal import check, experience
from custard.solvers.tpi.search_state import restore, state_of
from custard.solvers.tpi.simulate import Compiled, Foreign, Simulator, simulator
from custard.solvers.tpi.starts import STARTS, finite, first_trees, states_or_random
from custard.solvers.tpi.tabular import Expert
from custard.task.problem import Problem, Snapshot
from custard.task.source import episode_seeds
from custard.tree.fit import fit_tree
from custard.tree.leaf_actions import LeafActions
from custard.tree.shape import (
    LEFT,
    Shape,
    Split,
    leaves_below,
    paths,
    replace_part,
    shape_of,
    subshape,
    tree_of,
    with_actions,
)
from custard.tree.simplify import centre_integer_thresholds, prune_unvisited, simplify
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "solve"]


@dataclass(frozen=True)
class Settings:
    """Tree policy iteration's settings; None means chosen from the environment."""

    budget: int | None = None
    """Environment steps: 200 million compiled, 500,000 otherwise."""

    max_leaves: int | None = None
    """The largest number of leaves; none unless given."""

    zeta: float = -1e-3
    """The price of a question, in shares of what the best action gains over the worst."""

    episodes: int | None = None
    """Episodes two trees are compared on in a round; from their length and the budget unless given."""

    states: int | None = None
    """States in which actions are valued; as many as fits and budget allow unless given."""

    noise: float = 0.1
    """How often the tree acts at random while its actions are valued: it should hold up near its own path too."""

    cuts: int | None = None
    """Thresholds a feature in a fit: 4,000 for one feature, 40 for two, 15 otherwise."""

    polish: int | None = None
    """Small changes tried in a round: 300 compiled (100 for one feature, where fits are exact), 60 otherwise."""

    patience: int | None = None
    """Rounds without a better tree after which the run ends: 6; 10 where compiled episodes differ; 3 for one feature,
    where fits are exact."""

    expert: str | Callable[..., Any] | None = None
    """An expert to begin from: dqn (trained first), a file (.npz, or .zip of Stable-Baselines3), a function to Q, none.
    Unless given, a DQN where environments are stepped from Python and no table is learned, if jax is installed."""

    def __post_init__(self) -> None:
        require_least(self, 1, "max_leaves", "episodes", "states", "cuts", "polish", "patience")
        require_shares(self, "noise")


HOPE = 0.5  # the share of episodes in which a tree of fewer leaves should be perfect after a round of searching one
FIRST_DEPTH, LAST_DEPTH = 3, 5  # without a depth limit trees grow while that pays
MOST_LEAVES = 4096
CHEAP = 0.2  # what a small change to a tree costs at least, in shares of a full comparison
VISITS = 10  # steps of the budget for each pair of state and action, at the least, for a table to be learned
COMPARISON = 30_000  # compiled steps that comparing two trees takes, about

PRESETS: dict[str, dict[str, dict[str, object]]] = {"tuned": {}}


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Rounds of tree policy iteration until nothing better is found."""
    search = Search(problem, settings)
    if state is not None:
        restore(search, state)
    else:
        yield from with_expert(search)
    while not search.message:
        if mending(search):
            mend(search)
        else:
            yield from search.round()
        yield search.snapshot()


class Search:
    """The present tree, the best tree, and how to go on."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem, self.settings = problem, settings
        self.features, self.actions = problem.base.features, problem.base.actions
        self.real: Simulator = simulator(problem)
        self.compiled = isinstance(self.real, Compiled)
        self.budget = settings.budget or (200_000_000 if self.compiled else 500_000)
        self.spend = int(0.85 * self.budget)  # the rest is for judging what the last round finds
        if isinstance(self.real, Foreign):
            self.real.most_steps = self.budget // 5
            if problem.source.limit is None:
                self.real.cap = self.real.limit = int(np.clip(self.budget // 20, SHORTEST, self.real.limit))
        self.time_limit = problem.source.limit  # None: not known
        self.seed = problem.seeds("tpi")["tpi"]
        self.menu = LeafActions(self.actions)
        first = self.menu.random(np.random.default_rng(self.seed)) if self.menu.all is None else self.menu.all[0]
        self.blank = Tree.leaf(first, self.features, self.actions)
        self.leaves = settings.max_leaves or MOST_LEAVES
        self.deepest = LAST_DEPTH if problem.max_depth is None else problem.max_depth
        self.deepest = min(self.deepest, self.leaves - 1)
        self.depth = min(FIRST_DEPTH, self.deepest)
        self.cuts = settings.cuts or {1: 4000, 2: 40}.get(self.features.n, 15)
        grid = Grid(problem)
        self.sim = self.real
        known_soon = grid.possible and (self.compiled or VISITS * grid.n_states * grid.n_actions <= self.budget)
        self.table = Expert(problem, grid) if known_soon else None
        self.model = (
            LearnedModel(problem, grid, self.real)
            if self.table is not None and isinstance(self.real, Foreign)
            else None
        )
        self.expert: Any = None  # what to begin from
        self.advised, self.as_advised = problem, lambda tree: tree  # where it acts; what trees from there are here
        self.surveyed = False
        self.present, self.best = self.blank, self.blank
        self.value, self.number, self.stale, self.message = -np.inf, 0, 0, ""
        self.hard = np.zeros(0, dtype=np.int64)  # episodes in which nearly perfect trees failed
        self.mended = 0  # steps that went into mending the best tree; all, when nothing is left to mend
        self.differ = False  # whether episodes of one tree return more or less
        self.sure = False  # whether the best tree was perfect in very many episodes
        self.seen: list[float] = []  # returns of the best tree in the environment itself, where a table is used

    # -- a round ----------------------------------------------------------------------------------------------------

    def round(self) -> Iterator[Snapshot]:
        """One round, starting from the present tree; yields on the way where steps take long."""
        rng = np.random.default_rng([self.seed, self.number])
        if self.number == 0 and not self.surveyed:
            survey(self)
        experience(self, rng)
        if self.number > 0:
            find_limit(self)
        elif self.sim is not self.real:
            self.sim.returns(self.blank, episode_seeds(self.seed, 4), 1.0)  # how long episodes are in the table
        yield from self.under_way()
        if self.stale == 2 and self.depth < self.deepest:
            self.depth, self.present = self.depth + 1, self.best  # nothing better of this depth: allow one more
        seeds = self.episodes(rng)
        trees, x = [self.present], np.zeros((0, self.features.n))
        if self.sure:  # a perfect tree: would fewer leaves do?
            self.leaves = (self.best.n_leaves + 2) // 2 if self.stale < SHRINKS // 2 else self.best.n_leaves - 1
            self.depth = min(self.depth, self.leaves - 1)
            if self.stale % 2 == 0 or self.present.n_leaves > self.leaves:  # else the last round's tree goes on
                less = sorted(trees_without_one_split(self.best), key=lambda tree: -self.run(tree, seeds).mean)
                trees, x = first_trees(self, rng, seeds)
                trees += less[: STARTS // 2]
        elif self.number == 0 or (self.stale > 2 and self.stale % 2 == 1) or (self.stale == 1 and len(self.hard)):
            trees, x = first_trees(self, rng, seeds)
        now = self.run(trees[0], seeds)
        yield from self.under_way(now)
        self.depth = max(self.depth, now.tree.depth)
        if self.sim.values_actions and self.going and not self.perfect(now.mean):
            x, q, tried = self.valued(now.tree, rng)
            for other in self.fits(now.tree, x, q, tried):
                if self.going:
                    now = self.compared(other, now)
        yield from self.under_way(now)
        some = [now, *(self.run(tree, seeds) for tree in trees[1:] if self.going)]
        if len(some) > 1:
            some = [self.polished(one, rng, x, self.changes // (4 * STARTS)) for one in some]
            yield from self.under_way(max(some, key=lambda one: one.mean))
        now = self.polished(max(some, key=lambda one: one.mean), rng, x, self.changes)
        yield from self.under_way(now)
        self.present = now.tree
        self.judge(now, rng)
        self.number += 1
        check(self, rng)
        self.finish()

    def run(self, tree: Tree, seeds: np.ndarray) -> Candidate:
        """A tree with its returns."""
        return Candidate(tree, seeds, self.sim.returns(tree, seeds), np.zeros(len(seeds), np.int64))

    def valued(self, tree: Tree, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """States that a tree meets, what actions are worth there, and which."""
        tried = self.menu.tried(rng, tree)
        chance, count = int(rng.integers(2**31)), self.states(len(tried))
        return *self.sim.action_values(tree, chance, count, self.settings.noise, tried), tried

    @property
    def going(self) -> bool:
        """Whether there is budget left to search with."""
        return self.real.steps < self.spend

    @property
    def compare_on(self) -> int:
        """How many episodes to compare trees on."""
        length = max(1.0, self.sim.length)
        if self.time_limit is not None:
            length = np.sqrt(length * self.time_limit)  # better trees may last longer
        if isinstance(self.sim, Compiled):
            work = COMPARISON if self.sim is self.real else COMPARISON // 3
            count = int(np.clip(work / length, 64, 1000))
            if self.sim is self.real:
                count = max(4, min(count, int(self.budget / length / 300)))
        else:
            count = int(np.clip(self.budget / length / 400, 4, 200))
        return self.settings.episodes or count

    def episodes(self, rng: np.random.Generator, times: int = 1) -> np.ndarray:
        """Seeds of fresh episodes to compare trees on; some of those that were hard before are among the first."""
        if isinstance(self.sim, Exact):
            return episode_seeds(int(rng.integers(2**31)), 4)  # all alike
        seeds = episode_seeds(int(rng.integers(2**31)), self.compare_on * times)
        return np.concatenate([self.hard, seeds]) if times == 1 else seeds

    def states(self, tried: int) -> int:
        """How many states to value actions in."""
        most = {1: 40_000, 2: 5000}.get(self.features.n, 1500) if isinstance(self.sim, Compiled) else 300
        budget = (100_000_000 if self.sim is not self.real else self.budget) / (25 if self.features.n > 1 else 10)
        return self.settings.states or int(np.clip(budget / (tried * max(4.0, self.sim.length)), 20, most))

    # -- fitting and polishing ------------------------------------------------------------------------------------

    def fits(self, tree: Tree, x: np.ndarray, q: np.ndarray, tried: np.ndarray) -> Iterator[Tree]:
        """The best tree for the measured values, and the present one with one branch refitted."""
        if len(finite(x, self.features)) < 2:
            return
        q = q - q.max(axis=1, keepdims=True)
        price = -self.settings.zeta * float(-q.min(axis=1).mean())
        numbers = Actions("discrete", tuple(str(k) for k in range(len(tried))))

        def best(inside: np.ndarray | slice, depth: int, leaves: int) -> Shape:
            fitted = fit_tree(
                x[inside], q[inside], self.features, numbers, max_depth=depth, price=price, cuts=self.cuts,
                max_leaves=leaves if self.leaves < MOST_LEAVES else None,
            )  # fmt: skip
            return with_actions(shape_of(fitted.tree), tried)

        for depth in sorted({self.depth, max(0, self.depth - 1)}):
            yield tree_of(best(slice(None), depth, self.leaves), self.blank)
        shape, where = shape_of(tree), tree.apply(x)
        for path in [path for path in paths(shape) if path]:
            below = leaves_below(tree, path)
            inside = np.isin(where, below)
            if inside.sum() >= 10:
                room = self.leaves - tree.n_leaves + len(below)
                yield tree_of(replace_part(shape, path, best(inside, self.depth - len(path), room)), self.blank)

    def compared(self, tree: Tree, now: Candidate) -> Candidate:
        """The better of two on the same episodes; after each few it must still look like the better one."""
        count, failing = len(now.seeds), self.failing(now)
        first, few = max(4, min(count, 500) // 5), failing or 2
        ends = [few, *(first * 4**k for k in range(9) if few < first * 4**k < count), count]
        order = now.hardest_first(self.ceiling) if failing else np.arange(count)
        returns = np.zeros(count)
        for k, end in enumerate(ends):
            done = order[:end]
            new = order[ends[k - 1] if k else 0 : end]
            returns[new] = self.sim.returns(tree, now.seeds[new])
            now.failed[new] += returns[new] < self.ceiling
            gain = float((returns[done] - now.returns[done]).mean())
            worse = gain < -SAME * now.size
            if k == 0 and failing:
                worse = worse or (gain <= 0 and tree.n_leaves >= now.tree.n_leaves)
            elif k == 0:
                worse = returns[new].max() < now.returns.min()  # two episodes only
            if worse:
                return now
        other = Candidate(tree, now.seeds, returns, now.failed)
        return other if other.beats(now) else now

    def failing(self, now: Candidate) -> int:
        """In how many episodes a tree fails that is perfect in most; 0 for any other."""
        count = int((now.returns < self.ceiling).sum())
        return count if self.perfect(float(now.returns.max())) and count <= len(now.returns) // 5 else 0

    @property
    def changes(self) -> int:
        """Small changes tried in a round."""
        quick = isinstance(self.sim, Compiled) and not self.sim.slow
        return self.settings.polish or (60 if not quick else 300 if self.features.n > 1 else 100)

    def polished(self, now: Candidate, rng: np.random.Generator, x: np.ndarray, changes: int) -> Candidate:
        """Small changes, kept if the true return rises."""
        x = states_or_random(x, self.features, rng)
        spread = np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
        shape, depth = shape_of(now.tree), max(self.depth, now.tree.depth)
        work, whole = 0.0, max(1.0, self.sim.length) * len(now.seeds)
        while work < changes and self.going:
            now = harder(self, now, rng)
            if self.perfect(now.mean):
                break
            changed = mutate_shape(shape, rng, x, spread, self.menu, depth, self.leaves)
            if rng.random() < 0.3:
                changed = mutate_shape(changed, rng, x, spread, self.menu, depth, self.leaves)
            before = self.sim.steps
            after = self.compared(tree_of(changed, self.blank), now)
            if after is not now:
                now, shape = after, changed
            # Where few episodes can reject a change it costs little: more of them are tried.
            work += max(CHEAP, (self.sim.steps - before) / whole) if self.failing(now) else 1.0
        return now

    # -- judging ----------------------------------------------------------------------------------------------------

    def judge(self, now: Candidate, rng: np.random.Generator) -> None:
        """Keep the tree if it beats the best one on episodes neither was chosen on."""
        tree = simplify(now.tree)
        if self.sure:  # nothing but a perfect tree with fewer leaves replaces what is perfect
            better = tree.n_leaves < self.best.n_leaves and confirmed(self, tree)
            hope = float((now.returns >= self.ceiling).mean()) > HOPE
            waited = self.stale + (1 if hope else SHRINKS // 3)  # far from it: soon over
            self.best, self.stale = (tree, 0) if better else (self.best, waited)
            return
        times = 8 if len(self.hard) == 0 else max(16, many(self) // self.compare_on)  # rare failures show in many only
        if self.sim is self.real:  # two trees in the steps that are kept for this
            room = (self.budget - self.spend) / (2 * self.compare_on * max(1.0, self.sim.length))
            times = int(np.clip(room, 2, times))
        seeds = self.episodes(rng, times)
        best = self.run(self.best, seeds)
        self.differ = self.differ or bool(best.returns.std() > 0)
        small = self.smaller(self.compared(tree, best))
        leaner = self.exact and small.tree.n_leaves < best.tree.n_leaves and self.hardly_worse(small, best)
        better = small.tree is not best.tree and (small.clearly_beats(best) or leaner or self.number == 0)
        gain = small.mean - best.mean
        self.stale = 0 if better and (not self.exact or gain > 10 * WORTH * abs(best.mean)) else self.stale + 1
        self.best, self.value = (small.tree, small.mean) if better else (best.tree, best.mean)
        self.seen = [] if better else self.seen

    def smaller(self, now: Candidate) -> Candidate:
        """Drop questions that the return does not need; first those with an answer that was never given."""
        if isinstance(self.sim, Foreign) and self.sim.tree is now.tree:
            now = replace(now, tree=prune_unvisited(now.tree, np.array(self.sim.met)).tree)
        at, shape = 0, shape_of(now.tree)
        while at < len(paths(shape)) and self.real.steps < self.budget:
            path = paths(shape)[at]
            part = subshape(shape, path)
            for child in part[LEFT:] if isinstance(part, Split) else ():
                tree = tree_of(replace_part(shape, path, child), self.blank)
                other = self.run(tree, now.seeds) if self.exact else self.compared(tree, now)
                if other is not now and self.hardly_worse(other, now):
                    now, shape = other, shape_of(other.tree)
                    break
            else:
                at += 1
        return now

    @property
    def exact(self) -> bool:
        """Whether returns are worked out, not sampled, so that any difference shows."""
        return isinstance(self.sim, Exact)

    def hardly_worse(self, small: Candidate, now: Candidate) -> bool:
        """Whether a smaller tree is as good; where returns are exact, but for a ten-thousandth."""
        return small.mean >= now.mean - (WORTH * abs(now.mean) if self.exact else 0.0)

    @property
    def patience(self) -> int:
        """Rounds without a better tree after which the run ends."""
        usual = 3 if self.features.n == 1 else 10 if self.compiled and self.differ else 6
        return self.settings.patience or usual

    def finish(self) -> None:
        """Decide whether to go on."""
        nearly = self.sim.most_a_step > 0 and self.value >= self.ceiling * (1.0 - NEARLY)
        self.sure = self.sure or (nearly and confirmed(self, self.best))
        over = self.stale >= SHRINKS and not mending(self)
        if self.sure and (over or not self.going or self.best.n_leaves == 1):
            self.message = "all but a few steps in ten thousand earn the most a step has earned"
        elif self.stale >= self.patience and not self.sure:
            self.message = f"no better tree in {self.stale} rounds"
        elif not self.going:
            self.message = "budget used"

    @property
    def ceiling(self) -> float:
        """What an episode returns that lasts as long as it may and earns the most ever seen at every step."""
        return self.sim.most_a_step * self.sim.limit

    def perfect(self, mean: float) -> bool:
        """Whether every episode with this mean was such an episode."""
        return self.sim.most_a_step > 0 and mean >= self.ceiling * (1.0 - 1e-9)

    # -- stopping and going on --------------------------------------------------------------------------------------

    def under_way(self, now: Candidate | None = None) -> Iterator[Snapshot]:
        """Where a round stands that is not over, if rounds take long: in the first, with the best tree of so far."""
        if self.compiled:
            return
        tree, value = (simplify(now.tree), now.mean) if now is not None else (None, np.nan)
        if self.number > 0:
            tree, value = self.best, self.value
        tree = tree and centre_integer_thresholds(tree)
        yield Snapshot(self.real.steps, tree, value, self.budget, {"round": float(self.number)})

    def snapshot(self) -> Snapshot:
        """Where the search stands."""
        metrics = {"round": float(self.number), "stale": float(self.stale), "leaves": float(self.best.n_leaves)}
        state = state_of(self)  # as it is now, also if the next round is broken off
        return Snapshot(
            self.real.steps,
            centre_integer_thresholds(self.best),
            self.value,
            self.budget,
            metrics,
            message=self.message,
            state=lambda: state,
        )
