"""Optimal policies: against each other, against known answers and against Storm."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import custard
from custard.core.mdp import FiniteMDP
from custard.planning import solve
from custard.planning.evaluate import policy_value, state_values
from custard.planning.model import model_of
from custard.planning.solve import backward_induction, can_end, optimal_value, policy_iteration, value_iteration
from custard.task.source import source
from tests.planning.random_mdp import random_mdp


@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.8, 0.99, 1.0]))
@settings(max_examples=30, deadline=None)
def test_value_and_policy_iteration_agree(seed: int, gamma: float) -> None:
    mdp = random_mdp(3, 3, seed, gamma=gamma)
    choice, _ = policy_iteration(mdp)
    assert policy_value(choice, mdp) == pytest.approx(optimal_value(mdp), abs=1e-8)


@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.5, 0.95, 0.9999]), ending=st.sampled_from([0.0, 0.1]))
@settings(max_examples=30, deadline=None)
def test_discounted_values_are_a_fixed_point(seed: int, gamma: float, ending: float) -> None:
    mdp = random_mdp(3, 3, seed, gamma=gamma, ending=ending)
    values, q = value_iteration(mdp)
    bounds, _ = value_iteration(mdp, deadline=-np.inf)
    scale = 1e-12 * max(1.0, np.abs(values).max()) / (1.0 - gamma)
    assert np.abs(np.where(mdp.terminal, 0.0, q.max(axis=1)) - values).max() <= scale
    assert (bounds >= values - scale).all()


@given(seed=st.integers(0, 10_000), sign=st.sampled_from([-1.0, 1.0]))
@settings(max_examples=20, deadline=None)
def test_large_models_without_a_discount_have_the_same_values(seed: int, sign: float) -> None:
    mdp = random_mdp(3, 3, seed, gamma=1.0)
    mdp = replace(mdp, rewards=sign * np.abs(mdp.rewards))
    with pytest.MonkeyPatch.context() as patch:
        expected, _ = value_iteration(mdp)
        patch.setattr("custard.planning.solve.MAX_JACOBI_STATES", 0)
        found, _ = value_iteration(mdp)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("env", "limit", "value"),
    [("FrozenLake-v1", False, 14 / 17), ("FrozenLake-v1", True, 0.74419), ("CliffWalking-v1", False, -13.0),
     ("Taxi-v4", False, 7.93), ("FrozenLake8x8-v1", False, 1.0)],
)  # fmt: skip
def test_toy_text_optima(env: str, limit: bool, value: float) -> None:
    assert optimal_value(model_of(source(env), limit=limit)) == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize(("m", "value"), [(4, -2), (5, -3), (7, -4), (8, -5), (10, -6)])
def test_prereq_world_optima(m: int, value: int) -> None:
    mdp = gym.make("custard/PrereqWorld-v0", m=m).unwrapped.mdp()  # type: ignore[attr-defined]
    assert optimal_value(mdp) == value
    for ties in ("first", "random", "downstream"):
        choice, _, _ = backward_induction(mdp, ties, seed=3)
        assert policy_value(choice, mdp) == value


def test_random_ties_differ_between_seeds_and_repeat_with_one() -> None:
    mdp = gym.make("custard/PrereqWorld-v0", m=7).unwrapped.mdp()  # type: ignore[attr-defined]
    a, b, c = (backward_induction(mdp, "random", seed)[0] for seed in (0, 0, 1))
    assert (a == b).all()
    assert (a != c).any()


def test_downstream_ties_keep_the_lane() -> None:
    """PotholeWorld's expert changes lanes only where it must: no oscillation between lanes that are equally good."""
    mdp = model_of(source("custard/PotholeWorld-v0"))
    kept, values, _ = backward_induction(mdp, "downstream")
    drawn, _, _ = backward_induction(mdp, "random")
    changes = [int((np.diff(choice[:-1]) != 0).sum()) for choice in (kept, drawn)]
    assert values[0] == pytest.approx(50.0, abs=0.01)
    assert changes[0] < 40 < changes[1]


def test_states_that_cannot_end_are_worth_minus_infinity() -> None:
    mdp = FiniteMDP.from_entries(
        np.array([[0, 0, 0, 1], [1, 0, 2, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 2, 2, 1], [1, 2, 2, 1]], dtype=float),
        np.array([[-1.0, -5.0], [-1.0, -1.0], [0.0, 0.0]]),
        terminal=np.array([False, False, True]),
        start=np.array([1.0, 0, 0]),
        gamma=1.0,
        x=np.arange(3.0)[:, None],
        features=custard.Features(("x",), np.zeros(1), np.full(1, 2.0)),
        actions=custard.Actions("discrete", ("stay", "go")),
    )
    values, q = value_iteration(mdp)
    assert values.tolist() == [-5.0, -np.inf, 0.0]
    assert can_end(mdp).tolist() == [True, False, True]
    assert q[0, 1] == -5.0


def test_gaining_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("custard.planning.solve.MAX_VALUE_ITERATION_SWEEPS", 3000)
    mdp = random_mdp(2, 2, seed=0, gamma=1.0, ending=0.0)
    with pytest.raises(custard.CustardError, match="does not settle"):
        value_iteration(mdp)


def test_unknown_ties() -> None:
    with pytest.raises(custard.CustardError, match="tie rule"):
        backward_induction(random_mdp(2, 2, seed=0), "lucky")


def policy_values(mdp: FiniteMDP) -> list[float]:
    """What every policy returns that does not look at the time."""
    return [
        policy_value(np.array([*choice, 0]), mdp)
        for choice in itertools.product(range(mdp.actions.n), repeat=mdp.n_states - 1)
    ]


def with_loops(seed: int, sign: float, slow: bool = False) -> FiniteMDP:
    """A model with actions that end, loops that earn nothing, and loops that lose; with `slow`, ways out are rare."""
    rng = np.random.default_rng(seed)
    n, n_actions = 4, 2
    moves = np.zeros((n_actions, n + 1, n + 1))
    for a, s in itertools.product(range(n_actions), range(n)):
        after = rng.choice(n + 1, size=2, p=[0.22] * n + [0.12])
        moves[a, s, after[0]] += 1e-2 if slow else 0.5
        moves[a, s, s if slow else after[1]] += 1.0 - 1e-2 if slow else 0.5
    moves[:, n, n] = 1.0
    rewards = sign * rng.integers(0, 4, (n + 1, n_actions)) * (rng.random((n + 1, 1)) < 0.6)
    rewards[n] = 0.0
    entries = [(a, s, t, moves[a, s, t]) for a, s, t in zip(*np.nonzero(moves), strict=True)]
    return FiniteMDP.from_entries(
        np.array(entries), rewards, terminal=np.arange(n + 1) == n, start=np.array([0.5, 0.5, 0.0, 0.0, 0.0]),
        gamma=1.0, x=np.arange(n + 1.0)[:, None], features=custard.Features(("x",), [0], [n]),
        actions=custard.Actions("discrete", ("a", "b")),
    )  # fmt: skip


def test_what_is_lost_before_a_loop_that_costs_nothing_is_all_that_is_lost() -> None:
    """However rarely it is reached: a thousand steps on, values still fall, but not without end."""
    for seed in range(40):
        for slow in (False, True) if seed < 5 else (False,):
            mdp = with_loops(seed, -1.0, slow)
            best = max(policy_values(mdp))
            found = optimal_value(mdp)
            assert found == pytest.approx(best, rel=1e-6, abs=1e-9)
            assert found >= best - 1e-9 * abs(best) or found == best  # from above


def test_values_with_a_horizon_are_those_of_backward_induction() -> None:
    for seed in range(12):
        mdp = random_mdp(2, 3, seed, gamma=(1.0, 0.8)[seed % 2], horizon=1 + seed % 7)
        wanted = np.zeros(mdp.n_states)
        for _ in range(mdp.horizon or 0):
            wanted = np.where(mdp.terminal, 0.0, dense_q(mdp, wanted).max(axis=1))
        values, q = value_iteration(mdp)
        assert values == pytest.approx(wanted, abs=1e-12)
        assert q == pytest.approx(dense_q(mdp, wanted), abs=1e-12)
        assert optimal_value(mdp) == pytest.approx(mdp.start @ wanted, abs=1e-12)


def dense_q(mdp: FiniteMDP, values: np.ndarray) -> np.ndarray:
    after = np.stack([matrix.toarray() @ values for matrix in mdp.transitions], axis=1)
    return np.where(mdp.terminal[:, None], 0.0, mdp.rewards) + mdp.gamma * after


@pytest.mark.parametrize("sign", [None, 1.0, -1.0])
@pytest.mark.parametrize(("gamma", "horizon"), [(0.9, None), (1.0, None), (1.0, 5), (0.8, 5), (1.0, 1)])
def test_without_time_values_are_bounds(gamma: float, horizon: int | None, sign: float | None) -> None:
    """One sweep is made; what may follow after it is what the largest reward allows."""
    for seed in range(8):
        mdp = random_mdp(2, 3, seed, gamma=gamma, horizon=horizon, ending=0.2 * (seed % 2 or gamma == 1.0))
        if sign is not None:
            rewards = np.where(mdp.terminal[:, None], 0.0, sign * (np.abs(mdp.rewards) + 0.5 * (seed % 3)))
            mdp = replace(mdp, rewards=rewards)
        values, _ = value_iteration(mdp)
        bounds, q = value_iteration(mdp, deadline=-np.inf)
        assert (bounds >= values - 1e-9).all()
        assert bounds[mdp.terminal] == pytest.approx(0.0)
        once = np.where(mdp.terminal, 0.0, mdp.rewards.max(axis=1))
        if horizon is not None:
            more = max(0.0, mdp.rewards.max()) * (horizon - 1)
        elif gamma < 1.0:
            more = max(0.0, once[~mdp.terminal].max()) * gamma / (1 - gamma)
        else:
            once, more = np.zeros_like(once), 0.0 if mdp.rewards.max() <= 0 else np.inf
        assert bounds == pytest.approx(np.where(mdp.terminal, 0.0, once + more))
        if np.isfinite(bounds).all():
            assert q == pytest.approx(dense_q(mdp, bounds), abs=1e-9)


@pytest.mark.parametrize("reward", [3.0, -3.0, 0.25])
@pytest.mark.parametrize("ending", [0.0, 0.125])
@pytest.mark.parametrize("gamma", [0.5, 0.99, 1 - 1e-9])
def test_the_same_reward_everywhere(reward: float, ending: float, gamma: float) -> None:
    """All values change by the same from sweep to sweep, which says where they end, unless episodes can end."""
    mdp = random_mdp(2, 2, seed=1, gamma=gamma, ending=ending)
    rewards = np.where(mdp.terminal[:, None], 0.0, reward) * np.ones((1, 2))
    terminal = mdp.terminal
    if not ending:  # no end at all, not only out of reach
        terminal, rewards = np.zeros(mdp.n_states, dtype=bool), np.full_like(rewards, reward)
    mdp = replace(mdp, rewards=rewards, terminal=terminal)
    values, _ = value_iteration(mdp)
    wanted = reward / (1.0 - gamma * (1.0 - ending))
    assert values == pytest.approx(np.where(terminal, 0.0, wanted), rel=1e-7)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_discounted_values_are_as_close_as_asked(scale: float) -> None:
    for seed in range(10):
        mdp = random_mdp(2, 3, seed, gamma=0.95, ending=0.0)
        rewards = scale * (mdp.rewards + np.random.default_rng(seed).normal(size=mdp.rewards.shape))
        mdp = replace(mdp, rewards=np.where(mdp.terminal[:, None], 0.0, rewards))
        wanted, q = np.zeros(mdp.n_states), np.zeros(mdp.rewards.shape)
        for _ in range(20):  # policy iteration
            choice = q.argmax(axis=1)
            moves = np.stack([matrix.toarray() for matrix in mdp.transitions])[choice, np.arange(mdp.n_states)]
            earned = mdp.rewards[np.arange(mdp.n_states), choice]
            wanted = np.linalg.solve(np.eye(mdp.n_states) - 0.95 * moves * ~mdp.terminal[:, None], earned)
            q = dense_q(mdp, wanted)
        for tolerance in (1e-3, 1e-12):
            values, q = value_iteration(mdp, tolerance)
            limit = 2 * tolerance * max(1.0, np.abs(wanted).max())
            assert np.abs(values - wanted).max() <= limit
            assert np.abs(q - dense_q(mdp, wanted)).max() <= limit


def three_states(rewards: list[list[float]], after: list[list[int]]) -> FiniteMDP:
    """States 0 and 1 and the end; action a leads from state s to `after[s][a]`."""
    rows = [(a, s, after[s][a], 1.0) for s in range(2) for a in range(2)] + [(a, 2, 2, 1.0) for a in range(2)]
    return FiniteMDP.from_entries(
        np.array(rows, dtype=float), np.array([*rewards, [0.0, 0.0]]), terminal=np.arange(3) == 2,
        start=np.array([0.5, 0.5, 0.0]), gamma=1.0, x=np.arange(3.0)[:, None],
        features=custard.Features(("x",), [0], [2]), actions=custard.Actions("discrete", ("a", "b")),
    )  # fmt: skip


def test_lost_states_and_what_leads_there() -> None:
    lost = three_states([[-1.0, -2.0], [-1.0, -1.0]], [[2, 1], [1, 1]])
    values, q = value_iteration(lost)
    assert values.tolist() == [-1.0, -np.inf, 0.0]
    assert q.tolist() == [[-1.0, -np.inf], [-np.inf, -np.inf], [0.0, 0.0]]
    assert optimal_value(lost) == -np.inf
    assert optimal_value(replace(lost, start=np.array([1.0, 0.0, 0.0]))) == -1.0
    both = three_states([[-1.0, -2.0], [-1.0, -1.0]], [[0, 1], [1, 0]])
    assert value_iteration(both)[0].tolist() == [-np.inf, -np.inf, 0.0]
    idle = three_states([[-3.0, -1.0], [0.0, -1.0]], [[1, 0], [1, 1]])
    assert value_iteration(idle)[0].tolist() == [-3.0, 0.0, 0.0]
    # Next to a state that loses for ever, one that idles for nothing, and one that only leads to the former.
    rising = three_states([[1.0, 1.0], [-1.0, -1.0]], [[1, 1], [1, 1]])
    assert value_iteration(rising)[0].tolist() == [-np.inf, -np.inf, 0.0]


def test_policy_iteration_says_what_it_needs() -> None:
    with pytest.raises(custard.CustardError, match="without a horizon"):
        policy_iteration(random_mdp(2, 2, seed=0, horizon=3))
    lost = three_states([[-1.0, -2.0], [-1.0, -1.0]], [[2, 1], [1, 1]])
    with pytest.raises(custard.CustardError, match="never terminates"):
        policy_iteration(lost)
    for seed in range(6):
        mdp = random_mdp(2, 3, seed, gamma=0.9)
        choice, values = policy_iteration(mdp)
        assert policy_value(choice, mdp) == pytest.approx(max(policy_values(mdp)), abs=1e-9)
        assert values.tolist() == state_values(choice, mdp).tolist()


def test_policy_iteration_improves_what_value_iteration_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a poor first choice it goes on to the best, wherever episodes go, and no further than it may."""
    for seed in range(10):
        mdp = random_mdp(2, 3, seed, gamma=0.9, starts=5)
        best = max(policy_values(mdp))
        poor = np.random.default_rng(seed).normal(size=mdp.rewards.shape)
        with monkeypatch.context() as patch:
            patch.setattr(solve, "value_iteration", lambda mdp, q=poor: (q.max(axis=1), q))
            first = poor.argmax(axis=1)
            assert policy_iteration(mdp, 0)[0].tolist() == first.tolist()
            assert policy_value(policy_iteration(mdp, 1)[0], mdp) >= policy_value(first, mdp)
            assert policy_value(policy_iteration(mdp)[0], mdp) == pytest.approx(best, abs=1e-8)


def test_actions_of_equal_value_are_those_within_the_tolerance() -> None:
    """Relative to the state's value where that is above one; of lost states all actions are as good."""
    for value, gap, is_tie in ((0.5, 0.9e-9, True), (0.5, 1.5e-9, False), (-50.0, 40e-9, True), (-50.0, 60e-9, False)):
        mdp = three_states([[value - gap, value], [value, value - gap]], [[2, 2], [2, 2]])
        assert backward_induction(mdp)[0].tolist()[:2] == [0 if is_tie else 1, 0]
        drawn = np.array([backward_induction(mdp, "random", seed)[0][:2] for seed in range(20)])
        assert (drawn.min(axis=0) < drawn.max(axis=0)).tolist() == [is_tie, is_tie]
        if not is_tie:
            assert drawn[0].tolist() == [1, 0]
    lost = three_states([[-1.0, -2.0], [-1.0, -1.0]], [[2, 1], [1, 1]])
    assert {int(backward_induction(lost, "random", seed)[0][1]) for seed in range(20)} == {0, 1}
    assert {int(backward_induction(lost, "random", seed)[0][0]) for seed in range(20)} == {0}


def chain_of(length: int, entries: list[tuple[int, int, int, float]]) -> FiniteMDP:
    """State k leads to k + 1 at a price of one, but for the entries: action, state, next state and probability."""
    given = {(a, s) for a, s, _, _ in entries}
    rows = [(a, s, s + 1, 1.0) for a in range(2) for s in range(length) if (a, s) not in given]
    rows += [*entries, *((a, length, length, 1.0) for a in range(2))]
    return FiniteMDP.from_entries(
        np.array(rows, dtype=float), np.where(np.arange(length + 1)[:, None] < length, [[-1.0, -1.0]], 0.0),
        terminal=np.arange(length + 1) == length, start=(np.arange(length + 1) == 0).astype(float), gamma=1.0,
        x=np.arange(length + 1.0)[:, None], features=custard.Features(("x",), [0], [length]),
        actions=custard.Actions("discrete", ("a", "b")),
    )  # fmt: skip


def test_downstream_ties_take_the_action_of_the_states_that_follow() -> None:
    """Of the likeliest among them, by what is settled already; the last state takes the first action."""
    chain = chain_of(5, [])
    assert backward_induction(chain, "downstream")[0].tolist()[:5] == [0] * 5
    rewards = chain.rewards.copy()
    rewards[3] = [-1.5, -1.0]  # state 3 wants the second action, and all before it follow
    assert backward_induction(replace(chain, rewards=rewards), "downstream")[0].tolist()[:5] == [1, 1, 1, 1, 0]
    rewards[1] = [-1.0, -1.5]
    assert backward_induction(replace(chain, rewards=rewards), "downstream")[0].tolist()[:5] == [0, 0, 1, 1, 0]
    for share, wanted in ((0.3, 0), (0.7, 1)):
        # State 0 leads to states 1 (which wants the second action) and 2 (the first): the likelier one counts.
        forked = chain_of(3, [(a, 0, s, p) for a in range(2) for s, p in ((1, share), (2, 1 - share))]
                          + [(a, 1, 3, 1.0) for a in range(2)])  # fmt: skip
        rewards = forked.rewards.copy()
        rewards[1], rewards[2] = [-1.5, -1.0], [-1.0, -1.5]
        assert backward_induction(replace(forked, rewards=rewards), "downstream")[0].tolist()[:3] == [wanted, 1, 0]


def test_states_are_settled_in_the_order_of_their_steps_to_the_end() -> None:
    mdp = chain_of(4, [(1, 0, 4, 1.0), (1, 2, 0, 1.0)])
    # Steps to the end: state 3 one, state 2 half of one more and half of state 0's, state 1 one more than state 2's.
    both = np.ones((5, 2), dtype=bool)
    wanted = np.linalg.solve(
        np.array([[1, -0.5, 0, 0], [0, 1, -1, 0], [-0.5, 0, 1, -0.5], [0, 0, 0, 1]]), np.ones(4)
    )  # fmt: skip
    assert solve._order_from_end(mdp, both).tolist() == np.argsort(wanted, kind="stable").tolist()
    first = np.tile([True, False], (5, 1))
    assert solve._order_from_end(mdp, first).tolist() == [3, 2, 1, 0]
    second = np.array([[False, True], [True, False], [True, False], [True, False], [True, True]])
    assert solve._order_from_end(mdp, second).tolist() == [0, 3, 2, 1]
    long = chain_of(60, [])  # each state one step further from the end than the next
    assert solve._order_from_end(long, np.ones((61, 2), dtype=bool)).tolist() == list(range(59, -1, -1))


@pytest.mark.parametrize("name", ["random", "prereq", "lake"])
def test_storm_finds_the_same_optimum(name: str, tmp_path: Path) -> None:
    stormpy = pytest.importorskip("stormpy", reason='needs the extra "storm"')
    if name == "random":
        # Every step ends an episode with probability 0.2, so 2 more a step is 10 more a return and nothing is negative.
        mdp = random_mdp(3, 3, seed=7, gamma=1.0, ending=0.2)
        found = storm(stormpy, mdp, "Rmax", lambda reward: reward + 2.0, tmp_path) - 10.0
    elif name == "prereq":
        mdp = gym.make("custard/PrereqWorld-v0", m=7).unwrapped.mdp()  # type: ignore[attr-defined]
        found = -storm(stormpy, mdp, "Rmin", lambda reward: -reward, tmp_path)
    else:
        mdp = model_of(source("FrozenLake-v1"))
        found = storm(stormpy, mdp, "Pmax", lambda reward: reward, tmp_path)  # the return is 1 in the last state, or 0
    assert found == pytest.approx(optimal_value(mdp), abs=1e-4)


def storm(stormpy: Any, mdp: FiniteMDP, sense: str, reward: Callable[[float], float], folder: Path) -> float:
    """Storm's best expected reward until termination, of the model written as a PRISM program."""
    n = mdp.n_states  # state n draws the start
    lines = ["mdp", "module m", f"s : [0..{n}] init {n};"]
    starts = np.flatnonzero(mdp.start > 0)
    lines.append(f"[] s={n} -> " + " + ".join(f"{float(mdp.start[s])!r}:(s'={s})" for s in starts.tolist()) + ";")
    rewards = []
    for state in range(n):
        for action in range(1 if mdp.terminal[state] else mdp.actions.n):
            matrix = mdp.transitions[action]
            span = range(matrix.indptr[state], matrix.indptr[state + 1])
            moves = " + ".join(f"{float(matrix.data[i])!r}:(s'={int(matrix.indices[i])})" for i in span)
            lines.append(f"[a{action}] s={state} -> {moves};")
            if not mdp.terminal[state]:
                rewards.append(f"[a{action}] s={state} : {reward(float(mdp.rewards[state, action]))!r};")
    ends = f"s={n - 1}" if sense == "Pmax" else " | ".join(f"s={s}" for s in np.flatnonzero(mdp.terminal).tolist())
    lines += ["endmodule", 'rewards "r"', *rewards, "endrewards", f'label "done" = {ends};']
    path = folder / "model.prism"
    path.write_text("\n".join(lines))
    program = stormpy.parse_prism_program(str(path))
    if hasattr(stormpy, "parse_properties_for_prism_program"):
        properties = stormpy.parse_properties_for_prism_program(f'{sense}=? [F "done"]', program)
    else:
        properties = stormpy.parse_properties(f'{sense}=? [F "done"]', program)
    model = stormpy.build_model(program, properties)
    result = stormpy.model_checking(model, properties[0])
    return float((result.at if hasattr(result, "at") else result.get_value)(model.initial_states[0]))
