"""Which trees of a run of CUSTARD (DQN) are judged, when, and when the run stops; not part of the paper.

A tree is judged on selection episodes (`custard.solvers.common.selection`), whose steps count in the budget and are at
most about half of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from custard.solvers.common.selection import LEARNING_BUDGET_SHARE, Selection
from custard.task.problem import Problem, Snapshot
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.dqn.dqn import Learner, Settings

__all__ = ["Judge", "make_selection", "tree_metrics"]

#: Noise of the trees drawn near the policy's own (`extract_from_network`): each has one of these, in turn.
SAMPLED_TREE_NOISES = (0.4, 0.2, 0.1, 0.05)


def make_selection(problem: Problem, budget: int, margin: float = 1.0) -> Selection:
    """Make a selection whose number of episodes suits the budget."""
    max_episodes, screening_episodes = int(np.clip(budget // 2000, 32, 512)), int(np.clip(budget // 5000, 2, 8))
    return Selection(problem, max_episodes, screening_episodes, margin, budget)


def tree_metrics(selection: Selection, final: Tree, final_return: float) -> dict[str, float]:
    """Return the metrics of the best tree and of the policy's own."""
    best = selection.best
    assert best is not None
    return {
        "tree_return": final_return, "depth": final.depth, "leaves": final.n_leaves,
        "best_depth": best.simplified.depth, "best_leaves_raw": best.tree.n_leaves,
        "best_leaves": best.simplified.n_leaves, "best_leaves_reached": best.n_reached_leaves,
        "traversal_limit": int(final.origin.get("cut", 0)),
        "judging_steps": selection.steps,
    }  # fmt: skip


class Judge:
    """The environment steps of one run, its best tree, and why it stopped."""

    def __init__(self, problem: Problem, settings: Settings, budget: int, steps: int) -> None:
        self.settings, self.budget, self.steps = settings, budget, steps
        self.learning_budget = int(LEARNING_BUDGET_SHARE * budget)
        self.threshold = problem.source.reward_threshold
        self.selection = make_selection(problem, budget, settings.margin)
        self.snapshots = self.snapshots_without_progress = self.improved_before = 0
        self.message, self.final_return = "", float("nan")
        self.final: Tree | None = None
        self.clock = (time.perf_counter(), self.steps)  # at the last snapshot

    def judge(self, learner: Learner) -> bool:
        """Judge the learner's trees as far as is affordable; return whether it is time for a snapshot."""
        keep, selection = self.settings.keep_best, self.selection
        is_time = self.steps >= self.budget * (self.snapshots + 1) / self.settings.snapshots
        is_due = self.steps >= self.learning_budget or (is_time and (keep or self._can_afford_judging))
        if is_due or (keep and self._can_afford_judging):
            self._judge_trees(learner, is_due)
        if not is_due:
            return False
        self.snapshots = int(self.settings.snapshots * self.steps / self.budget)
        has_improved = selection.n_improvements > self.improved_before
        self.snapshots_without_progress = 0 if has_improved else self.snapshots_without_progress + 1
        self.improved_before = selection.n_improvements
        self.message = self._reason_to_stop()
        return True

    def _reason_to_stop(self) -> str:
        """Return why the run stops here; empty if it goes on."""
        selection, waited = self.selection, self.snapshots_without_progress
        if self.steps >= self.learning_budget:
            return "budget used"
        if (patience := self._patience_in_snapshots()) is None or waited < patience:
            return ""
        is_met = selection.clearly_reaches(self.threshold) and not selection.best_varies
        return "reward threshold met, and no better tree since" if is_met else "no better tree for long"

    def _patience_in_snapshots(self) -> int | None:
        """Return how many snapshots without a better tree end the run; None where none do."""
        selection, patience = self.selection, self.settings.patience
        if not self.settings.keep_best:
            return None
        if selection.clearly_reaches(self.threshold) and not selection.best_varies:
            return patience
        if selection.best_has_splits and not selection.returns_vary:  # chance has no part in that
            return 3 * patience
        return None

    def _end_without_progress(self) -> float:
        """Return the steps at which the run ends without a better tree."""
        if (patience := self._patience_in_snapshots()) is None:
            return self.budget
        return self.steps + max(1, patience - self.snapshots_without_progress) * self.budget / self.settings.snapshots

    @property
    def _can_afford_judging(self) -> bool:
        """Whether another tree may be judged: judging took at most half of all steps, and the budget is not used."""
        return 2 * self.selection.steps <= self.steps < self.budget

    def _judge_trees(self, learner: Learner, is_due: bool) -> None:
        """Judge the policy's tree, then pruned trees if that is the best or a snapshot is due, then drawn trees."""
        selection, keep, steps_before = self.selection, self.settings.keep_best, self.selection.steps
        selection.spent = self.steps - selection.steps
        self.final, base_actions = learner.extract()
        is_best = selection.judge(self.final, keep)
        self.final_return = selection.last_mean
        for tree in learner.pruned_trees(self.final, base_actions) if is_best or is_due else ():
            selection.consider(tree)
        self.steps += selection.steps - steps_before
        for i in range(self.settings.sampled_trees if keep else 0):
            if not self._can_afford_judging:
                break
            steps_before = selection.steps
            selection.consider(learner.extract(SAMPLED_TREE_NOISES[i % len(SAMPLED_TREE_NOISES)], i)[0])
            self.steps += selection.steps - steps_before

    def snapshot(self, learner: Learner) -> Snapshot:
        """Return where the run stands; everything in it is a copy."""
        best, final = self.selection.best, self.final
        assert best is not None
        assert final is not None
        now = time.perf_counter()
        value = self.selection.show(is_last=bool(self.message))
        speed = (self.steps - self.clock[1]) / (now - self.clock[0])
        self.clock = (now, self.steps)
        metrics = {**tree_metrics(self.selection, final, self.final_return), **learner.metrics()}
        metrics["steps_per_second"] = speed
        numbers = (self.steps, self.snapshots, self.snapshots_without_progress, self.improved_before)
        state = {"judge": np.array(numbers), **self.selection.state(), **learner.state()}
        return Snapshot(
            self.steps + self.selection.shown_steps, best.tree, value, self.budget, metrics, final,
            self.message, lambda: state, end_without_progress=self._end_without_progress() + self.selection.shown_steps,
        )  # fmt: skip

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a snapshot's state."""
        self.steps, self.snapshots, self.snapshots_without_progress, self.improved_before = map(int, state["judge"])
        self.selection.restore(dict(state))
