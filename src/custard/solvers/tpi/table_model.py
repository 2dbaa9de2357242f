"""Environments with few states that step in Python: transitions are counted, and trees are run in the table of counts.

This is possible where all features are whole numbers within bounds and they identify the state. What a tree returns in
the table is computed exactly (`ExactSimulator`) or, where that would take long, by compiled rollouts
(`custard.task.compiled_rollouts`). The environment itself gives the experience and has the last word: the search drops
a table in which trees do not return what they return in the environment.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from custard.envs.pcg64 import streams
from custard.solvers.tpi.simulate import CompiledSimulator, PythonSimulator, sample_action_values
from custard.task.compiled_rollouts import TABLE_WORLD_KIND, World, tree_arrays
from custard.task.problem import Problem
from custard.tree.compiled import leaf_of
from custard.tree.tree import Tree

__all__ = ["TABLE_GAMMA", "ExactSimulator", "StateNumbering", "Table", "TransitionCounts", "number_states"]

MAX_TABLE_ENTRIES = 1_000_000  # pairs of state and action
TABLE_GAMMA = 0.999  # discount of values in the table
MAX_EXACT_OUTCOMES = 10_000_000  # outcomes to visit for the exact return of one tree; beyond that trees are rolled out
MAX_EXPLORATION_PLANS = 40  # plans of where to explore, per call of `gather`
MIN_STEPS_PER_PLAN = 2000
STATE_SAMPLING_EPISODES = 64  # that the states for exact action values come from
HEADER_ROWS = 3  # rows of the compiled table before the first pair of state and action

Outcomes = dict[tuple[int, int, bool], list[Any]]  # (pair, next state, terminated) -> [count, reward sum, next x]


@dataclass
class StateNumbering:
    """Numbers for states whose features are whole numbers within bounds."""

    low: np.ndarray  # [n] smallest value of each feature
    sizes: np.ndarray  # [n] number of values of each feature
    n_actions: int
    out_of_bounds: bool = False  # whether a state lay outside the bounds, so that numbers do not identify states

    def __post_init__(self) -> None:
        self.n_states = int(np.prod(self.sizes))
        self.strides = np.concatenate([[1], np.cumprod(self.sizes)[:-1]]).astype(np.int64)
        self._parts = list(zip(self.low.tolist(), self.sizes.tolist(), self.strides.tolist(), strict=True))

    def number(self, x: np.ndarray) -> int:
        """Return the number of one state; fast, since every step needs it."""
        state = 0
        for value, (low, size, stride) in zip(x.tolist(), self._parts, strict=True):
            if not 0 <= value - low < size:
                self.out_of_bounds = True
                return 0
            state += int(value - low) * stride
        return state

    def numbers(self, x: np.ndarray) -> np.ndarray:
        """Return the numbers of states, [B, n] -> [B]."""
        return ((x - self.low).astype(np.int64) * self.strides).sum(axis=-1).clip(0, self.n_states - 1)

    def features(self, states: np.ndarray) -> np.ndarray:
        """Return the feature vectors of state numbers, [B] -> [B, n]."""
        sizes = np.append(self.strides[1:], self.n_states) // self.strides
        digits = [states // stride % size for stride, size in zip(self.strides, sizes, strict=True)]
        return np.stack(digits, axis=1) + self.low


def number_states(problem: Problem) -> StateNumbering | None:
    """Return a numbering of the problem's states; None if it has real features, vector actions or too many states."""
    features, actions = problem.base.features, problem.base.actions
    low = np.ceil(features.low)
    sizes = np.floor(features.high) - low + 1
    whole = actions.discrete and features.integer.all() and not features.unbounded.any()
    if not whole or problem.encoder is not None or np.prod(sizes) * actions.n > MAX_TABLE_ENTRIES:
        return None
    return StateNumbering(low, sizes, actions.n)


@dataclass(frozen=True)
class Table:
    """Outcomes of every pair of state and action, K in all, and start states.

    The outcomes of a pair follow each other; their cumulative chances end with a number above 1. Outcome 0 is that of
    all pairs that were never tried: the episode ends with the worst return seen.
    """

    numbering: StateNumbering
    first: np.ndarray  # [states * actions] where the outcomes of each pair begin
    cumulative: np.ndarray  # [K] cumulative chance within its pair
    reward: np.ndarray  # [K] mean reward
    terminated: np.ndarray  # [K] bool
    next_x: np.ndarray  # [K, n] feature vector of the next state
    start_cumulative: np.ndarray  # [B] cumulative chance of each start state
    start_x: np.ndarray  # [B, n]

    def world(self, max_steps: int) -> World:
        """Return the table as compiled rollouts read it: see `custard.task.compiled_rollouts.take_action`."""
        n, pairs, outcomes = len(self.numbering.low), len(self.first), len(self.reward)
        begin = HEADER_ROWS + pairs
        rows = np.zeros((begin + outcomes + len(self.start_x), n + 3))
        rows[0, :3] = self.numbering.n_actions, begin + outcomes, self.numbering.n_states
        rows[1, :n], rows[2, :n] = self.numbering.low, self.numbering.strides
        rows[HEADER_ROWS:begin, 0] = begin + self.first
        block, starts = rows[begin : begin + outcomes], rows[begin + outcomes :]
        block[:, 0], block[:, 1], block[:, 2], block[:, 3:] = self.cumulative, self.reward, self.terminated, self.next_x
        starts[:, 0], starts[:, 1 : n + 1] = self.start_cumulative, self.start_x
        return World(TABLE_WORLD_KIND, rows, max_steps, n)


class TransitionCounts:
    """Counts of what followed each action in each state of a Python-stepped environment."""

    def __init__(self, problem: Problem, numbering: StateNumbering, environment: PythonSimulator) -> None:
        self.numbering, self.environment = numbering, environment
        self.problem, self.first_action = problem, problem.base.actions.start
        self.outcomes: Outcomes = {}
        self.visits = np.zeros((numbering.n_states, numbering.n_actions))
        self.starts: dict[int, list[Any]] = {}  # state -> [count, x]
        self.values, self.optimistic_values = np.zeros(numbering.n_states), np.zeros(numbering.n_states)
        self.worst_return = 0.0

    def gather(self, steps: int, seed: int, act: Callable[[np.ndarray], Any] | None, noise: float) -> list[float]:
        """Run episodes of about `steps` steps, count their transitions and return their returns.

        `act` chooses actions, with a share `noise` of random ones; without it, little-known pairs are explored.
        """
        environment, rng, returns = self.environment, np.random.default_rng(seed), []
        max_steps, planned_at = environment.steps + steps, environment.steps
        plan = self._exploration_plan() if act is None else []
        number, n_actions = self.numbering.number, self.numbering.n_actions
        state = -1  # -1 at the start of an episode

        def explore(x: np.ndarray) -> int:
            return plan[state if state >= 0 else number(x)] + self.first_action

        def count(x: np.ndarray, action: int, reward: float, next_x: np.ndarray, terminated: bool) -> None:
            nonlocal state
            if state < 0:
                state = number(x)
                self.starts.setdefault(state, [0, x])[0] += 1
            pair, state = state * n_actions + action - self.first_action, number(next_x)
            self.visits.flat[pair] += 1
            entry = self.outcomes.setdefault((pair, state, terminated), [0, 0.0, next_x])
            entry[0] += 1
            entry[1] += reward

        while environment.steps < max_steps:
            if act is None and environment.steps - planned_at > max(steps // MAX_EXPLORATION_PLANS, MIN_STEPS_PER_PLAN):
                plan, planned_at = self._exploration_plan(), environment.steps
            state = -1
            total = environment.run_episode(act or explore, int(rng.integers(2**31)), rng, noise, count)
            returns.append(total)
            self.worst_return = min(self.worst_return, total)
        return returns

    def simulator(self, steps: int) -> CompiledSimulator:
        """Return a simulator of the table as counted so far, which has used `steps` steps.

        It is exact, or rolls trees out where that takes less time.
        """
        max_steps = self.environment.max_episode_steps
        work = len(self.outcomes) / self.numbering.n_actions * max_steps
        if work <= MAX_EXACT_OUTCOMES:
            simulator: CompiledSimulator = ExactSimulator(self.problem, self.table(), max_steps)
            simulator.is_fast = work <= MAX_EXACT_OUTCOMES / 10
        else:
            simulator = CompiledSimulator(self.problem, self.table().world(max_steps))
        simulator.is_table, simulator.steps = True, steps
        simulator.max_step_reward = self.environment.max_step_reward
        return simulator

    def table(self) -> Table:
        """Return the transitions as arrays."""
        outcomes, unknown = self._outcomes_with_equal_end_chance(), 0
        keys, n = sorted(outcomes), len(self.numbering.low)
        counts = np.array([outcomes[key][0] for key in keys], dtype=np.float64)
        pair = np.array([key[0] for key in keys], dtype=np.int64)
        begins = np.flatnonzero(np.diff(pair, prepend=-1))
        lengths = np.diff(np.append(begins, len(pair)))
        cumulative = np.cumsum(counts / np.repeat(np.add.reduceat(counts, begins), lengths))
        cumulative -= np.repeat(np.concatenate([[0.0], cumulative[begins[1:] - 1]]), lengths)
        cumulative[np.append(begins[1:], len(pair)) - 1] = 2.0  # the last outcome takes what rounding leaves
        first = np.full(self.visits.size, unknown)
        first[pair[begins]] = begins + 1
        starts = sorted(self.starts)
        start_counts = np.array([self.starts[state][0] for state in starts], dtype=np.float64)
        start_cumulative = np.cumsum(start_counts) / start_counts.sum()
        start_cumulative[-1] = 2.0
        return Table(
            self.numbering,
            first,
            np.append(2.0, cumulative),
            np.array([self.worst_return, *(outcomes[key][1] / outcomes[key][0] for key in keys)]),
            np.array([True, *(key[2] for key in keys)]),
            np.array([np.zeros(n), *(outcomes[key][2] for key in keys)]),
            start_cumulative,
            np.array([self.starts[state][1] for state in starts]),
        )

    def _outcomes_with_equal_end_chance(self) -> Outcomes:
        """Return the outcomes; if episodes seem to end by the same chance everywhere, with that chance everywhere.

        A tree chosen in the table would otherwise go where by luck few episodes have ended so far.
        """
        visits = self.visits.reshape(-1)
        ended = np.zeros(len(visits))
        for (pair, _, terminated), (count, *_) in self.outcomes.items():
            ended[pair] += count if terminated else 0
        visits, ended = visits[visits > 0], ended[visits > 0]
        chance = ended.sum() / max(1.0, visits.sum())
        if not 0.0 < chance < 1.0:
            return self.outcomes
        variance = visits * chance * (1.0 - chance)  # of `ended`, and below that of the square of its deviation
        error = np.sqrt((2.0 * variance**2 + variance * (1.0 - 6.0 * chance * (1.0 - chance))).sum())
        if ((ended - visits * chance) ** 2).sum() > variance.sum() + 4.0 * error:
            return self.outcomes
        smoothed: Outcomes = {}
        for (pair, state, _), (count, reward, x) in self.outcomes.items():
            for terminated, share in ((False, 1.0 - chance), (True, chance)):
                entry = smoothed.setdefault((pair, state, terminated), [0.0, 0.0, x])
                entry[0] += share * count
                entry[1] += share * reward
        return smoothed

    def action_values(self, optimism: float = 0.0, sweeps: int = 200) -> np.ndarray:
        """Return action values [S, A] by value iteration over the counts.

        With `optimism` every pair counts that many outcomes more, each as good as the best state and reward seen.
        """
        keys = sorted(self.outcomes)
        outcomes = np.array([[*key[:2], key[2]] for key in keys], dtype=np.int64).reshape(-1, 3)
        totals = np.array([self.outcomes[key][:2] for key in keys], dtype=np.float64).reshape(-1, 2)
        q = _iterate_values(outcomes, totals, self.visits, self.values, 0.0, self.worst_return, 0.0, sweeps)
        if optimism == 0.0:
            return q
        rewards = totals[:, 1] / totals[:, 0]
        bonus = min(1e-3, float(np.abs(rewards).max(initial=0.0)) or 1e-3)  # small, also where rewards are small
        best = float(self.values.max()) + float(rewards.max(initial=0.0)) + bonus
        return _iterate_values(
            outcomes, totals, self.visits, self.optimistic_values, best, self.worst_return, optimism, sweeps
        )

    def _exploration_plan(self) -> list[int]:
        """Return the best action of every state if pairs never tried look good, with ties broken at random."""
        q = self.action_values(optimism=1.0, sweeps=60)
        tie_break = 1e-9 * (float(np.abs(q).max()) or 1.0)
        return (q + tie_break * np.random.default_rng(len(self.outcomes)).random(q.shape)).argmax(axis=1).tolist()

    def state(self) -> dict[str, np.ndarray]:
        """Return all counts as arrays."""
        keys, starts = sorted(self.outcomes), sorted(self.starts)
        outcomes = [[*key, *self.outcomes[key][:2], *self.outcomes[key][2]] for key in keys]
        start_rows = [[state, self.starts[state][0], *self.starts[state][1]] for state in starts]
        return {
            "model_outcomes": np.array(outcomes, dtype=np.float64),
            "model_starts": np.array(start_rows, dtype=np.float64),
            "model_values": np.stack([self.values, self.optimistic_values]),
            "model_worst_return": np.array(self.worst_return),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        self.outcomes = {
            (int(row[0]), int(row[1]), bool(row[2])): [int(row[3]), float(row[4]), row[5:].copy()]
            for row in state["model_outcomes"]
        }
        self.starts = {int(row[0]): [int(row[1]), row[2:].copy()] for row in state["model_starts"]}
        self.values, self.optimistic_values = state["model_values"].copy()
        self.worst_return = float(state["model_worst_return"])
        self.visits[:] = 0.0
        for (pair, _, _), (count, *_) in self.outcomes.items():
            self.visits.flat[pair] += count


class ExactSimulator(CompiledSimulator):
    """A table in which returns and action values are expected ones, computed backwards from the time limit."""

    is_exact = True

    def __init__(self, problem: Problem, table: Table, max_steps: int) -> None:
        super().__init__(problem, table.world(max_steps))
        self.numbering = numbering = table.numbering
        shape = numbering.n_states, numbering.n_actions
        is_first = np.zeros(len(table.reward), dtype=bool)
        is_first[table.first], is_first[0] = True, True
        begins = np.append(np.flatnonzero(is_first), len(is_first))
        end = begins[np.searchsorted(begins, table.first, side="right")]
        chance = np.minimum(table.cumulative, 1.0)
        chance[1:] -= np.where(is_first[1:], 0.0, chance[:-1])
        rewards = np.add.reduceat(chance * table.reward, begins[:-1])
        next_state, start_state = numbering.numbers(table.next_x), numbering.numbers(table.start_x)
        self._outcomes = (
            np.stack([table.first, end], axis=1).reshape(*shape, 2),  # where the outcomes of each pair begin and end
            rewards[np.searchsorted(begins, table.first)].reshape(shape),  # expected reward of each pair
            chance * ~table.terminated,  # [K] chance of this outcome and of going on
            next_state,
        )
        self._starts = start_state, np.diff(np.minimum(table.start_cumulative, 1.0), prepend=0.0)
        self._x = np.zeros((numbering.n_states, len(numbering.low)))
        self._x[next_state[1:]] = table.next_x[1:]
        self._x[start_state] = table.start_x
        self._known_states = np.unique(np.concatenate([next_state[1:], start_state]))
        self._last: tuple[Tree, float, float, float] | None = None  # tree and noise asked last, return and length

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        """Return the expected return, the same for each seed."""
        if self._last is None or self._last[0] is not tree or self._last[1] != noise:
            self._last = tree, noise, *self.expectations(tree, noise, False)[1:]
        _, _, value, self.mean_episode_length = self._last
        return np.full(len(seeds), value)

    def action_values(
        self, tree: Tree, seed: int, count: int, noise: float, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return states from rollouts and their expected action values."""
        rng = streams([*np.random.SeedSequence(seed).generate_state(STATE_SAMPLING_EPISODES).tolist(), seed])
        no_actions = self.random_actions[:0]
        x, _, _ = sample_action_values(
            tree_arrays(tree), self.world, self.random_actions, no_actions, rng, count, noise
        )
        return x, self.expectations(tree, noise, True)[0][self.numbering.numbers(x)]

    def expectations(self, tree: Tree, noise: float, all_actions: bool) -> tuple[np.ndarray, float, float]:
        """Return action values [S, A], the return and the length of an episode, all expected.

        Without `all_actions` the first are not computed, and only states that the tree leads to are visited.
        """
        return _expectations(
            tree_arrays(tree), self._outcomes, self._starts, self._x, self._known_states, self.max_episode_steps, noise,
            all_actions,
        )  # fmt: skip


@njit(cache=True)
def _reachable_states(choice, spans, chance, next_state, start_state):
    """Return the states that episodes go through in which `choice` [S] is the action of each state.

    Other arguments as in `_expectations`, taken apart.
    """
    seen, states = np.zeros(len(choice), np.bool_), np.empty(len(choice), np.int64)
    count = done = 0
    for s in start_state:
        if not seen[s]:
            seen[s], states[count] = True, s
            count += 1
    while done < count:
        s = states[done]
        done += 1
        for k in range(spans[s, choice[s], 0], spans[s, choice[s], 1]):
            if chance[k] > 0.0 and not seen[next_state[k]]:
                seen[next_state[k]], states[count] = True, next_state[k]
                count += 1
    return states[:count]


@njit(cache=True)
def _expectations(tree, outcomes, starts, x, known_states, max_steps, noise, all_actions):
    """Compute what `ExactSimulator.expectations` returns.

    `tree` is what `tree_arrays` returns, `outcomes` and `starts` are the arrays that `ExactSimulator` makes, x [S, n]
    the states' feature vectors and `known_states` the numbers of those that were met.
    """
    spans, reward, chance, next_state = outcomes
    start_state, start_chance = starts
    n_states, n_actions = reward.shape
    choice = np.zeros(n_states, np.int64)
    for s in known_states:
        choice[s] = int(tree[4][leaf_of(tree, x[s])])
    if noise == 0.0 and not all_actions:
        known_states = _reachable_states(choice, spans, chance, next_state, start_state)
    value, length = np.zeros(n_states), np.zeros(n_states)
    new_value, new_length = np.zeros(n_states), np.zeros(n_states)
    q = np.zeros((n_states, n_actions))
    for t in range(max_steps + 1):
        if t == max_steps and not all_actions:
            break
        value_change = largest_value = length_change = 0.0
        for s in known_states:
            v = u = 0.0
            for a in range(n_actions):
                share = noise / n_actions + (1.0 - noise if a == choice[s] else 0.0)
                if share == 0.0 and t < max_steps:
                    continue
                total, steps = reward[s, a], 1.0
                for k in range(spans[s, a, 0], spans[s, a, 1]):
                    total += chance[k] * value[next_state[k]]
                    steps += chance[k] * length[next_state[k]]
                q[s, a] = total
                v += share * total
                u += share * steps
            new_value[s], new_length[s] = v, u
            value_change, largest_value = max(value_change, abs(v - value[s])), max(largest_value, abs(v))
            length_change = max(length_change, abs(u - length[s]) / u)
        if t >= max_steps:
            break
        value, new_value = new_value, value
        length, new_length = new_length, length
        if value_change <= 1e-8 * largest_value and (all_actions or length_change <= 1e-8):
            max_steps = min(max_steps, t + 1)  # converged: once more for the values of all actions
    mean = steps = 0.0
    for k in range(len(start_state)):
        mean += start_chance[k] * value[start_state[k]]
        steps += start_chance[k] * length[start_state[k]]
    return q, mean, steps


@njit(cache=True)
def _iterate_values(outcomes, totals, visits, values, optimistic_value, worst_return, optimism, sweeps):
    """Run value iteration in place on `values` [S] and return action values [S, A].

    `outcomes` [K, 3] are pair, next state and terminated, `totals` [K, 2] their counts and reward sums, `visits`
    [S, A] the counts of pairs. Each pair counts `optimism` outcomes more that are worth `optimistic_value`; without
    optimism a pair never tried is worth `worst_return`.
    """
    n_states, n_actions = visits.shape
    q = np.zeros((n_states, n_actions))
    scale = abs(optimistic_value)
    for k in range(len(outcomes)):
        scale = max(scale, min(1.0, abs(totals[k, 1]) / totals[k, 0]))
    for _ in range(sweeps):
        for s in range(n_states):
            for a in range(n_actions):
                n = visits[s, a]
                q[s, a] = 0.0 if n > 0 else (optimistic_value if optimism > 0.0 else worst_return)
                if n > 0 and optimism > 0.0:
                    q[s, a] = optimism * optimistic_value / (n + optimism)
        for k in range(len(outcomes)):
            pair, after = outcomes[k, 0], outcomes[k, 1]
            s, a = pair // n_actions, pair % n_actions
            future = 0.0 if outcomes[k, 2] else totals[k, 0] * TABLE_GAMMA * values[after]
            q[s, a] += (totals[k, 1] + future) / (visits[s, a] + optimism)
        change = 0.0
        for s in range(n_states):
            visited = False
            for a in range(n_actions):
                visited = visited or visits[s, a] > 0
            new = q[s].max() if visited else 0.0
            change = max(change, abs(new - values[s]))
            values[s] = new
        if change < 1e-9 * scale:
            break
    return q
