"""Bounds on what policies within given actions return: never below any of them, and reached by the best one."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from custard import Actions, Features
from custard.core.mdp import FiniteMDP
from custard.planning import reduced
from custard.planning.evaluate import policy_value
from custard.planning.reduced import ReducedMDP, action_values, reduce, separating_splits
from custard.planning.solve import optimal_value, value_iteration
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
    mirrored = Split(1, 0.5, Split(0, 0.5, 0, 1), 2)
    choice, depth = problem.decide(mirrored)
    assert choice.tolist() == np.where(x[:, 1] > 0.5, 2, np.where(x[:, 0] <= 0.5, 0, 1)).tolist()
    assert depth.tolist() == np.where(x[:, 1] > 0.5, 1, 2).tolist()
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


@pytest.mark.parametrize("seed", range(8))
def test_an_action_earns_its_reward_and_what_follows(seed: int) -> None:
    """Also where an action always ends the episode, so that nothing follows."""
    mdp = random_mdp(2, 3, seed, gamma=0.7, ending=1.0 if seed % 4 == 0 else 0.1)
    problem, rng = reduce(mdp), np.random.default_rng(seed)
    values, allowed = rng.normal(size=problem.n), rng.random((problem.n, 3)) < 0.7
    whole = np.zeros(mdp.n_states)
    whole[problem.states] = values
    q = np.stack([mdp.rewards[:, a] + 0.7 * matrix @ whole for a, matrix in enumerate(mdp.transitions)], axis=1)
    wanted = np.where(allowed, q[problem.states], -np.inf)
    assert action_values(problem, values, allowed) == pytest.approx(wanted, abs=1e-12)


def test_only_some_pairs_of_state_and_action_end_the_episode() -> None:
    """The last action of the last state has no successors, nor has the first of the first."""
    rows = [(0, 0, 2, 1.0), (1, 0, 1, 1.0), (0, 1, 0, 0.5), (0, 1, 1, 0.5), (1, 1, 2, 1.0)]
    rows += [(0, 2, 2, 1.0), (1, 2, 2, 1.0)]
    mdp = FiniteMDP.from_entries(
        np.array(rows), np.array([[1.0, 0.0], [0.5, 3.0], [0.0, 0.0]]), terminal=np.arange(3) == 2,
        start=np.array([0.25, 0.75, 0.0]), gamma=0.5, x=np.array([[0.0], [1.0], [0.0]]),
        features=Features(("x",), [0], [1]), actions=Actions("discrete", ("a", "b")),
    )  # fmt: skip
    problem = reduce(mdp)
    q = action_values(problem, np.array([10.0, 20.0]), problem.any_action)
    assert q.tolist() == [[1.0, 10.0], [0.5 + 0.5 * 15.0, 3.0]]
    assert problem.fixed_returns() == pytest.approx([policy_value(np.full(3, a), mdp) for a in range(2)])


@pytest.mark.parametrize("seed", range(6))
def test_what_fixed_actions_return_is_said_of_small_discounted_models_alone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mdp = random_mdp(2, 3, seed, gamma=0.9, ending=0.1 * (seed % 2))
    start = np.where(mdp.start > 0, np.arange(mdp.n_states) + 1.0, 0.0)
    mdp = dataclasses.replace(mdp, start=start / start.sum())
    problem = reduce(mdp)
    wanted = [policy_value(np.full(mdp.n_states, action), mdp) for action in range(3)]
    for states, entries in ((problem.n, 3 * problem.n**2), (300, 10**7)):
        monkeypatch.setattr(reduced, "MAX_DENSE_FIXED_STATES", states)
        monkeypatch.setattr(reduced, "MAX_DENSE_FIXED_ENTRIES", entries)
        assert problem.fixed_returns() == pytest.approx(wanted)
    for states, entries in ((problem.n - 1, 10**7), (300, 3 * problem.n**2 - 1)):
        monkeypatch.setattr(reduced, "MAX_DENSE_FIXED_STATES", states)
        monkeypatch.setattr(reduced, "MAX_DENSE_FIXED_ENTRIES", entries)
        assert problem.fixed_returns() is None
    monkeypatch.undo()
    assert reduce(dataclasses.replace(mdp, horizon=9)).fixed_returns() is None
    assert reduce(random_mdp(2, 3, seed, gamma=1.0)).fixed_returns() is None


FOUR, THREE = {"gamma": 1.0, "horizon": 4}, {"gamma": 0.8, "horizon": 3}


@pytest.mark.parametrize(("kind", "sign"), [(FOUR, 1.0), (FOUR, -1.0), (THREE, 1.0), (THREE, -1.0), ({}, -1.0)])
def test_bounds_where_episodes_may_never_end(kind: dict, sign: float) -> None:
    """Loops that earn nothing are worth nothing, loops that lose are worth minus infinity: never below any policy."""
    for seed in range(25):
        rng = np.random.default_rng(seed)
        mdp = random_mdp(2, 2, seed, ending=0.0, deterministic=True, starts=2, **{"gamma": 1.0, **kind})
        rewards = sign * np.abs(mdp.rewards) - (0.5 if seed % 5 == 0 and sign < 0 else 0.0)
        ends = rng.random(mdp.rewards.shape) < 0.2  # some actions end the episode
        matrices = []
        for action, matrix in enumerate(mdp.transitions):
            dense = matrix.toarray()
            dense[ends[:, action]] = np.arange(mdp.n_states) == mdp.n_states - 1
            matrices.append(sparse.csr_array(dense))
        rewards = np.where(mdp.terminal[:, None], 0.0, rewards)
        mdp = dataclasses.replace(mdp, rewards=rewards, transitions=tuple(matrices))
        problem = reduce(mdp)
        for price in (np.zeros(problem.n), rng.integers(0, 3, problem.n) * 0.25):
            allowed = some_actions(problem, rng)
            best = max(problem.value(choice, price) for choice in policies(problem, allowed))
            for cutoff in (-np.inf, best - 0.5, best + 0.5, 10.0):
                bound = problem.bound(allowed, price, problem.top.copy(), cutoff)
                assert bound >= best - 1e-9
                if mdp.horizon is not None and mdp.gamma == 1.0 and cutoff == 10.0 and not ends.any():
                    assert bound == mdp.horizon * (problem.reward - price[:, None])[allowed].max()


def test_rising_bounds_hold_to_the_last_bit_and_are_close() -> None:
    for seed in range(15):
        mdp = random_mdp(2, 2, seed, gamma=1.0)
        mdp = dataclasses.replace(mdp, rewards=np.abs(mdp.rewards) / 3)
        problem = reduce(mdp)
        best = max(problem.value(choice) for choice in policies(problem, problem.any_action))
        bound = problem.bound(problem.any_action, np.zeros(problem.n), problem.top.copy(), -np.inf)
        assert best <= bound <= best + problem.tolerance
        assert best <= float(problem.start @ problem.top) <= best + problem.tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_values_are_those_of_the_model(kind: dict) -> None:
    for seed in range(4):
        mdp = random_mdp(2, 2, seed, **kind)
        mdp = dataclasses.replace(mdp, rewards=mdp.rewards - 3.0 * ~mdp.terminal[:, None])
        problem = reduce(mdp)
        values, _ = value_iteration(mdp)
        assert problem.optimum == pytest.approx(optimal_value(mdp), abs=1e-8)
        assert (problem.top >= values[problem.states]).all()
        assert problem.top == pytest.approx(values[problem.states], abs=1e-7)


def one_state(rewards: list[float], gamma: float) -> FiniteMDP:
    """A state that is never left."""
    n_actions = len(rewards)
    return FiniteMDP.from_entries(
        np.array([(a, 0, 0, 1.0) for a in range(n_actions)]), np.array([rewards]), terminal=np.zeros(1, dtype=bool),
        start=np.ones(1), gamma=gamma, x=np.zeros((1, 1)), features=Features(("x",), [0], [1]),
        actions=Actions("discrete", tuple(f"a{k}" for k in range(n_actions))),
    )  # fmt: skip


def test_the_best_values_are_bounds_where_the_gain_is_too_small_to_change_the_policy() -> None:
    """An action that is better by half of what counts as a tie adds half a unit over a million steps."""
    gamma, gain = 1.0 - 2.0**-20, 2.0**-21
    problem = reduce(one_state([1.0, 1.0 + gain], gamma))
    best = (1.0 + gain) * 2.0**20
    assert best <= problem.top[0] <= best + 2.0
    for rewards, value in (([3.0], 6.0), ([-3.0, 2.0, 1.0], 4.0), ([-2.0, -3.0], -4.0)):
        problem = reduce(one_state(rewards, 0.5))
        assert problem.optimum == pytest.approx(value, abs=1e-12)
        assert value <= problem.top[0] <= value + problem.tolerance
        assert problem.tolerance == pytest.approx(1e-9 * abs(value), abs=1e-15)


def test_a_single_state_that_is_left_now_and_then() -> None:
    mdp = FiniteMDP.from_entries(
        np.array([(0, 0, 0, 0.5), (0, 0, 1, 0.5), (0, 1, 1, 1.0)]), np.array([[3.0], [0.0]]),
        terminal=np.array([False, True]), start=np.array([1.0, 0.0]), gamma=0.5, x=np.zeros((2, 1)),
        features=Features(("x",), [0], [1]), actions=Actions("discrete", ("a",)),
    )  # fmt: skip
    assert reduce(mdp).optimum == pytest.approx(4.0, abs=1e-12)


def test_actions_may_be_numbered_from_another_number_than_zero() -> None:
    mdp = random_mdp(2, 3, seed=2)
    mdp = dataclasses.replace(mdp, actions=Actions("discrete", mdp.actions.names, start=5))
    assert reduce(mdp).tree(Split(0, 0.5, 2, 0)).value[1:].tolist() == [7, 5]


def test_a_start_that_can_end_counts_though_a_state_in_reach_cannot() -> None:
    """State 1 is never left and loses; nobody has to go there."""
    rows = [(0, 0, 2, 1.0), (1, 0, 1, 1.0), (0, 1, 1, 1.0), (1, 1, 1, 1.0), (0, 2, 2, 1.0), (1, 2, 2, 1.0)]
    mdp = FiniteMDP.from_entries(
        np.array(rows), np.array([[-0.25, -1.0], [-1.0, -1.0], [0.0, 0.0]]), terminal=np.arange(3) == 2,
        start=np.array([1.0, 0.0, 0.0]), gamma=1.0, x=np.array([[0.0], [1.0], [0.0]]),
        features=Features(("x",), [0], [1]), actions=Actions("discrete", ("end", "loop")),
    )  # fmt: skip
    problem = reduce(mdp)
    assert (problem.optimum, problem.tolerance) == (-0.25, 1e-9)
    lost = reduce(dataclasses.replace(mdp, start=np.array([0.5, 0.5, 0.0])))
    assert (lost.optimum, lost.tolerance) == (-np.inf, 1e-9)
    found = problem.bound(problem.only(np.array([1, 0])), np.zeros(2), problem.top.copy(), -np.inf)
    assert found == -np.inf
    kept = dataclasses.replace(mdp, rewards=np.array([[-0.25, -1.0], [0.0, 0.0], [0.0, 0.0]]))
    problem = reduce(kept)  # a loop that costs nothing is worth nothing
    assert problem.bound(problem.only(np.array([1, 0])), np.zeros(2), problem.top.copy(), -np.inf) == pytest.approx(
        -1.0
    )


def test_which_side_of_a_threshold_that_is_a_value() -> None:
    """Between neighbouring numbers there is none: the threshold is the lower one, and it goes left."""
    first = np.nextafter(1.0, 2.0)
    second = np.nextafter(first, 2.0)  # halfway is nearer to the second number's even last digit
    assert separating_splits(np.array([[first], [second]])) == [(0, first)]
    assert separating_splits(np.array([[-1.7e308], [1.7e308]])) == [(0, -1.7e308)]
    mdp = random_mdp(1, 2, seed=0)
    x = np.array([[first], [second], [0.0]])
    problem = reduce(dataclasses.replace(mdp, x=x, start=np.array([0.5, 0.5, 0.0])))
    assert problem.goes_left.tolist() == [[True, False]]


def test_the_memory_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(reduced, "require_memory", lambda size, what: asked.append(size))
    problem = reduce(random_mdp(2, 3, seed=3, values=3, ending=0.01, starts=9))
    assert asked == [4 * 4 * problem.n + 64 * problem.n * 3]
