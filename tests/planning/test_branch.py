"""Branch and bound over trees: equal to trying every tree, with bounds that hold at every moment."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest

from custard.planning import branch
from custard.planning.branch import OPEN, Standing, _Limits, _Partial, _Region, search
from custard.planning.reduced import ReducedMDP, reduce
from custard.tree.shape import Shape, Split, count_leaves
from tests.planning.exhaustive import _policies, best_tree_exhaustive
from tests.planning.random_mdp import random_mdp

KINDS: tuple[dict[str, Any], ...] = (
    {"gamma": 0.9}, {"gamma": 1.0}, {"gamma": 1.0, "horizon": 3}, {"gamma": 0.8, "horizon": 4, "starts": 1},
    {"gamma": 0.9, "deterministic": True, "ending": 0.0}, {"gamma": 1.0, "starts": 1, "deterministic": True},
)  # fmt: skip


def best_within(problem: ReducedMDP, depth: int, max_leaves: int = 1 << 30) -> float:
    """Return the most that a tree returns, by trying every one."""
    policies = _policies(problem.mdp, problem.states, depth).items()
    return max(problem.value(np.array(choice)) for choice, (leaves, _) in policies if leaves <= max_leaves)


def check_tree(problem: ReducedMDP, last: Standing, depth: int, price: float = 0.0) -> None:
    """The tree is what it is said to be."""
    assert last.shape is not None
    choice, level = problem.decide(last.shape)
    assert level.max() <= depth
    assert problem.value(choice, price * level) == pytest.approx(last.value, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_equal_to_trying_every_tree(kind: dict, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From far below, from a little below, and from the best itself; each standing's bound holds."""
    monkeypatch.setattr(branch, "REPORT_SECONDS", -1.0)
    for seed in range(2):
        problem = reduce(random_mdp(2, 2 + seed % 2, seed, **kind))
        best = best_within(problem, depth)
        for start in (-1e9, best - 1e-3, best - 0.5 * problem.tolerance, best, best + 1.0):
            steps = list(search(problem, depth, best=start))
            for step in steps:
                assert max(step.bound, step.value) >= best - problem.tolerance - 1e-9
                assert step.value <= max(best, start) + 1e-9
            assert all(a.bound >= b.bound - 1e-9 and a.explored <= b.explored for a, b in itertools.pairwise(steps))
            last = steps[-1]
            assert last.finished
            assert last.explored >= (1 if start < best - problem.tolerance else 0)
            if start < best - problem.tolerance:
                assert last.value == last.bound == pytest.approx(best, abs=1e-9)
                check_tree(problem, last, depth)
            else:
                assert (last.shape, last.value, last.bound) == (None, start, start)


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_limit_on_leaves(kind: dict) -> None:
    for seed in (1,):
        problem = reduce(random_mdp(2, 2, seed, **kind))
        for leaves in (1, 2, 3, 4, 5):
            best = best_within(problem, 2, leaves)
            last = list(search(problem, 2, best=-1e9, max_leaves=leaves))[-1]
            assert (last.finished, last.value) == (True, pytest.approx(best, abs=1e-9))
            check_tree(problem, last, 2)
            assert last.shape is not None
            assert count_leaves(last.shape) <= leaves
            assert last.bound == last.value


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_that_returns_as_much_ends_the_search(kind: dict) -> None:
    for seed in (1,):
        problem = reduce(random_mdp(2, 2, seed, **kind))
        best = best_within(problem, 2)
        for leaves in (1, 2, 3, 4):
            is_enough = best_within(problem, 2, leaves) >= best - problem.tolerance
            last = list(search(problem, 2, best=best, max_leaves=leaves, accept_equal=True))[-1]
            assert last.finished
            assert (last.shape is not None) == is_enough
            if is_enough:
                check_tree(problem, last, 2)
                assert last.value == last.bound == pytest.approx(best, abs=1e-8)
                assert last.shape is not None
                assert count_leaves(last.shape) <= leaves
            else:
                assert (last.value, last.bound) == (best, best)


def test_bounds_that_say_nothing_only_make_it_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then every partial tree is looked at, and none is taken for a tree that returns as much."""
    monkeypatch.setattr(ReducedMDP, "bound", lambda *arguments: np.inf)
    for seed in range(3):
        problem = reduce(random_mdp(2, 2, seed, gamma=0.9, starts=4))
        best = best_within(problem, 1)
        for leaves in (1, 2):
            is_enough = best_within(problem, 1, leaves) >= best - problem.tolerance
            last = list(search(problem, 1, best=best, max_leaves=leaves, accept_equal=True))[-1]
            assert (last.shape is not None) == is_enough
        last = list(search(problem, 1, best=-1e9))[-1]
        assert (last.finished, last.value) == (True, pytest.approx(best, abs=1e-9))


def every_shape(problem: ReducedMDP, depth: int) -> list[Shape]:
    found: list[Shape] = list(range(problem.n_actions))
    if depth:
        below = every_shape(problem, depth - 1)
        found += [Split(*split, a, b) for split, a, b in itertools.product(problem.splits, below, below)]
    return found


def value_of(problem: ReducedMDP, shape: Shape, price: float) -> float:
    choice, level = problem.decide(shape)
    return problem.value(choice, price * level)


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("price", [0.05, 0.7])
def test_with_a_price_of_questions(kind: dict, price: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch, "REPORT_SECONDS", -1.0)
    for seed in (1,):
        problem = reduce(random_mdp(2, 2, seed, **kind))
        best = max(value_of(problem, shape, price) for shape in every_shape(problem, 2))
        steps = list(search(problem, 2, best=-1e9, price=price))
        assert all(step.bound >= best - 1e-9 and step.value <= best + 1e-9 for step in steps)
        assert (steps[-1].finished, steps[-1].value) == (True, pytest.approx(best, abs=1e-9))
        check_tree(problem, steps[-1], 2, price)


@pytest.mark.parametrize("price", [0.0, 0.3])
def test_wherever_time_ends_the_bound_holds(price: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (1,):
        problem = reduce(random_mdp(2, 3, seed, gamma=1.0))
        best = max(value_of(problem, shape, price) for shape in every_shape(problem, 1))
        for limit in range(-1, 60):
            calls = itertools.count()
            with monkeypatch.context() as patch:
                patch.setattr(time, "monotonic", lambda calls=calls: float(next(calls)))
                steps = list(search(problem, 1, best=-1e9, price=price, deadline=float(limit)))
            assert all(step.bound >= best - 1e-9 for step in steps)
            assert all(step.value <= best + 1e-9 for step in steps)
            if steps[-1].finished:
                assert steps[-1].value == pytest.approx(best, abs=1e-9)
                break
        else:
            pytest.fail("it never ends")


def test_what_is_given_up_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch, "MAX_WAITING", 2)
    monkeypatch.setattr(branch, "REPORT_SECONDS", -1.0)
    given_up = 0
    for seed in range(3):
        problem = reduce(random_mdp(3, 2, seed, gamma=1.0, starts=8))
        best = best_tree_exhaustive(problem.mdp, 2)[1]
        steps = list(search(problem, 2, best=-1e9))
        assert all(max(step.bound, step.value) >= best - 1e-9 for step in steps)
        assert not steps[-1].finished or steps[-1].value == pytest.approx(best, abs=1e-9)
        given_up += not steps[-1].finished
    assert given_up


# -- the parts --------------------------------------------------------------------------------------------------------


def partial_of(problem: ReducedMDP, regions: list[tuple[list[int], int, int]], seen: list[int]) -> _Partial:
    made = tuple(_Region(np.isin(np.arange(problem.n), where), depth, action) for where, depth, action in regions)
    mask = np.isin(np.arange(problem.n), seen)
    return _Partial(1.0, made, 0, np.zeros(problem.n), mask, 1)


def test_the_region_to_decide_next_is_the_deepest_then_the_largest_then_the_first() -> None:
    problem = reduce(random_mdp(2, 2, seed=1, starts=4))
    assert problem.n == 4
    four = [0, 1, 2, 3]
    assert branch._next_open(partial_of(problem, [([0], 2, 1), ([1, 2, 3], 1, OPEN)], four)) == 1
    assert branch._next_open(partial_of(problem, [([0], 1, OPEN), ([1], 2, OPEN), ([2, 3], 2, OPEN)], four)) == 2
    assert branch._next_open(partial_of(problem, [([0], 1, OPEN), ([1], 2, OPEN), ([2, 3], 2, OPEN)], [0, 1])) == 1
    assert branch._next_open(partial_of(problem, [([0, 1], 1, OPEN), ([2, 3], 1, OPEN)], four)) == 0
    assert branch._next_open(partial_of(problem, [([0, 1], 1, OPEN), ([2, 3], 1, 0)], [2, 3])) is None
    assert partial_of(problem, [([0], 2, 1), ([1, 2, 3], 1, OPEN)], four).n_open == 1
    assert partial_of(problem, [([0], 2, OPEN), ([1, 2, 3], 1, OPEN)], four).n_open == 2


def test_what_regions_allow_and_cost() -> None:
    problem = reduce(random_mdp(2, 3, seed=1, starts=4))
    partial = partial_of(problem, [([0, 2], 2, 1), ([1], 2, OPEN), ([3], 1, 0)], [0, 1, 2, 3])
    allowed, cost = branch._confined(problem, partial.regions, 0.5)
    assert allowed.tolist() == [[False, True, False], [True] * 3, [False, True, False], [True, False, False]]
    assert cost.tolist() == [1.0, 1.0, 1.0, 0.5]
    assert not branch._confined(problem, partial.regions, 0.0)[1].any()
    assert branch._least_leaves(partial.regions, partial.seen) == 3
    assert branch._least_leaves(partial.regions, np.array([True, False, True, False])) == 1
    assert branch._least_leaves(partial.regions, np.zeros(4, dtype=bool)) == 1


def test_partial_trees_are_equal_where_nothing_that_matters_differs() -> None:
    problem = reduce(random_mdp(2, 2, seed=1, starts=4))

    def signature(regions: list, seen: list[int], depth: int = 3, price: float = 0.0) -> bytes:
        return branch._signature(partial_of(problem, regions, seen), _Limits(depth, price, None))

    base = [([0, 1], 1, OPEN), ([2, 3], 1, 0)]
    one = signature(base, [0, 1, 2, 3])
    assert signature(base[::-1], [0, 1, 2, 3]) == one
    assert signature([([0, 1], 1, OPEN), ([2, 3], 2, 0)], [0, 1, 2, 3]) == one  # a decided region's depth is no matter
    for other in ([([0, 1], 2, OPEN), ([2, 3], 1, 0)], [([0, 1], 1, OPEN), ([2, 3], 1, 1)], [([0], 1, OPEN),
                  ([1, 2, 3], 1, 0)], [([0, 1], 1, 1), ([2, 3], 1, 0)]):  # fmt: skip
        assert signature(other, [0, 1, 2, 3]) != one
    assert signature(base, [0, 2]) == signature([([0, 3], 1, OPEN), ([1, 2], 1, 0)], [0, 2])
    assert signature(base, [0]) == signature(base[:1], [0])
    priced = [signature([([0, 1], 1, OPEN), ([2, 3], k, 0)], [0, 1, 2, 3], price=0.5) for k in (1, 2)]
    assert priced[0] != priced[1]


def test_regions_that_are_not_reached_are_folded_away() -> None:
    shape = Split(0, 0.5, Split(1, 0.5, 0, 1), 2)
    assert branch._folded(shape, [3, 4, 5]) == Split(0, 0.5, Split(1, 0.5, 3, 4), 5)
    assert branch._folded(shape, [3, None, 5]) == Split(0, 0.5, 3, 5)
    assert branch._folded(shape, [None, 4, 5]) == Split(0, 0.5, 4, 5)
    assert branch._folded(shape, [None, None, 5]) == 5
    assert branch._folded(shape, [3, 3, 3]) == 3
    assert branch._folded(shape, [3, 3, 5]) == Split(0, 0.5, 3, 5)
    assert branch._folded(shape, [None, None, None]) is None
    assert branch._divided(shape, 1, (7, 0.25)) == Split(0, 0.5, Split(1, 0.5, 0, Split(7, 0.25, 1, 2)), 3)
    regions = tuple(_Region(np.zeros(1, dtype=bool), k, k) for k in range(3))
    by = tuple(_Region(np.zeros(1, dtype=bool), k, k) for k in (7, 8))
    assert [each.depth for each in branch._replaced(regions, 1, by)] == [0, 7, 8, 2]
    problem = reduce(random_mdp(2, 2, seed=1, starts=4))
    partial = partial_of(problem, [([0], 2, 1), ([1], 2, OPEN), ([2, 3], 1, 0)], [0, 2])
    assert branch._closed(_Partial(0.0, partial.regions, shape, partial.values, partial.seen, 1)) == Split(0, 0.5, 1, 0)
    closed = partial_of(problem, [([0], 2, 1), ([1], 2, 0), ([2, 3], 1, 0)], [0, 2])  # decided, but out of reach
    assert branch._closed(_Partial(0.0, closed.regions, shape, closed.values, closed.seen, 1)) == Split(0, 0.5, 1, 0)
    nothing = partial_of(problem, [([0, 1, 2, 3], 0, OPEN)], [])
    assert branch._closed(nothing) == 0


def test_of_those_that_wait_the_highest_bound_comes_first() -> None:
    problem = reduce(random_mdp(2, 2, seed=1, starts=4))
    queue = branch._Queue()
    assert queue.best_bound == -np.inf
    parts = [([0, 1], 1, OPEN), ([2, 3], 1, OPEN)], [([0, 1], 1, OPEN), ([2, 3], 1, 0)], [([0], 1, OPEN), ([1], 1, 0)]

    def made(bound: float, regions: list) -> _Partial:
        one = partial_of(problem, regions, [0, 1, 2, 3])
        return _Partial(bound, one.regions, 0, one.values, one.seen, 1)

    low, high, more_open, later = made(1.0, parts[1]), made(3.0, parts[1]), made(3.0, parts[0]), made(3.0, parts[2])
    for each in (low, more_open, high, later):
        queue.push(each)
    assert queue.best_bound == 3.0
    assert [queue.pop() for _ in range(4)] == [later, high, more_open, low]
    limits = _Limits(2, 0.0, None)
    best = queue.push_all_but_best([low, more_open, later], limits, 2.0)
    assert best is later
    assert [queue.pop() for _ in range(2)] == [more_open, low]
    assert queue.push_all_but_best([low, more_open, later], limits, 2.0) is None  # all known
    assert not queue.heap
    lower = made(1.5, [([0, 1, 2], 1, OPEN), ([3], 1, 0)])
    assert queue.push_all_but_best([lower], limits, 2.0) is None  # not good enough
    assert queue.push_all_but_best([made(2.0, [([0, 1, 2], 1, 0), ([3], 1, OPEN)])], limits, 2.0) is not None
    assert _Limits(2, 0.0, 3).allow_leaves(3)
    assert not _Limits(2, 0.0, 3).allow_leaves(4)
    assert limits.allow_leaves(10**9)


def test_completed_trees_keep_what_is_decided() -> None:
    for seed in range(3):
        problem = reduce(random_mdp(2, 3, seed, gamma=0.9, starts=4))
        left = [int(k) for k in np.flatnonzero(problem.goes_left[0])]
        right = [k for k in range(4) if k not in left]
        start = partial_of(problem, [(left, 1, 2), (right, 1, OPEN)], [0, 1, 2, 3])
        shape = Split(*problem.splits[0], 0, 1)
        values = problem.top.copy()
        partial = _Partial(9.0, start.regions, shape, values, start.seen, 2)
        for depth in (1, 2):
            for price in (0.0, 0.5):
                found = branch._completed(problem, partial, _Limits(depth, price, None), np.inf)
                assert found is not None
                value, tree = found
                choice, level = problem.decide(tree)
                assert (choice[left] == 2).all()
                assert level.max() <= depth
                assert value == pytest.approx(problem.value(choice, price * level))
                q = problem.reward + 0.9 * np.stack(
                    [matrix.toarray()[np.ix_(problem.states, problem.states)] @ values
                     for matrix in problem.mdp.transitions], axis=1,
                )  # fmt: skip
                if depth == 2 and len(right) == 2:  # room for each state's own action
                    assert (choice[right] == q[right].argmax(axis=1)).all()
                if depth == 1:
                    assert choice[right[0]] == (q[right] - q[right].max(axis=1, keepdims=True)).sum(axis=0).argmax()
        assert branch._completed(problem, partial, _Limits(1, 0.0, 1), np.inf) is None
