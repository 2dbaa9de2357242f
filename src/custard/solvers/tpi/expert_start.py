"""Experts whose trees the search starts from: a table of action values, or a network that is given or trained first.

Where an environment is stepped from Python its steps are few, and a network learns what to do in a part of them; trees
then imitate it. Where all features are whole numbers, action values of all states come from Q-learning or from counts.
A policy that is optimal everywhere may need a large tree, one of its trajectories a small one: ties between actions are
broken at random many times over, each policy so made is followed, and trees are fitted to the states that it meets.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numba import njit

from custard.core.actions import Actions
from custard.core.features import Features
from custard.envs.pcg64 import streams, uniform
from custard.experts.numbered_actions import with_numbered_actions
from custard.solvers.tpi.arena import Arena
from custard.solvers.tpi.simulate import CompiledSimulator
from custard.solvers.tpi.table_model import GAMMA, StateNumbering
from custard.task.compiled_rollouts import copy_row, observe_features, start_episode, take_action
from custard.task.problem import Problem
from custard.task.runners import visited_states
from custard.task.source import episode_seeds
from custard.tree.fit import fit_tree
from custard.tree.tree import Tree

__all__ = [
    "ImitatedExpert", "TableExpert", "choose_expert", "greedy_tree", "imitate", "imitations", "prepare_expert",
    "table_trees",
]  # fmt: skip

MIN_BUDGET_FOR_EXPERT = 50_000  # steps of a budget for which an expert is trained unless told otherwise
MAX_EXPERT_STEPS = 300_000  # training steps where environments are stepped from Python
CHECK_STEPS_SHARE = 0.4  # steps of the expert's checks per training step
DAGGER_ROUNDS = 10
MAX_FIT_STATES = 20_000
MAX_IMITATION_EPISODES = 20  # episodes of the expert and of each tree that imitates it
IMITATION_BUDGET_SHARE = 0.1  # share of the budget for imitations at each depth
MAX_Q_LEARNING_STEPS = 4_800_000
LEARNED_POLICIES, COUNTED_POLICIES = 30, 8  # policies that trees are made of, for values from Q-learning or from counts
Q_LEARNING_NOISE = 0.3  # share of random actions
TIE_SHARE = 0.02  # share of the median gap between best and worst action within which actions are tied
REFITTED_POLICIES, REFITS = 3, 3  # so many policies have their trees refitted so often, on the trees' own states


@dataclass(frozen=True)
class ImitatedExpert:
    """An expert and the problem it acts in."""

    expert: Any  # custard.experts.expert.Expert
    problem: Problem  # with numbered actions, where the expert can only choose among some
    to_own_tree: (
        Callable[[Tree], Tree] | None
    )  # turns its trees into trees of the search's own problem, if that differs


def choose_expert(given: Any, arena: Arena) -> Any:
    """Return the expert to start from: the one given or, unless told, "dqn" where steps are few; else "none"."""
    given = given or ("dqn" if _trains_unless_told(arena) else "none")
    if given != "none" and not arena.problem.is_compiled:
        arena.survey()
    return given


def _trains_unless_told(arena: Arena) -> bool:
    """Return whether to train an expert although none was asked for; warn where only the means are missing."""
    if arena.problem.is_compiled or arena.numbering is not None:
        return False
    if arena.budget < MIN_BUDGET_FOR_EXPERT:
        warnings.warn(
            f"with budgets below {MIN_BUDGET_FOR_EXPERT:,} steps no expert is trained to begin from, which often makes "
            'better trees: expert="dqn" trains one all the same',
            stacklevel=2,
        )
        return False
    arena.survey()
    if arena.never_ends:
        return False
    if find_spec("jax") and find_spec("optax"):
        return True
    warnings.warn(
        "an expert to begin from would make better trees here, and is trained by itself with the extra "
        '"neural": pip install "custard-rl[neural]"',
        stacklevel=2,
    )
    return False


def prepare_expert(given: Any, arena: Arena, budget_is_given: bool) -> Iterator[Any]:
    """Yield the progress of the expert's training (`custard.experts.dqn.Progress`), then the `ImitatedExpert`.

    `given` is what `choose_expert` returned. Nothing is yielded for "none".
    """
    if given == "none":
        return
    from custard.experts.expert import Expert
    from custard.experts.kinds import experts

    problem, to_own_tree = arena.problem, None
    if given == "dqn":
        problem, to_own_tree = with_numbered_actions(problem, arena.blank)
    for item in experts(problem, given, _training_settings(arena, budget_is_given), arena.seed):
        yield ImitatedExpert(item, problem, to_own_tree) if isinstance(item, Expert) else item


def _training_settings(arena: Arena, budget_is_given: bool) -> Any:
    """Return the settings for training a DQN expert."""
    from custard.experts import dqn
    from custard.task.settings import settings_for

    settings: dict[str, Any] = {"checks": 8, "check_rollouts": 20, "standardise": True}
    settings |= {"check_steps": _max_episode_steps(arena)}
    if not arena.problem.is_compiled:  # steps take longer than updates
        settings |= {"steps_per_update": 1.0, "check_rollouts": 10, "judging": CHECK_STEPS_SHARE}
        settings |= {"steps": min(MAX_EXPERT_STEPS, arena.budget // 3)}
    elif budget_is_given:  # the default budget is far too large to train a network in
        settings |= {"steps": arena.budget // 3}
    return settings_for(dqn, arena.problem.preset_key, "tuned", settings)


def _max_episode_steps(arena: Arena) -> int | None:
    """Return the length of the expert's and its imitations' episodes; None where there is a time limit."""
    limited = arena.problem.is_compiled or arena.time_limit is not None
    return None if limited else arena.problem.episode_cap(arena.budget)


def imitate(
    expert: ImitatedExpert,
    arena: Arena,
    depths: Sequence[int],
    max_leaves: int | None,
    cuts: int,
    rng: np.random.Generator,
) -> tuple[list[tuple[Tree, float]], int]:
    """Return trees of each depth that imitate an expert, with their mean returns; and the environment steps used then.

    `max_leaves` and `cuts` (thresholds per feature) limit the trees.
    """
    trees: list[tuple[Tree, float]] = []
    steps, share = arena.environment.steps, IMITATION_BUDGET_SHARE * arena.budget
    episodes = int(np.clip(share / (10 * arena.environment.mean_episode_length), 4, MAX_IMITATION_EPISODES))
    for depth in depths:
        limits, max_steps = (depth, max_leaves, cuts, int(rng.integers(2**31))), steps + share
        for tree, mean, used in imitations(expert.problem, expert.expert, *limits, _max_episode_steps(arena), episodes):
            trees.append((expert.to_own_tree(tree) if expert.to_own_tree else tree, mean))
            steps += used
            if steps >= max_steps:
                break
    return trees, steps


def imitations(
    problem: Problem,
    expert: Any,
    depth: int,
    max_leaves: int | None,
    cuts: int,
    seed: int,
    max_steps: int | None = None,
    episodes: int = MAX_IMITATION_EPISODES,
) -> Iterator[tuple[Tree, float, int]]:
    """Yield trees that imitate an expert, with their mean return and the environment steps used for each.

    Trees are fitted to the expert's own states, then also to the states that trees went to (DAgger). Two per round: one
    fitted to the expert's action values, and a greedy one (CART) fitted to its actions, in which a state counts as much
    as the second-best action loses. `depth`, `max_leaves` and `cuts` (thresholds per feature) limit the trees,
    `max_steps` the episodes.
    """
    rng = np.random.default_rng(seed)
    features, actions = problem.base.features, problem.base.actions
    rate_actions = expert.q or expert.log_policy

    def follow(act: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, float, int]:
        """Return the states that a policy meets, its mean return and the steps taken."""
        met, results = visited_states(act, problem, episode_seeds(int(rng.integers(2**31)), episodes), max_steps)
        return met, float(results.returns.mean()), int(results.lengths.sum())

    x, _, expert_steps = follow(lambda x: expert.act(x) + actions.start)
    for _ in range(DAGGER_ROUNDS):
        sample = x[rng.permutation(len(x))[:MAX_FIT_STATES]]
        value = rate_actions(sample)
        value = value - value.max(axis=1, keepdims=True)
        fitted = fit_tree(sample, value, features, actions, max_depth=depth, max_leaves=max_leaves, cuts=cuts).tree
        for tree in (fitted, greedy_tree(sample, value, features, actions, depth, max_leaves)):
            met, mean, steps = follow(tree.predict)
            x = np.concatenate([x, met])
            yield tree, mean, steps + expert_steps
            expert_steps = 0


def greedy_tree(
    x: np.ndarray, value: np.ndarray, features: Features, actions: Actions, depth: int, max_leaves: int | None
) -> Tree:
    """Return a tree by scikit-learn that takes the best actions where others lose most.

    x [N, n] are states, value [N, A] what actions are worth there; `depth` and `max_leaves` limit the tree.
    """
    from sklearn.tree import DecisionTreeClassifier

    from custard.tree.export.sklearn import from_sklearn

    best = value.argmax(axis=1)
    loss = value.max(axis=1) - np.partition(value, -2, axis=1)[:, -2] if actions.n > 1 else np.zeros(len(x))
    if depth == 0 or max_leaves == 1:
        return Tree.leaf(int(value.sum(axis=0).argmax()) + actions.start, features, actions)
    cart = DecisionTreeClassifier(max_depth=depth, max_leaf_nodes=max_leaves, random_state=0)
    cart.fit(x, best + actions.start, sample_weight=loss + 1e-12)
    return from_sklearn(cart, features, actions)


@dataclass(frozen=True)
class TableExpert:
    """Action values of all states of a table, and trees of policies that are greedy in them."""

    numbering: StateNumbering
    features: Features
    actions: Actions
    q: np.ndarray  # [S, A]
    visits: np.ndarray  # [S, A]

    @classmethod
    def untrained(cls, problem: Problem, numbering: StateNumbering) -> TableExpert:
        """Return an expert that knows nothing yet."""
        shape = numbering.n_states, numbering.n_actions
        return cls(numbering, problem.base.features, problem.base.actions, np.zeros(shape), np.zeros(shape))

    def learn(self, simulator: CompiledSimulator, steps: int, seed: int) -> None:
        """Improve `q` and `visits` in place by Q-learning, with a share of random actions."""
        _q_learning(
            simulator.world, self.numbering.low, self.numbering.strides, self.q, self.visits, steps, streams([seed])
        )
        simulator.steps += steps

    def trees(
        self,
        simulator: CompiledSimulator,
        depth: int,
        max_leaves: int | None,
        seed: int,
        policies: int,
        episodes: int = 8,
    ) -> Iterator[Tree]:
        """Yield trees of greedy policies, each with its own way to break ties.

        First come trees that are optimal in as many states as possible. Then, for each of `policies` policies: the
        smallest tree that does the same on the states of its `episodes` episodes, and a tree that collects most of the
        action values there; for the first few policies also on the states that the tree before went to.
        """
        rng = np.random.default_rng(seed)
        known = self.visits.min(axis=1) > 0
        gap = self.q.max(axis=1) - self.q.min(axis=1)
        tie = TIE_SHARE * float(np.median(gap[known])) if known.any() else 0.0

        def fit(x: np.ndarray, value: np.ndarray, price: float = 0.0) -> Tree:
            limits = {"max_depth": depth, "max_leaves": max_leaves, "price": price}
            return fit_tree(x, value, self.features, self.actions, **limits).tree  # type: ignore[arg-type]

        if known.any():
            states = rng.permutation(np.flatnonzero(known))[:MAX_FIT_STATES]
            x, q = self.numbering.features(states), self.q[states]
            best = q.max(axis=1, keepdims=True)
            yield fit(x, (q >= best - tie).astype(np.float64))
            yield fit(x, q - best)
        for k in range(policies):
            tied = self.q >= self.q.max(axis=1, keepdims=True) - (tie if k else 0.0)
            policy = (tied * (1.0 + rng.random(self.q.shape))).argmax(axis=1)
            x = self._states_of(simulator, policy, int(rng.integers(2**31)), episodes if k else 8 * episodes)
            yield fit(x, np.eye(self.actions.n)[policy[self.numbering.numbers(x)]], price=1e-3)
            for refit in range(REFITS if k < REFITTED_POLICIES else 1):
                value = self.q[self.numbering.numbers(x)]
                tree = fit(x, value - value.max(axis=1, keepdims=True))
                yield tree
                if k < REFITTED_POLICIES and refit < REFITS - 1:
                    policy = tree.predict(self.numbering.features(np.arange(len(self.q)))) - self.actions.start
                    more = self._states_of(simulator, policy, int(rng.integers(2**31)), 8 * episodes)
                    x = np.concatenate([x, more])[-MAX_FIT_STATES:]

    def _states_of(self, simulator: CompiledSimulator, policy: np.ndarray, seed: int, episodes: int) -> np.ndarray:
        """Return the states [N, n] that a policy, given as the action number of each state [S], meets."""
        rng = streams(episode_seeds(seed, episodes).tolist())
        x, steps = _follow_policy(
            simulator.world, self.numbering.low, self.numbering.strides, policy, rng, MAX_FIT_STATES
        )
        simulator.steps += steps
        return x


def table_trees(
    table: TableExpert,
    arena: Arena,
    depths: Sequence[int],
    max_leaves: int | None,
    rng: np.random.Generator,
    is_first_round: bool,
) -> list[Tree]:
    """Return trees of each depth of policies that are greedy in a table of action values.

    The values come from the arena's counts; where the environment is compiled, from Q-learning, which improves `table`.
    """
    trees: list[Tree] = []
    if not isinstance(arena.simulator, CompiledSimulator):
        return trees
    if arena.counts is not None:
        policies = COUNTED_POLICIES
        table = replace(table, q=arena.counts.action_values(), visits=arena.counts.visits)
    else:
        policies = LEARNED_POLICIES
        steps = min(MAX_Q_LEARNING_STEPS, arena.budget // 25) // (1 if is_first_round else 5)
        table.learn(arena.simulator, steps, int(rng.integers(2**31)))
    for depth in depths:
        trees += table.trees(arena.simulator, depth, max_leaves, int(rng.integers(2**31)), policies)
    return trees


@njit(cache=True)
def _state_number(x, low, strides):
    """Return the number of one state: `StateNumbering.number` in compiled code."""
    state = 0
    for c in range(len(x)):
        state += int(x[c] - low[c]) * strides[c]
    return state


@njit(cache=True)
def _follow_policy(world, low, strides, policy, rng, max_states):
    """Run one episode per stream of a policy [S] and return the states met [N, n] and the steps taken."""
    kind, params, limit, n = world
    met = np.zeros((max_states, n))
    state, x = np.zeros(n), np.zeros(n)
    count = steps = 0
    for k in range(len(rng)):
        start_episode(kind, params, state, rng[k])
        for _ in range(limit):
            observe_features(kind, state, x)
            if count < max_states:
                copy_row(x, met[count])
                count += 1
            _, over = take_action(kind, params, state, policy[_state_number(x, low, strides)], rng[k])
            steps += 1
            if over or count >= max_states:
                break
        if count >= max_states:
            break
    return met[:count], steps


@njit(cache=True)
def _learning_rate(visits):
    """Return the learning rate of a pair after so many visits."""
    return max(0.02, 1.0 / visits**0.6)


@njit(cache=True)
def _q_learning(world, low, strides, q, visits, steps, rng):
    """Run off-policy Q-learning in place on q [S, A] and visits [S, A] for a number of steps."""
    kind, params, limit, n = world
    n_actions = q.shape[1]
    state, x = np.zeros(n), np.zeros(n)
    start_episode(kind, params, state, rng[0])
    observe_features(kind, state, x)
    s, t = _state_number(x, low, strides), 0
    for _ in range(steps):
        a = int(uniform(rng[0], 0.0, float(n_actions)))
        if uniform(rng[0], 0.0, 1.0) >= Q_LEARNING_NOISE:
            for b in range(n_actions):
                if q[s, b] > q[s, a]:
                    a = b
        reward, over = take_action(kind, params, state, a, rng[0])
        observe_features(kind, state, x)
        after = _state_number(x, low, strides)
        target = reward if over else reward + GAMMA * q[after].max()
        visits[s, a] += 1
        q[s, a] += _learning_rate(visits[s, a]) * (target - q[s, a])
        s = after
        t += 1
        if over or t >= limit:
            start_episode(kind, params, state, rng[0])
            observe_features(kind, state, x)
            s, t = _state_number(x, low, strides), 0
