"""The best policy within allowed actions, against trying every policy: bounds, visits and what each action costs."""

from __future__ import annotations

import dataclasses
import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from custard import Actions, Features
from custard.core.mdp import FiniteMDP
from custard.planning import constraint_search
from custard.planning.agreement import allows, full_words
from custard.planning.constraint_search import ConstraintSearch, choose_level, wanted_words
from custard.planning.evaluate import visits
from custard.planning.points import Points, points_of
from custard.planning.reduced import ReducedMDP, reduce
from custard.planning.relaxation import DenseRelaxation, SparseRelaxation
from custard.tree.shape import Shape, Split
from tests.planning.exhaustive import best_tree_exhaustive
from tests.planning.random_mdp import random_mdp

KINDS = ({}, {"ending": 0.0}, {"deterministic": True, "ending": 0.0}, {"starts": 1}, {"gamma": 0.6})


def problem_of(seed: int, n_actions: int = 3, **kind: object) -> ReducedMDP:
    return reduce(random_mdp(2, n_actions, seed, **{"gamma": 0.9, **kind}))  # type: ignore[arg-type]


def some_words(points: Points, rng: np.random.Generator) -> np.ndarray:
    """Random sets of actions, none of them empty."""
    n_actions = points.model.reward.shape[1]
    return rng.integers(1, 2**n_actions, (points.count, 1)).astype(np.uint64)


def returns_within(problem: ReducedMDP, points: Points, words: np.ndarray) -> dict[tuple[int, ...], float]:
    """What every policy returns that keeps to the words."""
    options = [
        [a for a in range(problem.n_actions) if (int(words[p, a >> 6]) >> (a & 63)) & 1] for p in points.model.point
    ]
    return {choice: problem.value(np.array(choice)) for choice in itertools.product(*options)}


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(KINDS), dense=st.booleans())
@settings(max_examples=24, deadline=None, derandomize=True)
def test_bounds_visits_and_losses_equal_those_of_trying_every_policy(seed: int, kind: dict, dense: bool) -> None:
    problem, rng = problem_of(seed, **kind), np.random.default_rng(seed)
    points = points_of(problem)
    full = full_words(points.count, problem.n_actions)
    poor = rng.integers(problem.n_actions, size=problem.n)  # as good a start as the greedy policy
    relaxation = (
        DenseRelaxation(points.model, poor, full) if dense else SparseRelaxation(points.model, points.top, full)
    )
    every = returns_within(problem, points, full)
    assert relaxation.bound == pytest.approx(max(every.values()), abs=1e-7)
    words = full
    for _ in range(3):  # each time fewer actions
        fewer = words & some_words(points, rng)
        words = np.where(fewer == 0, words, fewer)
        within = returns_within(problem, points, words)
        bound, choice = relaxation.child(words)
        assert bound >= max(within.values()) - 1e-9
        assert bound == pytest.approx(max(within.values()), abs=1e-7)
        assert within[tuple(choice.tolist())] == pytest.approx(bound, abs=1e-7)
        relaxation.move(choice.astype(np.int64), words)
        occupancy, _ = visits(full_choice(problem, choice), problem.mdp)
        assert relaxation.visits == pytest.approx(occupancy[problem.states], abs=1e-4)
        assert relaxation.choice.tolist() == choice.tolist()
        lost = relaxation.losses(words, points.count)
        for p, a in itertools.product(range(points.count), range(problem.n_actions)):
            if not allows(words, p, a):
                assert lost[p, a] == -1.0
                continue
            states = np.flatnonzero(points.model.point == p)
            assert len(states) == 1
            other = choice.copy()
            other[states] = a
            costs = within[tuple(choice.tolist())] - within[tuple(other.tolist())]
            if dense:
                assert lost[p, a] == pytest.approx(costs, abs=1e-6)
            else:  # about: of one deviation per visit
                assert lost[p, a] >= 0.0
                assert (lost[p, a] > 1e-6) == (costs > 1e-6) or costs < 1e-3


def full_choice(problem: ReducedMDP, choice: np.ndarray) -> np.ndarray:
    whole = np.zeros(problem.mdp.n_states, dtype=np.int64)
    whole[problem.states] = choice
    return whole


@given(seed=st.integers(0, 10**6), depth=st.integers(1, 2), kind=st.sampled_from(KINDS), dense=st.booleans())
@settings(max_examples=12, deadline=None, derandomize=True)
def test_the_search_alone_proves_what_exhaustive_search_finds(seed: int, depth: int, kind: dict, dense: bool) -> None:
    """No climbing, and a goal that starts far too low: everything offered is worth at most the bound, at every step."""
    problem = problem_of(seed, **kind)
    _, value = best_tree_exhaustive(problem.mdp, depth)
    points = points_of(problem)
    found = [-1e9]

    def offer(shape: Shape) -> None:
        found.append(problem.value(problem.decide(shape)[0]))

    limit = constraint_search.MAX_DENSE_STATES
    constraint_search.MAX_DENSE_STATES = limit if dense else 0
    try:
        search = ConstraintSearch(points, depth, lambda: max(found) + 1e-9, offer)
        for _ in range(10_000):
            assert max(search.bound, *found) >= value - 1e-8
            if search.is_finished:
                break
            search.work[0] = 10**8
            search.expand(constraint_search.heapq.heappop(search.heap)[2])
    finally:
        constraint_search.MAX_DENSE_STATES = limit
    assert search.is_finished
    assert search.given_up == -np.inf
    assert max(found) == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_states", [0, 100])
def test_what_loses_everywhere_is_searched_as_well(kind: dict, max_states: int) -> None:
    """All returns are below zero; the search runs by itself, with all the time there is and with none."""
    for seed in range(3):
        mdp = random_mdp(2, 3, seed, **{"gamma": 0.9, **kind})
        mdp = dataclasses.replace(mdp, rewards=np.where(mdp.terminal[:, None], 0.0, mdp.rewards - 3.0))
        problem = reduce(mdp)
        _, value = best_tree_exhaustive(mdp, 1)
        assert value < 0.0
        points, found = points_of(problem), [-1e9]

        def offer(shape: Shape, problem: ReducedMDP = problem, found: list[float] = found) -> None:
            found.append(problem.value(problem.decide(shape)[0]))

        search = ConstraintSearch(points, 1, lambda found=found: max(found) + 1e-9, offer, max_states)
        assert isinstance(search.relaxation, DenseRelaxation) == (max_states > 0)
        search.run(-np.inf, np.inf)
        assert (search.explored, len(found)) == (0, 1)
        search.run(np.inf, time.monotonic() + 1000.0)
        assert search.is_finished
        assert search.explored > 0
        assert max(search.bound, *found) == max(found) == pytest.approx(value, abs=1e-8)


def test_out_of_work_gives_up_and_says_so() -> None:
    """A search that may not look proves nothing: its bound stays where it was."""
    problem = problem_of(3)
    points = points_of(problem)
    search = ConstraintSearch(points, 1, lambda: -1e9, lambda shape: None)
    before = search.bound
    search.work[0] = 0
    search.expand(constraint_search.heapq.heappop(search.heap)[2])
    assert search.bound == search.given_up == before == pytest.approx(problem.optimum, abs=1e-7)


def test_states_of_equal_features_are_one_point() -> None:
    mdp = random_mdp(2, 2, seed=4, gamma=0.9, starts=4)
    mdp = type(mdp)(**{**vars(mdp), "x": np.where(np.arange(5)[:, None] % 2 == 0, mdp.x, mdp.x[1])})
    problem = reduce(mdp)
    points = points_of(problem)
    assert points.count == len(np.unique(mdp.x[problem.states], axis=0))
    assert points.x[points.model.point].tolist() == mdp.x[problem.states].tolist()
    for c, own in enumerate(points.thresholds):
        assert points.sizes[c] == len(own) + 1
        for k, threshold in enumerate(own):
            assert (points.codes[:, c] <= k).tolist() == (points.x[:, c] <= threshold).tolist()
    assert [points.x[:, c] <= t for c, t in points.splits] == pytest.approx(points.goes_left)
    shape = Split(*points.splits[0], 1, 0)
    assert points.decide(shape).tolist() == np.where(points.goes_left[0], 1, 0).tolist()


def test_a_leaf_takes_the_allowed_action_of_the_least_loss() -> None:
    points = points_of(problem_of(1))
    lost = np.tile([0.0, 3.0, 1.0], (points.count, 1))
    words = np.array([0b110], dtype=np.uint64)
    assert points.settle(words, lost) == 2
    assert points.settle(Split(*points.splits[0], words, np.array([0b11], dtype=np.uint64)), lost)[2:] == (2, 0)
    lost[0] = [-1.0, 0.0, 9.0]  # forbidden in one point counts as no loss there: the words forbid it
    assert points.settle(words, lost) == (1 if 3.0 * (points.count - 1) < 9.0 + points.count - 1 else 2)


def test_actions_that_lose_a_level_or_more_are_not_wanted() -> None:
    words = np.array([[0b111], [0b011]], dtype=np.uint64)
    lost = np.array([[0.0, 0.5, 1.0], [2.0, 0.0, -1.0]])
    assert wanted_words(words, lost, 0.5).tolist() == [[0b001], [0b010]]
    assert wanted_words(words, lost, 0.51).tolist() == [[0b011], [0b010]]


def test_the_level_is_the_highest_that_no_tree_meets() -> None:
    """Two points that differ in nothing want different actions; both can agree on the one that loses 0.3 at most."""
    codes, sizes = np.zeros((2, 1), dtype=np.int32), np.array([1])
    words = np.full((2, 1), 0b111, dtype=np.uint64)
    lost = np.array([[0.0, 5.0, 0.2], [5.0, 0.0, 0.3]])
    none, work = np.arange(0), np.array([10**6])
    level, conflict, met = choose_level(codes, sizes, words, lost, none, 10.0, 1e-9, 0, work)
    assert (level, sorted(conflict.tolist()), met) == (0.3, [0, 1], 5.0)
    level, conflict, met = choose_level(codes, sizes, words, lost, none, 0.25, 1e-9, 0, work)
    assert (level, sorted(conflict.tolist()), met) == (0.25, [0, 1], -1.0)
    agreed = np.array([[0.0, 5.0, 0.2], [0.0, 4.0, 0.3]])
    level, _, met = choose_level(codes, sizes, words, agreed, none, 10.0, 1e-9, 0, work)
    assert (level, met) == (0.0, 0.2)


@pytest.mark.parametrize("actions", [(1.0, 1.0 + 2.0**-21), (1.0 + 2.0**-21, 1.0)])
def test_a_bound_makes_up_for_gains_too_small_to_change_the_policy(actions: tuple[float, float]) -> None:
    """An action that is better by half of what counts as a tie adds half a unit over a million steps."""
    mdp = FiniteMDP.from_entries(
        np.array([(0, 0, 0, 1.0), (1, 0, 0, 1.0)]), np.array([actions]), terminal=np.zeros(1, dtype=bool),
        start=np.ones(1), gamma=1.0 - 2.0**-20, x=np.zeros((1, 1)), features=Features(("x",), [0], [1]),
        actions=Actions("discrete", ("a", "b")),
    )  # fmt: skip
    points = points_of(reduce(mdp))
    relaxation = DenseRelaxation(points.model, np.zeros(1, dtype=np.int64), full_words(1, 2))
    best = max(actions) * 2.0**20
    assert best - 1e-6 <= relaxation.bound <= best + 2.0


def test_wherever_time_ends_the_search_over_constraints_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on by a second whenever somebody looks at it, also between the children of a node."""
    for seed in range(2):
        problem = problem_of(seed, starts=4)
        _, value = best_tree_exhaustive(problem.mdp, 1)
        points = points_of(problem)
        for limit in range(1, 40):
            found = [-1e9]

            def offer(shape: Shape, problem: ReducedMDP = problem, found: list[float] = found) -> None:
                found.append(problem.value(problem.decide(shape)[0]))

            search = ConstraintSearch(points, 1, lambda found=found: max(found) + 1e-9, offer)
            calls = itertools.count()
            with monkeypatch.context() as patch:
                patch.setattr(time, "monotonic", lambda calls=calls: float(next(calls)))
                search.run(float(limit), float(limit))
            assert max(search.bound, *found) >= value - 1e-8
            if search.is_finished and search.given_up == -np.inf:
                break
        assert max(found) == pytest.approx(value, abs=1e-8)
