"""CUSTARD (MFEC): episodic control with a table over bounds that is the tree, and an omniscient table that teaches it.

Two tables, as in the paper's section "Training Procedure" and its appendix:

* Q(o, a) over bounds o = s_w \\ s_b and all actions of the IBMDP (`bounds_table`). It is the policy, and it never sees
  a base state.
* Q_o(s_w, a), omniscient. The value of a base action does not depend on the bounds, so it is kept by base state s_b;
  the value of a split is computed by following the greedy tree on the state's side: zeta for each split, then Q_o at
  the leaf.

`episodes` holds what happens in an episode. Here is what happens around it: learning goes in cycles. Each begins with
an empty Q and ends with a tree that is judged on rollouts; the best tree is kept.

`docs/explanation/mfec.md` explains each setting, `docs/explanation/deviations.md` lists what differs from the paper.
The preset "paper" is the appendix's own form, with settings of its own (`custard.solvers.mfec.paper`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from custard.core.errors import require_least, require_shares
from custard.core.features import Features
from custard.envs.pcg64 import uniform
from custard.ibmdp.kernels import compiled_rules
from custard.ibmdp.splits import Rules
from custard.solvers.common.bounds_survey import default_splits, draw_bounds, replace_bounds, survey_bounds
from custard.solvers.common.checkpoint import copy_arrays, restore_arrays
from custard.solvers.common.mutations import mutate_shape, shift_threshold
from custard.solvers.common.selection import Selection
from custard.solvers.mfec import episodes, paper
from custard.solvers.mfec.bounds_table import table_policy
from custard.solvers.mfec.paper import PaperSettings
from custard.solvers.mfec.runners import default_budget, run_episodes
from custard.solvers.mfec.tables import (
    CYCLE_KINDS,
    affordable_capacity,
    begin_cycle,
    grid_and_scale,
    load,
    make_tables,
    save,
    set_schedule,
)
from custard.task.problem import Problem, Snapshot
from custard.task.runners import make_episodes
from custard.tree.extract import extract
from custard.tree.leaf_actions import LeafActions
from custard.tree.shape import shape_of, tree_of
from custard.tree.tree import Tree

__all__ = ["PRESETS", "SETTINGS", "Learner", "Settings", "solve"]


@dataclass(frozen=True)
class Settings:
    """Settings of CUSTARD (MFEC). The defaults are the preset "tuned" and are meant for any environment."""

    budget: int | None = None  # environment steps, judging included; None: 10 or 20 million, a tenth where Python steps
    # p, thresholds per feature; None: as many as whole numbers need (at most 10), 7 for real features, up to 31 under a
    # small depth limit
    splits: int | None = None
    # the reward of a split; None: minus a hundredth of what a base action earns in the mean, a tenth of that under a
    # depth limit
    zeta: float | None = None
    gamma_b: float | None = None  # discount of a base action; None: 1 where only terminations end episodes, else 0.99
    gamma_w: float = 1.0  # discount of a split
    alpha_b: float = 0.0  # minimum learning rate of Q
    alpha_o: float = 0.02  # minimum learning rate of Q_o
    kappa: float = 4.0  # the rate at the n-th visit is kappa / (n - 1 + kappa), at least the minimum; 0: the minimum
    trace: float = 1.0  # lambda in the kinds of cycle that learn from what really followed
    remember_outcomes: bool = True  # the other kinds compute Q_o from remembered outcomes; False: no kind does
    k: int = 5  # neighbours that stand in for a base state never seen
    grid_cells: int = 4096  # base states with real features are told apart on a grid of about this many cells
    epsilon: float | None = None  # share of random splits at a cycle's end, 1 at first; None: 0.1, limited 0.5
    visits_per_random_split: int = 128  # visits for which a node tries the same random split
    exploring_share: float = 0.2  # share of episodes that explore
    min_states_per_node: int = 16  # states that a side of a split must have seen before it becomes a node
    first_cycle_steps: int = 20_000  # environment steps of the first cycle; every second one is twice as long
    sampled_trees: int = 64  # trees sampled near the greedy one at a cycle's end, to be judged beside it
    max_changes: int = 512  # small changes of the best tree to judge at a cycle's end, at most
    patience: int = 4  # cycles without a better tree before stopping
    capacity: int = 50_000  # nodes, and base states, kept at most
    all_actions: bool = True  # update every action of a node at every visit, not only the one taken
    follow_best_tree: bool = True  # follow the best tree so far in the kinds of cycle that have a guide
    keep_best: bool = True  # return the best tree judged; False: the last one
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: a time limit is a termination
    mask_useless: bool = True  # mask splits that separate nothing; False: they only cost zeta
    low: Any = None  # lower bounds of the features, where the environment's own do not suit
    high: Any = None  # upper bounds of the features

    def __post_init__(self) -> None:
        require_least(self, 1, "k", "grid_cells", "visits_per_random_split", "min_states_per_node")
        require_least(self, 1, "first_cycle_steps", "patience", "capacity")
        require_least(self, 0, "kappa", "sampled_trees", "max_changes")
        require_shares(self, "alpha_b", "alpha_o", "trace", "epsilon", "exploring_share")


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {"CartPole": {"budget": 60_000_000}},  # its steps are quick, and good trees are few
    "paper": paper.PRESET,
}
SETTINGS: dict[str, type] = {"paper": PaperSettings}


CALLS_PER_CYCLE = 40
CYCLES_BUDGET_SHARE = 0.95  # once so much is used, the last trees are sampled and judged
FIRST_JUDGING_CYCLE_SHARE = 0.4  # share of a cycle after which its tree is judged at every tenth
MAX_JUDGING_SHARE_TO_SAMPLE = 0.25  # of all steps that judging takes, above which no more trees are sampled
MAX_JUDGING_SHARE_TO_CHANGE = 0.5  # of all steps that judging takes, above which no more changes are judged
SAMPLED_TREE_NOISE = 0.4  # in units of the spread of a node's values; then a half, a quarter, an eighth of it


def solve(
    problem: Problem, settings: Settings | PaperSettings, state: dict[str, np.ndarray] | None = None
) -> Iterator[Snapshot]:
    """Learn in cycles (with `PaperSettings` as the appendix does); yields the best tree after each judgement."""
    problem.require_discrete_actions("mfec")
    settings = replace(settings, budget=settings.budget or default_budget(problem))
    if isinstance(settings, PaperSettings):
        yield from paper.solve(problem, settings, state)
        return
    learner = Learner(problem, settings, state)
    while not learner.message:
        if learner.advance():
            yield learner.snapshot()


@dataclass
class Progress:
    """Where a run stands; whole numbers only, so that a checkpoint is one array."""

    steps: int  # environment steps so far
    cycle: int = 0  # number of the present cycle,
    kind: int = 0  # its kind, an index of CYCLE_KINDS,
    cycle_steps: int = 0  # and its environment steps so far
    next_judged_tenth: int = 0  # of the present cycle
    steps_since_recompute: int = 0  # of the values of base states
    steps_at_best: int = 0  # when the best tree was found
    cycles_without_better: int = 0
    improvements: int = 0  # how often the best tree had been replaced when the cycle began


class Learner:
    """One run: its tables, its environment, the selection of trees, and where in the cycles it stands."""

    def __init__(self, problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> None:
        self.problem, self.settings = problem, settings
        self.budget = settings.budget or default_budget(problem)
        seeds = problem.seeds("learner", "environment", "bounds", "draws")
        self.sampling_seed = seeds["draws"]
        features = problem.base.features
        seen, surveyed = survey_bounds(problem, seeds["bounds"], self.budget)
        self.may_move_bounds = ~features.integer & (features.origin.get("bounds") != "given")  # [n]
        origin = features.origin
        if self.may_move_bounds.any():
            origin = {"bounds": "drawn around the states seen", "seed": problem.seed}
        self.widest = replace(replace_bounds(features, seen, features.unbounded), origin=origin)
        self.bounds = np.stack([self.widest.low, self.widest.high])
        self.rules = self._rules(self.widest)
        settings = self.settings = replace(settings, capacity=affordable_capacity(self.rules, settings.capacity))
        grid, scale = grid_and_scale(self.widest, seen, self.rules.width, settings.grid_cells)
        self.tables = make_tables(self.rules, grid, scale, settings.capacity, seeds["learner"])
        self.episodes = make_episodes(
            problem, seeds["environment"], max_steps=problem.episode_cap(self.budget),
            limit_terminates=not settings.bootstrap_at_limit,
        )  # fmt: skip
        # A depth limit keeps trees small by itself: there only the return counts.
        margin = 1.0 if problem.max_depth is None else 0.0
        max_episodes = int(np.clip(self.budget // 1000, 32, 512))
        self.selection = Selection(problem, max_episodes, margin=margin, budget=self.budget)
        self.progress = Progress(steps=surveyed + problem.probe_steps)
        self.final: Tree | None = None
        self.final_value, self.message = float("nan"), ""
        self.kind_values = np.full(len(CYCLE_KINDS), np.inf)  # the return of the last tree of each kind of cycle
        self.was_first_split = np.zeros(self.rules.n_actions, dtype=bool)  # splits that cycles began with
        self.clock, self.learning_steps = time.perf_counter(), 0  # at, and since, the last snapshot
        if state is None:
            self._begin_cycle()
        else:
            self._restore(state)

    def _rules(self, features: Features) -> Rules:
        """Return the rules of the IBMDP with these bounds."""
        s, problem = self.settings, self.problem
        return Rules(
            features=features,
            actions=problem.base.actions,
            splits=s.splits or default_splits(features, problem.max_depth),
            zeta=-0.01 if s.zeta is None else s.zeta,  # learning uses that of `split_reward`
            gamma_b=problem.default_gamma_b if s.gamma_b is None else s.gamma_b,
            gamma_w=s.gamma_w,
            max_depth=problem.max_depth,
            mask_useless=s.mask_useless,
        )

    # -- cycles -----------------------------------------------------------------------------------------------------

    @property
    def cycle_length(self) -> int:
        """Environment steps of the present cycle."""
        return self._length_of_cycle(self.progress.cycle)

    def _length_of_cycle(self, number: int) -> int:
        """Return the steps of a cycle: ever more, under a depth limit at most a twentieth of the budget."""
        first = self.settings.first_cycle_steps
        steps = int(first * 2 ** (number / 2))
        return steps if self.problem.max_depth is None else min(steps, max(first, self.budget // 20))

    def _begin_cycle(self) -> None:
        best, progress = self.selection.best, self.progress
        if progress.cycle and self.may_move_bounds.any():
            self._redraw_bounds()
        has_guide = self.settings.follow_best_tree and CYCLE_KINDS[progress.kind].has_guide
        guide = best.simplified if best is not None and has_guide else None
        self.tables = begin_cycle(self.tables, self.rules, guide)
        self.tables.schedule[0].first_split = self._first_split()
        progress.cycle_steps = progress.next_judged_tenth = 0
        progress.steps_since_recompute = self.settings.capacity
        progress.improvements = self.selection.n_improvements

    def _first_split(self) -> int:
        """Return the split that all descents of the cycle begin with; 0, a base action, if they are free to choose.

        Under a depth limit a split looks worse than it is while little is known of what lies below it, and the first
        one matters most. So every second cycle belongs to one that had none yet, in the order of their values.
        """
        cycle = self.progress.cycle
        if self.problem.max_depth is None or cycle < len(CYCLE_KINDS) or cycle % 2:
            return 0
        q = np.where(self.was_first_split, -np.inf, self.tables.bounds.q[0])
        q[: self.rules.n_base] = -np.inf
        best = int(np.argmax(q))
        self.was_first_split[best] = True
        return best if np.isfinite(q[best]) else 0

    def _redraw_bounds(self) -> None:
        """Draw bounds of real features between the widest ones and where the last tree's states were.

        Thresholds are fractions of the bounds, so other bounds offer other thresholds.
        """
        wide = np.stack([self.widest.low, self.widest.high])
        share = uniform(self.tables.rng, 0.0, 1.0)
        self._use_bounds(draw_bounds(wide, self.tables.moments, self.may_move_bounds, share))

    def _use_bounds(self, bounds: np.ndarray) -> None:
        self.bounds = bounds
        self.rules = self._rules(replace(self.widest, low=bounds[0], high=bounds[1]))

    def advance(self) -> bool:
        """Learn for a fortieth of a cycle; return whether a tree was judged."""
        progress, length, tables = self.progress, self.cycle_length, self.tables
        tau = progress.cycle_steps / length
        set_schedule(tables, self.settings, tau, progress.cycle, CYCLE_KINDS[progress.kind], self.rules.gamma_b)
        steps = max(1, min(length // CALLS_PER_CYCLE, length - progress.cycle_steps, self.budget - progress.steps))
        taken = self.run(steps)
        progress.cycle_steps += taken
        progress.steps += taken
        self.selection.spent = progress.steps - self.selection.steps
        progress.steps_since_recompute += taken
        self.learning_steps += taken
        n_states = int(tables.state_keys.size[0])
        if progress.steps_since_recompute >= n_states:  # so it costs a fixed share however many base states there are
            progress.steps_since_recompute = 0
            episodes.recompute_values(tables, np.argsort(-tables.state_step[:n_states], kind="stable"))
        is_end = progress.cycle_steps >= length or progress.steps >= CYCLES_BUDGET_SHARE * self.budget
        if not is_end and not (tau > FIRST_JUDGING_CYCLE_SHARE and tau * 10 > progress.next_judged_tenth):
            return False
        progress.next_judged_tenth = int(tau * 10) + 1
        self._judge_greedy_tree()
        if is_end:
            self._judge_sampled_trees()
            self._end_cycle()
            self._judge_changed_trees()
            if not self.message:
                self._begin_cycle()
        return True

    def run(self, steps: int) -> int:
        """Learn for a number of environment steps; return how many were taken."""
        compiled, turn = episodes.run_compiled, episodes.next_action
        return run_episodes(self.episodes, compiled, turn, self.tables, steps, self.settings.k)

    def _end_cycle(self) -> None:
        """Choose the kind of the next cycle, or set the message with which the run stops."""
        progress = self.progress
        if self.selection.n_improvements > progress.improvements:
            progress.cycles_without_better, progress.steps_at_best = 0, progress.steps
        else:
            progress.cycles_without_better += 1
        # The kind whose last tree was the best, then, until there is a better tree, the second best and so on.
        self.kind_values[progress.kind] = self.final_value
        ranking = np.argsort(-self.kind_values, kind="stable")
        progress.kind = int(ranking[progress.cycles_without_better % len(ranking)])
        meets_threshold = self.selection.clearly_reaches(self.problem.source.reward_threshold)
        has_waited = progress.cycles_without_better >= self._patience_in_cycles() and self.selection.best_has_splits
        if has_waited and self.settings.keep_best and (meets_threshold or progress.steps >= self._min_steps_to_give_up):
            met, not_met = "reward threshold met, and no better tree since", "no better tree for long"
            self.message = met if meets_threshold else not_met
        elif progress.steps >= CYCLES_BUDGET_SHARE * self.budget:
            self.message = "budget used"
        progress.cycle += 1

    def _patience_in_cycles(self) -> int:
        """Return how many cycles without a better tree end the run."""
        patience, threshold = self.settings.patience, self.problem.source.reward_threshold
        if self.selection.clearly_reaches(threshold) and not self.selection.best_varies:
            return patience // 2
        return 3 * patience if threshold is not None or self.problem.max_depth is not None else patience

    @property
    def _min_steps_to_give_up(self) -> float:
        """The steps before which only a tree that meets the threshold ends the run."""
        return max(self.budget / 10, 1.25 * self.progress.steps_at_best)

    def _end_without_progress(self) -> float | None:
        """Return the steps at which the run ends without a better tree, if judging takes the share that it took."""
        progress, selection = self.progress, self.selection
        if progress.cycle == 0 or not selection.best_has_splits or not self.settings.keep_best:
            return None
        is_better = selection.n_improvements > progress.improvements  # in this cycle
        patience = self._patience_in_cycles()
        cycles = 1 + patience if is_better else max(1, patience - progress.cycles_without_better)
        begun = progress.steps - progress.cycle_steps
        lengths = [self._length_of_cycle(number) for number in range(progress.cycle + cycles)]
        end = begun * sum(lengths) / sum(lengths[: progress.cycle])
        meets_threshold = selection.clearly_reaches(self.problem.source.reward_threshold)
        return end if meets_threshold else max(end, self._min_steps_to_give_up)

    # -- judging trees ----------------------------------------------------------------------------------------------

    def _judge_greedy_tree(self) -> None:
        steps_before = self.selection.steps
        self.final = extract(table_policy(self.tables.bounds, self.rules), self.rules)
        self.selection.judge(self.final, self.settings.keep_best)
        self.final_value = self.selection.last_mean
        self.progress.steps += self.selection.steps - steps_before

    def _judge_sampled_trees(self) -> None:
        """Judge trees that look nearly as good as the greedy one, while judging takes at most a quarter of steps."""
        rng = np.random.default_rng([self.sampling_seed, self.progress.cycle])
        for i in range(self.settings.sampled_trees if self.settings.keep_best else 0):
            if not self._has_steps_for_judging(MAX_JUDGING_SHARE_TO_SAMPLE):
                break
            noise = SAMPLED_TREE_NOISE * 2.0 ** -(i % 4)
            self._judge(extract(table_policy(self.tables.bounds, self.rules, noise, rng), self.rules))

    def _judge_changed_trees(self) -> None:
        """Judge the best tree with a small change, while judging takes at most half of all steps.

        The best place of a threshold may lie between the p ones. Under a depth limit, where every split counts, splits
        are also replaced, added and dropped.
        """
        rng = np.random.default_rng([self.sampling_seed, self.progress.cycle])
        gap = self.rules.width / (int(self.rules.splits) + 1)
        max_depth, x = self.problem.max_depth, self.tables.state_x[: int(self.tables.state_keys.size[0])]
        for i in range(self.settings.max_changes if self.settings.keep_best else 0):
            assert self.selection.best is not None
            best = self.selection.best.tree
            tree = shift_threshold(best, rng, gap * 2.0 ** -(i // 2 % 4))
            if max_depth is not None and i % 2:
                leaf_actions, max_nodes = LeafActions(best.actions), self.settings.capacity
                tree = tree_of(mutate_shape(shape_of(best), rng, x, gap, leaf_actions, max_depth, max_nodes), best)
            if not self._has_steps_for_judging(MAX_JUDGING_SHARE_TO_CHANGE):
                break
            if tree is not None:
                self._judge(tree)

    def _has_steps_for_judging(self, max_judging_share: float) -> bool:
        """Return whether the budget allows another judgement, and judging has not taken more than its share."""
        steps = self.progress.steps
        return self.selection.steps <= max_judging_share * steps and steps < self.budget

    def _judge(self, tree: Tree) -> None:
        steps_before = self.selection.steps
        if not self.selection.challenge(tree):
            self.selection.consider(tree)
        self.progress.steps += self.selection.steps - steps_before

    # -- snapshots --------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return where the run stands; everything in it is a copy."""
        best, tables, final, progress = self.selection.best, self.tables, self.final, self.progress
        assert best is not None
        assert final is not None
        seconds, counters = time.perf_counter(), tables.counters[0]
        lookups = max(1, int(counters.hits + counters.misses))
        metrics = {
            "cycle": float(progress.cycle), "kind": float(progress.kind),
            "return": float(counters.followed_returns / max(1, counters.followed_episodes)),
            "tree_return": self.final_value, "depth": final.depth, "leaves": final.n_leaves,
            "best_depth": best.simplified.depth, "best_leaves_raw": best.tree.n_leaves,
            "best_leaves": best.simplified.n_leaves, "best_leaves_reached": best.n_reached_leaves,
            "nodes": int(tables.bounds.keys.size[0]),
            "states": int(tables.state_keys.size[0]), "hit_rate": counters.hits / lookups,
            "unseen": counters.misses / lookups, "node_visits": int(counters.node_visits),
            "traversal_limit": int(final.origin.get("cut", 0)),
            "steps_per_second": self.learning_steps / (seconds - self.clock),
        }  # fmt: skip
        for name in ("followed_returns", "followed_episodes", "hits", "misses", "node_visits"):
            counters[name] = 0
        self.clock, self.learning_steps = seconds, 0
        value, end_without_progress = self.selection.show(is_last=bool(self.message)), self._end_without_progress()
        state, shown_steps = self._state(), self.selection.shown_steps
        return Snapshot(
            progress.steps + shown_steps, best.tree, value, self.budget, metrics, final, self.message, lambda: state,
            end_without_progress=end_without_progress and end_without_progress + shown_steps, ended=bool(self.message),
        )  # fmt: skip

    def _state(self) -> dict[str, np.ndarray]:
        """Return all that a checkpoint needs, copied."""
        own = {
            "learner.progress": np.array(astuple(self.progress)),
            "learner.bounds": self.bounds,
            "learner.kind_values": self.kind_values,
            "learner.was_first_split": self.was_first_split,
        }
        return {**save(self.tables), **self.selection.state(), **copy_arrays({**own, **self.episodes.arrays()})}

    def _restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `_state` returned."""
        self.progress = Progress(*(int(number) for number in state["learner.progress"]))
        self.kind_values = state["learner.kind_values"].copy()
        self.was_first_split = state["learner.was_first_split"].copy()
        self._use_bounds(state["learner.bounds"].copy())
        self.tables = load(self.tables, state)._replace(rules=compiled_rules(self.rules))
        self.selection.restore(state)
        restore_arrays(self.episodes.arrays(), state)
