"""CUSTARD (MFEC): episodic control with a table over bounds that is the tree, and an omniscient table that teaches it.

Two tables, as in the paper's section "Training Procedure" and its appendix:

* Q(o, a) over bounds o = s_w \\ s_b and all actions of the IBMDP (`bounds_table`). It is the
  policy, and it never sees a base state.
* Q_o(s_w, a), omniscient. The value of a base action does not depend on the bounds, so it is kept by base state s_b;
  the value of a question is had by walking the greedy tree from its answer: zeta a question, then Q_o at the leaf.

What happens in an episode is in `episodes`. Here is what happens around it: learning goes in cycles.
Each begins with an empty Q and ends with a tree that is judged on rollouts; the best tree is kept.

`docs/mfec.md` explains each setting, `docs/deviations.md` lists what differs from the paper. The preset "paper" is the
appendix as written (`custard.solvers.mfec.paper`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from custard.core.errors import require_least, require_shares
from custard.core.features import Features
from custard.envs.pcg64 import uniform
from custard.ibmdp.splits import Rules
from custard.solvers.common.bounds_survey import completed, default_splits, survey, taken_over
from custard.solvers.common.mutations import mutate_shape, shift_threshold
from custard.solvers.common.selection import Selection
from custard.solvers.mfec import episodes
from custard.solvers.mfec.bounds_table import TablePolicy, make_lattice
from custard.solvers.mfec.loops import loop
from custard.solvers.mfec.memory import (
    ACTIONS,
    ALL,
    ALPHA_B,
    ALPHA_O,
    EPISODES,
    EPSILON,
    EXPAND,
    FIRST,
    GAMMA_B,
    GUIDED,
    HITS,
    KAPPA,
    LAMBDA,
    LEARNING,
    MISSES,
    MU,
    RETURNS,
    REWARDS,
    SHARE,
    STRETCH,
    VISITS,
    ZETA,
    Memory,
    load,
    make_memory,
    new_cycle,
    save,
)
from custard.solvers.mfec.paper import solve_as_written
from custard.task.problem import Problem, Snapshot
from custard.tree.extract import extract
from custard.tree.leaf_actions import LeafActions
from custard.tree.shape import shape_of, tree_of
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "solve"]


@dataclass(frozen=True)
class Settings:
    """Settings of CUSTARD (MFEC). The defaults are the preset "tuned" and are meant for any environment."""

    budget: int | None = None  # environment steps, judging included; None: 10 or 20 million, a tenth where Python steps
    splits: int | None = None  # p, thresholds a feature; None: see `default_splits`
    zeta: float | None = None  # the reward of a question; None: see `price`
    gamma_b: float | None = None  # discount of a base action; None: 1 where only terminations end episodes, else 0.99
    gamma_w: float = 1.0  # discount of a question
    alpha_b: float = 0.0  # least learning rate of Q
    alpha_o: float = 0.02  # least learning rate of Q_o
    kappa: float = 4.0  # the rate at the n-th visit is kappa / (n - 1 + kappa), until the least is reached; 0: constant
    trace: float = 1.0  # lambda in cycles of the kinds 1 and 2: how much what really followed counts
    recall: bool = True  # in the other kinds Q_o is brought up to date with the outcomes remembered; False: never
    k: int = 5  # neighbours that stand in for a base state never seen
    cells: int = 4096  # base states with real features are told apart on a grid of about this many cells
    epsilon: float | None = None  # share of random questions at a cycle's end, all at first; None: 0.1, limited 0.5
    stretch: int = 128  # visits for which a node tries the same random question
    explore: float = 0.2  # share of episodes that explore
    expand: int = 16  # states an answer must have seen before it becomes a node
    cycle: int = 20_000  # environment steps of the first cycle; every second one is twice as long
    samples: int = 64  # trees drawn near the greedy one at a cycle's end, to be judged beside it
    changes: int = 512  # the best tree a little changed, at a cycle's end: how often at most
    patience: int = 4  # cycles without a better tree before stopping
    capacity: int = 50_000  # nodes, and base states, kept at most
    all_actions: bool = True  # learn every action of a node at every visit, not only the one taken
    shared: bool = True  # keep Q_o of base actions by base state; False: both tables as the paper writes them
    guided: bool = True  # follow the best tree so far in cycles of the kinds 1 and 3
    keep: bool = True  # hand back the best tree judged; False: the last one
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: nothing does
    mask: bool = True  # ask nothing whose answer is known; False: such questions are only paid for
    low: Any = None  # bounds of the features, where the environment's own do not suit
    high: Any = None

    def __post_init__(self) -> None:
        require_least(self, 1, "k", "cells", "stretch", "expand", "cycle", "patience", "capacity")
        require_least(self, 0, "kappa", "samples", "changes")
        require_shares(self, "alpha_b", "alpha_o", "trace", "epsilon", "explore")


_CARTPOLE = {"splits": 10, "gamma_b": 0.99, "k": 9, "alpha_b": 0.01, "alpha_o": 0.3, "budget": 2_000_000,
             "bootstrap_at_limit": False, "low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4]}  # fmt: skip

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {"CartPole": {"budget": 60_000_000}},  # its steps are quick, and good trees are few
    "paper": {
        "": {"splits": 3, "zeta": -0.01, "gamma_b": 1.0, "k": 9, "alpha_b": 0.01, "alpha_o": 0.3, "kappa": 0.0,
             "epsilon": 0.05, "capacity": 500_000, "trace": 0.0, "samples": 0, "changes": 0, "all_actions": False,
             "shared": False, "guided": False, "keep": False},
        "CartPole": _CARTPOLE,
        "PrereqWorld": {"splits": 1, "gamma_b": 1.0, "k": 9, "alpha_b": 0.1, "alpha_o": 0.7},
        "PotholeWorld": {"splits": 10, "gamma_b": 1.0, "k": 2, "alpha_b": 0.01, "alpha_o": 0.3, "budget": 5_000_000},
    },
}  # fmt: skip

NATIVE_BUDGET, FOREIGN_BUDGET = 10_000_000, 1_000_000
LEARNING_SHARE = 0.95  # of the budget: when so much is used, the last trees are drawn and judged
NOISE = 0.4  # of the trees drawn, in units of the spread of a node's values; a half, a quarter, an eighth of it
STEPS, CYCLE, DONE, JUDGED, FOUND, WAITED, IMPROVED, KIND, STALE = range(9)  # entries of `Learner.at`


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn in cycles; yields the best tree so far after each judgement."""
    problem.require_discrete_actions("mfec")
    usual = NATIVE_BUDGET if problem.native else FOREIGN_BUDGET
    if default_splits(problem.base.features, problem.max_depth) > default_splits(problem.base.features):
        usual *= 2  # finer thresholds, more to tell apart
    budget = settings.budget or usual
    settings = replace(settings, budget=budget)
    if not settings.shared:
        features, surveyed = completed(problem, budget)
        yield from solve_as_written(problem, rules_for(problem, settings, features), settings, surveyed, state)
        return
    learner = Learner(problem, settings, state)
    while not learner.message:
        if learner.advance():
            yield learner.snapshot()


def rules_for(problem: Problem, s: Settings, features: Features) -> Rules:
    """The IBMDP with these bounds."""
    gamma_b = problem.gamma_b if s.gamma_b is None else s.gamma_b
    splits, zeta = s.splits or default_splits(features, problem.max_depth), -0.01 if s.zeta is None else s.zeta
    return Rules(features, problem.base.actions, splits, zeta, gamma_b, s.gamma_w, problem.max_depth, s.mask)


class Learner:
    """One run: what is remembered, the environment, the selection, and where in the cycles it stands."""

    def __init__(self, problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> None:
        self.problem, self.settings = problem, settings
        self.budget = settings.budget or NATIVE_BUDGET
        seeds = problem.seeds("learner", "environment", "bounds", "draws")
        self.draws = seeds["draws"]
        features = problem.base.features
        real = ~features.integer
        seen, surveyed = survey(problem, seeds["bounds"], self.budget)
        missing = features.unbounded
        self.free = real & (features.origin.get("bounds") != "given")  # features whose bounds are ours to choose
        origin = (
            {"bounds": "drawn around the states seen", "seed": problem.seed} if self.free.any() else features.origin
        )
        self.widest = replace(taken_over(features, seen, missing), origin=origin)
        low, high = self.widest.low, self.widest.high
        self.rules = rules_for(problem, settings, self.widest)
        self.bounds = np.stack([low, high])
        # Real features are told apart on a grid over where they were seen (over the declared range, if that is of the
        # same order: random actions may see little of it); whole numbers exactly.
        span = np.where(seen.high > seen.low, seen.high - seen.low, 1.0)
        span = np.where((high - low > span) & (high - low <= 4.0 * span), high - low, span)
        width = span / max(16.0, np.ceil(settings.cells ** (1.0 / max(1, real.sum()))))
        grid = np.where(real, np.stack([seen.low, width]), 0.0)
        scale = np.where(real, span, self.rules.width)
        self.memory = make_memory(self.rules, grid, scale, settings.capacity, seeds["learner"])
        self.env: Any = loop(problem, seeds["environment"], episodes.run_native, episodes.turn, settings)
        # A depth limit keeps trees small by itself: there only the return counts.
        margin = 1.0 if problem.max_depth is None else 0.0
        most = int(np.clip(self.budget // 1000, 32, 512))
        self.selection = Selection(problem, most, margin=margin, budget=self.budget)
        self.at = np.zeros(9, dtype=np.int64)
        self.at[STEPS] = surveyed + problem.looked
        self.final: Tree | None = None
        self.final_value, self.message = float("nan"), ""
        self.scores = np.full(4, np.inf)  # what the last tree of each kind of cycle returned
        self.begun = np.zeros(self.rules.n_actions, dtype=bool)  # questions that cycles began with
        self.clock, self.learned = time.perf_counter(), 0
        if state is None:
            self._begin_cycle()
        else:
            self._restore(state)

    # -- cycles -----------------------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Environment steps of the present cycle: more and more, under a depth limit while there can be many cycles."""
        steps = int(self.settings.cycle * 2 ** (self.at[CYCLE] / 2))
        return steps if self.problem.max_depth is None else min(steps, max(self.settings.cycle, self.budget // 20))

    def _begin_cycle(self) -> None:
        best, cycle = self.selection.best, int(self.at[CYCLE])
        if cycle and self.free.any():
            self._choose_bounds()
        guide = best.small if best is not None and self.settings.guided and self.at[KIND] % 2 == 1 else None
        self.memory = new_cycle(self.memory, self.rules, guide)
        self.memory.count[FIRST] = self._first_question(cycle)
        self.at[[DONE, JUDGED]], self.at[STALE] = 0, self.settings.capacity
        self.at[IMPROVED] = self.selection.improved

    def _first_question(self, cycle: int) -> int:
        """The question that all descents of a cycle begin with; 0, a base action, if they are free to choose.

        Under a depth limit a question looks worse than it is while little is known of what lies behind it, and the
        first one matters most. So every second cycle belongs to one that had none yet, in the order of their values.
        """
        if self.problem.max_depth is None or cycle < len(self.scores) or cycle % 2:
            return 0
        q = np.where(self.begun, -np.inf, self.memory.nodes.q[0])
        q[: self.rules.n_base] = -np.inf
        best = int(np.argmax(q))
        self.begun[best] = True
        return best if np.isfinite(q[best]) else 0

    def _use_bounds(self) -> None:
        features = replace(self.widest, low=self.bounds[0], high=self.bounds[1])
        self.rules = rules_for(self.problem, self.settings, features)

    def _choose_bounds(self) -> None:
        """Bounds of real features, between the widest ones and where the last tree's states were: anew each cycle.

        Thresholds are fractions of the bounds, so other bounds offer other thresholds.
        """
        count, total, squares = self.memory.moments
        count = np.maximum(count, 1.0)
        mean = total / count
        spread = 3.0 * np.sqrt(np.maximum(squares / count - mean * mean, 0.0))
        wide = np.stack([self.widest.low, self.widest.high])
        close = np.stack([np.maximum(mean - spread, wide[0]), np.minimum(mean + spread, wide[1])])
        share = uniform(self.memory.rng, 0.0, 1.0)
        usable = self.free & (close[1] > close[0]) & (count > 100)
        self.bounds = np.where(usable, close + share * (wide - close), wide)
        self._use_bounds()

    def advance(self) -> bool:
        """Learn for a fortieth of a cycle; whether a tree was judged."""
        at, length = self.at, self.length
        tau = at[DONE] / length
        schedule(self.memory, self.settings, tau, int(at[CYCLE]), int(at[KIND]), self.rules.gamma_b)
        used = self.env.run(self.memory, max(1, min(length // 40, length - int(at[DONE]))), self.settings.k)
        at[[DONE, STEPS, STALE]] += used
        size = int(self.memory.states.size[0])
        if at[STALE] >= size:  # so refreshing costs a fixed share however many base states there are
            at[STALE] = 0
            episodes.refresh(self.memory, np.argsort(-self.memory.when[:size], kind="stable"))
        self.learned += used
        end = bool(at[DONE] >= length or at[STEPS] >= LEARNING_SHARE * self.budget)
        if not end and not (tau > 0.4 and tau * 10 > at[JUDGED]):
            return False
        at[JUDGED] = int(tau * 10) + 1
        self._judge()
        if end:
            self._draw()
            self._end_cycle()
            self._change()
            if not self.message:
                self._begin_cycle()
        return True

    def _judge(self) -> None:
        spent = self.selection.steps
        self.final = extract(TablePolicy(self.memory.nodes, self.rules), self.rules)
        if self.settings.keep:
            self.selection.show(self.final)
        else:
            self.selection.replace(self.final)
        self.final_value = self.selection.last
        self.at[STEPS] += self.selection.steps - spent

    def _draw(self) -> None:
        """Judge trees that look nearly as good as the greedy one, while judging takes a quarter of all steps."""
        rng = np.random.default_rng([self.draws, int(self.at[CYCLE])])
        for i in range(self.settings.samples if self.settings.keep else 0):
            if 4 * self.selection.steps > self.at[STEPS] or self.at[STEPS] >= self.budget:
                break
            noise = NOISE * 2.0 ** -(i % 4)
            self._show(extract(TablePolicy(self.memory.nodes, self.rules, noise, rng), self.rules))

    def _change(self) -> None:
        """Judge the best tree with a small change, while judging takes half of all steps.

        The best place of a threshold may lie between the p ones. Under a depth limit, where every question counts,
        questions are also put elsewhere, added and dropped.
        """
        rng = np.random.default_rng([self.draws, int(self.at[CYCLE])])
        gap = self.rules.width / (int(self.rules.splits) + 1)
        x, depth = self.memory.point[: int(self.memory.states.size[0])], self.problem.max_depth
        for i in range(self.settings.changes if self.settings.keep else 0):
            assert self.selection.best is not None
            best = self.selection.best.tree
            tree = shift_threshold(best, rng, gap * 2.0 ** -(i // 2 % 4))
            if depth is not None and i % 2:
                menu = LeafActions(best.actions)
                tree = tree_of(mutate_shape(shape_of(best), rng, x, gap, menu, depth, self.settings.capacity), best)
            if 2 * self.selection.steps > self.at[STEPS] or self.at[STEPS] >= self.budget:
                break
            if tree is not None:
                self._show(tree)

    def _show(self, tree: Tree) -> None:
        spent = self.selection.steps
        if not self.selection.challenge(tree):
            self.selection.show(tree)
        self.at[STEPS] += self.selection.steps - spent

    def _end_cycle(self) -> None:
        at, patience = self.at, self.settings.patience
        if self.selection.improved > at[IMPROVED]:
            at[WAITED], at[FOUND] = 0, at[STEPS]
        else:
            at[WAITED] += 1
        # The kind whose last tree was the best, then, until there is a better tree, the second best and so on.
        self.scores[at[KIND]] = self.final_value
        at[KIND] = np.argsort(-self.scores, kind="stable")[at[WAITED] % len(self.scores)]
        threshold = self.problem.source.threshold
        met = self.selection.surely_above(threshold)
        if met and not self.selection.varying:
            patience //= 2
        elif threshold is not None or self.problem.max_depth is not None:
            patience *= 3
        waited = at[WAITED] >= patience and self.selection.asks
        if waited and self.settings.keep and (met or at[STEPS] >= max(self.budget / 10, 1.25 * at[FOUND])):
            self.message = "reward threshold met, and no better tree since" if met else "no better tree for long"
        elif at[STEPS] >= LEARNING_SHARE * self.budget:
            self.message = "budget used"
        at[CYCLE] += 1

    # -- what others see --------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Where the run stands; everything in it is a copy."""
        best, memory, final = self.selection.best, self.memory, self.final
        assert best is not None
        assert final is not None
        now = time.perf_counter()
        looked_up = max(1, int(memory.count[HITS] + memory.count[MISSES]))
        metrics = {
            "cycle": float(self.at[CYCLE]), "kind": float(self.at[KIND]),
            "return": float(memory.now[RETURNS] / max(1, memory.count[EPISODES])),
            "tree_return": self.final_value, "depth": final.depth, "leaves": final.n_leaves,
            "best_depth": best.small.depth, "best_leaves_raw": best.tree.n_leaves, "best_leaves": best.small.n_leaves,
            "best_leaves_reached": best.reachable, "nodes": int(memory.nodes.keys.size[0]),
            "states": int(memory.states.size[0]), "hit_rate": memory.count[HITS] / looked_up,
            "unseen": memory.count[MISSES] / looked_up, "node_visits": int(memory.count[VISITS]),
            "traversal_limit": int(final.origin.get("cut", 0)), "steps_per_second": self.learned / (now - self.clock),
        }  # fmt: skip
        memory.now[RETURNS], memory.count[EPISODES] = 0.0, 0
        memory.count[[HITS, MISSES, VISITS]] = 0
        self.clock, self.learned = now, 0
        state = self._state()
        steps = int(self.at[STEPS])
        return Snapshot(steps, best.tree, best.mean, self.budget, metrics, final, self.message, lambda: state)

    def _state(self) -> dict[str, np.ndarray]:
        own = {"at": self.at, "bounds": self.bounds, "scores": self.scores, "begun": self.begun} | self.env.arrays()
        return {**save(self.memory), **self.selection.state()} | {name: array.copy() for name, array in own.items()}

    def _restore(self, state: dict[str, np.ndarray]) -> None:
        self.at[...], self.bounds, self.scores = state["at"], state["bounds"].copy(), state["scores"].copy()
        self.begun = state["begun"].copy()
        self._use_bounds()
        self.memory = load(self.memory, state)._replace(lattice=make_lattice(self.rules))
        self.selection.restore(state)
        for name, array in self.env.arrays().items():
            array[...] = state[name]


def schedule(memory: Memory, s: Settings, tau: float, cycle: int, kind: int, gamma_b: float) -> None:
    """Rates, exploration and the price of a question at the share tau of a cycle.

    At first the guide (or the best known action) is followed, then more and more the tree itself. Questions are free
    at first, so that a tree can grow whose parts pay only together; then their price rises to zeta.
    """
    now, count = memory.now, memory.count
    warm = 0.2 if cycle == 0 else 0.02
    count[LEARNING], count[ALL], count[STRETCH] = tau >= warm, s.all_actions, max(1, s.stretch)
    now[SHARE] = s.explore if tau >= warm else 1.0
    now[MU] = 1.0 if count[GUIDED] else min(1.0, max(0.0, (0.6 - tau) / (0.6 - warm)))
    now[ZETA] = price(memory, s) * min(1.0, max(0.0, (tau - 0.3) / 0.3))
    least = s.epsilon if s.epsilon is not None else (0.5 if memory.lattice.by_depth else 0.1)
    now[EPSILON] = least + (1.0 - least) * min(1.0, max(0.0, (0.7 - tau) / 0.6))
    now[KAPPA], now[ALPHA_B], now[ALPHA_O] = s.kappa, s.alpha_b, s.alpha_o
    now[EXPAND], now[GAMMA_B] = s.expand, gamma_b
    # What was remembered is exact where base states are told apart exactly and always up to date; what really followed
    # is right even where a grid cell hides what matters. Neither serves everywhere, so cycles differ in it.
    now[LAMBDA] = s.trace if kind in (1, 2) or not s.recall else 0.0


def price(memory: Memory, s: Settings) -> float:
    """The reward of a question: as set, or a hundredth of what a step brings or costs on average.

    Under a depth limit, which keeps trees small by itself, it is a tenth of that.
    """
    if s.zeta is not None:
        return s.zeta
    scale = memory.now[REWARDS] / max(1, memory.count[ACTIONS])
    return -(0.001 if memory.lattice.by_depth else 0.01) * float(scale)
