"""`plan`: equal to exhaustive search, right on the known minima, honest about its gap."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import custard
from benchmarks.omdt_models import MODELS
from custard.core.mdp import FiniteMDP
from custard.planning.evaluate import mean_questions, policy_value, tree_value
from custard.planning.model import model_of
from custard.planning.optimal_tree import Settings, best_tree, plan
from custard.planning.reduced import reduce, separating_splits
from custard.task.source import source
from custard.tree.shape import Split
from tests.planning.exhaustive import best_tree_exhaustive, numbered_tree
from tests.planning.random_mdp import random_mdp

KINDS = (
    {}, {"gamma": 1.0}, {"horizon": 4, "gamma": 1.0}, {"deterministic": True, "gamma": 0.9, "ending": 0.0},
    {"values": 3, "gamma": 0.9}, {"starts": 1, "gamma": 0.7},
)  # fmt: skip


def prereq(m: int) -> FiniteMDP:
    return gym.make("custard/PrereqWorld-v0", m=m).unwrapped.mdp()  # type: ignore[attr-defined]


@given(seed=st.integers(0, 100_000), kind=st.sampled_from(KINDS), depth=st.integers(0, 2), actions=st.integers(2, 3))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_plan_equals_exhaustive_search(seed: int, kind: dict, depth: int, actions: int) -> None:
    mdp = random_mdp(2 if "values" in kind or actions == 3 else 3, actions, seed, **kind)
    tree, value = best_tree_exhaustive(mdp, depth)
    found = best_tree(mdp, depth, seconds=120)
    assert found.value == pytest.approx(value, abs=1e-8)
    assert tree_value(found.tree, mdp) == pytest.approx(value, abs=1e-8)
    assert found.optimal
    assert found.fewest
    assert found.tree.n_leaves == tree.n_leaves
    assert found.tree.depth <= depth
    assert found.gap == 0.0


@given(seed=st.integers(0, 100_000), zeta=st.sampled_from([-0.05, -0.5, -2.0]))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_the_trade_off_equals_exhaustive_search(seed: int, zeta: float) -> None:
    mdp = random_mdp(2, 2, seed, gamma=0.9)
    best = max(
        tree_value(tree, mdp) + zeta * mean_questions(tree, mdp) for tree in every_tree(mdp, 2)
    )  # fmt: skip
    found = best_tree(mdp, 2, zeta=zeta, seconds=120)
    assert found.value == pytest.approx(best, abs=1e-8)
    assert found.optimal
    assert tree_value(found.tree, mdp) + zeta * mean_questions(found.tree, mdp) == pytest.approx(best, abs=1e-8)


def every_tree(mdp: FiniteMDP, depth: int) -> list[custard.Tree]:
    """All trees, those that decide alike included: they may ask differently often."""
    splits = separating_splits(mdp.x[~mdp.terminal])

    def nodes(left: int) -> list:
        found: list = list(range(mdp.actions.n))
        if left:
            below = nodes(left - 1)
            found += [Split(*split, a, b) for split, a, b in itertools.product(splits, below, below)]
        return found

    return [numbered_tree(shape, mdp) for shape in nodes(depth)]


@pytest.mark.parametrize(
    ("m", "value", "depth", "leaves"),
    [(4, -2, 2, 3), (5, -3, 2, 4), (6, -4, 3, 5), (7, -4, 3, 5), (8, -5, 3, 6), (9, -6, 3, 7), (10, -6, 3, 7)],
)
def test_prereq_world_minima(m: int, value: int, depth: int, leaves: int) -> None:
    """The minimal depth is what `max_depth=None` looks for; return and leaves are proved."""
    found = best_tree(prereq(m), None, seconds=60)
    assert (found.value, found.tree.depth, found.tree.n_leaves) == (value, depth, leaves)
    assert found.optimal
    assert found.fewest


@pytest.mark.parametrize(
    ("env", "limit", "depth", "value", "leaves"),
    [("FrozenLake-v1", False, 1, 5 / 39, 2), ("FrozenLake-v1", False, 2, 0.5, 4),
     ("FrozenLake-v1", False, 4, 14 / 17, 7), ("CliffWalking-v1", False, 2, -13.0, 3)],
)  # fmt: skip
def test_toy_text_trees(env: str, limit: bool, depth: int, value: float, leaves: int) -> None:
    found = best_tree(model_of(source(env), limit=limit), depth, seconds=120)
    assert (found.value, found.tree.n_leaves) == (pytest.approx(value, abs=1e-6), leaves)
    assert found.optimal


def test_no_tree_of_depth_one_crosses_the_cliff() -> None:
    found = best_tree(model_of(source("CliffWalking-v1")), 1, seconds=120)
    assert found.value == -np.inf
    assert found.optimal
    assert "terminates" in found.message


def test_bounds_only_fall_and_values_only_rise() -> None:
    mdp = model_of(source("FrozenLake8x8-v1"), limit=True)
    steps = list(plan(mdp, 2, Settings(seconds=2.0)))
    assert all(a.bound >= b.bound - 1e-9 and a.value <= b.value + 1e-9 for a, b in itertools.pairwise(steps))
    assert all(step.bound >= step.value - 1e-9 for step in steps)
    assert steps[-1].optimal or "gap" in steps[-1].message


def test_bounds_stay_sound_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp = random_mdp(3, 3, seed=11, gamma=0.9)
    _, value = best_tree_exhaustive(mdp, 2)
    monkeypatch.setattr("custard.planning.branch.MAX_WAITING", 4)
    monkeypatch.setattr("custard.planning.constraint_search.MAX_WAITING", 4)
    found = best_tree(mdp, 2, seconds=10)
    assert found.value <= value + 1e-9 <= found.bound + 2e-9


@given(seed=st.integers(0, 100_000), depth=st.integers(1, 3), starts=st.integers(1, 4))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_bounds_of_the_search_over_constraints_are_sound_at_every_snapshot(seed: int, depth: int, starts: int) -> None:
    """Larger models than exhaustive search can take: the proved value lies within every earlier value and bound."""
    mdp = random_mdp(3, 4, seed, values=3, gamma=0.95, starts=starts, ending=0.02)
    steps = list(plan(mdp, depth, Settings(seconds=5.0, fewest_leaves=False)))
    assert all(step.value - 1e-8 <= steps[-1].value <= step.bound + 1e-8 for step in steps)
    assert all(a.bound >= b.bound - 1e-9 for a, b in itertools.pairwise(steps))
    assert tree_value(steps[-1].tree, mdp) == pytest.approx(steps[-1].value, abs=1e-8)


def test_states_that_share_features_are_searched_as_one() -> None:
    mdp = random_mdp(3, 3, seed=5, gamma=0.9)
    mdp = dataclasses.replace(mdp, x=np.where(np.arange(3) < 2, mdp.x, 0.0))
    _, value = best_tree_exhaustive(mdp, 2)
    found = best_tree(mdp, 2, seconds=120)
    assert found.optimal
    assert found.value == pytest.approx(value, abs=1e-8)


def test_more_actions_than_bits_in_a_word() -> None:
    mdp = random_mdp(2, 70, seed=4, gamma=0.9)
    _, value = best_tree_exhaustive(mdp, 1)
    found = best_tree(mdp, 1, seconds=120)
    assert found.optimal
    assert found.value == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "depth", "value"),
    [("frozenlake_4x4", 2, 0.365166515), ("frozenlake_8x8", 3, 0.392684683), ("3d_navigation", 3, 0.351854608)],
)
def test_models_of_the_literature(name: str, depth: int, value: float) -> None:
    """The first value by branch and bound over partial trees, the second by the published method, the last optimal."""
    found = best_tree(MODELS[name](), depth, seconds=60, fewest_leaves=False)
    assert found.value == pytest.approx(value, abs=1e-8)
    assert found.optimal
    assert found.tree.origin["certificate"]["value"] == found.value


@pytest.mark.parametrize("seed", range(5))
def test_fixed_actions_are_evaluated_at_once(seed: int) -> None:
    mdp = random_mdp(3, 4, seed=seed, gamma=0.9, ending=0.1 * (seed % 2))
    returns = reduce(mdp).fixed_returns()
    assert returns is not None
    assert returns == pytest.approx([policy_value(np.full(mdp.n_states, action), mdp) for action in range(4)])
    found = next(plan(mdp, 2, Settings()))
    assert found.value == pytest.approx(returns.max())
    assert reduce(dataclasses.replace(mdp, horizon=5)).fixed_returns() is None


@pytest.fixture
def cpu_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time limits count CPU seconds, so that a busy machine changes nothing; what is compiled is compiled before."""
    monkeypatch.setattr(time, "monotonic", time.process_time)
    small = MODELS["frozenlake_4x4"]()
    best_tree(small, 2, seconds=20.0)
    best_tree(dataclasses.replace(small, horizon=20), 2, seconds=20.0)
    with monkeypatch.context() as patch:
        patch.setattr("custard.planning.constraint_search.MAX_DENSE_STATES", 0)
        best_tree(small, 2, seconds=5.0)


@pytest.mark.slow  # processor seconds, too, depend on what else the machine does
@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.usefixtures("cpu_clock")
def test_time_limits_are_kept_within_a_second(name: str) -> None:
    mdp = MODELS[name]()
    best_tree(mdp, 1, seconds=0.1, zeta=-0.001)
    for depth, seconds, zeta in ((1, 0.2, 0.0), (3, 0.5, 0.0), (5, 0.2, 0.0), (None, 0.2, 0.0), (3, 0.5, -0.001)):
        began = time.process_time()
        found = best_tree(mdp, depth, seconds=seconds, zeta=zeta)
        assert time.process_time() - began <= seconds + 1.0
        assert found.bound >= found.value


@pytest.mark.parametrize("zeta", [0.0, -0.01])
@pytest.mark.parametrize(("env", "limit"), [("Taxi-v4", True), ("FrozenLake8x8-v1", False), ("CliffWalking-v1", True)])
@pytest.mark.usefixtures("cpu_clock")
def test_time_limits_are_kept_without_a_discount(env: str, limit: bool, zeta: float) -> None:
    mdp = model_of(source(env), limit=limit)
    best_tree(mdp, 1, seconds=0.1, zeta=zeta)
    began = time.process_time()
    found = best_tree(mdp, 3, seconds=0.5, zeta=zeta)
    assert time.process_time() - began <= 1.5
    assert found.bound >= found.value


def test_a_search_without_time_has_sound_bounds() -> None:
    """Even the best policy without a tree is then not known."""
    for mdp, best in ((random_mdp(3, 3, seed=4, gamma=0.99), None), (random_mdp(3, 3, seed=4, horizon=7), None),
                      (prereq(5), -3.0), (model_of(source("FrozenLake-v1")), 0.75)):  # fmt: skip
        found = best_tree(mdp, 2, seconds=1e-9)
        assert found.bound >= (best_tree(mdp, 2, seconds=20.0).value if best is None else best) - 1e-9
        assert found.value <= found.bound


@given(seed=st.integers(0, 100_000), depth=st.integers(1, 2), gamma=st.sampled_from([0.9, 1.0]))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_trees_handed_in_are_where_the_search_begins(seed: int, depth: int, gamma: float) -> None:
    mdp = random_mdp(3, 3, seed, gamma=gamma)
    known = best_tree(mdp, depth, seconds=20.0)
    first = next(plan(mdp, depth, Settings(), incumbents=[known.tree]))
    assert first.value == pytest.approx(known.value, abs=1e-9)
    assert tree_value(first.tree, mdp) == pytest.approx(known.value, abs=1e-9)
    again = best_tree(mdp, depth, seconds=20.0, incumbents=[known.tree])
    assert (again.value, again.tree.n_leaves) == (pytest.approx(known.value), known.tree.n_leaves)


def test_trees_from_files_are_where_the_search_begins(tmp_path: Path) -> None:
    mdp, path = prereq(7), tmp_path / "tree.json"
    best_tree(mdp, 3).tree.save(path)
    assert next(plan(mdp, 3, Settings(start=str(path)))).value == -4.0
    with pytest.raises(custard.CustardError, match="has depth 3, more than max_depth=2"):
        best_tree(mdp, 2, start=str(path))
    with pytest.raises(custard.CustardError, match="asks about 7 features"):
        best_tree(prereq(6), 3, start=str(path))
    run = custard.learn("custard/PrereqWorld-v0", "plan", max_depth=3, env_kwargs={"m": 7}, start=str(path))
    assert run.value == -4.0


def test_limits_of_any_size_are_allowed() -> None:
    assert best_tree(prereq(5), 10**12).value == -3.0
    none = best_tree(prereq(5), 0)
    assert (none.value, none.optimal) == (-1000.0 if none.tree.origin["certificate"]["horizon"] else -np.inf, True)


def test_models_larger_than_memory_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(custard.CustardError, match="GiB of memory"):
        model_of(source("custard/PrereqWorld-v0", {"m": 60, "prerequisites": {0: [1]}}))
    mdp = prereq(10)
    monkeypatch.setattr("custard.core.memory.available_memory", lambda: 100_000)
    with pytest.raises(custard.CustardError, match=r"1,023|512|1,024 states.*GiB of memory"):
        best_tree(mdp, 2)


def test_learn_knows_the_method() -> None:
    run = custard.learn("custard/PrereqWorld-v0", "plan", max_depth=3, env_kwargs={"m": 7})
    assert (run.value, run.tree.depth, run.tree.n_leaves, run.steps) == (-4.0, 3, 5, 0)
    assert run.metrics[-1]["gap"] == 0.0
    assert custard.evaluate(run.tree, "custard/PrereqWorld-v0", 5, env_kwargs={"m": 7}).mean == -4.0


def test_mistakes_are_one_line() -> None:
    with pytest.raises(custard.CustardError, match="no exact model"):
        custard.learn("CartPole-v1", "plan", max_depth=2)
    with pytest.raises(custard.CustardError, match="price of a question"):
        best_tree(prereq(4), 2, zeta=0.1)
    with pytest.raises(custard.CustardError, match="max_depth"):
        best_tree(prereq(4), -1)
    endless = dataclasses.replace(random_mdp(2, 2, seed=0, ending=0.0), gamma=1.0, terminal=np.zeros(5, dtype=bool))
    with pytest.raises(custard.CustardError, match="no terminal state"):
        best_tree(endless, 1)


def test_states_that_look_alike_share_an_action() -> None:
    mdp = dataclasses.replace(random_mdp(2, 3, seed=3), x=np.zeros((5, 2)))
    found = best_tree(mdp, 2, seconds=10)
    _, value = best_tree_exhaustive(mdp, 2)
    assert (found.tree.n_nodes, found.value) == (1, pytest.approx(value))
    assert found.optimal


@pytest.mark.parametrize("first", [-1.0, 3.0])
def test_what_is_earned_on_the_way_into_a_loop_counts(first: float) -> None:
    """The first action earns something and ends in a state that is never left and earns nothing; the other loses 5."""
    mdp = FiniteMDP.from_entries(
        np.array([[0, 0, 1, 1.0], [0, 1, 1, 1.0], [0, 2, 2, 1.0], [1, 0, 2, 1.0], [1, 1, 1, 1.0], [1, 2, 2, 1.0]]),
        np.array([[first, -5.0], [0.0, 0.0], [0.0, 0.0]]), terminal=np.arange(3) == 2, start=np.array([1.0, 0.0, 0.0]),
        gamma=1.0, x=np.array([[0.0], [1.0], [2.0]]), features=custard.Features(("x",), [0], [2]),
        actions=custard.Actions("discrete", ("loop", "end")),
    )  # fmt: skip
    found = best_tree(mdp, 1, seconds=20)
    assert (found.value, found.bound, found.optimal) == (first, first, True)
    assert found.tree.act([0.0]) == 0


def test_what_is_lost_slowly_on_the_way_into_a_loop_is_no_endless_loss() -> None:
    """Two states are left once in a hundred steps, at one or two per step, for one that is never left and free."""
    rows = [(a, s, s + k, p) for a in (0, 1) for s in (0, 1) for k, p in ((0, 0.99), (1, 0.01))]
    mdp = FiniteMDP.from_entries(
        np.array([*rows, *((a, s, s, 1.0) for a in (0, 1) for s in (2, 3))]),
        np.array([[-1.0, -2.0], [-2.0, -1.0], [0.0, 0.0], [0.0, 0.0]]), terminal=np.arange(4) == 3,
        start=np.array([1.0, 0.0, 0.0, 0.0]), gamma=1.0, x=np.arange(4.0)[:, None],
        features=custard.Features(("x",), [0], [3]), actions=custard.Actions("discrete", ("a", "b")),
    )  # fmt: skip
    found = best_tree(mdp, 1, seconds=20)
    assert found.value == pytest.approx(-200.0)
    assert found.tree.n_leaves == 2
    assert found.optimal


def test_one_action_leaves_nothing_to_decide() -> None:
    found = best_tree(random_mdp(2, 1, seed=3), 3, seconds=10)
    assert found.tree.n_nodes == 1
    assert found.optimal
    assert found.fewest


def test_depth_is_found_for_random_models() -> None:
    mdp = random_mdp(2, 2, seed=8)
    found = best_tree(mdp, None, seconds=10)
    assert found.value == pytest.approx(found.optimum)
    assert found.tree.depth <= 2
