"""What `plan` claims at every step, and the parts that make the claims: values, bounds, fewest leaves, words."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.mdp import FiniteMDP
from custard.planning import optimal_tree
from custard.planning.evaluate import tree_value
from custard.planning.optimal_tree import (
    Plan,
    Settings,
    _fewer_leaves,
    _Incumbent,
    _next_return,
    _sufficient_depth,
    best_tree,
    fixed_start,
    model_to_plan,
    plan,
)
from custard.planning.reduced import ReducedMDP, reduce
from custard.task.source import source
from custard.tree.certificate import certificate_of
from custard.tree.shape import Shape, Split
from tests.planning.exhaustive import best_tree_exhaustive
from tests.planning.random_mdp import random_mdp
from tests.planning.test_labelling import with_ends

KINDS: tuple[dict[str, Any], ...] = (
    {"gamma": 0.9}, {"gamma": 1.0}, {"gamma": 1.0, "horizon": 3}, {"gamma": 0.8, "horizon": 4, "starts": 1},
    {"gamma": 0.9, "deterministic": True, "ending": 0.0},
)  # fmt: skip


def check_step(step: Plan, mdp: FiniteMDP, best: float, leaves: int, depth: int) -> None:
    """All that a step says is so."""
    assert step.value == pytest.approx(tree_value(step.tree, mdp), abs=1e-9)
    assert step.value <= best + 1e-9
    assert step.bound >= best - 1e-8
    assert step.bound >= step.value
    assert step.tree.depth <= depth
    if step.optimal:
        assert step.value == pytest.approx(best, abs=1e-8)
        assert step.gap == 0.0
    else:
        assert step.gap == step.bound - step.value
        assert not step.fewest
    if step.fewest:
        assert step.tree.n_leaves == leaves


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_every_step_is_right(kind: dict, depth: int) -> None:
    for seed in (0, 1):
        mdp = random_mdp(2, 2 + seed % 2, seed, **kind)
        tree, best = best_tree_exhaustive(mdp, depth)
        steps = list(plan(mdp, depth, Settings(seconds=60.0), seed=seed))
        for step in steps:
            check_step(step, mdp, best, tree.n_leaves, depth)
        assert all(b.bound <= a.bound + 1e-9 and b.value >= a.value - 1e-9 for a, b in itertools.pairwise(steps))
        last = steps[-1]
        assert (last.optimal, last.fewest) == (True, True)
        stored = certificate_of(last.tree)
        assert stored is None or stored["proved"]
        kept = last.tree.origin["certificate"]
        assert (kept["value"], kept["bound"], kept["max_depth"]) == (last.value, last.bound, depth)
        assert (kept["gamma"], kept["horizon"], kept["zeta"]) == (mdp.gamma, mdp.horizon, 0.0)
        assert (kept["proved"], kept["fewest_leaves"], kept["optimum"]) == (True, True, last.optimum)
        searched = mdp.gamma < 1.0 and mdp.horizon is None and depth > 0
        assert ("search over constraints" in kept["how"]) == searched
        assert last.message.startswith(f"proved: no tree of depth ≤ {depth} returns more")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeta", [0.0, -0.3])
def test_wherever_time_ends_what_is_said_is_so(kind: dict, zeta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on by a second whenever somebody looks at it."""
    mdp = random_mdp(2, 2, 5, **kind)
    problem = reduce(mdp)
    best = max(
        problem.value(choice, -zeta * level)
        for choice, level in (problem.decide(shape) for shape in every_shape(problem, 2))
    )
    for seconds in (1e-9, 2, 5, 8, 13, 21, 55, 144, 500):
        calls = itertools.count()
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda calls=calls: float(next(calls)))
            steps = list(plan(mdp, 2, Settings(seconds=seconds, zeta=zeta)))
        for step in steps:
            assert step.value <= best + 1e-9
            assert step.bound >= best - 1e-8
            assert not step.optimal or step.value == pytest.approx(best, abs=1e-8)


def every_shape(problem: ReducedMDP, depth: int) -> list[Shape]:
    found: list[Shape] = list(range(problem.n_actions))
    if depth:
        below = every_shape(problem, depth - 1)
        found += [Split(*split, a, b) for split, a, b in itertools.product(problem.splits, below, below)]
    return found


def incumbent(mdp: FiniteMDP, depth: int = 2, **settings: Any) -> _Incumbent:
    return _Incumbent(reduce(mdp), Settings(**settings), depth)


def test_the_best_tree_is_kept_and_of_equal_ones_the_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    state = incumbent(random_mdp(2, 2, seed=3, gamma=0.9))
    tolerance = state.problem.tolerance
    (c, t), (d, u) = state.problem.splits[:2]
    small, large = Split(c, t, 0, 1), Split(c, t, 0, Split(d, u, 1, 0))
    worth: dict[Shape, float] = {}
    monkeypatch.setattr(state.problem.__class__, "value", lambda self, choice, price=None: worth[now[0]])
    now: list[Shape] = [0]

    def offer(shape: Shape, value: float) -> tuple[Shape, float, int]:
        now[0], worth[shape] = shape, value
        state.offer(shape)
        return state.shape, state.value, state.leaves

    assert offer(large, 1.0) == (large, 1.0, 3)
    assert offer(1, 1.0 - 2 * tolerance) == (large, 1.0, 3)  # less
    assert offer(small, 1.0 - 0.5 * tolerance) == (small, 1.0 - 0.5 * tolerance, 2)  # as much, with fewer leaves
    assert offer(large, 1.0) == (small, 1.0 - 0.5 * tolerance, 2)  # no more, with more leaves
    assert offer(Split(d, u, 0, 1), 1.0) == (small, 1.0 - 0.5 * tolerance, 2)  # no more, with as many
    assert offer(large, 2.0) == (large, 2.0, 3)
    assert offer(0, 2.0) == (0, 2.0, 1)


def test_what_is_proved_in_words() -> None:
    state = incumbent(random_mdp(2, 2, seed=3, gamma=0.9), depth=7)
    assert (state.depth, state.max_depth) == (2, 7)  # no path asks the same twice
    state.offer(1)
    state.bound = state.value + 0.5
    assert not state.optimal
    assert state.verdict() == (
        f"not proved: no tree of depth ≤ 7 returns more than {state.bound:.6g} (gap {state.bound - state.value:.6g})"
    )
    step = state.plan("on the way")
    assert (step.optimal, step.fewest, step.gap, step.message) == (False, False, step.bound - step.value, "on the way")
    state.bound = state.value + 0.5 * state.problem.tolerance
    assert state.optimal
    assert state.verdict().endswith("returns more, none of fewer than 1 leaves does")  # one leaf is the least
    assert state.plan("").fewest
    state.bound = state.value + 2 * state.problem.tolerance
    assert not state.optimal
    state.bound = state.value - 1.0  # never below what a tree returns
    assert state.plan("").bound == state.value
    state.shape, state.leaves = Split(*state.problem.splits[0], 0, 1), 2
    assert state.verdict() == "proved: no tree of depth ≤ 7 returns more"
    assert not state.plan("").fewest
    state.fewest = True
    assert state.verdict() == "proved: no tree of depth ≤ 7 returns more, none of fewer than 2 leaves does"
    assert state.plan("").fewest
    state.bound = state.value + 1.0
    assert not state.plan("").fewest  # of what is not proved nothing is the fewest
    state.value = state.bound = -np.inf
    assert state.optimal
    assert state.verdict() == "proved: no tree of depth ≤ 7 terminates"


def test_the_next_return_below_the_best_one() -> None:
    """One less, where all returns are whole numbers; checked with every policy."""
    said = 0
    for seed in range(20):
        mdp = with_ends(seed, starts=1)
        problem = reduce(mdp)
        if problem.optimum == -np.inf:
            continue
        returns = {problem.value(np.array(choice)) for choice in itertools.product(range(2), repeat=problem.n)}
        below = [value for value in returns if value < problem.optimum - problem.tolerance]
        assert _next_return(problem) == problem.optimum - 1.0
        assert all(value <= _next_return(problem) + problem.tolerance for value in below)
        said += bool(below)
        halves = dataclasses.replace(mdp, rewards=mdp.rewards / 2)
        assert _next_return(reduce(halves)) in (problem.optimum / 2, problem.optimum / 2 - 1.0 * is_whole(halves))
        assert (
            _next_return(reduce(dataclasses.replace(mdp, gamma=0.5)))
            == reduce(dataclasses.replace(mdp, gamma=0.5)).optimum
        )
    assert said > 5
    chance = reduce(random_mdp(2, 2, seed=1, gamma=1.0, starts=1))
    assert _next_return(chance) == chance.optimum
    several = reduce(with_ends(1, starts=3))
    assert _next_return(several) == several.optimum


def is_whole(mdp: FiniteMDP) -> bool:
    rewards = reduce(mdp).reward
    return bool((rewards == np.round(rewards)).all())


@pytest.mark.parametrize("kind", [{"gamma": 1.0}, {"gamma": 1.0, "starts": 1}, None])
def test_the_smallest_depth_that_loses_nothing(kind: dict | None) -> None:
    for seed in range(8):
        mdp = with_ends(seed) if kind is None else random_mdp(2, 2, seed, **kind)
        problem = reduce(mdp)
        if problem.optimum == -np.inf:
            continue
        enough = [best_tree_exhaustive(mdp, depth)[1] >= problem.optimum - problem.tolerance for depth in range(3)]
        if any(enough):
            assert _sufficient_depth(problem, np.inf) == enough.index(True)
    none = dataclasses.replace(random_mdp(2, 2, seed=1), x=np.zeros((5, 2)))  # nothing tells the states apart
    alike = [
        reduce(
            dataclasses.replace(
                none, rewards=np.random.default_rng(k).normal(size=(5, 2)) * (np.arange(5) < 4)[:, None]
            )
        )
        for k in range(5)
    ]
    assert optimal_tree.MAX_AUTO_DEPTH in [_sufficient_depth(problem, np.inf) for problem in alike]


def test_where_no_depth_can_be_called_enough_five_is_taken() -> None:
    within = reduce(random_mdp(2, 2, seed=1, gamma=0.9, horizon=3))  # the time left matters
    assert _sufficient_depth(within, np.inf) == 5
    prereq = reduce(gym.make("custard/PrereqWorld-v0", m=5).unwrapped.mdp())  # type: ignore[attr-defined]
    assert _sufficient_depth(prereq, np.inf) == 2
    assert _sufficient_depth(prereq, -np.inf) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_leaves_are_looked_for_until_none_can_be(kind: dict) -> None:
    for seed in (1, 2):
        mdp = random_mdp(2, 2, seed, **kind)
        tree, best = best_tree_exhaustive(mdp, 2)
        state = incumbent(mdp)
        for shape in sorted(every_shape(state.problem, 2), key=str, reverse=True):
            if state.problem.value(state.problem.decide(shape)[0]) >= best - state.problem.tolerance:
                state.shape, state.value = shape, best  # any of the best
                state.leaves = 1 + str(shape).count("Split")
        steps = list(_fewer_leaves(state, np.inf))
        assert (state.fewest, state.leaves) == (True, tree.n_leaves)
        assert state.value == pytest.approx(best, abs=1e-8)
        assert len(steps) >= (tree.n_leaves > 1)
        late = incumbent(mdp)
        late.shape, late.value, late.leaves = state.shape, state.value, 9
        list(_fewer_leaves(late, -np.inf))
        assert not late.fewest
    lost = incumbent(mdp)
    assert not list(_fewer_leaves(lost, np.inf))  # nothing terminates
    assert not lost.fewest


def test_without_the_wish_for_fewest_leaves_none_are_looked_for() -> None:
    for seed in range(5):
        mdp = random_mdp(2, 2, seed, gamma=0.9)
        steps = list(plan(mdp, 2, Settings(fewest_leaves=False)))
        assert not any("leaves" in step.message and "looking" in step.message for step in steps)


@pytest.mark.parametrize("given", [{"zeta": 0.1}, {"zeta": -np.inf}, {"zeta": np.nan}, {"seconds": 0.0},
                                   {"seconds": -1.0}, {"seconds": np.nan}])  # fmt: skip
def test_settings_that_make_no_sense(given: dict) -> None:
    with pytest.raises(custard.CustardError, match=next(iter(given))):
        Settings(**given)


def test_more_mistakes_are_one_line() -> None:
    mdp = random_mdp(2, 2, seed=0)
    for depth in (-1, 1.5):
        with pytest.raises(custard.CustardError, match="max_depth"):
            best_tree(mdp, depth)  # type: ignore[arg-type]
    gaining = random_mdp(2, 2, seed=0, gamma=1.0, ending=0.0)
    gaining = dataclasses.replace(gaining, rewards=np.where(gaining.terminal[:, None], 0.0, 1.0) * np.ones((1, 2)))
    with pytest.raises(custard.CustardError, match="some tree goes on gaining for ever"):
        best_tree(gaining, 1, seconds=1e-9)
    endless = dataclasses.replace(mdp, gamma=1.0, terminal=np.zeros(5, dtype=bool))
    with pytest.raises(custard.CustardError, match="no terminal state"):
        best_tree(endless, 1)
    assert best_tree(dataclasses.replace(endless, gamma=0.9), 1).optimal
    assert best_tree(dataclasses.replace(endless, horizon=3), 1).optimal
    with pytest.raises(custard.CustardError, match="plain return"):
        fixed_start(Settings(zeta=-0.1))
    assert fixed_start(Settings(start_seed=3, episodes=2))["start_seed"] == 3
    with pytest.raises(custard.CustardError, match="start_seed=0"):
        model_to_plan(source("CartPole-v1"))
    with pytest.raises(custard.CustardError) as caught:
        model_to_plan(source("Pendulum-v1"))
    assert ("start_seed=0" in str(caught.value)) == (source("Pendulum-v1").make_compiled is not None)


def test_large_models_are_only_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of them is right all the same."""
    for name, value in (("MAX_BRANCH_STATES", 3), ("MAX_BRANCH_STATES", 4)):
        monkeypatch.setattr(optimal_tree, name, value)
        for seed in range(2):
            mdp = random_mdp(2, 2, seed, gamma=1.0, starts=4)
            tree, best = best_tree_exhaustive(mdp, 2)
            steps = list(plan(mdp, 2, Settings(seconds=20.0)))
            for step in steps:
                check_step(step, mdp, best, tree.n_leaves, 2)
            assert any("branch" in step.message for step in steps) <= (value == 4)
            zero = list(plan(mdp, 0, Settings(seconds=20.0)))[-1]
            assert (zero.value, zero.optimal) == (pytest.approx(best_tree_exhaustive(mdp, 0)[1]), True)


def test_pothole_world_is_planned_by_intervals() -> None:
    values = []
    for depth in (1, 2, None):
        run = custard.learn("custard/PotholeWorld-v0", "plan", max_depth=depth, progress=False, step=0.05)
        stored = run.tree.origin["certificate"]
        assert (stored["value"], stored["bound"], stored["tolerance"]) == (run.value, run.value, 0.05)
        assert (stored["proved"], stored["fewest_leaves"], stored["max_depth"]) == (True, True, depth)
        assert (stored["zeta"], stored["gamma"], stored["horizon"]) == (0.0, 1.0, None)
        values.append(run.value)
        if depth is not None:
            assert run.tree.depth <= depth
            assert stored["optimum"] > run.value
        last = run.metrics[-1]
        assert (last["gap"], last["bound"], last["optimal"], last["fewest_leaves"]) == (0.0, run.value, 1.0, 1.0)
    assert values[0] < values[1] < values[2] == stored["optimum"]
    for wrong in ({"zeta": -0.1}, {"gamma": 0.9}):
        with pytest.raises(custard.CustardError, match="plain return"):
            custard.learn("custard/PotholeWorld-v0", "plan", max_depth=1, progress=False, step=0.05, **wrong)
