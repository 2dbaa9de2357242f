"""Direct search over trees: what whole episodes return is all that it learns from.

1. **Constants.** Trees of one leaf show how long episodes are and what doing nothing clever returns.
2. **Expert.** Scores linear in the features are found by direct search on the return (`experts`); where that is not
   enough a DQN races against it. An expert of the user's takes their place.
3. **Sums.** The linear policy is a tree over weighted sums, or one with linear leaves (`linear_trees`). Splits and
   coefficients that the return does not need are taken away, and all numbers that are left are searched for again.
4. **Imitation.** Trees of several sizes, with plain tests and constant leaves, imitate the expert (`imitate`).
5. **Race.** For the best of them all numbers are searched for at once (`evolve`); the worse half drops out repeatedly.
6. **Refinement.** Small changes of the best tree's shape (`refine`), then again all of its numbers. Where the
   environment has action masks, leaves get actions that are allowed in every state they meet (`masks`).
7. **Shrinking.** Splits that the return does not need are taken away.
8. **Judging.** The better of the two forms is the result: the one with fewer numbers where they return the same. The
   value shown is the mean over episodes that chose nothing.

Every comparison has fresh episodes (`race`). Each phase has a share of the budget, and what one leaves the next may
use. The state between two units of work is plain data (`state`), so that a run can stop and go on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from custard.experts.direct_search import DirectSearchSettings
from custard.solvers.common.evolve import Arm
from custard.solvers.common.linear_trees import grown, linear_tree, readable, rounded, smaller_trees
from custard.solvers.common.paired import paired_gain
from custard.solvers.common.race import BudgetUsed, Racer, Winner, number_count
from custard.solvers.direct import experts
from custard.solvers.direct.imitate import imitations
from custard.solvers.direct.masks import with_allowed_leaves
from custard.solvers.direct.refine import change
from custard.solvers.direct.settings import Forms, Settings
from custard.solvers.direct.state import PLAIN, SUMS, Incumbent, SearchState
from custard.task.budget import budget_for
from custard.task.episodes import Episodes, Runner
from custard.task.problem import Problem, Snapshot
from custard.task.workers import make_runner
from custard.tree.leaf_actions import LeafActions
from custard.tree.simplify import centre_integer_thresholds, simplify
from custard.tree.tree import Tree

__all__ = ["is_state", "solve"]

DEFAULT_MAX_LEAVES = 32
#: Shares of the budget at which phases are over. Judging has the rest.
EXPERT_END, SUMS_END, IMITATION_END, RACE_END, REFINEMENT_END, SEARCH_END = 0.25, 0.5, 0.55, 0.72, 0.84, 0.92
CONSTANT_EPISODES, MAX_CONSTANTS, CONSTANTS_SHARE = 8, 8, 0.03
ARMS, FINALISTS_PER_SIZE = 6, 3  # trees that race, and those of one size that they are chosen from
RUNGS = 3  # times the worse half drops out
COMPARISON_SHARE, MIN_COMPARISON, MAX_COMPARISON = 0.005, 8, 64  # of the budget for one tree's episodes; episodes
GENERATIONS = 30  # that a search should have: where the budget allows fewer, they are made smaller
MAX_KEPT_STATES = 4000  # that show where thresholds may lie
MAX_JUDGING_EPISODES = 200
TOLERATED_LOSS = 0.01  # for a smaller tree, as a share of what the best tree gains over constants
CHANGES_PER_EVOLUTION = 4  # comparisons of changed trees between two searches for all numbers
MAX_LINEAR_LEAVES, GROWN_TREES = 4, 4  # leaves that trees with linear leaves grow to, and ways that are tried at a time
MAX_FAILURES = 2  # rounds in a row without a smaller or better tree of sums before that search ends
CHOICE_MARGIN = 2.0  # standard errors by which the form with more numbers must return more
ROUNDING_DIGITS = 3, 2  # to which the numbers of sums are rounded if the return allows


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
            search.state.arms = [] if start is None else [Arm(start, start)]
        yield from search.run()
    finally:
        runner.close()


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
        self.problem, self.settings, self.forms = problem, settings, Forms.of(settings, problem.base.actions)
        self.seed = problem.seeds("direct")["direct"]
        self.max_leaves = settings.max_leaves or DEFAULT_MAX_LEAVES
        self.max_depth = self.max_leaves - 1 if problem.max_depth is None else problem.max_depth
        self.leaf_actions = LeafActions(problem.base.actions)
        if data is None:
            self.state = SearchState(budget=settings.budget or budget_for(problem, None))
        else:
            self.state = SearchState.from_arrays(data, problem.base)
        self.budget = self.state.budget
        cap, limit = problem.episode_cap(self.budget), int(SEARCH_END * self.budget)
        self.racer = Racer(runner, self.seed, cap, limit, settings.gamma)
        self.racer.steps, self.racer.draws, self.racer.longest = self.state.counts
        self.racer.recent_length = self.state.recent_length
        self.saved: dict[str, np.ndarray] = {}  # the state at the beginning of the present unit of work
        self.trained_expert = experts.load(self)  # that trees imitate instead of the linear policy

    def run(self) -> Iterator[Snapshot]:
        """Run the phases that are left."""
        phases: dict[str, Callable[[], Iterator[Snapshot]]] = {
            "constants": self.try_constants, "expert": self.search_expert, "sums": self.search_sums,
            "imitation": self.imitate, "race": self.race, "refinement": self.refine, "masks": self.prefer_allowed,
            "shrinking": self.shrink, "choice": self.choose_form, "judging": self.judge_finally,
        }  # fmt: skip
        names = list(phases)
        try:
            for name in names[names.index(self.state.phase) : -1]:
                self.state.phase = name
                self.save()
                yield from phases[name]()
        except BudgetUsed:
            self.state.chosen_form = self.state.chosen_form or self.best_form
        self.state.phase, self.racer.limit = names[-1], self.budget
        self.save()
        yield from self.judge_finally()
        yield self.snapshot(message=self.closing_message())

    # -- phases -----------------------------------------------------------------------------------------------------

    def try_constants(self) -> Iterator[Snapshot]:
        """Judge trees of one leaf."""
        rng, base, menu = np.random.default_rng([self.seed, 0]), self.problem.base, self.leaf_actions
        actions = np.array([menu.low, (menu.low + menu.high) / 2, menu.high]) if menu.all is None else menu.all
        if base.actions.kind == "multi":
            actions = np.rint(actions).astype(np.int64)
        chosen = [actions[i] for i in rng.permutation(len(actions))[:MAX_CONSTANTS]]
        trees = [Tree.leaf(action, base.features, base.actions) for action in chosen]
        self.state.incumbents[PLAIN] = Incumbent(trees[0])
        affordable = CONSTANTS_SHARE * self.budget / (len(trees) * (self.racer.max_steps or 1))
        episodes = int(np.clip(affordable, 2, CONSTANT_EPISODES))
        results = self.racer.screen(trees, episodes, keep_states=True)
        self.warn_of_endless_episodes(results)
        means = [float(result.returns.mean()) for result in results]
        self.state.constant_return = max(means)
        self.state.has_masks = any(result.masks.shape[1] > 0 for result in results)
        never_forbidden = [not result.forbidden.any() for result in results]
        self.keep_states(np.concatenate([result.states for result in results]))
        self.take(PLAIN, trees[max(range(len(trees)), key=lambda k: (never_forbidden[k], means[k]))])
        self.challenge(PLAIN, [arm.tree for arm in self.state.arms])
        yield self.snapshot("tried constant actions")

    def search_expert(self) -> Iterator[Snapshot]:
        """Find what trees are to imitate."""
        for message, is_resumable in experts.search(self):
            if is_resumable:
                self.save()
            yield self.snapshot(message)

    def search_sums(self) -> Iterator[Snapshot]:
        """Search for a small tree over sums, or with linear leaves, that acts as well as the linear policy."""
        state = self.state
        if not self.forms.has_sums or not len(state.expert_weights):
            return
        if SUMS not in state.incumbents:
            self.keep_states(self.racer.screen([self.linear_policy], 4, keep_states=True)[0].states)
            tree = linear_tree(self.linear_policy, self.problem.base.features, state.states)
            self.take(SUMS, readable(tree))
            self.save()
            yield self.snapshot("the linear policy as a tree")
        end = SUMS_END if self.forms.has_plain else REFINEMENT_END
        while self.steps_left(end) > 0 and state.failures < MAX_FAILURES:
            before = state.incumbents[SUMS].tree
            if state.sums_round % (CHANGES_PER_EVOLUTION + 1) == 0:
                yield from self.improve_sums(end)
            else:
                smaller = self.allowed(smaller_trees(before, state.states, moves_sums=True))
                self.accept(SUMS, self.racer.simplest(before, smaller, self.comparison_episodes, self.tolerance(SUMS)))
            if state.incumbents[SUMS].tree is not before:
                state.failures = 0
            elif state.sums_round % (CHANGES_PER_EVOLUTION + 1) == 0:
                state.failures += 1
            state.sums_round += 1
            self.save()
            yield self.snapshot("searching sums")
        for digits in ROUNDING_DIGITS if self.settings.digits is None else (self.settings.digits,):
            before = state.incumbents[SUMS].tree
            short = readable(rounded(before, digits))
            episodes = 2 * self.comparison_episodes
            self.accept(SUMS, self.racer.simplest(before, [short], episodes, self.tolerance(SUMS)))
            yield self.snapshot("rounding")

    def improve_sums(self, end: float) -> Iterator[Snapshot]:
        """Search for all numbers of the tree of sums; where leaves are linear, of trees with one split more as well."""
        state, tree = self.state, self.state.incumbents[SUMS].tree
        rng = np.random.default_rng([self.seed, 5, state.sums_round])
        starts = [tree]
        can_grow = self.forms.leaves_are_linear and tree.n_leaves < min(MAX_LINEAR_LEAVES, self.max_leaves)
        if can_grow and self.max_depth > 0:
            starts += [grown(tree, state.states, rng, self.max_depth) for _ in range(GROWN_TREES)]
        arms = [Arm(start, start) for start in starts]
        steps = self.steps_left(end) / 5 / len(arms)
        for k, arm in enumerate(arms):
            yield from self.evolve(arm, steps, [self.seed, 6, state.sums_round, k], "searching sums", moves_sums=True)
        self.challenge(SUMS, [arm.tree for arm in arms])

    def imitate(self) -> Iterator[Snapshot]:
        """Fit trees of several sizes to the expert, and let the best of each size race."""
        state, base = self.state, self.problem.base
        if not self.forms.has_plain or self.max_leaves < 2 or self.max_depth < 1:
            return
        sizes = [self.max_leaves // 2**k for k in range(4, -1, -1) if self.max_leaves // 2**k > 1]
        steps = max(0, self.steps_left(IMITATION_END))
        finalists: list[Tree] = []
        teacher = experts.teacher(self)
        if teacher is None:
            rng = np.random.default_rng([self.seed, 7])
            finalists = experts.random_trees(base, state.states, rng, 2 * ARMS, sizes[-1], self.max_depth)
        else:
            pool: dict[int, list[tuple[float, Tree]]] = {}
            for found in imitations(teacher, base, self.racer, sizes, self.max_depth, self.seed, steps):
                for mean, tree in found.trees:
                    pool.setdefault(next(size for size in sizes if tree.n_leaves <= size), []).append((mean, tree))
                states, best = found.states, max(found.trees, key=lambda entry: entry[0])
                if best[0] > state.incumbents[PLAIN].mean:
                    self.challenge(PLAIN, [best[1]])
                yield self.snapshot("imitating the expert")
            self.keep_states(states)
            for entries in pool.values():
                entries.sort(key=lambda entry: -entry[0])
                finalists += [tree for _, tree in entries[:FINALISTS_PER_SIZE]]
        finalists += [arm.tree for arm in state.arms]
        ranked = self.racer.rank(finalists, ARMS, max(2, self.comparison_episodes // 4))
        state.arms = [Arm(finalists[i], finalists[i]) for i in ranked]
        self.challenge(PLAIN, [state.arms[0].tree])
        yield self.snapshot("imitating the expert")

    def race(self) -> Iterator[Snapshot]:
        """Search for the numbers of several trees, and drop the worse half again and again."""
        state = self.state
        while state.rung < RUNGS and state.arms:
            share = self.steps_left(RACE_END) / (RUNGS - state.rung) / len(state.arms)
            for k, arm in enumerate(state.arms):
                yield from self.evolve(arm, arm.steps + share, [self.seed, 1, k, state.rung], "racing trees")
            keep = max(1, len(state.arms) // 2)
            episodes = max(4, self.comparison_episodes // 2)
            ranked = self.racer.rank([arm.tree for arm in state.arms], keep, episodes, rounds=1)
            state.arms = [state.arms[i] for i in ranked]
            state.rung += 1
            self.challenge(PLAIN, [arm.tree for arm in state.arms])
            self.save()
            yield self.snapshot("racing trees")

    def refine(self) -> Iterator[Snapshot]:
        """Change the best tree's shape, and search for its numbers again."""
        state = self.state
        while self.forms.has_plain and self.max_depth > 0 and self.steps_left(REFINEMENT_END) > 0:
            tree = state.incumbents[PLAIN].tree
            if state.round % (CHANGES_PER_EVOLUTION + 1) == 0:
                arm = Arm(tree, tree)
                steps = self.steps_left(REFINEMENT_END) / 3
                yield from self.evolve(arm, steps, [self.seed, 3, state.round], "refining")
                self.challenge(PLAIN, [arm.tree])
            else:
                rng, episodes = np.random.default_rng([self.seed, 2, state.round]), self.comparison_episodes
                limits = self.max_depth, self.max_leaves
                self.accept(PLAIN, change(tree, self.racer, episodes, state.states, rng, *limits))
            state.round += 1
            self.save()
            yield self.snapshot("refining")

    def prefer_allowed(self) -> Iterator[Snapshot]:
        """Give leaves actions that the environment allows in every state they meet, if the return does not suffer."""
        for form in list(self.state.incumbents) if self.state.has_masks else []:
            tree = self.state.incumbents[form].tree
            met = self.racer.screen([tree], self.comparison_episodes, keep_states=True)[0]
            changed = with_allowed_leaves(tree, met.states, met.masks)
            if changed is not tree:
                self.accept(form, self.racer.simplest(tree, [changed], len(met.returns), self.tolerance(form)))
            yield self.snapshot("preferring allowed actions")

    def shrink(self) -> Iterator[Snapshot]:
        """Take splits away that the return does not need."""
        while self.forms.has_plain:
            tree = self.state.incumbents[PLAIN].tree
            if tree.n_leaves == 1:
                break
            smaller = self.allowed(smaller_trees(tree, self.state.states, moves_sums=False))
            winner = self.racer.simplest(tree, smaller, self.comparison_episodes, self.tolerance(PLAIN))
            self.accept(PLAIN, winner)
            self.save()
            yield self.snapshot("shrinking")
            if not winner.is_new:
                break

    def choose_form(self) -> Iterator[Snapshot]:
        """Choose between plain tests and sums, on fresh episodes."""
        incumbents = self.state.incumbents
        if len(incumbents) == 1 or (not self.forms.has_plain and SUMS in incumbents):
            self.state.chosen_form = SUMS if SUMS in incumbents else next(iter(incumbents))
        else:
            simple, other = sorted(incumbents, key=lambda form: number_count(incumbents[form].tree))
            trees = [incumbents[form].tree for form in (simple, other)]
            results = self.racer.screen(trees, 2 * self.comparison_episodes)
            gain, error = paired_gain(results[1].returns, results[0].returns, CHOICE_MARGIN)
            self.state.chosen_form = other if gain - error > self.tolerance(other) else simple
        yield self.snapshot("choosing")

    def judge_finally(self) -> Iterator[Snapshot]:
        """Judge the tree on as many fresh episodes as the budget has left."""
        form = self.best_form
        while (judged := len(self.state.incumbents[form].judged)) < MAX_JUDGING_EPISODES:
            if judged and self.steps_left(1.0) < self.judging_episodes * self.racer.recent_length:
                break
            if not judged:
                self.racer.limit = self.racer.steps + 1  # one episode, whatever it takes
                self.judge(form, 1)
                break
            try:
                self.judge(form)
            except BudgetUsed:  # episodes were longer than those before
                break
            self.save()
            yield self.snapshot("judging")

    # -- parts of phases --------------------------------------------------------------------------------------------

    def evolve(
        self, arm: Arm, steps: float, seed: list[int], message: str, moves_sums: bool = False
    ) -> Iterator[Snapshot]:
        """Search for the numbers of one tree until so many steps were spent on it."""
        size = arm.start.n_nodes + arm.start.n_coefficients
        settings = self.search_settings(int(steps), size, finalists=1, final_episodes=self.judging_episodes)
        number = int(np.random.SeedSequence(seed).generate_state(1)[0])
        for progress in arm.improve(self.racer, settings, self.state.states, number, moves_sums):
            yield self.snapshot(f"{message}, now about {progress.value:.4g}")

    def allowed(self, trees: list[Tree]) -> list[Tree]:
        """Return the trees within the limits of depth and leaves."""
        return [tree for tree in trees if tree.depth <= self.max_depth and tree.n_leaves <= self.max_leaves]

    def challenge(self, form: str, trees: list[Tree]) -> None:
        """Let trees challenge the best one of a form."""
        challengers = self.allowed([readable(tree) if form == SUMS else simplify(tree) for tree in trees])
        if challengers:
            incumbent = self.state.incumbents[form].tree
            self.accept(form, self.racer.improve(incumbent, challengers, self.comparison_episodes))

    def accept(self, form: str, winner: Winner) -> None:
        """Keep the winner of a comparison as the best tree of its form."""
        if winner.is_new:
            self.take(form, winner.tree)

    def take(self, form: str, tree: Tree) -> None:
        """Make a tree the best one of its form; a few fresh episodes judge it."""
        self.state.incumbents[form] = Incumbent(tree)
        self.judge(form)

    def judge(self, form: str, episodes: int | None = None) -> None:
        """Run fresh episodes of the best tree of a form; they choose nothing."""
        incumbent = self.state.incumbents[form]
        result = self.racer.screen([incumbent.tree], episodes or self.judging_episodes)[0]
        incumbent.judged = np.append(incumbent.judged, result.returns)

    def tolerance(self, form: str) -> float:
        """Return what a smaller tree may lose: less where the present one is already below the best linear policy."""
        state = self.state
        mean = state.incumbents[form].mean
        reference = max(mean, state.expert_return) if form == SUMS else mean
        return max(0.0, TOLERATED_LOSS * max(0.0, reference - state.constant_return) - max(0.0, reference - mean) / 2)

    def warn_of_endless_episodes(self, results: list[Episodes]) -> None:
        """Say where episodes are cut, if the environment declares no time limit and ended none of them."""
        is_cut = all((result.lengths >= (self.racer.max_steps or np.inf)).all() for result in results)
        if is_cut and self.problem.source.time_limit is None and not any(r.terminated.any() for r in results):
            warnings.warn(
                f"{self.problem.source.name} declares no time limit and episodes of constant actions do not end: trees "
                f"are compared on episodes of {self.racer.max_steps} steps (max_episode_steps sets another limit)",
                stacklevel=2,
            )

    def keep_states(self, states: np.ndarray) -> None:
        """Keep some of the states that were met."""
        kept = np.random.default_rng([self.seed, 4]).permutation(len(states))[:MAX_KEPT_STATES]
        features = self.problem.base.features
        self.state.states = features.require_finite(states)[kept, : features.n_raw]

    @property
    def comparison_episodes(self) -> int:
        """How many episodes to compare trees on."""
        affordable = COMPARISON_SHARE * self.budget / self.racer.recent_length
        return int(np.clip(affordable, MIN_COMPARISON, MAX_COMPARISON))

    @property
    def judging_episodes(self) -> int:
        """How many episodes to judge a new best tree on."""
        return self.comparison_episodes // 4 + 2

    def steps_left(self, share: float) -> int:
        """Return the environment steps left until a share of the budget is used."""
        return int(share * self.budget) - self.racer.steps

    def search_settings(self, steps: int, size: int, **more: int) -> DirectSearchSettings:
        """Return settings of a direct search for so many parameters that make the most of so many steps."""
        affordable = max(1.0, steps / (GENERATIONS * self.racer.recent_length))  # episodes per generation
        population = int(np.clip(affordable / 2, 8 + np.log(size), 40))
        episodes = int(np.clip(affordable / population, 1, 3))
        return DirectSearchSettings(
            steps=max(1, steps), population=population, episodes=episodes, max_episodes=2 * episodes, **more
        )

    @property
    def linear_policy(self) -> Any:
        """The linear policy found."""
        return experts.linear_policy(self.state.expert_weights, self.problem.base.actions)

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
            size = f"{tree.n_leaves} leaves" + (f" and {tree.n_coefficients} coefficients" if form == SUMS else "")
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
        return Snapshot(
            self.racer.steps, centre_integer_thresholds(incumbent.tree), incumbent.mean, self.budget,
            {name: float(fact) for name, fact in facts.items()}, message=message, state=lambda: saved,
        )  # fmt: skip
