"""Bounds on what policies within given actions return: never below any of them, and reached by the best one."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from custard import Actions, Features
from custard.core.mdp import FiniteMDP
from custard.planning.evaluate import policy_value
from custard.planning.reduced import ReducedMDP, reduce, separating_splits
from custard.planning.solve import optimal_value
from custard.tree.shape import Split
from tests.planning.random_mdp import random_mdp

KINDS = (
    {"gamma": 0.9}, {"gamma": 1.0}, {"gamma": 1.0, "horizon": 4}, {"gamma": 0.8, "horizon": 3},
    {"gamma": 0.9, "deterministic": True, "ending": 0.0}, {"gamma": 0.9, "starts": 1}, {"gamma": 1.0, "starts": 1},
)  # fmt: skip


def policies(problem: ReducedMDP, allowed: np.ndarray) -> list[np.ndarray]:
    return [np.array(choice) for choice in itertools.product(*(np.flatnonzero(row) for row in allowed))]


def some_actions(problem: ReducedMDP, rng: np.random.Generator) -> np.ndarray:
    allowed = rng.random((problem.n, problem.n_actions)) < 0.6
    allowed[np.arange(problem.n), rng.integers(problem.n_actions, size=problem.n)] = True
    return allowed


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(KINDS), sign=st.sampled_from([None, 1.0, -1.0]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_bounds_are_what_the_best_policy_within_the_actions_returns(seed: int, kind: dict, sign: float | None) -> None:
    """Of all, with and without a price; with a horizon the best policy may depend on the time left."""
    mdp, rng = random_mdp(2, 3, seed, **kind), np.random.default_rng(seed)
    if sign is not None:  # rewards of one sign only are bounded in other ways
        rewards = sign * (np.abs(mdp.rewards) + seed % 2)
        mdp = dataclasses.replace(mdp, rewards=np.where(mdp.terminal[:, None], 0.0, rewards))
    problem = reduce(mdp)
    allowed = some_actions(problem, rng)
    for price in (np.zeros(problem.n), rng.integers(0, 3, problem.n) * 0.25):
        returns = [problem.value(choice, price) for choice in policies(problem, allowed)]
        values = problem.top.copy()
        bound = problem.bound(allowed, price, values, -np.inf)
        assert bound >= max(returns) - 1e-9
        is_exact = mdp.horizon is None and (sign != 1.0 or not price.any())  # a negative total counts as zero there
        if is_exact and (mdp.gamma < 1.0 or kind.get("ending", 0.1) > 0.0):
            assert bound == pytest.approx(max(returns), abs=1e-6)
        for cutoff in (max(returns) - 0.5, max(returns) + 0.5):  # it may stop below the cutoff, but not below the best
            assert problem.bound(allowed, price, problem.top.copy(), cutoff) >= max(returns) - 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_what_is_reduced_is_the_part_in_reach(seed: int) -> None:
    mdp = random_mdp(3, 2, seed, starts=1, deterministic=bool(seed % 2), gamma=0.9)
    problem = reduce(mdp)
    reached = set(np.flatnonzero(mdp.start > 0).tolist())
    while True:
        after = reached | {
            int(s) for matrix in mdp.transitions for r in reached if not mdp.terminal[r]
            for s in matrix[[r]].nonzero()[1]
        }  # fmt: skip
        if after == reached:
            break
        reached = after
    assert problem.states.tolist() == sorted(s for s in reached if not mdp.terminal[s])
    for k, state in enumerate(problem.states):
        for action in range(2):
            row = slice(*problem.pointer[k * 2 + action : k * 2 + action + 2])
            dense = np.zeros(mdp.n_states)
            dense[problem.states[problem.successor[row]]] = problem.probability[row]
            whole = mdp.transitions[action].toarray()[state]
            assert dense.tolist() == np.where(mdp.terminal, 0.0, whole).tolist()
    assert problem.optimum == pytest.approx(optimal_value(mdp), abs=1e-8)
    assert (problem.top >= [best_from(mdp, state) - 1e-12 for state in problem.states]).all()
    assert problem.tolerance == pytest.approx(1e-9 * max(1.0, abs(problem.optimum)))


def best_from(mdp: FiniteMDP, state: int) -> float:
    return optimal_value(dataclasses.replace(mdp, start=(np.arange(mdp.n_states) == state).astype(float)))


def test_splits_that_divide_alike_count_once() -> None:
    mdp = random_mdp(2, 2, seed=1)
    doubled = dataclasses.replace(
        mdp, x=np.hstack([mdp.x, 3.0 * mdp.x[:, :1]]),
        features=Features(("a", "b", "c"), [0, 0, 0], [1, 1, 3]),
    )  # fmt: skip
    assert reduce(doubled).splits == reduce(mdp).splits == [(0, 0.5), (1, 0.5)]


def test_splits_lie_between_neighbouring_values_even_where_no_number_does() -> None:
    after = np.nextafter(1.0, 2.0)
    assert separating_splits(np.array([[1.0], [after], [3.0]])) == [(0, 1.0), (0, (after + 3.0) / 2)]


def test_a_shape_decides_and_is_as_deep_as_its_splits() -> None:
    problem = reduce(random_mdp(2, 3, seed=2))
    shape = Split(0, 0.5, 2, Split(1, 0.5, 0, 1))
    choice, depth = problem.decide(shape)
    x = problem.mdp.x[problem.states]
    wanted = np.where(x[:, 0] <= 0.5, 2, np.where(x[:, 1] <= 0.5, 0, 1))
    assert choice.tolist() == wanted.tolist()
    assert depth.tolist() == np.where(x[:, 0] <= 0.5, 1, 2).tolist()
    assert [int(problem.tree(shape).act(row)) for row in x] == (wanted + problem.mdp.actions.start).tolist()
    assert problem.only(choice).sum(axis=1).tolist() == [1] * problem.n
    assert problem.only(choice)[np.arange(problem.n), choice].all()


def slow_chain(step: float) -> FiniteMDP:
    """From state 0 action 0 reaches state 1 with probability `step` per try, where action 1 earns one and ends."""
    rows = [(0, 0, 1, step), (0, 0, 2, step / 10), (0, 0, 0, 1 - 1.1 * step), (1, 0, 2, 1.0), (0, 1, 2, 1.0)]
    rows += [(1, 1, 2, 1.0), (2, 0, 1, 1.0), (2, 1, 2, 1.0), (0, 2, 2, 1.0), (1, 2, 2, 1.0), (2, 2, 2, 1.0)]
    return FiniteMDP.from_entries(
        np.array(rows), np.array([[0.0, 0.3, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
        terminal=np.arange(3) == 2, start=np.array([1.0, 0.0, 0.0]), gamma=1.0, x=np.array([[0.0], [1.0], [0.0]]),
        features=Features(("x",), [0], [1]), actions=Actions("discrete", ("wait", "end", "go")),
    )  # fmt: skip


@pytest.mark.parametrize("step", [0.5, 1e-2, 1e-6])
def test_what_earns_its_reward_only_after_a_million_steps_is_not_bounded_below_it(step: float) -> None:
    """Undiscounted values rise from zero: what they have reached when sweeps are used up is no bound."""
    problem = reduce(slow_chain(step))
    choice = np.array([0, 1])
    value = policy_value(np.array([0, 1, 0]), problem.mdp)
    assert value == pytest.approx(1 / 1.1)
    bound = problem.bound(problem.only(choice), np.zeros(2), problem.top.copy(), -np.inf)
    assert bound >= value - 1e-9
    if step > 1e-3:
        assert bound == pytest.approx(value, abs=1e-8)


def test_losing_for_ever_is_minus_infinity() -> None:
    mdp = slow_chain(0.5)
    rows = [(0, 0, 0, 1.0), (0, 1, 0, 1.0), (1, 0, 2, 1.0), (1, 1, 2, 1.0), (2, 0, 1, 1.0), (2, 1, 2, 1.0)]
    losing = FiniteMDP.from_entries(
        np.array([*rows, (0, 2, 0, 1.0), (1, 2, 2, 1.0), (2, 2, 2, 1.0)]),
        np.array([[-1.0] * 3, [-1.0] * 3, [0.0] * 3]),
        terminal=mdp.terminal, start=mdp.start, gamma=1.0, x=mdp.x, features=mdp.features, actions=mdp.actions,
    )  # fmt: skip
    problem = reduce(losing)
    assert problem.bound(problem.only(np.array([0, 1])), np.zeros(2), problem.top.copy(), -np.inf) == -np.inf
    assert problem.bound(problem.only(np.array([2, 1])), np.zeros(2), problem.top.copy(), -np.inf) == -2.0
