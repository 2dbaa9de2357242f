"""Environments with few states that step in Python: their transitions are learned, then trees are tried in the table.

Where all features are whole numbers within bounds and they tell states apart, what followed each action in each state
can be counted, and what a tree returns is worked out from these counts without chance (`Exact`), or, where the table
is large, by compiled rollouts in it (`custard.task.native_rollouts.TABLE`). The environment itself is asked for
experience, and for the last word: if trees return there what they do in the table, the table is right; otherwise the
search goes on without it.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit

from custard.envs.pcg64 import streams
from custard.solvers.tpi.simulate import Compiled, Foreign, action_values
from custard.task.native_rollouts import TABLE, Place, arrays_of
from custard.task.problem import Problem
from custard.tree.compiled import leaf_of
from custard.tree.tree import Tree

__all__ = ["LARGEST", "Exact", "Grid", "LearnedModel", "improve"]

LARGEST = 1_000_000  # entries a table may have
GAMMA = 0.999
WORK = 10_000_000  # outcomes looked at to work out what one tree returns, at the most
HEAD = 3  # rows of parameters before the first pair of state and action


class Grid:
    """Numbers for states whose features are whole numbers within bounds."""

    def __init__(self, problem: Problem) -> None:
        features, actions = problem.base.features, problem.base.actions
        self.low = np.ceil(features.low)
        sizes = np.floor(features.high) - self.low + 1
        whole = actions.discrete and features.integer.all() and not features.unbounded.any()
        self.possible = bool(whole and problem.encoder is None and np.prod(sizes) * actions.n <= LARGEST)
        if self.possible:
            self.n_states, self.n_actions = int(np.prod(sizes)), actions.n
            self.strides = np.concatenate([[1], np.cumprod(sizes)[:-1]]).astype(np.int64)
            self.parts = list(zip(self.low.tolist(), sizes.tolist(), self.strides.tolist(), strict=True))
            self.left = False  # whether a state lay outside the bounds, so that numbers do not tell states apart

    def number(self, x: np.ndarray) -> int:
        """The number of one state; quick, as it is asked for at every step."""
        s = 0
        for value, (low, size, stride) in zip(x.tolist(), self.parts, strict=True):
            if not 0 <= value - low < size:
                self.left = True
                return 0
            s += int(value - low) * stride
        return s

    def row(self, x: np.ndarray) -> np.ndarray:
        """The number of each state, [B, n] -> [B]."""
        return ((x - self.low).astype(np.int64) * self.strides).sum(axis=-1).clip(0, self.n_states - 1)


class LearnedModel:
    """Counts of what followed each action in each state."""

    def __init__(self, problem: Problem, grid: Grid, real: Foreign) -> None:
        self.grid, self.real, self.start = grid, real, problem.base.actions.start
        self.outcomes: dict[tuple[int, int, bool], list[Any]] = {}  # (pair, next, over) -> [count, reward sum, next x]
        self.visits = np.zeros((grid.n_states, grid.n_actions))
        self.starts: dict[int, list[Any]] = {}  # state -> [count, x]
        self.value, self.hoped = np.zeros(grid.n_states), np.zeros(grid.n_states)
        self.worst = 0.0

    def gather(self, steps: int, seed: int, act: Callable[[np.ndarray], Any] | None, noise: float) -> list[float]:
        """Run about so many steps of episodes, exploring what is little known if `act` is None; their returns."""
        rng, goal, returns = np.random.default_rng(seed), self.real.steps + steps, []
        choice, planned = self._hopeful() if act is None else [], self.real.steps
        number, outcomes, visits, n_actions = self.grid.number, self.outcomes, self.visits, self.grid.n_actions
        at = [-1]  # the state's number, -1 at the start of an episode

        def explore(x: np.ndarray) -> int:
            return choice[at[0] if at[0] >= 0 else number(x)] + self.start

        def see(x: np.ndarray, action: int, reward: float, after: np.ndarray, over: bool) -> None:
            if at[0] < 0:
                at[0] = number(x)
                self.starts.setdefault(at[0], [0, x])[0] += 1
            pair, after_s = at[0] * n_actions + action - self.start, number(after)
            visits.flat[pair] += 1
            entry = outcomes.setdefault((pair, after_s, over), [0, 0.0, after])
            entry[0] += 1
            entry[1] += reward
            at[0] = after_s

        while self.real.steps < goal:
            if act is None and self.real.steps - planned > max(steps // 40, 2000):
                choice, planned = self._hopeful(), self.real.steps
            at[0] = -1
            total, _ = self.real.episode(self.real.env, act or explore, int(rng.integers(2**31)), rng, noise, see)
            returns.append(total)
            self.worst = min(self.worst, total)
        return returns

    def evened(self) -> dict[tuple[int, int, bool], list[Any]]:
        """The outcomes; if episodes seem to end by the same chance everywhere, with that chance everywhere.

        A tree chosen in the table would else go where by luck few episodes have ended so far.
        """
        n = self.visits.reshape(-1)
        ended = np.zeros(len(n))
        for (pair, _, over), (count, *_) in self.outcomes.items():
            ended[pair] += count if over else 0
        n, met = n[n > 0], ended[n > 0]
        chance = met.sum() / max(1.0, n.sum())
        if not 0.0 < chance < 1.0:
            return self.outcomes
        luck = n * chance * (1.0 - chance)  # the variance of what each pair has ended, and below that of its square
        error = np.sqrt((2.0 * luck**2 + luck * (1.0 - 6.0 * chance * (1.0 - chance))).sum())
        if ((met - n * chance) ** 2).sum() > luck.sum() + 4.0 * error:
            return self.outcomes
        evened: dict[tuple[int, int, bool], list[Any]] = {}
        for (pair, after, _), (count, reward, x) in self.outcomes.items():
            for over, share in ((False, 1.0 - chance), (True, chance)):
                entry = evened.setdefault((pair, after, over), [0.0, 0.0, x])
                entry[0] += share * count
                entry[1] += share * reward
        return evened

    def params(self) -> np.ndarray:
        """The table as the compiled loops read it; actions never tried end the episode with the worst return seen."""
        grid, n, outcomes = self.grid, len(self.grid.low), self.evened()
        pairs, keys = grid.n_states * grid.n_actions, sorted(outcomes)
        rows = np.zeros((HEAD + pairs + 1 + len(keys) + len(self.starts), n + 3))
        rows[1, :n], rows[2, :n] = grid.low, grid.strides
        unknown = HEAD + pairs
        rows[HEAD:unknown, 0] = unknown
        rows[unknown, :3] = [2.0, self.worst, 1.0]
        counts = np.array([outcomes[key][0] for key in keys], dtype=np.float64)
        pair = np.array([key[0] for key in keys], dtype=np.int64)
        first = np.flatnonzero(np.diff(pair, prepend=-1))
        rows[HEAD + pair[first], 0] = unknown + 1 + first
        sums = np.add.reduceat(counts, first)
        share = counts / np.repeat(sums, np.diff(np.append(first, len(pair))))
        cumulative = np.cumsum(share)
        cumulative -= np.repeat(
            np.concatenate([[0.0], cumulative[first[1:] - 1]]), np.diff(np.append(first, len(pair)))
        )
        cumulative[np.append(first[1:], len(pair)) - 1] = 2.0  # the last outcome takes what rounding leaves
        block = rows[unknown + 1 : unknown + 1 + len(keys)]
        block[:, 0] = cumulative
        for k, key in enumerate(keys):
            count, reward, after = outcomes[key]
            block[k, 1], block[k, 2] = reward / count, key[2]
            block[k, 3 : n + 3] = after
        rows[0, :3] = grid.n_actions, unknown + 1 + len(keys), grid.n_states
        begun = np.array([self.starts[s][0] for s in sorted(self.starts)], dtype=np.float64)
        ends = rows[unknown + 1 + len(keys) :]
        ends[:, 0] = np.cumsum(begun) / begun.sum()
        ends[-1, 0] = 2.0
        ends[:, 1 : n + 1] = [self.starts[s][1] for s in sorted(self.starts)]
        return rows

    def world(self, problem: Problem) -> Compiled:
        """The table to try trees in: exactly, or by rollouts where that would take longer."""
        work = len(self.outcomes) / self.grid.n_actions * self.real.limit
        world = (Exact if work <= WORK else Compiled)(
            problem, (TABLE, self.params(), self.real.limit, len(self.grid.low))
        )
        world.slow = WORK / 10 < work <= WORK
        return world

    def q(self, hope: float = 0.0, sweeps: int = 200) -> np.ndarray:
        """Action values by value iteration over the counts, [S, A]; `hope` counts for what is unknown."""
        keys = sorted(self.outcomes)
        table = np.array([[*key[:2], key[2]] for key in keys], dtype=np.int64).reshape(-1, 3)
        numbers = np.array([self.outcomes[key][:2] for key in keys], dtype=np.float64).reshape(-1, 2)
        q = improve(table, numbers, self.visits, self.value, 0.0, self.worst, 0.0, sweeps)
        if hope == 0.0:
            return q
        rewards = numbers[:, 1] / numbers[:, 0]
        bonus = min(1e-3, float(np.abs(rewards).max(initial=0.0)) or 1e-3)  # little, also where rewards are
        best = float(self.value.max()) + float(rewards.max(initial=0.0)) + bonus
        return improve(table, numbers, self.visits, self.hoped, best, self.worst, hope, sweeps)

    def _hopeful(self) -> list[int]:
        """The choice in every state if what was never tried looks good, ties broken at random."""
        q = self.q(hope=1.0, sweeps=60)
        tiny = 1e-9 * (float(np.abs(q).max()) or 1.0)
        return (q + tiny * np.random.default_rng(len(self.outcomes)).random(q.shape)).argmax(axis=1).tolist()

    def state(self) -> dict[str, np.ndarray]:
        """All counts as arrays."""
        keys, starts = sorted(self.outcomes), sorted(self.starts)
        rows = [[*key, *self.outcomes[key][:2], *self.outcomes[key][2]] for key in keys]
        begun = [[s, self.starts[s][0], *self.starts[s][1]] for s in starts]
        return {
            "model_outcomes": np.array(rows, dtype=np.float64), "model_starts": np.array(begun, dtype=np.float64),
            "model_value": np.stack([self.value, self.hoped]), "model_worst": np.array(self.worst),
        }  # fmt: skip

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        self.outcomes = {
            (int(row[0]), int(row[1]), bool(row[2])): [int(row[3]), float(row[4]), row[5:].copy()]
            for row in state["model_outcomes"]
        }
        self.starts = {int(row[0]): [int(row[1]), row[2:].copy()] for row in state["model_starts"]}
        self.value, self.hoped = state["model_value"].copy()
        self.worst = float(state["model_worst"])
        self.visits[:] = 0.0
        for (pair, _, _), (count, *_) in self.outcomes.items():
            self.visits.flat[pair] += count


class Exact(Compiled):
    """A table in which returns and action values are expected ones, worked out backwards from the time limit."""

    last: tuple[Tree, float, Any] | None = None  # the tree asked about last, and the answer

    def __init__(self, problem: Problem, place: Place) -> None:
        super().__init__(problem, place)
        _, self.params, _, self.n = place

    def returns(self, tree: Tree, seeds: np.ndarray, noise: float = 0.0) -> np.ndarray:
        """The expected return, the same for each seed."""
        if self.last is None or self.last[0] is not tree or self.last[1] != noise:
            self.last = tree, noise, self._values(tree, noise, False)
        _, value, self.length = self.last[2]
        return np.full(len(seeds), value)

    def action_values(
        self, tree: Tree, seed: int, count: int, noise: float, tried: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """States from rollouts, expected values."""
        rng = streams([*np.random.SeedSequence(seed).generate_state(64).tolist(), seed])
        x, _, _ = action_values(arrays_of(tree), self.place, self.moves, self.moves[:0], rng, count, noise)
        q = self._values(tree, noise, True)[0]
        low, strides = self.params[1:3, : self.n]
        return x, q[((x - low).astype(np.int64) * strides.astype(np.int64)).sum(axis=1)]

    def _values(self, tree: Tree, noise: float, all_actions: bool) -> tuple[np.ndarray, float, float]:
        outcomes = *self.chances, self.after
        starts = np.diff(np.minimum(self.params[int(self.params[0, 1]) :, 0], 1.0), prepend=0.0)
        return _expected(arrays_of(tree), outcomes, starts, self.x, self.known, self.limit, noise, all_actions)

    @cached_property
    def begins(self) -> np.ndarray:
        """Whether a row is the first of a pair's outcomes."""
        unknown = HEAD + int(self.params[0, 2] * self.params[0, 0])
        begins = np.zeros(len(self.params), dtype=bool)
        begins[self.params[HEAD:unknown, 0].astype(np.int64)] = True
        begins[unknown] = True
        return begins

    @cached_property
    def share(self) -> np.ndarray:
        """The chance of each row among the outcomes of its pair."""
        share = np.minimum(self.params[:, 0], 1.0)
        share[1:] -= np.where(self.begins[1:], 0.0, np.minimum(self.params[:-1, 0], 1.0))
        return share

    @cached_property
    def chances(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows of each pair [S, A, 2], its expected reward [S, A], each row's chance of going on there."""
        rows, ends = self.params, int(self.params[0, 1])
        n_actions, n_states = int(rows[0, 0]), int(rows[0, 2])
        first = rows[HEAD : HEAD + n_states * n_actions, 0].astype(np.int64)
        following = np.append(np.flatnonzero(self.begins[:ends]), ends)
        last = following[np.searchsorted(following, first, side="right")]
        sums = np.add.reduceat((self.share * rows[:, 1])[:ends], following[:-1])
        spans = np.stack([first, last], axis=1).reshape(n_states, n_actions, 2)
        reward = sums[np.searchsorted(following, first)].reshape(n_states, n_actions)
        return spans, reward, self.share * (rows[:, 2] < 0.5)

    @cached_property
    def after(self) -> np.ndarray:
        """The number of the state in each row of outcomes, and of each start."""
        rows, n, ends = self.params, self.n, int(self.params[0, 1])
        low, strides = rows[1, :n], rows[2, :n].astype(np.int64)
        numbers = ((rows[:, 3 : n + 3] - low).astype(np.int64) * strides).sum(axis=1)
        numbers[ends:] = ((rows[ends:, 1 : n + 1] - low).astype(np.int64) * strides).sum(axis=1)
        return numbers.clip(0, int(rows[0, 2]) - 1)

    @cached_property
    def x(self) -> np.ndarray:
        """The feature vector of every state that was met."""
        rows, n, ends, pairs = self.params, self.n, int(self.params[0, 1]), int(self.params[0, 2] * self.params[0, 0])
        x, first = np.zeros((int(rows[0, 2]), n)), HEAD + pairs + 1
        x[self.after[first:ends]] = rows[first:ends, 3 : n + 3]
        x[self.after[ends:]] = rows[ends:, 1 : n + 1]
        return x

    @cached_property
    def known(self) -> np.ndarray:
        """The states that were met."""
        first = HEAD + int(self.params[0, 2] * self.params[0, 0]) + 1
        return np.unique(self.after[first:])


@njit(cache=True)
def _met(choice, spans, chance, after, starts):
    """The states that episodes of one choice in each state go through."""
    seen, states = np.zeros(len(choice), np.bool_), np.empty(len(choice), np.int64)
    count = done = 0
    for k in range(len(after) - len(starts), len(after)):
        if not seen[after[k]]:
            seen[after[k]], states[count] = True, after[k]
            count += 1
    while done < count:
        s = states[done]
        done += 1
        for row in range(spans[s, choice[s], 0], spans[s, choice[s], 1]):
            if chance[row] > 0.0 and not seen[after[row]]:
                seen[after[row]], states[count] = True, after[row]
                count += 1
    return states[:count]


@njit(cache=True)
def _expected(tree, outcomes, starts, x, known, limit, noise, all_actions):
    """Action values [S, A] with all steps to come, the expected return, and the expected length of an episode.

    Without `all_actions` the first are not wanted, and only the states that the tree leads to are looked at.
    """
    spans, reward, chance, after = outcomes
    n_states, n_actions = reward.shape
    choice = np.zeros(n_states, np.int64)
    for s in known:
        choice[s] = int(tree[4][leaf_of(tree, x[s])])
    if noise == 0.0 and not all_actions:
        known = _met(choice, spans, chance, after, starts)
    value, length = np.zeros(n_states), np.zeros(n_states)
    new_value, new_length = np.zeros(n_states), np.zeros(n_states)
    q = np.zeros((n_states, n_actions))
    for t in range(limit + 1):
        if t == limit and not all_actions:
            break
        change = scale = drift = 0.0
        for s in known:
            v = u = 0.0
            for a in range(n_actions):
                share = noise / n_actions + (1.0 - noise if a == choice[s] else 0.0)
                if share == 0.0 and t < limit:
                    continue
                total, steps = reward[s, a], 1.0
                for row in range(spans[s, a, 0], spans[s, a, 1]):
                    total += chance[row] * value[after[row]]
                    steps += chance[row] * length[after[row]]
                q[s, a] = total
                v += share * total
                u += share * steps
            new_value[s], new_length[s] = v, u
            change, scale = max(change, abs(v - value[s])), max(scale, abs(v))
            drift = max(drift, abs(u - length[s]) / u)
        if t >= limit:
            break
        value, new_value = new_value, value
        length, new_length = new_length, length
        if change <= 1e-8 * scale and (all_actions or drift <= 1e-8):
            limit = min(limit, t + 1)  # nothing changes any more: once more for the values of all actions
    mean = steps = 0.0
    for k in range(len(starts)):
        s = after[len(after) - len(starts) + k]
        mean += starts[k] * value[s]
        steps += starts[k] * length[s]
    return q, mean, steps


@njit(cache=True)
def improve(table, numbers, visits, value, best, worst, hope, sweeps):
    """Value iteration in place on `value` [S]; each pair counts `hope` outcomes more that are worth `best`."""
    n_states, n_actions = visits.shape
    q = np.zeros((n_states, n_actions))
    least = abs(best)
    for k in range(len(table)):
        least = max(least, min(1.0, abs(numbers[k, 1]) / numbers[k, 0]))
    for _ in range(sweeps):
        for s in range(n_states):
            for a in range(n_actions):
                n = visits[s, a]
                q[s, a] = 0.0 if n > 0 else (best if hope > 0.0 else worst)
                if n > 0 and hope > 0.0:
                    q[s, a] = hope * best / (n + hope)
        for k in range(len(table)):
            pair, after = table[k, 0], table[k, 1]
            s, a = pair // n_actions, pair % n_actions
            total = visits[s, a] + hope
            q[s, a] += (numbers[k, 1] + (0.0 if table[k, 2] else numbers[k, 0] * GAMMA * value[after])) / total
        change = 0.0
        for s in range(n_states):
            seen = False
            for a in range(n_actions):
                seen = seen or visits[s, a] > 0
            new = q[s].max() if seen else 0.0
            change = max(change, abs(new - value[s]))
            value[s] = new
        if change < 1e-9 * least:
            break
    return q
