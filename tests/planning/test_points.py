"""Points, what a tree can tell apart: each field against its definition."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from custard.core.features import Features
from custard.core.mdp import FiniteMDP
from custard.planning.points import Points, points_of
from custard.planning.reduced import ReducedMDP, reduce
from custard.tree.shape import Split
from tests.planning.random_mdp import random_mdp


def alike(seed: int, **kind: Any) -> FiniteMDP:
    """A model of nine states of which several have equal features, one of them a feature without differences."""
    mdp = random_mdp(2, 3, seed, **{"values": 3, "gamma": 0.9, "starts": 9, **kind})
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.integers(0, 3, mdp.n_states) / 8, rng.integers(0, 2, mdp.n_states), np.ones(mdp.n_states)])
    features = Features(("x", "y", "z"), [0, 0, 0], [1, 1, 2])
    return dataclasses.replace(mdp, x=x, features=features)


def made(seed: int, **kind: Any) -> tuple[ReducedMDP, Points]:
    problem = reduce(alike(seed, **kind))
    return problem, points_of(problem)


@pytest.mark.parametrize("seed", range(6))
def test_points_are_the_different_features_of_states_in_reach(seed: int) -> None:
    problem, points = made(seed)
    x = problem.mdp.x[problem.states]
    assert points.x.tolist() == np.unique(x, axis=0).tolist()
    assert points.x[points.model.point].tolist() == x.tolist()
    assert (points.count, points.n_states) == (len(np.unique(x, axis=0)), problem.n)
    for c in range(3):
        values = np.unique(points.x[:, c])
        assert points.sizes[c] == len(values)
        assert values[points.codes[:, c]].tolist() == points.x[:, c].tolist()
        own = points.thresholds[c]
        assert len(own) == len(values) - 1
        assert (values[:-1] <= own).all()
        assert (own < values[1:]).all()
        assert own.tolist() == ((values[:-1] + values[1:]) / 2).tolist()
    assert points.splits == [(c, t) for c in range(3) for t in points.thresholds[c].tolist()]
    assert points.goes_left.tolist() == [(points.x[:, c] <= t).tolist() for c, t in points.splits]
    assert points.top is problem.top


def test_between_neighbouring_numbers_the_lower_one_is_the_threshold() -> None:
    first = np.nextafter(1.0, 2.0)
    second = np.nextafter(first, 2.0)
    mdp = random_mdp(2, 2, seed=3, gamma=0.9, starts=4)
    x = np.array([[first], [second], [0.5], [-1.7e308], [1.0]])
    problem = reduce(dataclasses.replace(mdp, x=x, features=Features(("x",), [-1e308], [2])))
    points = points_of(problem)
    for k, threshold in enumerate(points.thresholds[0]):
        assert (points.x[:, 0] <= threshold).tolist() == (points.codes[:, 0] <= k).tolist()
    assert points.thresholds[0][-1] == first


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ending", [0.0, 1e-12, 0.1, 1.0])
def test_whether_episodes_may_end(seed: int, ending: float) -> None:
    problem, points = made(seed, ending=ending)
    assert points.model.leaks == (ending > 1e-9)
    assert (points.model.pointer is problem.pointer, points.model.gamma) == (True, 0.9)
    whole = np.zeros(problem.mdp.n_states)
    whole[problem.states] = problem.top
    q = np.stack([problem.mdp.rewards[:, a] + 0.9 * m @ whole for a, m in enumerate(problem.mdp.transitions)], axis=1)
    assert points.greedy_choice.tolist() == q[problem.states].argmax(axis=1).tolist()


def test_one_action_that_may_end_is_enough() -> None:
    mdp = random_mdp(2, 2, seed=1, gamma=0.9, ending=0.0, starts=4)
    assert not points_of(reduce(mdp)).model.leaks
    last = mdp.transitions[1].tolil()
    last[3] = 0.5 * last[[3]].toarray()
    last[3, 4] = 0.5
    problem = reduce(dataclasses.replace(mdp, transitions=(mdp.transitions[0], last.tocsr())))
    assert points_of(problem).model.leaks


@pytest.mark.parametrize("seed", range(4))
def test_what_a_shape_decides(seed: int) -> None:
    _, points = made(seed)
    (c, t), (d, u) = points.splits[0], points.splits[-1]
    shape = Split(c, t, 2, Split(d, u, 0, 1))
    left, lower = points.x[:, c] <= t, points.x[:, d] <= u
    assert points.decide(shape).tolist() == np.where(left, 2, np.where(lower, 0, 1)).tolist()
    assert points.decide(1).tolist() == [1] * points.count
    regions = points.regions(shape)
    assert [leaf for leaf, _ in regions] == [2, 0, 1]  # left to right
    wanted = [left, ~left & lower, ~left & ~lower]
    assert [where.tolist() for _, where in regions] == [where.tolist() for where in wanted]


def test_leaves_settle_for_the_allowed_action_that_loses_least() -> None:
    """Also where an action's number does not fit into the first word."""
    _, points = made(2)
    rng = np.random.default_rng(0)
    lost = rng.random((points.count, 70)) * 5
    lost[rng.random(lost.shape) < 0.2] = -1.0  # forbidden in some points: the words are right about it
    (c, t) = points.splits[0]
    left = points.x[:, c] <= t
    for allowed in ([3, 66], [66, 69], [0, 63, 64], [5]):
        words = np.zeros(2, dtype=np.uint64)
        for action in allowed:
            words[action >> 6] |= np.uint64(1) << np.uint64(action & 63)
        for where, shape in ((np.ones_like(left), words), (left, Split(c, t, words, words))):
            total = np.maximum(lost[where], 0.0).sum(axis=0)[allowed]
            settled = points.settle(shape, lost)
            assert (settled.left if isinstance(settled, Split) else settled) == allowed[int(total.argmin())]


@pytest.mark.parametrize("seed", range(4))
def test_visits_of_one_action_per_state(seed: int) -> None:
    problem, points = made(seed)
    rng = np.random.default_rng(seed)
    choice = rng.integers(3, size=problem.n)
    states = problem.states
    moves = np.stack([m.toarray()[np.ix_(states, states)] for m in problem.mdp.transitions])[
        choice, np.arange(problem.n)
    ]
    wanted, mass = np.zeros(problem.n), problem.start.copy()
    for sweeps in range(1, 5):
        wanted, mass = wanted + mass, 0.9 * mass @ moves
        assert points.state_visits(choice, sweeps) == pytest.approx(wanted)
    wanted = np.linalg.solve(np.eye(problem.n) - 0.9 * moves.T, problem.start)
    assert points.state_visits(choice, 10_000) == pytest.approx(wanted, abs=1e-4)
