"""Tree policy iteration: the paper's two agents, with the tree agent solved exactly.

Leaf agent: what each base action is worth under the present tree, in the states that tree meets, measured by trying
every action there and then following the tree (`simulate`). Tree agent: given those values, the tree that collects
most, less |zeta| for every split, is an ordinary optimal-tree problem (`custard.tree.fit`). A tree found so, or a small
change to the present one, replaces it only if its true return is higher on the same episodes (`candidates`).

A round is: value, fit, compare, polish by small changes, judge. It depends on nothing but the `SearchState`, what was
learned of the environment (`arena`, `table_expert`) and its own seed, so that a run can stop and go on between
rounds. Rounds use fresh episodes, so that luck does not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from custard.core.errors import CustardError, require_least, require_shares
from custard.solvers import direct
from custard.solvers.common.checkpoint import from_arrays, to_arrays
from custard.solvers.common.mutations import trees_without_one_split
from custard.solvers.common.paired import Candidate, compare, is_perfect, run_candidate
from custard.solvers.tpi import candidates
from custard.solvers.tpi.arena import Arena, SearchState, searches_directly
from custard.solvers.tpi.candidates import DEFAULT_MAX_LEAVES, NEGLIGIBLE_RETURN_SHARE, ActionValues, TreeSpace
from custard.solvers.tpi.simulate import CompiledSimulator
from custard.solvers.tpi.table_expert import TableExpert, table_trees
from custard.task.problem import Problem, Snapshot
from custard.task.source import episode_seeds
from custard.tree.leaf_actions import LeafActions
from custard.tree.simplify import centre_integer_thresholds, simplify
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "budget_for_time", "searches_directly", "solve"]

FIRST_MAX_DEPTH, LAST_MAX_DEPTH = 3, 5  # without a depth limit trees grow while that pays
TABLE_TREE_DEPTH = 12  # of trees of a learned table where no limit is given
STARTING_TREES = 8  # trees that a search begins from
DEFAULT_THRESHOLDS_PER_FEATURE = {1: 4000, 2: 40}, 15  # by the number of features, or more
NEARLY_PERFECT_LOSS = 2.5e-5  # share of the largest return possible that a nearly perfect tree may miss
MAX_SHRINKING_ROUNDS = 12  # rounds in a row without a smaller perfect tree before the search for one ends
PROMISING_TREE_EPISODE_SHARE = 0.5  # in which a smaller tree is perfect for the next round to count as usual
MAX_MENDING_STEPS = 25_000_000  # steps for mending a perfect tree after that
MENDING_EPISODES_STEPS = 10_000_000  # steps of the episodes in which a tree to mend fails in few

PRESETS: dict[str, dict[str, dict[str, object]]] = {"tuned": {}}


@dataclass(frozen=True)
class Settings:
    """Tree policy iteration's settings; None means chosen from the environment."""

    budget: int | None = None
    """Environment steps: 200 million compiled, 500,000 otherwise."""

    max_leaves: int | None = None
    """The largest number of leaves; none unless given."""

    tests: str = "auto"
    """What splits may ask about: axis (one feature), linear (weighted sums, linear:3 of at most three features: by
    direct search), or auto, whichever is better where an environment is searched directly, and one feature
    elsewhere."""

    leaves: str = "auto"
    """What leaves may hold: constant (an action), linear (for real-valued actions, linear:3 in at most three features
    per component: by direct search), or auto."""

    digits: int | None = None
    """Digits to which the numbers of sums are rounded if the return allows; 2 or 3 unless given."""

    zeta: float = -1e-3
    """The price of a split, in shares of what the best action gains over the worst."""

    episodes: int | None = None
    """Episodes two trees are compared on in a round; from their length and the budget unless given."""

    valued_states: int | None = None
    """States in which actions are valued; as many as fits and budget allow unless given."""

    random_action_share: float = 0.1
    """How often the tree acts at random while its actions are valued: it should hold up near its own path too."""

    thresholds_per_feature: int | None = None
    """Thresholds per feature in a fit: 4,000 for one feature, 40 for two, 15 otherwise."""

    max_changes: int | None = None
    """Small changes tried in a round: 300 compiled (100 for one feature, where fits are exact), 60 otherwise."""

    patience: int | None = None
    """Rounds without a better tree after which the run ends: 6; 10 where compiled episodes differ; 3 for one feature,
    where fits are exact."""

    expert: str | Callable[..., Any] | None = None
    """An expert to begin from, by direct search: linear or dqn (found first), a file (.npz, or .zip of
    Stable-Baselines3), a function to Q-values, or none."""

    gamma: float = 1.0
    """The discount of returns, per step; below 1 trees are searched directly."""

    def __post_init__(self) -> None:
        require_least(self, 1, "max_leaves", "episodes", "patience")
        require_least(self, 1, "valued_states", "thresholds_per_feature", "max_changes")
        require_shares(self, "random_action_share")

    def for_direct_search(self) -> direct.Settings:
        """Return the settings of direct search; one that it does not read is an error."""
        read = [entry.name for entry in fields(direct.Settings)]
        for name in self.not_for_direct_search[:1]:
            reads = f"this environment is searched directly, which reads {', '.join(read)}"
            raise CustardError(f"setting {name!r} is not read here: {reads}")
        return direct.Settings(**{name: getattr(self, name) for name in read})

    @property
    def not_for_direct_search(self) -> list[str]:
        """The settings that are given and that direct search does not read."""
        read = {entry.name for entry in fields(direct.Settings)}
        return [own.name for own in fields(self) if own.name not in read and getattr(self, own.name) != own.default]


def budget_for_time(problem: Problem, settings: Settings, seconds: float) -> int:
    """Return the environment steps that direct search takes in a number of seconds."""
    return direct.budget_for_time(problem, settings.for_direct_search(), seconds)


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Run rounds of tree policy iteration until nothing better is found, or search directly."""
    if searches_directly(problem, settings) if state is None else direct.is_state(state):
        yield from direct.solve(problem, settings.for_direct_search(), state)
        return
    search = Search(problem, settings)
    if state is not None:
        search.restore(state)
    elif problem.is_compiled and not settings.not_for_direct_search:
        search.arena.survey()
        if not search.arena.affords_a_round:
            yield from search.hand_over(None)
            return
    while not search.state.message:
        if search.is_mending:
            search.mend()
        else:
            yield from search.run_round()
        if search.has_lost_its_table:
            yield from search.hand_over(search.state.best)
            return
        yield search.snapshot()


class Search:
    """Rounds of tree policy iteration."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem, self.settings = problem, settings
        self.seed = problem.seeds("tpi")["tpi"]
        self.leaf_actions = LeafActions(problem.base.actions)
        all_actions = self.leaf_actions.all
        action = self.leaf_actions.random(np.random.default_rng(self.seed)) if all_actions is None else all_actions[0]
        self.blank = Tree.leaf(action, problem.base.features, problem.base.actions)
        self.n_features = problem.base.features.n
        self.cuts = settings.thresholds_per_feature or DEFAULT_THRESHOLDS_PER_FEATURE[0].get(
            self.n_features, DEFAULT_THRESHOLDS_PER_FEATURE[1]
        )
        max_leaves = settings.max_leaves or DEFAULT_MAX_LEAVES
        self.max_depth = min(LAST_MAX_DEPTH if problem.max_depth is None else problem.max_depth, max_leaves - 1)
        self.state = SearchState(self.blank, self.blank, min(FIRST_MAX_DEPTH, self.max_depth), max_leaves)
        self.arena = Arena(problem, settings.budget, settings.episodes, self.blank, self.seed)
        numbering = self.arena.numbering
        self.table = TableExpert.untrained(problem, numbering) if numbering is not None else None

    # -- a round ----------------------------------------------------------------------------------------------------

    def run_round(self) -> Iterator[Snapshot]:
        """Run one round from the present tree; yield progress within it where Python steps the environment."""
        state, arena = self.state, self.arena
        rng = np.random.default_rng([self.seed, state.round])
        self._prepare_round(rng)
        yield from self._yield_progress()
        if self.has_lost_its_table:
            return
        if state.rounds_without_progress == 2 and state.depth < self.max_depth:
            state.depth, state.start = state.depth + 1, state.best  # nothing better of this depth: allow one more
        seeds = arena.comparison_seeds(rng, state.failing_seeds)
        trees, x = self._starting_trees(rng, seeds)
        incumbent = run_candidate(arena.simulator, trees[0], seeds)
        yield from self._yield_progress(incumbent)
        state.depth = max(state.depth, incumbent.tree.depth)
        perfect = is_perfect(incumbent.mean, arena.simulator.max_return)
        if arena.simulator.is_compiled and arena.has_budget and not perfect:
            values = self._value_actions(incumbent.tree, rng, self.settings.random_action_share)
            x = values.x
            for tree in self._fit_trees(incumbent.tree, values):
                if arena.has_budget:
                    incumbent = compare(arena.simulator, tree, incumbent)
        yield from self._yield_progress(incumbent)
        others = [run_candidate(arena.simulator, tree, seeds) for tree in trees[1:] if arena.has_budget]
        if others:
            changes = self.changes // (4 * STARTING_TREES)
            polished = [self._try_small_changes(candidate, rng, x, changes) for candidate in (incumbent, *others)]
            incumbent = max(polished, key=lambda candidate: candidate.mean)
            yield from self._yield_progress(incumbent)
        incumbent = self._try_small_changes(incumbent, rng, x, self.changes)
        yield from self._yield_progress(incumbent)
        state.start = incumbent.tree
        self.judge(incumbent, rng)
        state.round += 1
        self._check_table(rng)
        self._decide_whether_over()

    def _prepare_round(self, rng: np.random.Generator) -> None:
        """Find out how long episodes are, and learn the table that trees are run in, where there is one."""
        if self.state.round == 0:
            self.arena.survey()
            self.arena.learn_table(rng, None)
            return
        self.arena.learn_table(rng, self.state.best)
        if self.arena.update_time_limit():  # what was perfect in short episodes need not be
            self.state.is_perfect, self.state.rounds_without_progress = False, 0

    def _starting_trees(self, rng: np.random.Generator, seeds: np.ndarray) -> tuple[list[Tree], np.ndarray]:
        """Return the trees that a round starts from, the best first, and states [N, n] that were met."""
        state, waited = self.state, self.state.rounds_without_progress
        if state.is_perfect:  # would fewer leaves do?
            early = waited < MAX_SHRINKING_ROUNDS // 2
            state.max_leaves = (state.best.n_leaves + 2) // 2 if early else state.best.n_leaves - 1
            state.depth = min(state.depth, state.max_leaves - 1)
            if waited % 2 == 0 or state.start.n_leaves > state.max_leaves:  # else the last round's tree goes on
                smaller = trees_without_one_split(state.best)
                smaller.sort(key=lambda tree: -float(self.arena.simulator.returns(tree, seeds).mean()))
                trees, x = self._ranked_starting_trees(rng, seeds)
                return trees + smaller[: STARTING_TREES // 2], x
        elif state.round == 0 or (waited > 2 and waited % 2 == 1) or (waited == 1 and len(state.failing_seeds)):
            return self._ranked_starting_trees(rng, seeds)
        return [state.start], np.zeros((0, self.n_features))

    def _ranked_starting_trees(self, rng: np.random.Generator, seeds: np.ndarray) -> tuple[list[Tree], np.ndarray]:
        """Return new trees that split on different features, the best first, and states [N, n] that were met.

        They are fits to random behaviour, trees of a table's policy, and random trees.
        """
        arena, settings, is_first_round = self.arena, self.settings, self.state.round == 0
        trees: list[Tree] = []
        x = np.zeros((0, self.n_features))
        if arena.simulator.is_compiled:
            values = self._value_actions(self.blank, rng, 1.0)
            trees, x = list(self._fit_trees(self.blank, values)), values.x
        x = candidates.states_or_random(x, self.blank.features, rng)
        depths = sorted({self.state.depth, self.max_depth})
        if arena.simulator.is_table and self.problem.max_depth is None:
            depths.append(TABLE_TREE_DEPTH)
        if self.table is not None:
            trees += table_trees(self.table, arena, depths, settings.max_leaves, rng, is_first_round)
        trees += candidates.random_trees(self.space, x, rng, self.changes // 3)
        max_steps = arena.steps_until(arena.search_budget // 2) if is_first_round else np.inf
        ranked = candidates.rank_trees(arena.simulator, trees, seeds, max_steps, self.blank)
        return ranked[: STARTING_TREES if self.n_features > 1 else 1], x

    def _value_actions(self, tree: Tree, rng: np.random.Generator, noise: float) -> ActionValues:
        """Measure what actions are worth in states that a noisy tree meets."""
        simulator, actions = self.arena.simulator, self.leaf_actions.tried(rng, tree)
        assert isinstance(simulator, CompiledSimulator)
        seed = int(rng.integers(2**31))
        count = self.settings.valued_states or self.arena.count_valued_states(len(actions))
        return ActionValues(*simulator.action_values(tree, seed, count, noise, actions), actions)

    def _fit_trees(self, tree: Tree, values: ActionValues) -> Iterator[Tree]:
        return candidates.fit_trees(self.space, tree, values, self.settings.zeta, self.cuts)

    def _try_small_changes(
        self, candidate: Candidate, rng: np.random.Generator, x: np.ndarray, changes: int
    ) -> Candidate:
        """Return the candidate after small changes, and remember episodes in which nearly perfect trees failed."""
        arena = self.arena
        polished, self.state.failing_seeds = candidates.polish(
            arena.simulator, candidate, self.space, x, rng, changes, arena.steps_until(arena.search_budget),
            arena.round_confirmation_episodes(self.state.rounds_without_progress), self.state.failing_seeds,
        )  # fmt: skip
        return polished

    @property
    def has_lost_its_table(self) -> bool:
        """Whether the environment's states turned out not to be what a table takes them for."""
        return not self.problem.is_compiled and self.arena.counts is None

    @property
    def space(self) -> TreeSpace:
        """The trees that are searched now."""
        return TreeSpace(self.blank, self.leaf_actions, self.state.depth, self.state.max_leaves)

    @property
    def changes(self) -> int:
        """How many small changes to try in a round."""
        usual = 300 if self.n_features > 1 else 100
        return self.settings.max_changes or (usual if self.arena.simulator.is_fast else 60)

    # -- judging ----------------------------------------------------------------------------------------------------

    def judge(self, candidate: Candidate, rng: np.random.Generator) -> None:
        """Keep the tree if it beats the best one on episodes that neither was chosen on."""
        state, arena, tree = self.state, self.arena, simplify(candidate.tree)
        if state.is_perfect:
            self._keep_if_smaller_and_perfect(tree, candidate.returns)
            return
        rare_failures = len(state.failing_seeds) > 0  # they show in many episodes only
        min_episodes = arena.round_confirmation_episodes(state.rounds_without_progress) if rare_failures else 0
        seeds = arena.judging_seeds(rng, min_episodes)
        max_steps = arena.steps_until(arena.budget)
        verdict = candidates.judge(arena.simulator, tree, state.best, self.blank, seeds, max_steps, state.round == 0)
        state.best, state.best_return = verdict.tree, verdict.mean
        state.best_error, state.best_episodes = verdict.error, verdict.episodes
        state.rounds_without_progress = 0 if verdict.is_progress else state.rounds_without_progress + 1
        state.returns_vary = state.returns_vary or verdict.returns_vary
        if verdict.is_better:
            state.checked_returns = np.zeros(0)

    def _keep_if_smaller_and_perfect(self, tree: Tree, returns: np.ndarray) -> None:
        """Keep the tree if it has fewer leaves than the perfect one and is perfect too."""
        state = self.state
        if tree.n_leaves < state.best.n_leaves and self._confirm_perfect(tree):
            state.best, state.rounds_without_progress = tree, 0
        else:  # a tree that is far from perfect counts for several rounds
            promising = float((returns >= self.arena.simulator.max_return).mean()) > PROMISING_TREE_EPISODE_SHARE
            state.rounds_without_progress += 1 if promising else MAX_SHRINKING_ROUNDS // 3

    def _confirm_perfect(self, tree: Tree) -> bool:
        """Return whether a tree is nearly perfect on many fresh episodes, and remember those where it fails."""
        state, arena = self.state, self.arena
        seed = int(np.random.default_rng([self.seed, state.round, 1]).integers(2**31))
        late = state.rounds_without_progress >= MAX_SHRINKING_ROUNDS // 2
        late = late or arena.environment.steps > arena.search_budget // 2
        missed_share = NEGLIGIBLE_RETURN_SHARE if late and tree.n_leaves < state.best.n_leaves else NEARLY_PERFECT_LOSS
        seeds = episode_seeds(seed, arena.confirmation_episodes)
        result = candidates.confirm_perfect(arena.simulator, tree, seeds, missed_share)
        if result.is_perfect or tree is state.best:
            state.best_return, state.best_error, state.best_episodes = result.mean, result.error, result.episodes
        state.failing_seeds = candidates.remember_failing_seeds(state.failing_seeds, result.failing_seeds)
        return result.is_perfect

    def _check_table(self, rng: np.random.Generator) -> None:
        """Measure what the best tree returns in the environment itself, where trees are run in a table."""
        state = self.state
        if self.arena.counts is None:
            return
        check = self.arena.check_table(rng, state.best, state.best_return, state.checked_returns, state.round > 2)
        state.best_return, state.best_error = check.mean, check.error
        state.checked_returns, state.best_episodes = check.returns, len(check.returns)
        if check.was_dropped:
            state.rounds_without_progress = 0

    def _decide_whether_over(self) -> None:
        """Decide whether the search is over, and say why."""
        state, max_return = self.state, self.arena.simulator.max_return
        nearly = max_return > 0 and state.best_return >= max_return * (1.0 - NEARLY_PERFECT_LOSS)
        state.is_perfect = state.is_perfect or (nearly and self._confirm_perfect(state.best))
        waited, has_budget = state.rounds_without_progress, self.arena.has_budget
        shrunk = waited >= MAX_SHRINKING_ROUNDS and not self.is_mending
        if state.is_perfect and (shrunk or not has_budget or state.best.n_leaves == 1):
            state.message = "practically perfect: nearly every step earns the highest reward seen"
        elif waited >= self.patience and not state.is_perfect:
            state.message = f"no better tree in {waited} rounds"
        elif not has_budget:
            state.message = "budget used"

    @property
    def patience(self) -> int:
        """How many rounds without a better tree end the search."""
        usual = 3 if self.n_features == 1 else 10 if self.problem.is_compiled and self.state.returns_vary else 6
        return self.settings.patience or usual

    @property
    def is_mending(self) -> bool:
        """Whether rounds are for the few of very many episodes in which the perfect tree fails."""
        state, arena = self.state, self.arena
        affordable = arena.environment.steps + 3 * MENDING_EPISODES_STEPS < 0.65 * arena.budget
        shrunk = state.is_perfect and state.rounds_without_progress >= MAX_SHRINKING_ROUNDS
        return self.problem.is_compiled and affordable and shrunk and state.mending_steps < MAX_MENDING_STEPS

    def mend(self) -> None:
        """Try small changes to a tree that fails in a few of very many episodes, and keep one that fails less.

        Changes are compared where the tree fails and in a few other episodes; the result runs in all of the many.
        """
        state, arena, simulator = self.state, self.arena, self.arena.simulator
        rng, before = np.random.default_rng([self.seed, state.round]), simulator.steps
        count = max(arena.confirmation_episodes, MENDING_EPISODES_STEPS // arena.environment.max_episode_steps)
        many = run_candidate(simulator, state.best, episode_seeds(int(rng.integers(2**31)), count))
        fails, state.best_return = many.returns < simulator.max_return, many.mean
        state.best_error, state.best_episodes = candidates.standard_error(many.returns), len(many.returns)
        if fails.any():
            state.max_leaves, state.depth = state.best.n_leaves, max(state.depth, state.best.depth)
            seeds = np.concatenate([many.seeds[fails], arena.comparison_seeds(rng, state.failing_seeds)])
            start = run_candidate(simulator, state.best, seeds)
            tree = simplify(self._try_small_changes(start, rng, np.zeros((0, self.n_features)), self.changes // 2).tree)
            returns = simulator.returns(tree, many.seeds) if tree != state.best else np.full(1, -np.inf)
            if (mean := float(returns.mean())) > state.best_return:
                state.best, state.best_return, state.best_error = tree, mean, candidates.standard_error(returns)
        nothing_left = is_perfect(state.best_return, simulator.max_return)
        state.mending_steps = MAX_MENDING_STEPS if nothing_left else state.mending_steps + simulator.steps - before
        state.round += 1
        self._decide_whether_over()

    # -- starting, stopping and going on ----------------------------------------------------------------------------

    def _yield_progress(self, candidate: Candidate | None = None) -> Iterator[Snapshot]:
        """Yield where an unfinished round stands, if rounds take long: in the first, with the candidate's tree."""
        if self.problem.is_compiled:
            return
        tree, value = (simplify(candidate.tree), candidate.mean) if candidate is not None else (None, np.nan)
        if self.state.round > 0:
            tree, value = self.state.best, self.state.best_return
        tree = tree and centre_integer_thresholds(tree)
        metrics, message = {"round": float(self.state.round)}, f"round {self.state.round + 1}"
        yield Snapshot(
            self.arena.environment.steps, tree, value, self.arena.budget, metrics, message=message,
            end_without_progress=self._end_without_progress(),
        )  # fmt: skip

    def hand_over(self, start: Tree | None) -> Iterator[Snapshot]:
        """Search directly with the rest of the budget, from a tree if there is one."""
        settings = replace(self.settings.for_direct_search(), budget=self.arena.budget)
        yield from direct.solve(self.problem, settings, used_steps=self.arena.environment.steps, start=start)

    def snapshot(self) -> Snapshot:
        """Return where the search stands after a round."""
        state, arrays = self.state, self._to_arrays()  # as they are now, also if the next round is broken off
        return Snapshot(
            self.arena.environment.steps, centre_integer_thresholds(state.best), state.best_return, self.arena.budget,
            state.metrics, message=state.message, state=lambda: arrays,
            end_without_progress=self._end_without_progress(),
        )  # fmt: skip

    def _end_without_progress(self) -> float | None:
        """Return the steps at which the search ends without a better tree, if rounds take as many as those so far."""
        state, steps = self.state, self.arena.environment.steps
        if state.round == 0 or self.is_mending:
            return None
        rounds = MAX_SHRINKING_ROUNDS if state.is_perfect else self.patience
        return steps + max(1, rounds - state.rounds_without_progress) * steps / state.round

    def _to_arrays(self) -> dict[str, np.ndarray]:
        """Return all that the next round depends on."""
        data = to_arrays(self.state) | self.arena.state()
        if self.table is not None and self.problem.is_compiled:  # otherwise the arena's counts give the values
            data |= self.table.arrays()
        return data

    def restore(self, data: dict[str, np.ndarray]) -> None:
        """Go on from what a snapshot's `state` returned."""
        if "best_return" not in data:
            raise CustardError("the checkpoint is of an earlier version of custard: start the run anew")
        self.state = from_arrays(SearchState, data, self.blank)
        self.arena.restore(data)
        if self.table is not None and self.problem.is_compiled:
            self.table = self.table.restored(data)
