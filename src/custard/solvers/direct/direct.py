"""Direct search over trees: what whole episodes return is all that it learns from.

1. **Constants.** Trees of one leaf show how long episodes are and what doing nothing clever returns.
2. **Expert.** Scores linear in the features are found by direct search on the return (`experts`); where that is not
   enough a DQN races against it. An expert of the user's takes their place.
3. **Imitation.** Trees of several sizes, with plain tests and constant leaves, imitate these (`plain`, `imitate`).
4. **Race.** For the best of them all numbers are searched for at once (`evolve`); the worse half drops out repeatedly.
5. **Sums.** The linear policy is a tree over weighted sums, or one with linear leaves (`sums`, `linear_trees`). Splits
   and coefficients that the return does not need are taken away, and all numbers left are searched for again.
6. **Refinement.** The better form is improved further: plain trees by small changes of their shape, both by searching
   again for all numbers. Where the environment has action masks, leaves get actions that are allowed in every state
   they meet.
7. **Shrinking, rounding.** Splits and digits that the return does not need are taken away.
8. **Judging.** The better of the two forms is the result: the one with fewer numbers where they return the same. The
   value shown is the mean over episodes that chose nothing.

Every comparison has fresh episodes (`race`). Each phase has a share of the budget, and what one leaves the next may
use. The state between two units of work is plain data (`state`), so that a run can stop and go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from custard.core.errors import CustardError, one_of, require_least
from custard.experts.direct_search import DirectSearchSettings
from custard.solvers.common.evolve import Arm
from custard.solvers.common.linear_trees import with_named_sums
from custard.solvers.common.paired import paired_gain
from custard.solvers.common.race import BudgetUsed, Racer, Winner, number_count
from custard.solvers.direct import experts, plain, sums
from custard.solvers.direct.state import CHANGES_PER_EVOLUTION, PLAIN, SUMS, Ends, Forms, Incumbent, SearchState
from custard.task.budget import budget_for
from custard.task.episodes import Runner
from custard.task.problem import Problem, Snapshot
from custard.task.workers import make_runner
from custard.tree.leaf_actions import LeafActions
from custard.tree.simplify import centre_integer_thresholds, simplify
from custard.tree.text import plural
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "budget_for_time", "is_state", "solve"]

DEFAULT_MAX_LEAVES = 32
CHOICE_END_BUDGET_SHARE = 0.95  # judging has the rest
MAX_PHASE_OVERRUN_SHARE, MAX_IMITATION_OVERRUN_SHARE = 0.15, 0.3  # of the budget, beyond the ends of phases
COMPARISON_BUDGET_SHARE = 0.01  # for one tree's episodes
MIN_COMPARISON_EPISODES, MAX_COMPARISON_EPISODES = 8, 64
MIN_SEARCH_GENERATIONS = 30  # where the budget allows fewer, they are made smaller
MAX_KEPT_STATES = 4000  # that show where thresholds may lie
MAX_JUDGING_EPISODES = 200
#: For a smaller tree, and for all smaller trees together, as shares of what the present tree gains over constants.
TOLERATED_LOSS_PER_TREE, TOLERATED_LOSS_IN_ALL = 0.006, 0.012
MAX_FAILED_SEARCHES = 3  # for all numbers, in a row without a better tree before a form is left as it is
MIN_GAIN_SHARE_TO_IMPROVE = 0.5  # of the best tree's gain over constants; policies with less are not improved
#: Standard errors, and share of the gain over constants, by which the form with more numbers must return more.
CHOICE_STANDARD_ERRORS, MIN_CHOICE_GAIN_SHARE = 2.0, 0.01
PHASES_BEFORE_NETWORKS = ("constants", "expert", "linear tree")  # phases
#: What a phase does, shown when it begins.
PHASE_MESSAGES = {
    "constants": "trying constant actions", "expert": "searching an expert", "linear tree": "building a tree of sums",
    "imitation": "imitating the expert", "race": "racing trees", "sums": "searching sums", "refinement": "refining",
    "masks": "preferring allowed actions", "shrinking": "shrinking", "rounding": "rounding", "choice": "choosing",
    "judging": "judging",
}  # fmt: skip
PRESETS: dict[str, dict[str, dict[str, object]]] = {"tuned": {}}


@dataclass(frozen=True)
class Settings:
    """Direct search's settings; None means chosen from the environment."""

    budget: int | None = None
    """Environment steps, those of judging included; unless given, what takes about five minutes, or three if
    the environment is compiled."""

    max_leaves: int | None = None
    """The largest number of leaves; 32 unless given."""

    expert: str | Callable[..., Any] | None = None
    """What trees imitate at first: linear, dqn, a file (.npz, or .zip of Stable-Baselines3), a function to Q-values, or
    none. Unless given, a linear policy, against which a DQN races where it is not enough and jax is installed."""

    tests: str = "auto"
    """What splits may ask about: axis (one feature), linear (weighted sums; linear:3: of at most three features), or
    auto, whichever is better."""

    leaves: str = "auto"
    """What leaves may hold: constant (an action), linear (for real-valued actions; linear:3: in at most three features
    per component), or auto, whichever is better."""

    digits: int | None = None
    """Digits to which the numbers of sums are rounded if the return allows; 2 or 3 unless given."""

    gamma: float = 1.0
    """The discount of returns, per step."""

    def __post_init__(self) -> None:
        require_least(self, 1, "max_leaves", "digits")
        if not 0.0 < self.gamma <= 1.0:
            raise CustardError(f"gamma must be above 0 and at most 1, not {self.gamma}")
        for name, known in (("tests", ("axis", "linear", "auto")), ("leaves", ("constant", "linear", "auto"))):
            if getattr(self, name) not in known and not re.fullmatch(r"linear:[1-9]\d{0,5}", getattr(self, name)):
                raise CustardError(one_of(name, getattr(self, name), (*known, "linear:k")))


def solve(
    problem: Problem,
    settings: Settings,
    state: dict[str, np.ndarray] | None = None,
    used_steps: int = 0,
    start: Tree | None = None,
) -> Iterator[Snapshot]:
    """Search until the budget is used or nothing better is found.

    Another method may have used `used_steps` of the budget before, and found the tree `start`.
    """
    runner = make_runner(problem)
    try:
        search = DirectSearch(problem, settings, runner, state)
        if state is None:
            search.racer.steps = used_steps
            search.state.arms = [] if start is None else [Arm.begin(start)]
        yield from search.run()
    finally:
        runner.close()


def budget_for_time(problem: Problem, settings: Settings, seconds: float | None) -> int:
    """Return the environment steps that a search takes in so many seconds; by default in a few minutes."""
    return budget_for(
        problem, seconds, lambda budget, per_step: experts.training_seconds(problem, settings, budget, per_step)
    )


def is_state(state: dict[str, np.ndarray] | None) -> bool:
    """Return whether a checkpoint is one of direct search."""
    return state is not None and "phase" in state


class DirectSearch:
    """The phases, in order; each is a generator of snapshots."""

    def __init__(
        self, problem: Problem, settings: Settings, runner: Runner, data: dict[str, np.ndarray] | None = None
    ) -> None:
        """`data` is what a snapshot's `state` returned, to go on from there."""
        if settings.gamma != 1.0:  # the declared threshold is of undiscounted returns
            problem = replace(problem, source=replace(problem.source, reward_threshold=None))
        self.problem, self.settings, self.forms = (
            problem,
            settings,
            Forms.of(settings.tests, settings.leaves, problem.base.actions),
        )
        self.grows_plain = problem.base.actions.kind == "box"  # plain trees, after their race
        self.ends = Ends.of(self.forms, problem.base.actions.discrete)
        self.seed = problem.seeds("direct")["direct"]
        self.max_leaves = settings.max_leaves or DEFAULT_MAX_LEAVES
        self.max_depth = self.max_leaves - 1 if problem.max_depth is None else problem.max_depth
        self.leaf_actions = LeafActions(problem.base.actions)
        if data is None:
            self.state = SearchState(budget=settings.budget or budget_for_time(problem, settings, None))
        else:
            self.state = SearchState.from_arrays(data, problem.base)
        self.budget = self.state.budget
        cap, limit = problem.episode_cap(self.budget), int(self.ends.search * self.budget)
        self.racer = Racer(runner, self.seed, cap, limit, settings.gamma)
        self.racer.steps, self.racer.draws, self.racer.longest = self.state.counts
        self.racer.recent_length = self.state.recent_length
        self.saved: dict[str, np.ndarray] = {}  # the state at the beginning of the present unit of work
        self.trained_expert = experts.load(self)  # the DQN, or the user's expert

    def run(self) -> Iterator[Snapshot]:
        """Run the phases that are left."""
        phases: dict[str, Callable[[], Iterator[Snapshot]]] = {
            "constants": lambda: plain.try_constants(self), "expert": lambda: experts.search(self),
            "linear tree": lambda: sums.begin(self),
            "imitation": lambda: plain.imitate(self), "race": lambda: plain.race(self),
            "sums": lambda: sums.search(self), "refinement": self.refine, "masks": lambda: plain.prefer_allowed(self),
            "shrinking": lambda: plain.shrink(self), "rounding": lambda: sums.round_numbers(self),
            "choice": self.choose_form, "judging": self.judge_finally,
        }  # fmt: skip
        names = list(phases)
        at = names.index(self.state.phase)
        while at < len(names):
            self.state.phase = names[at]
            self.racer.limit = int(self.budget * self.limit_of(names[at]))
            self.save()
            try:
                if self.state.incumbents:
                    yield self.snapshot(PHASE_MESSAGES[names[at]])
                yield from phases[names[at]]()
            except BudgetUsed:
                if self.steps_left(self.ends.search) <= 0:  # what is left is for choosing and judging
                    at = max(at, names.index("choice") - 1)
            at += 1
        yield self.snapshot(message=self.closing_message())

    def limit_of(self, phase: str) -> float:
        """Return the share of the budget at which a phase is broken off, if episodes become longer than expected."""
        if phase in ("choice", "judging"):
            return CHOICE_END_BUDGET_SHARE if phase == "choice" else 1.0
        if phase == "imitation":  # of the race's share: without trees to race there is nothing to spend it on
            return min(self.ends.imitation + MAX_IMITATION_OVERRUN_SHARE, self.ends.race)
        return min(self.ends.search, getattr(self.ends, phase, 1.0) + MAX_PHASE_OVERRUN_SHARE)

    # -- phases -----------------------------------------------------------------------------------------------------

    def refine(self) -> Iterator[Snapshot]:
        """Improve the better form, and the other if it is not far behind."""
        incumbents = self.state.incumbents
        can_be_plain = self.forms.has_plain and min(self.max_depth + 1, self.max_leaves) > 1
        while self.steps_left(self.ends.refinement) > 0:
            forms = [form for form in incumbents if (form == SUMS or can_be_plain) and not self.is_stuck(form)]
            forms = [form for form in forms if self.is_worth_improving(incumbents[form].mean)]
            if not forms:
                break
            yield from self.improve(max(forms, key=lambda form: incumbents[form].mean), self.ends.refinement)

    def choose_form(self) -> Iterator[Snapshot]:
        """Choose between plain tests and sums, and between the trees of sums, on fresh episodes."""
        incumbents = self.state.incumbents
        is_chosen = len(incumbents) == 1 or (not self.forms.has_plain and SUMS in incumbents)
        sums.compare_finally(self, (0.8 if is_chosen else 0.4) * self.steps_left(CHOICE_END_BUDGET_SHARE))
        if is_chosen:
            self.state.chosen_form = SUMS if SUMS in incumbents else next(iter(incumbents))
        else:
            simple, other = sorted(incumbents, key=lambda form: number_count(incumbents[form].tree))
            trees = [incumbents[form].tree for form in (simple, other)]
            affordable = int(self.steps_left(CHOICE_END_BUDGET_SHARE) / (2 * self.racer.recent_length))
            results = self.racer.screen(trees, int(np.clip(affordable, 2, 2 * self.comparison_episodes)))
            gain, error = paired_gain(results[1].returns, results[0].returns, CHOICE_STANDARD_ERRORS)
            needed = MIN_CHOICE_GAIN_SHARE * max(0.0, incumbents[other].mean - self.state.constant_return)
            self.state.chosen_form = other if gain - error > needed else simple
        yield self.snapshot("choosing")

    def judge_finally(self) -> Iterator[Snapshot]:
        """Judge the tree on as many fresh episodes as the budget has left."""
        self.state.chosen_form = self.best_form  # also where no steps were left for choosing
        incumbent = self.state.incumbents[self.best_form]
        while (judged := len(incumbent.judged)) < MAX_JUDGING_EPISODES:
            if judged and self.steps_left(1.0) < self.judging_episodes * self.racer.recent_length:
                break
            if not judged:
                self.racer.limit = self.racer.steps + 1  # one episode, whatever it takes
                self.judge(incumbent, 1)
                break
            try:
                self.judge(incumbent)
            except BudgetUsed:  # episodes were longer than those before
                break
            self.save()
            yield self.snapshot("judging")

    # -- parts of phases --------------------------------------------------------------------------------------------

    def improve(self, form: str, end: float) -> Iterator[Snapshot]:
        """Try once to improve the best tree of a form."""
        state, before = self.state, self.state.incumbents[form].tree
        number = state.rounds.get(form, 0)
        yield from (sums if form == SUMS else plain).improve(self, number, end)
        if state.incumbents[form].tree is not before:
            state.failures[form] = 0
        elif self.is_evolution(form, number):
            state.failures[form] = state.failures.get(form, 0) + 1
        state.rounds[form] = number + 1
        self.save()
        yield self.snapshot("searching sums" if form == SUMS else "refining")

    def is_evolution(self, form: str, number: int) -> bool:
        """Return whether a round searches for all numbers; the other rounds change the shape."""
        if form == PLAIN and self.grows_plain:
            return number % 2 == 0
        return number % (CHANGES_PER_EVOLUTION + 1) == CHANGES_PER_EVOLUTION

    def is_stuck(self, form: str) -> bool:
        """Return whether the last searches for all numbers of a form have found nothing better."""
        return self.state.failures.get(form, 0) >= MAX_FAILED_SEARCHES

    def is_worth_improving(self, mean: float) -> bool:
        """Return whether a mean return is not far behind that of the best tree, measured from constants."""
        best = max(incumbent.mean for incumbent in self.state.incumbents.values())
        constant = self.state.constant_return
        return mean >= best or mean - constant >= MIN_GAIN_SHARE_TO_IMPROVE * (best - constant)

    def evolve(
        self, arm: Arm, steps: float, message: str, deviation: float, moves_sums: bool = False
    ) -> Iterator[Snapshot]:
        """Search for the numbers of one tree until so many steps were spent on it."""
        size = arm.start.n_nodes + arm.start.n_coefficients
        settings = replace(self.search_settings(int(steps), size, 40), initial_deviation=deviation, patience=1.0)
        for progress in arm.improve(self.racer, settings, self.state.states, moves_sums):
            so_far = f", now about {progress.value:.4g}" if np.isfinite(progress.value) else ""
            yield self.snapshot(f"{message}{so_far}")

    def allowed(self, trees: list[Tree]) -> list[Tree]:
        """Return the trees within the limits of depth and leaves."""
        return [tree for tree in trees if tree.depth <= self.max_depth and tree.n_leaves <= self.max_leaves]

    def challenge(self, form: str, trees: list[Tree]) -> None:
        """Let trees challenge the best one of a form."""
        challengers = self.allowed([with_named_sums(tree) if form == SUMS else simplify(tree) for tree in trees])
        if challengers:
            incumbent = self.state.incumbents[form].tree
            self.accept(form, self.racer.improve(incumbent, challengers, self.comparison_episodes))

    def accept(self, form: str, winner: Winner) -> None:
        """Keep the winner of a comparison as the best tree of its form."""
        if winner.is_new:
            self.state.losses[form] = max(0.0, self.state.losses.get(form, 0.0) - winner.gain)
            self.take(form, winner.tree)

    def take(self, form: str, tree: Tree) -> None:
        """Make a tree the best one of its form once a few fresh episodes have judged it."""
        incumbent = Incumbent(tree)
        self.judge(incumbent)
        self.state.incumbents[form] = incumbent

    def judge(self, incumbent: Incumbent, episodes: int | None = None) -> None:
        """Run fresh episodes of a best tree; they choose nothing."""
        result = self.racer.screen([incumbent.tree], episodes or self.judging_episodes)[0]
        incumbent.judged = np.append(incumbent.judged, result.returns)

    def tolerance(self, form: str) -> float:
        """Return what a smaller tree may lose."""
        left = self.tolerated_losses(form) - self.state.losses.get(form, 0.0)
        return max(0.0, min(left, TOLERATED_LOSS_PER_TREE / TOLERATED_LOSS_IN_ALL * self.tolerated_losses(form)))

    def tolerated_losses(self, form: str) -> float:
        """Return what all smaller trees together may lose."""
        return TOLERATED_LOSS_IN_ALL * max(0.0, self.state.incumbents[form].mean - self.state.constant_return)

    def keep_states(self, states: np.ndarray) -> None:
        """Keep some of the states that were met."""
        kept = np.random.default_rng([self.seed, 4]).permutation(len(states))[:MAX_KEPT_STATES]
        features = self.problem.base.features
        self.state.states = features.require_finite(states)[kept, : features.n_raw]

    @property
    def comparison_episodes(self) -> int:
        """How many episodes to compare trees on."""
        affordable = COMPARISON_BUDGET_SHARE * self.budget / self.racer.recent_length
        return int(np.clip(affordable, MIN_COMPARISON_EPISODES, MAX_COMPARISON_EPISODES))

    @property
    def judging_episodes(self) -> int:
        """How many episodes to judge a new best tree on."""
        return self.comparison_episodes // 4 + 2

    def steps_left(self, share: float) -> int:
        """Return the environment steps left until a share of the budget is used."""
        return int(share * self.budget) - self.racer.steps

    def search_settings(self, steps: int, size: int, max_population: int = 20) -> DirectSearchSettings:
        """Return settings of a direct search for so many parameters that make the most of so many steps.

        Where the budget allows fewer, generations have less than `max_population` policies and one episode of each.
        """
        length = self.racer.recent_length
        affordable = max(1.0, steps / (MIN_SEARCH_GENERATIONS * length))  # episodes per generation
        population = int(np.clip(affordable / 2, 8 + np.log(size), max_population))
        episodes = int(np.clip(affordable / population, 1, 2))
        generations = steps / (population * episodes * length)
        judge_every = int(np.clip(generations / 20, 2, 10))
        return DirectSearchSettings(
            max(1, steps), population, episodes, 3 * episodes,
            judge_every=judge_every, judge_episodes=int(np.clip(population * episodes * judge_every / 10, 4, 40)),
            final_episodes=40,
        )  # fmt: skip

    @property
    def linear_policy(self) -> Any:
        """The linear policy found."""
        return experts.linear_policy(self.state.linear_weights, self.problem.base.actions)

    # -- progress and checkpoints -----------------------------------------------------------------------------------

    @property
    def best_form(self) -> str:
        """The form of the best tree."""
        incumbents = self.state.incumbents
        allowed = [form for form in incumbents if form == SUMS or self.forms.has_plain] or list(incumbents)
        return self.state.chosen_form or max(allowed, key=lambda form: incumbents[form].mean)

    def closing_message(self) -> str:
        """Say why the search is over, and what the other form would have earned."""
        why = "budget used" if self.steps_left(0.98) <= 0 else "nothing better is found"
        others = [form for form in self.state.incumbents if form != self.best_form]
        texts = []
        for form in others if self.forms.has_sums and self.forms.has_plain else []:
            tree, mean = self.state.incumbents[form].tree, self.state.incumbents[form].mean
            size = f"{tree.n_leaves} {plural('leaf', tree.n_leaves)}"
            if form == SUMS:
                size += f" and {tree.n_coefficients} {plural('coefficient', tree.n_coefficients)}"
            texts.append(f"{form} {mean:.4g} with {size}")
        return "; ".join([why, *texts])

    def save(self) -> None:
        """Keep the state as it is now: a run that is resumed begins its next unit of work from here."""
        self.state.counts = self.racer.steps, self.racer.draws, self.racer.longest
        self.state.recent_length = self.racer.recent_length
        self.saved = self.state.to_arrays()

    def snapshot(self, message: str = "") -> Snapshot:
        """Return where the search stands."""
        state, incumbent = self.state, self.state.incumbents[self.best_form]
        saved, judged = self.saved, incumbent.judged
        facts = {"judged": len(judged), "leaves": incumbent.tree.n_leaves, "expert": state.expert_return}
        facts["error"] = float(judged.std(ddof=1)) / np.sqrt(len(judged)) if len(judged) > 1 else np.nan
        # Compiled steps take no time beside networks and imitation, which are still to come.
        is_before_networks = self.problem.is_compiled and state.phase in PHASES_BEFORE_NETWORKS
        return Snapshot(
            self.racer.steps, centre_integer_thresholds(incumbent.tree), incumbent.mean, self.budget,
            {name: float(fact) for name, fact in facts.items()}, message=message, state=lambda: saved,
            end_without_progress=self.budget, is_foreseeable=not is_before_networks,
        )  # fmt: skip
