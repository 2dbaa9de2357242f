"""The arena: where trees are run (the environment, or a table learned from it) and how much work the budget allows.

`searches_directly` says where there are no rounds and direct search takes over. `SearchState` is what a round depends
on besides the arena.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from custard.solvers.tpi.simulate import MIN_EPISODE_CAP, PythonSimulator, Simulator, make_simulator
from custard.solvers.tpi.table_model import TransitionCounts, number_states
from custard.task.problem import Problem
from custard.task.source import DEFAULT_TIME_LIMIT, episode_seeds
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.tpi.search import Settings

__all__ = ["Arena", "SearchState", "TableCheck", "searches_directly"]

COMPILED_BUDGET, PYTHON_BUDGET = 200_000_000, 500_000  # environment steps unless given
SEARCH_BUDGET_SHARE = 0.85  # the rest is for judging what the last round finds
LENGTH_SURVEY_EPISODES = 4  # random episodes that show how long episodes are
MIN_ROUND_EPISODES = 800  # that a round takes, at least
MIN_AFFORDABLE_EPISODES = 2500  # that the budget is to allow, where nothing ends an episode

STEPS_PER_COMPARISON = 30_000  # compiled steps that comparing two trees takes, about
EPISODES_FOR_EXACT_RETURNS = 4  # where returns are exact all episodes are alike
MAX_VALUED_STATES = {1: 40_000, 2: 5000}, 1500, 300  # compiled: by the number of features, or more; from Python
TABLE_VALUING_BUDGET = 100_000_000  # stands for the budget where valuing actions takes no environment steps
MAX_CONFIRMATION_EPISODES = 16_000, 100  # in which a perfect tree is to be perfect: compiled, from Python

MIN_STEPS_PER_STATE_ACTION_PAIR = 10  # of the budget, for a table to be learned
TABLE_EXPLORING_BUDGET_SHARE = 0.3  # of the budget, in round 0
TABLE_FOLLOWING_BUDGET_SHARE, TABLE_CHECKING_BUDGET_SHARE = 0.06, 0.01  # of the budget, in every later round
MAX_TABLE_MISMATCH_STANDARD_ERRORS = 4.0  # between returns in the table and in the environment


@dataclass
class SearchState:
    """What the next round depends on, besides the arena and what was learned of the environment."""

    start: Tree  # the tree that the next round starts from
    best: Tree
    depth: int  # of trees that are searched now
    max_leaves: int
    best_return: float = -np.inf
    best_error: float = np.nan  # standard error of that mean; NaN where it is not known
    best_episodes: int = 0  # that it is over; 0 where that is not known
    round: int = 0
    rounds_without_progress: int = 0
    is_perfect: bool = False  # whether the best tree was perfect in very many episodes
    returns_vary: bool = False  # whether one tree returns more in some episodes than in others
    mending_steps: int = 0  # spent on mending the best tree
    failing_seeds: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # of nearly perfect trees
    checked_returns: np.ndarray = field(default_factory=lambda: np.zeros(0))  # of the best tree, outside the table
    message: str = ""  # why the search is over

    @property
    def metrics(self) -> dict[str, float]:
        """What a snapshot says beside the best tree."""
        metrics: dict[str, float] = {
            "round": self.round,
            "rounds_without_progress": self.rounds_without_progress,
            "leaves": self.best.n_leaves,
        }
        if self.best_error is not None and np.isfinite(self.best_error):  # older checkpoints have none
            metrics |= {"error": self.best_error, "judged": self.best_episodes}
        return {name: float(value) for name, value in metrics.items()}


class TableCheck(NamedTuple):
    """What a tree returns in the environment, and whether the table it was chosen in was dropped for that."""

    returns: np.ndarray
    was_dropped: bool

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean; NaN for a single return."""
        return float(self.returns.std(ddof=1) / np.sqrt(len(self.returns))) if len(self.returns) > 1 else np.nan


def searches_directly(problem: Problem, settings: Settings) -> bool:
    """Return whether trees are searched by their returns alone: where Python steps the environment and its states are
    too many for a table, where leaves may be linear, where the budget is very small, and where an expert, linear tests,
    or a discount are asked for."""
    asks_for_it = settings.expert not in (None, "none") or "linear" in settings.tests + settings.leaves
    if asks_for_it or problem.source.vector is not None or settings.gamma != 1.0:
        return True
    if problem.is_compiled:
        may_be_linear = problem.base.actions.kind == "box" and settings.leaves == "auto"
        is_better_direct = may_be_linear or not can_survey(problem, settings.budget)
        return is_better_direct and not settings.not_for_direct_search
    return not can_have_table(problem, settings.budget)


def can_survey(problem: Problem, budget: int | None) -> bool:
    """Return whether the budget suffices to run the random episodes that show how long episodes are."""
    return budget is None or budget >= LENGTH_SURVEY_EPISODES * (problem.source.time_limit or DEFAULT_TIME_LIMIT)


def can_have_table(problem: Problem, budget: int | None) -> bool:
    """Return whether the budget suffices to learn what every action does in every state."""
    numbering = number_states(problem)
    if numbering is None:
        return False
    return MIN_STEPS_PER_STATE_ACTION_PAIR * numbering.n_states * numbering.n_actions <= (budget or PYTHON_BUDGET)


class Arena:
    """Runs trees in the environment or in a table learned from it, and knows the budget and the time limit."""

    def __init__(self, problem: Problem, budget: int | None, episodes: int | None, blank: Tree, seed: int) -> None:
        """`episodes`, if given, are those that trees are compared on; `blank` is a tree of one leaf."""
        self.problem, self.blank, self.seed = problem, blank, seed
        self.budget = budget or (COMPILED_BUDGET if problem.is_compiled else PYTHON_BUDGET)
        self.search_budget = int(SEARCH_BUDGET_SHARE * self.budget)
        self.environment: Simulator = make_simulator(problem, self.budget)
        self.simulator = self.environment  # where trees are run now
        self.time_limit = problem.source.time_limit  # steps; None if it is not known
        self.counts: TransitionCounts | None = None
        self.numbering = number_states(problem)  # where action values of all states can be learned
        if self.numbering is not None and not problem.is_compiled:
            assert isinstance(self.environment, PythonSimulator)
            self.counts = TransitionCounts(problem, self.numbering, self.environment)
        self._given_episodes, self._is_surveyed = episodes, False

    # -- budget -----------------------------------------------------------------------------------------------------

    @property
    def has_budget(self) -> bool:
        """Whether there is budget left to search with."""
        return self.environment.steps < self.search_budget

    def steps_until(self, environment_steps: int) -> float:
        """Return the simulator's step count at which the environment's reaches a number; a table uses none."""
        if not self.simulator.is_table:
            return environment_steps
        return np.inf if self.environment.steps < environment_steps else -np.inf

    @property
    def affords_a_round(self) -> bool:
        """Whether the budget suffices for valuing actions and comparing trees once."""
        return self.budget >= MIN_ROUND_EPISODES * self.expected_length

    @property
    def expected_length(self) -> float:
        """Steps per episode, in between what they are now and the time limit: better trees may last longer."""
        length = max(1.0, self.simulator.mean_episode_length)
        return length if self.time_limit is None else float(np.sqrt(length * self.time_limit))

    @property
    def comparison_episodes(self) -> int:
        """How many episodes to compare trees on."""
        length = self.expected_length
        if self.simulator.is_table:
            count = int(np.clip(STEPS_PER_COMPARISON // 3 / length, 64, 1000))
        elif self.simulator.is_compiled:
            count = max(4, min(int(np.clip(STEPS_PER_COMPARISON / length, 64, 1000)), int(self.budget / length / 300)))
        else:
            count = int(np.clip(self.budget / length / 400, 4, 200))
        return self._given_episodes or count

    def comparison_seeds(self, rng: np.random.Generator, failing_seeds: np.ndarray) -> np.ndarray:
        """Return seeds of fresh episodes to compare trees on, after those in which nearly perfect trees failed."""
        seed = int(rng.integers(2**31))
        if self.simulator.is_exact:
            return episode_seeds(seed, EPISODES_FOR_EXACT_RETURNS)
        return np.concatenate([failing_seeds, episode_seeds(seed, self.comparison_episodes)])

    def judging_seeds(self, rng: np.random.Generator, min_episodes: int) -> np.ndarray:
        """Return seeds of fresh episodes to judge two trees on: several times as many as for comparing.

        They are at least `min_episodes`, as far as the steps that are kept for judging allow.
        """
        comparison = self.comparison_episodes
        multiple = max(16, min_episodes // comparison) if min_episodes else 8
        if not self.simulator.is_table:
            steps = 2 * comparison * max(1.0, self.simulator.mean_episode_length)
            multiple = int(np.clip((self.budget - self.search_budget) / steps, 2, multiple))
        seed = int(rng.integers(2**31))
        return episode_seeds(seed, EPISODES_FOR_EXACT_RETURNS if self.simulator.is_exact else comparison * multiple)

    @property
    def confirmation_episodes(self) -> int:
        """How many episodes a perfect tree is to be perfect in."""
        max_episodes = MAX_CONFIRMATION_EPISODES[0 if self.problem.is_compiled else 1]
        affordable = (self.budget - self.search_budget) / (2 * self.environment.max_episode_steps)
        return int(np.clip(affordable, 16, max_episodes))

    def round_confirmation_episodes(self, rounds_without_progress: int) -> int:
        """Return how many episodes the tree of a round is to be perfect in: more, the longer nothing better was
        found."""
        return self.confirmation_episodes // 16 * min(4, 2**rounds_without_progress)

    def count_valued_states(self, n_actions: int) -> int:
        """Return in how many states to value `n_actions` actions."""
        n_features, (by_features, usual, from_python) = self.problem.base.features.n, MAX_VALUED_STATES
        max_states = by_features.get(n_features, usual) if self.simulator.is_compiled else from_python
        steps = (TABLE_VALUING_BUDGET if self.simulator.is_table else self.budget) / (25 if n_features > 1 else 10)
        return int(np.clip(steps / (n_actions * max(4.0, self.simulator.mean_episode_length)), 20, max_states))

    # -- time limits ------------------------------------------------------------------------------------------------

    def survey(self) -> None:
        """Measure how long random episodes are, once; shorten them where nothing ends an episode."""
        if self._is_surveyed:
            return
        self._is_surveyed = True
        self._run_random_episodes()
        self.update_time_limit()
        if not self.never_ends:
            return
        limit = int(
            np.clip(self.budget // MIN_AFFORDABLE_EPISODES, MIN_EPISODE_CAP, self.environment.max_episode_steps)
        )
        self.environment.shorten_episodes(limit)
        warnings.warn(
            f"{self.problem.source.name} declares no time limit and random episodes do not end: trees are compared "
            f"on episodes of {limit} steps (max_episode_steps sets another limit)",
            stacklevel=2,
        )

    @property
    def never_ends(self) -> bool:
        """Whether no time limit is known and nothing ended the last episodes."""
        environment = self.environment
        return self.time_limit is None and environment.mean_episode_length >= environment.max_episode_steps

    def update_time_limit(self) -> bool:
        """Take the step at which the environment truncates episodes as the time limit, where none is declared.

        Episodes are not cut there by us, so that one which goes on shows that it is not a limit. Return whether this
        has happened.
        """
        found = self.environment.observed_time_limit
        if self.problem.source.time_limit is not None or found == self.time_limit:
            return False
        assert isinstance(self.environment, PythonSimulator)
        self.time_limit, self.environment.max_episode_steps = found, found or self.environment.episode_cap
        if self.simulator.is_table:
            self._use_table()
        return found is None

    def _run_random_episodes(self) -> None:
        """Run a few random episodes, so that the simulator knows how long episodes are."""
        self.simulator.returns(self.blank, episode_seeds(self.seed, LENGTH_SURVEY_EPISODES), 1.0)

    # -- the table --------------------------------------------------------------------------------------------------

    def learn_table(self, rng: np.random.Generator, best: Tree | None) -> None:
        """Count transitions by exploring, and along the best tree if there is one; then run trees in the table."""
        if self.counts is None or not self.has_budget:
            return
        share = TABLE_EXPLORING_BUDGET_SHARE if best is None else TABLE_CHECKING_BUDGET_SHARE
        self.counts.gather(int(share * self.budget), int(rng.integers(2**31)), None, 0.1)
        if best is not None:
            self.counts.gather(int(TABLE_FOLLOWING_BUDGET_SHARE * self.budget), int(rng.integers(2**31)), best.act, 0.3)
        if self.counts.numbering.out_of_bounds:  # numbers do not identify states
            self._drop_table()
            return
        self._use_table()
        if best is None:
            self._run_random_episodes()

    def check_table(
        self, rng: np.random.Generator, tree: Tree, expected: float, earlier_returns: np.ndarray, can_drop: bool
    ) -> TableCheck:
        """Run a tree in the environment, and drop the table (if it may be) in which it does not return the same.

        `expected` is the tree's return in the table, `earlier_returns` [N] what it returned in earlier checks.
        """
        assert self.counts is not None
        more = self.counts.gather(
            int(TABLE_CHECKING_BUDGET_SHARE * self.budget), int(rng.integers(2**31)), tree.act, 0.0
        )
        returns = np.append(earlier_returns, more)
        error = float(returns.std()) / np.sqrt(len(returns)) + 0.01 * (abs(expected) + float(returns.std()))
        drop = can_drop and abs(float(returns.mean()) - expected) > MAX_TABLE_MISMATCH_STANDARD_ERRORS * error
        if drop:
            self._drop_table()
        return TableCheck(returns, drop)

    def _use_table(self) -> None:
        assert self.counts is not None
        self.simulator = self.counts.simulator(steps=self.simulator.steps if self.simulator.is_table else 0)

    def _drop_table(self) -> None:
        self.counts, self.simulator = None, self.environment

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that changes as arrays."""
        data = {f"environment_{name}": np.array(getattr(self.environment, name)) for name in self.environment.saved}
        if self.time_limit is not None:
            data["time_limit"] = np.array(self.time_limit)
        return data | (self.counts.state() if self.counts is not None else {})

    def restore(self, data: dict[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        for name in self.environment.saved:
            setattr(self.environment, name, data[f"environment_{name}"].item())
        self.time_limit = data["time_limit"].item() if "time_limit" in data else None
        if self.counts is not None and "model_outcomes" in data:
            self.counts.restore(data)
        else:
            self._drop_table()
