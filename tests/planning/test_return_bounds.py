"""Each compiled bound against its definition, written down densely and without haste."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from custard.planning import return_bounds
from custard.planning.reduced import ReducedMDP, reduce
from tests.planning.random_mdp import random_mdp

SEEDS = range(12)
IN_PLACE, GATHERED = 4, 7  # sweeps: all before actions are copied, and some after


class Case:
    """A small random problem, some of its actions allowed, a price of visits: also as dense arrays."""

    def __init__(self, seed: int, sign: float | None = None, **kind: Any) -> None:
        self.rng = np.random.default_rng(seed)
        mdp = random_mdp(2, 3, seed, **{"gamma": 0.9, **kind})
        if sign is not None:
            rewards = sign * (np.abs(mdp.rewards) + (seed % 2) * 0.5)
            mdp = dataclasses.replace(mdp, rewards=np.where(mdp.terminal[:, None], 0.0, rewards))
        self.problem = reduce(mdp)
        n, n_actions = self.problem.n, self.problem.n_actions
        self.n, self.n_actions = n, n_actions
        self.allowed = self.rng.random((n, n_actions)) < 0.6
        self.allowed[np.arange(n), self.rng.integers(n_actions, size=n)] = True
        self.price = self.rng.integers(0, 3, n) * 0.25 * (seed % 3 > 0)
        self.moves = dense_moves(self.problem)
        self.arrays = (self.problem.pointer, self.problem.successor, self.problem.probability)

    @property
    def model(self) -> tuple[np.ndarray, ...]:
        return (*self.arrays, self.problem.reward)

    def q(self, values: np.ndarray, gamma: float) -> np.ndarray:
        """What each allowed action earns, now and later, [S, A]."""
        q = self.problem.reward - self.price[:, None] + gamma * (self.moves @ values)
        return np.where(self.allowed, q, -np.inf)

    def policies(self) -> list[np.ndarray]:
        return [np.array(choice) for choice in itertools.product(*(np.flatnonzero(row) for row in self.allowed))]


def dense_moves(problem: ReducedMDP) -> np.ndarray:
    """Return the probabilities of the states that follow, [S, A, S], from the whole model."""
    states = problem.states
    return np.stack([matrix.toarray()[np.ix_(states, states)] for matrix in problem.mdp.transitions], axis=1)


@pytest.mark.parametrize("ending", [0.0, 0.1, 1.0])
def test_what_an_allowed_action_earns(ending: float) -> None:
    for seed in SEEDS:
        case = Case(seed, ending=ending)
        values = case.rng.normal(size=case.n)
        wanted = case.q(values, 0.9).max(axis=1)
        gathered = return_bounds.gather(*case.model, case.allowed, case.price, 0.9)
        for s in range(case.n):
            own = return_bounds.backup(*case.model, case.allowed, case.price, values, 0.9, s)
            assert own == pytest.approx(wanted[s], abs=1e-12)
            assert return_bounds.backup_gathered(*gathered, values, s) == pytest.approx(wanted[s], abs=1e-12)
        nothing = np.zeros_like(case.allowed)
        assert return_bounds.backup(*case.model, nothing, case.price, values, 0.9, 0) == -np.inf


def test_only_states_that_episodes_begin_in_count_at_the_start() -> None:
    values = np.array([2.0, -np.inf, 4.0, np.inf])
    assert return_bounds.start_value(np.array([0.5, 0.0, 0.5, 0.0]), values) == 3.0
    assert return_bounds.start_value(np.array([0.5, 0.5, 0.0, 0.0]), values) == -np.inf
    assert return_bounds.start_value(np.array([0.0, 0.0, 1.0, 0.0]), values) == 4.0


@pytest.mark.parametrize("sweeps", [1, 2, IN_PLACE, GATHERED])
def test_sweeps_from_above_go_back_and_forth_and_never_raise_a_value(sweeps: int) -> None:
    for seed in SEEDS:
        case = Case(seed)
        wanted = case.problem.top + case.rng.random(case.n) * 5 * (case.rng.random(case.n) < 0.7)
        values = wanted.copy()
        for sweep in range(sweeps):
            for s in range(case.n) if sweep % 2 else reversed(range(case.n)):
                wanted[s] = min(wanted[s], case.q(wanted, 0.9)[s].max())
        bound = return_bounds.relaxed_bound(
            *case.model, case.problem.start, case.allowed, case.price, values, 0.9, sweeps, -np.inf
        )
        assert values == pytest.approx(wanted, abs=1e-12)
        assert bound == pytest.approx(case.problem.start @ wanted, abs=1e-12)


def test_sweeps_from_above_end_where_the_bound_is_low_enough_or_settled() -> None:
    for seed in SEEDS:
        case = Case(seed)
        values = case.problem.top + 10.0
        once, settled = values.copy(), values.copy()
        rest = (case.problem.start, case.allowed, case.price)
        return_bounds.relaxed_bound(*case.model, *rest, once, 0.9, 1, -np.inf)
        bound = return_bounds.relaxed_bound(*case.model, *rest, values, 0.9, 10**6, case.problem.start @ once)
        assert values.tolist() == once.tolist()  # equal to the cutoff is low enough
        assert bound == pytest.approx(case.problem.start @ once, abs=1e-12)
        bound = return_bounds.relaxed_bound(*case.model, *rest, settled, 0.9, 10**6, -np.inf)
        assert case.q(settled, 0.9).max(axis=1) == pytest.approx(settled, abs=1e-11)
        assert bound == pytest.approx(case.problem.start @ settled, abs=1e-12)


@pytest.mark.parametrize("ending", [0.05, 0.5])
def test_values_rise_from_zero_to_the_best_or_nothing_is_said(ending: float) -> None:
    for seed in SEEDS:
        case = Case(seed, gamma=1.0, sign=1.0, ending=ending)
        values = np.full(case.n, 77.0)
        rest = (case.problem.start, case.allowed, case.price)
        bound = return_bounds.rising_bound(*case.model, *rest, values, 10**5)
        wanted = np.zeros(case.n)
        for _ in range(3000):
            wanted = np.maximum(wanted, case.q(wanted, 1.0).max(axis=1))
        assert values == pytest.approx(wanted, abs=1e-9)
        assert bound == pytest.approx(case.problem.start @ wanted, abs=1e-9)
        if wanted.any():
            assert return_bounds.rising_bound(*case.model, *rest, values, 1) == np.inf
            assert return_bounds.rising_bound(*case.model, *rest, values, 0) == np.inf
            by_hand = np.zeros(case.n)
            for s in reversed(range(case.n)):
                by_hand[s] = max(0.0, case.q(by_hand, 1.0)[s].max())
            return_bounds.rising_bound(*case.model, *rest, values, 1)
            assert values == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("kind", [{}, {"sign": -1.0}, {"sign": 1.0}, {"ending": 0.0, "sign": -1.0}])
@pytest.mark.parametrize("horizon", [1, 2, 6])
def test_backward_induction_within_the_actions(kind: dict, horizon: int) -> None:
    """Of the best policy that may look at the time left; cut short only where that stays a bound."""
    for seed in SEEDS:
        for gamma in (1.0, 0.8):
            case = Case(seed, **kind, horizon=horizon)
            wanted = np.zeros(case.n)
            for _ in range(horizon):
                wanted = case.q(wanted, gamma).max(axis=1)
            best = float(case.problem.start @ wanted)
            rest = (case.problem.start, case.allowed, case.price)
            values = np.full(case.n, 77.0)
            bound = return_bounds.backward_bound(*case.model, *rest, values, gamma, horizon, -np.inf)
            assert bound == pytest.approx(best, abs=1e-12)
            assert values == pytest.approx(wanted, abs=1e-12)
            for cutoff in (best - 0.5, best + 0.5, 0.0):
                assert return_bounds.backward_bound(*case.model, *rest, values, gamma, horizon, cutoff) >= best - 1e-12


def test_values_that_rise_slowly_are_waited_for() -> None:
    """The first and the last state have their values at once, those between them rise little from sweep to sweep."""
    pointer, successor = np.array([0, 0, 2, 4, 4]), np.array([1, 2, 1, 2])
    probability, reward = np.array([0.45, 0.5, 0.5, 0.45]), np.array([[5.0], [1.0], [2.0], [5.0]])
    start, values = np.array([0.0, 0.5, 0.5, 0.0]), np.zeros(4)
    rest = (start, np.ones((4, 1), dtype=bool), np.zeros(4), values, 10**5)
    bound = return_bounds.rising_bound(pointer, successor, probability, reward, *rest)
    wanted = np.linalg.solve(np.array([[0.55, -0.5], [-0.5, 0.55]]), [1.0, 2.0])
    assert values == pytest.approx([5.0, *wanted, 5.0], abs=1e-9)
    assert bound == pytest.approx(wanted.mean(), abs=1e-9)


def test_a_value_that_turns_into_its_opposite_has_changed() -> None:
    pointer, successor, reward = np.array([0, 1, 2, 2]), np.array([1, 2]), np.array([[1.0], [-2.0], [4.0]])
    start, values = np.array([1.0, 0.0, 0.0]), np.zeros(3)
    rest = (start, np.ones((3, 1), dtype=bool), np.zeros(3), values, 1.0, 9, -np.inf)
    assert return_bounds.backward_bound(pointer, successor, np.ones(2), reward, *rest) == 3.0


def chain(length: int, step: float, last: float, back: bool = False) -> tuple[Any, ...]:
    """State k leads to k + 1, each step earns `step`, the last one `last`; with `back` the last leads to the first."""
    pointer = np.append(np.arange(length), length if back else length - 1)
    successor = np.append(np.arange(1, length), [0] if back else []).astype(np.int64)
    reward = np.full((length, 1), step)
    reward[-1] = last
    start = (np.arange(length) == 0).astype(float)
    arrays = pointer, successor, np.ones(len(successor)), reward
    return arrays, start, np.ones((length, 1), dtype=bool), np.zeros(length), np.full(length, 9.0)


def test_what_is_earned_after_many_idle_steps_counts() -> None:
    """Where nothing can be gained, thirty sweeps without effect on the start end the induction; not otherwise."""
    for last in (1.0, 0.25):
        arrays, start, allowed, price, values = chain(60, 0.0, last)
        assert return_bounds.backward_bound(*arrays, start, allowed, price, values, 1.0, 60, -np.inf) == last
        assert return_bounds.backward_bound(*arrays, start, allowed, price, values, 1.0, 59, -np.inf) == 0.0
        assert return_bounds.backward_bound(*arrays, start, allowed, price, values, 1.0, 60, 5.0) == last
    arrays, start, allowed, price, values = chain(60, 0.0, -1.0)
    assert return_bounds.backward_bound(*arrays, start, allowed, price, values, 1.0, 10**9, -np.inf) == 0.0
    arrays, start, allowed, price, values = chain(20, 0.0, -1.0)
    assert return_bounds.backward_bound(*arrays, start, allowed, price, values, 1.0, 10**9, -np.inf) == -1.0
    arrays, start, allowed, price, values = chain(5, -1.0, -1.0, back=True)
    assert return_bounds.backward_bound(*arrays, start, allowed, price, values, 1.0, 10**9, -7.0) == -7.0


def test_states_in_reach_of_the_allowed_actions() -> None:
    for seed in SEEDS:
        case = Case(seed, starts=1, deterministic=True, ending=0.0)
        allowed = case.allowed & (case.rng.random(case.allowed.shape) < 0.6)  # some states have none left
        reached = case.problem.start > 0
        for _ in range(case.n):
            for s, a in itertools.product(range(case.n), range(case.n_actions)):
                if reached[s] and allowed[s, a]:
                    reached |= case.moves[s, a] > 0
        arrays = case.arrays[:2]
        assert (
            return_bounds.reachable(*arrays, case.problem.start, allowed, case.n_actions).tolist() == reached.tolist()
        )


@pytest.mark.parametrize("ending", [0.0, 0.1])
def test_the_largest_reward_of_what_cannot_end(ending: float) -> None:
    for seed in SEEDS:
        case = Case(seed, starts=1, deterministic=True, ending=0.0)
        mdp = case.problem.mdp
        if ending:  # one state ends episodes with some probability, whatever is done
            ends = [matrix.tolil() for matrix in mdp.transitions]
            for matrix in ends:
                matrix[[1]] = (1 - ending) * matrix[[1]].toarray()
                matrix[1, mdp.n_states - 1] += ending
            mdp = dataclasses.replace(mdp, transitions=tuple(matrix.tocsr() for matrix in ends))
            case.problem = reduce(mdp)
            case.n = case.problem.n
            case.allowed, case.price = case.allowed[: case.n], case.price[: case.n]
            case.arrays = (case.problem.pointer, case.problem.successor, case.problem.probability)
            case.moves = dense_moves(case.problem)
        seen = return_bounds.reachable(*case.arrays[:2], case.problem.start, case.allowed, case.n_actions)
        ends_at = (case.moves.sum(axis=2) < 1 - 1e-9) & case.allowed & seen[:, None]
        rewards = np.where(case.allowed & seen[:, None], case.problem.reward - case.price[:, None], -np.inf)
        wanted = np.inf if ends_at.any() else rewards.max()
        found = return_bounds.endless_reward(*case.model, case.problem.start, case.allowed, case.price)
        assert found == pytest.approx(wanted, abs=1e-12)


def test_whether_some_policy_surely_ends() -> None:
    """Tried for every policy: does each state that it comes to lead on to the end?"""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, n_actions = 4, 2
        moves = np.zeros((n, n_actions, n + 1))
        for s, a in itertools.product(range(n), range(n_actions)):
            after = rng.choice(n + 1, size=int(rng.integers(1, 3)), replace=False, p=[0.2] * n + [0.2])
            moves[s, a, after] = 1.0 / len(after)
        if seed % 2:  # a state that is never left
            moves[3], moves[3, :, 3] = 0.0, 1.0
        allowed = rng.random((n, n_actions)) < 0.8
        allowed[np.arange(n), rng.integers(n_actions, size=n)] = True
        start = (rng.random(n) < 0.4).astype(float)
        start[rng.integers(n)] = 1.0
        start /= start.sum()
        wanted = False
        for choice in itertools.product(*(np.flatnonzero(row) for row in allowed)):
            one = np.vstack([moves[np.arange(n), list(choice)], np.eye(n + 1)[-1]]) > 0
            within = np.linalg.matrix_power((one | np.eye(n + 1, dtype=bool)).astype(float), n + 1) > 0
            comes_to = within[:n][start > 0].any(axis=0)
            wanted |= bool(within[comes_to][:, n].all())
        inner = moves[:, :, :n]
        at = [np.flatnonzero(row) for row in inner.reshape(n * n_actions, n)]
        pointer = np.concatenate([[0], np.cumsum([len(row) for row in at])])
        successor = np.concatenate(at).astype(np.int64)
        probability = np.concatenate([row[k] for row, k in zip(inner.reshape(n * n_actions, n), at, strict=True)])
        assert return_bounds.can_finish(pointer, successor, probability, start, allowed, n_actions) == wanted
