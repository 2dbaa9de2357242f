"""Direct search over trees: what whole episodes return is all that it learns from.

1. **Constants.** Trees of one leaf show how long episodes are and what doing nothing clever returns.
2. **Expert.** Scores linear in the features are found by direct search on the return (`custard.experts.linear`). Where
   that fails or is not enough, a DQN races against it. An expert of the user's takes their place.
3. **Imitation.** Trees of several sizes imitate the expert on its states and on their own (`imitate`).
4. **Race.** For the best tree of each size all numbers are searched for at once (`evolve`); the worse half drops out
   again and again.
5. **Refinement.** Random small changes of the best tree's shape (`refine`), then again all of its numbers.
6. **Shrinking.** Splits that the return does not need are taken away.
7. **Judging.** The value shown is the mean over episodes that chose nothing.

Every comparison has fresh episodes (`race`). Each phase has a share of the budget, and what one leaves the next may
use. The state between two units of work is plain data, so that a run can stop and go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.core.errors import require_least
from custard.experts.direct_search import DirectSearchSettings
from custard.experts.linear import search_linear_policy
from custard.solvers.direct.evolve import Arm
from custard.solvers.direct.imitate import imitations, teacher_of
from custard.solvers.direct.race import BudgetUsed, Racer, Winner
from custard.solvers.direct.refine import change, shrink
from custard.solvers.direct.state import SearchState
from custard.task.policies import LinearPolicy
from custard.task.problem import Problem, Snapshot
from custard.task.workers import make_runner
from custard.tree.leaf_actions import LeafActions
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "solve"]

DEFAULT_BUDGET = 500_000  # environment steps where nobody measured what a step costs
DEFAULT_MAX_LEAVES = 32
#: Shares of the budget after which each phase is over, judging kept: what a phase leaves, the next may use.
EXPERT_END, IMITATION_END, RACE_END, REFINEMENT_END, SHRINKING_END = 0.3, 0.36, 0.6, 0.8, 0.9
CONSTANT_EPISODES, MAX_CONSTANTS, CONSTANTS_SHARE = 8, 8, 0.03
ARMS, FINALISTS_PER_SIZE = 6, 3  # trees that race, and those of one size that they are chosen from
RUNGS = 3  # times the worse half drops out
COMPARISON_SHARE, MIN_COMPARISON, MAX_COMPARISON = 0.005, 8, 64  # of the budget for an episode of each; episodes
GENERATIONS = 30  # that a search should have: where the budget allows fewer, they are made smaller
MAX_KEPT_STATES = 4000  # that show where thresholds may lie
MAX_JUDGING_EPISODES = 200
TOLERATED_LOSS = 0.01  # for a smaller tree, as a share of what the best tree gains over constants
CHANGES_PER_EVOLUTION = 4  # comparisons of changed shapes between two searches for all numbers

PRESETS: dict[str, dict[str, dict[str, object]]] = {"tuned": {}}


@dataclass(frozen=True)
class Settings:
    """Direct search's settings; None means chosen from the environment."""

    budget: int | None = None
    """Environment steps, those of judging included."""

    max_leaves: int | None = None
    """The largest number of leaves; 32 unless given."""

    expert: str | Callable[..., Any] | None = None
    """What trees imitate at first: linear, dqn, a file, a function to Q-values, or none."""

    def __post_init__(self) -> None:
        require_least(self, 1, "max_leaves")


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Search until the budget is used or nothing better is found."""
    runner = make_runner(problem)
    try:
        search = DirectSearch(problem, settings, runner)
        if state is not None:
            search.restore(state)
        yield from search.run()
    finally:
        runner.close()


class DirectSearch:
    """The phases, in order; each is a generator of snapshots."""

    def __init__(self, problem: Problem, settings: Settings, runner: Any) -> None:
        self.problem, self.settings = problem, settings
        self.budget = settings.budget or DEFAULT_BUDGET
        self.seed = problem.seeds("direct")["direct"]
        self.racer = Racer(runner, self.seed, problem.episode_cap(self.budget), int(SHRINKING_END * self.budget))
        self.max_leaves = settings.max_leaves or DEFAULT_MAX_LEAVES
        self.max_depth = self.max_leaves - 1 if problem.max_depth is None else problem.max_depth
        self.leaf_actions = LeafActions(problem.base.actions)
        action = self.leaf_actions.random(np.random.default_rng(self.seed))
        self.blank = Tree.leaf(action, problem.base.features, problem.base.actions)
        self.state = SearchState(self.blank)

    def run(self) -> Iterator[Snapshot]:
        """Run the phases that are left."""
        phases = {
            "constants": self.try_constants, "expert": self.search_expert, "imitation": self.imitate,
            "race": self.race, "refinement": self.refine, "shrinking": self.shrink, "judging": self.judge_finally,
        }  # fmt: skip
        names = list(phases)
        try:
            for name in names[names.index(self.state.phase) : -1]:
                self.state.phase = name
                yield from phases[name]()
        except BudgetUsed:
            pass
        self.state.phase, self.racer.limit = names[-1], self.budget
        yield from self.judge_finally()
        yield self.snapshot(message="budget used" if self.steps_left(0.98) <= 0 else "nothing better is found")

    # -- phases -----------------------------------------------------------------------------------------------------

    def try_constants(self) -> Iterator[Snapshot]:
        """Judge trees of one leaf."""
        rng, base = np.random.default_rng([self.seed, 0]), self.problem.base
        menu = self.leaf_actions
        actions = np.array([menu.low, (menu.low + menu.high) / 2, menu.high]) if menu.all is None else menu.all
        chosen = [actions[i] for i in rng.permutation(len(actions))[:MAX_CONSTANTS]]
        trees = [Tree.leaf(action, base.features, base.actions) for action in chosen]
        affordable = CONSTANTS_SHARE * self.budget / (len(trees) * (self.racer.max_steps or 1))
        episodes = int(np.clip(affordable, 2, CONSTANT_EPISODES))
        results = self.racer.screen(trees, episodes, keep_states=True)
        means = [float(result.returns.mean()) for result in results]
        self.state.constant_return = max(means)
        self.state.episode_length = float(np.mean([result.lengths.mean() for result in results]))
        self.keep_states(np.concatenate([result.states for result in results]))
        self.take(trees[int(np.argmax(means))])
        yield self.snapshot()

    def search_expert(self) -> Iterator[Snapshot]:
        """Search for a linear policy."""
        steps = self.steps_left(EXPERT_END) + int(self.state.expert_search.get("search.steps", [0])[0])
        size = self.problem.base.features.n + 1
        settings = self.search_settings(steps, size)
        for found in search_linear_policy(
            self.problem, self.racer, settings, self.seed, self.racer.max_steps, self.state.expert_search or None
        ):
            self.state.expert_search = found.state
            self.state.expert_return = found.search.value
            if found.policy is not None:
                self.state.expert_weights = np.column_stack([found.policy.weights, found.policy.bias])
            yield self.snapshot(f"searching a linear policy, now {found.search.value:.4g}")

    def imitate(self) -> Iterator[Snapshot]:
        """Fit trees of several sizes to the expert, and let the best of each size race."""
        teacher = teacher_of(self.expert, self.racer)
        sizes = [self.max_leaves // 2**k for k in range(4, -1, -1) if self.max_leaves // 2**k > 1] or [self.max_leaves]
        pool: dict[int, list[tuple[float, Tree]]] = {}
        steps, length = self.steps_left(IMITATION_END), self.state.episode_length
        for found in imitations(
            teacher, self.problem.base, self.racer, sizes, self.max_depth, self.seed, steps, length
        ):
            for mean, tree in found.trees:
                pool.setdefault(next(size for size in sizes if tree.n_leaves <= size), []).append((mean, tree))
            states = found.states
            yield self.snapshot("imitating it")
        self.keep_states(states)
        finalists: list[Tree] = []
        for entries in pool.values():
            entries.sort(key=lambda entry: -entry[0])
            finalists += [tree for _, tree in entries[:FINALISTS_PER_SIZE]]
        ranked = self.racer.rank(finalists, ARMS, self.comparison_episodes // 4)
        self.state.arms = [Arm(finalists[i], finalists[i]) for i in ranked]
        self.challenge([self.state.arms[0].tree])
        yield self.snapshot()

    def race(self) -> Iterator[Snapshot]:
        """Search for the numbers of several trees, and drop the worse half again and again."""
        state = self.state
        while state.rung < RUNGS and state.arms:
            share = self.steps_left(RACE_END) / (RUNGS - state.rung) / len(state.arms)
            for k, arm in enumerate(state.arms):
                yield from self.evolve(arm, arm.steps + share, [self.seed, 1, k], "racing trees")
            keep = max(1, len(state.arms) // 2)
            ranked = self.racer.rank([arm.tree for arm in state.arms], keep, self.comparison_episodes // 2, rounds=1)
            state.arms = [state.arms[i] for i in ranked]
            state.rung += 1
            self.challenge([arm.tree for arm in state.arms])
            yield self.snapshot()

    def refine(self) -> Iterator[Snapshot]:
        """Change the best tree's shape, and search for its numbers again."""
        state = self.state
        while self.steps_left(REFINEMENT_END) > 0 and self.max_leaves > 1:
            rng = np.random.default_rng([self.seed, 2, state.round])
            if state.round % (CHANGES_PER_EVOLUTION + 1):
                winner = change(
                    state.tree, self.racer, self.comparison_episodes, state.states, rng, self.max_depth, self.max_leaves
                )
                self.accept(winner)
            else:
                arm = Arm(state.tree, state.tree)
                steps = self.steps_left(REFINEMENT_END) / 3
                yield from self.evolve(arm, steps, [self.seed, 3, state.round], "refining")
                self.challenge([arm.tree])
            state.round += 1
            yield self.snapshot("refining")

    def shrink(self) -> Iterator[Snapshot]:
        """Take splits away that the return does not need."""
        state = self.state
        tolerance = TOLERATED_LOSS * max(0.0, float(state.judged.mean()) - state.constant_return)
        while state.tree.n_leaves > 1 and self.steps_left(SHRINKING_END) > 0:
            winner = shrink(state.tree, self.racer, 2 * self.comparison_episodes, tolerance)
            if not winner.is_new:
                break
            self.accept(winner)
            yield self.snapshot("shrinking")

    def judge_finally(self) -> Iterator[Snapshot]:
        """Judge the tree on as many fresh episodes as the budget has left."""
        while len(self.state.judged) < MAX_JUDGING_EPISODES:
            if self.steps_left(1.0) < self.judging_episodes * self.state.episode_length:
                break
            self.judge(self.judging_episodes)
            yield self.snapshot("judging")

    # -- parts of phases --------------------------------------------------------------------------------------------

    def evolve(self, arm: Arm, steps: float, seed: list[int], message: str) -> Iterator[Snapshot]:
        """Search for the numbers of one tree until so many steps were spent on it."""
        settings = self.search_settings(
            int(steps), arm.start.n_nodes, finalists=1, final_episodes=self.judging_episodes
        )
        number = int(np.random.SeedSequence(seed).generate_state(1)[0])
        for progress in arm.improve(self.racer, settings, self.state.states, number):
            yield self.snapshot(f"{message}, now {progress.value:.4g}")

    def challenge(self, trees: list[Tree]) -> None:
        """Let trees challenge the best one."""
        self.accept(self.racer.improve(self.state.tree, [simplify(tree) for tree in trees], self.comparison_episodes))

    def accept(self, winner: Winner) -> None:
        """Keep the winner of a comparison as the best tree."""
        if winner.is_new:
            self.take(winner.tree)

    def take(self, tree: Tree) -> None:
        """Make a tree the best one; a few fresh episodes judge it."""
        self.state.tree, self.state.judged = tree, np.zeros(0)
        self.judge(self.judging_episodes)

    def judge(self, episodes: int) -> None:
        """Run fresh episodes of the best tree; they choose nothing."""
        result = self.racer.screen([self.state.tree], episodes)[0]
        self.state.judged = np.append(self.state.judged, result.returns)
        self.state.episode_length = float(result.lengths.mean())

    def keep_states(self, states: np.ndarray) -> None:
        """Keep some of the states that were met."""
        rng = np.random.default_rng([self.seed, 4])
        self.state.states = states[rng.permutation(len(states))[:MAX_KEPT_STATES]]

    @property
    def comparison_episodes(self) -> int:
        """How many episodes to compare trees on."""
        affordable = COMPARISON_SHARE * self.budget / max(1.0, self.state.episode_length)
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
        rounds = max(1.0, steps / (GENERATIONS * max(1.0, self.state.episode_length)))  # episodes per generation
        population = int(np.clip(rounds / 2, 8 + np.log(size), 40))
        episodes = int(np.clip(rounds / population, 1, 3))
        return DirectSearchSettings(
            steps=steps, population=population, episodes=episodes, max_episodes=2 * episodes, **more
        )

    @property
    def expert(self) -> LinearPolicy:
        """The linear policy found."""
        weights = self.state.expert_weights
        return LinearPolicy(weights[:, :-1], weights[:, -1], self.problem.base.actions)

    # -- progress and checkpoints -----------------------------------------------------------------------------------

    def snapshot(self, message: str = "") -> Snapshot:
        """Return where the search stands."""
        state = self.state
        state.steps, state.draws = self.racer.steps, self.racer.draws
        arrays = state.to_arrays()
        facts = {"judged": len(state.judged), "leaves": state.tree.n_leaves, "expert": state.expert_return}
        value = float(state.judged.mean()) if len(state.judged) else np.nan
        return Snapshot(
            state.steps,
            state.tree,
            value,
            self.budget,
            {name: float(fact) for name, fact in facts.items()},
            message=message,
            state=lambda: arrays,
        )

    def restore(self, data: dict[str, np.ndarray]) -> None:
        """Go on from what a snapshot's `state` returned."""
        self.state = SearchState.from_arrays(data, self.problem.base)
        self.racer.steps, self.racer.draws = self.state.steps, self.state.draws
