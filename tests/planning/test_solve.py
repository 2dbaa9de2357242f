"""Optimal policies: against each other, against known answers and against Storm."""

from __future__ import annotations

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
from custard.planning.evaluate import policy_value
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
