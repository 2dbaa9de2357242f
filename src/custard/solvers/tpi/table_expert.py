"""Trees of a table's policy: where all features are whole numbers, action values of all states can be learned.

They come from Q-learning where the environment is compiled, and from counted transitions otherwise. A policy that is
optimal everywhere may need a large tree, one of its trajectories a small one: ties between actions are broken at random
many times over, each policy so made is followed, and trees are fitted to the states that it meets.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numba import njit

from custard.core.actions import Actions
from custard.core.features import Features
from custard.envs.pcg64 import streams, uniform
from custard.solvers.tpi.arena import Arena
from custard.solvers.tpi.simulate import CompiledSimulator
from custard.solvers.tpi.table_model import TABLE_GAMMA, StateNumbering
from custard.task.compiled_rollouts import copy_row, observe_features, start_episode, take_action
from custard.task.problem import Problem
from custard.task.source import episode_seeds
from custard.tree.fit import fit_tree
from custard.tree.tree import Tree

__all__ = ["TableExpert", "table_trees"]

MAX_FIT_STATES = 20_000
MAX_Q_LEARNING_STEPS = 4_800_000
Q_LEARNING_POLICIES, TRANSITION_COUNT_POLICIES = 30, 8  # that trees are made of, by what values come from
Q_LEARNING_RANDOM_SHARE = 0.3  # of actions
FEW_FIT_EPISODES, MANY_FIT_EPISODES = 8, 64  # whose states trees are fitted to; the latter for refits, too
TIED_ACTIONS_GAP_SHARE = 0.02  # share of the median gap between best and worst action within which actions are tied
REFITTED_POLICIES, REFITS_PER_POLICY = 3, 3  # policies whose trees are refitted on their own states; how often


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

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what was learned, copied, for a checkpoint."""
        return {"table_q": self.q.copy(), "table_visits": self.visits.copy()}

    def restored(self, data: dict[str, np.ndarray]) -> TableExpert:
        """Return the expert with what `arrays` returned."""
        return replace(self, q=data["table_q"].copy(), visits=data["table_visits"].copy())

    def trees(
        self,
        simulator: CompiledSimulator,
        depth: int,
        max_leaves: int | None,
        seed: int,
        policies: int,
    ) -> Iterator[Tree]:
        """Yield trees of greedy policies, each with its own way to break ties.

        `depth` and `max_leaves` limit the trees; `simulator` runs the policies, with chances drawn by `seed`.

        First come trees that are optimal in as many states as possible. Then, for each of `policies` policies: the
        smallest tree that does the same on the states of its episodes, and a tree that collects most of the
        action values there; for the first few policies also on the states that the tree before went to.
        """
        rng = np.random.default_rng(seed)
        known = self.visits.min(axis=1) > 0
        gap = self.q.max(axis=1) - self.q.min(axis=1)
        tie = TIED_ACTIONS_GAP_SHARE * float(np.median(gap[known])) if known.any() else 0.0

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
            x = self._states_of(
                simulator, policy, int(rng.integers(2**31)), FEW_FIT_EPISODES if k else MANY_FIT_EPISODES
            )
            yield fit(x, np.eye(self.actions.n)[policy[self.numbering.numbers(x)]], price=1e-3)
            for refit in range(REFITS_PER_POLICY if k < REFITTED_POLICIES else 1):
                value = self.q[self.numbering.numbers(x)]
                tree = fit(x, value - value.max(axis=1, keepdims=True))
                yield tree
                if k < REFITTED_POLICIES and refit < REFITS_PER_POLICY - 1:
                    policy = tree.predict(self.numbering.features(np.arange(len(self.q)))) - self.actions.start
                    more = self._states_of(simulator, policy, int(rng.integers(2**31)), MANY_FIT_EPISODES)
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

    table               the values, where they are learned by Q-learning
    arena               runs the policies
    depths, max_leaves  limits of the trees
    rng                 draws seeds
    is_first_round      whether Q-learning begins: then it takes five times as many steps

    The values come from the arena's counts; where the environment is compiled, from Q-learning, which improves `table`.
    """
    trees: list[Tree] = []
    if not isinstance(arena.simulator, CompiledSimulator):
        return trees
    if arena.counts is not None:
        policies = TRANSITION_COUNT_POLICIES
        table = replace(table, q=arena.counts.action_values(), visits=arena.counts.visits)
    else:
        policies = Q_LEARNING_POLICIES
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
    """Run one episode per stream of a policy [S] and return the states met [N, n] and the steps taken.

    `world` is as in `custard.task.compiled_rollouts`; `low` and `strides` are those of the `StateNumbering`.
    """
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
    """Return the learning rate of a pair after a number of visits."""
    return max(0.02, 1.0 / visits**0.6)


@njit(cache=True)
def _q_learning(world, low, strides, q, visits, steps, rng):
    """Run off-policy Q-learning in place on q [S, A] and visits [S, A] for a number of steps.

    Other arguments as in `_follow_policy`; `rng` [1, 4].
    """
    kind, params, limit, n = world
    n_actions = q.shape[1]
    state, x = np.zeros(n), np.zeros(n)
    start_episode(kind, params, state, rng[0])
    observe_features(kind, state, x)
    s, t = _state_number(x, low, strides), 0
    for _ in range(steps):
        a = int(uniform(rng[0], 0.0, float(n_actions)))
        if uniform(rng[0], 0.0, 1.0) >= Q_LEARNING_RANDOM_SHARE:
            for b in range(n_actions):
                if q[s, b] > q[s, a]:
                    a = b
        reward, over = take_action(kind, params, state, a, rng[0])
        observe_features(kind, state, x)
        after = _state_number(x, low, strides)
        target = reward if over else reward + TABLE_GAMMA * q[after].max()
        visits[s, a] += 1
        q[s, a] += _learning_rate(visits[s, a]) * (target - q[s, a])
        s = after
        t += 1
        if over or t >= limit:
            start_episode(kind, params, state, rng[0])
            observe_features(kind, state, x)
            s, t = _state_number(x, low, strides), 0
