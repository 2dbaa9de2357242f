"""Trees that lose nothing: equal to trying every tree, labels equal to what every best policy does."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from custard.core.mdp import FiniteMDP
from custard.planning import labelling
from custard.planning.evaluate import policy_value
from custard.planning.labelling import NO_TREE, _SmallestTrees, best_choices, lossless_tree
from custard.planning.optimal_tree import best_tree
from custard.planning.reduced import ReducedMDP, reduce
from custard.tree.shape import Shape, Split, count_leaves
from tests.planning.exhaustive import best_tree_exhaustive
from tests.planning.random_mdp import random_mdp

SHORTEST = {"deterministic": True, "gamma": 1.0, "ending": 0.0}
KINDS: tuple[dict[str, Any], ...] = (
    {"gamma": 0.9}, {"gamma": 1.0}, {"gamma": 0.9, "deterministic": True, "ending": 0.0}, {"gamma": 1.0, "starts": 1},
)  # fmt: skip


def with_ends(seed: int, n_actions: int = 2, horizon: int | None = None, **kind: Any) -> FiniteMDP:
    """A model without chance in which every step costs something and some actions end the episode."""
    mdp, rng = random_mdp(2, n_actions, seed, **{**SHORTEST, **kind}), np.random.default_rng(seed)
    ends = rng.random((n_actions, mdp.n_states)) < 0.25
    ends[:, -1] = True
    matrices = []
    for own, matrix in zip(ends, mdp.transitions, strict=True):
        dense = matrix.toarray()
        dense[own] = np.arange(mdp.n_states) == mdp.n_states - 1
        matrices.append(type(matrix)(dense))
    rewards = np.where(mdp.terminal[:, None], 0.0, -1.0 - rng.integers(0, 2, mdp.rewards.shape))
    return dataclasses.replace(mdp, transitions=tuple(matrices), rewards=rewards, horizon=horizon)


def visited(problem: ReducedMDP, choice: np.ndarray) -> np.ndarray:
    """Return which states a policy comes to, [S] bool."""
    states, mdp = problem.states, problem.mdp
    moves = np.stack([matrix.toarray()[np.ix_(states, states)] for matrix in mdp.transitions])[
        choice, np.arange(problem.n)
    ]
    reached = problem.start > 0
    for _ in range(problem.n):
        reached = reached | (moves[reached].sum(axis=0) > 0)
    return reached


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_a_policy_loses_nothing_exactly_if_it_does_what_is_best_wherever_it_goes(kind: dict | None) -> None:
    for seed in range(5):
        mdp = with_ends(seed) if kind is None else random_mdp(2, 2, seed, **kind)
        problem = reduce(mdp)
        best = best_choices(problem)
        if best is None:
            assert problem.optimum == -np.inf
            continue
        for choice in map(np.array, itertools.product(range(2), repeat=problem.n)):
            follows = best[np.arange(problem.n), choice][visited(problem, choice)].all()
            assert (problem.value(choice) >= problem.optimum - problem.tolerance) == follows


@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 6, 20])
def test_with_a_horizon_what_is_best_is_said_only_where_time_does_not_matter(horizon: int) -> None:
    said = 0
    for seed in range(12):
        mdp = with_ends(seed, horizon=horizon)
        if seed % 3 == 0:  # steps that lead on are free of charge, or nearly
            rewards = np.where(mdp.rewards < -1.0, -2.0, 0.0 if seed % 2 else -0.25)
            mdp = dataclasses.replace(mdp, rewards=np.where(mdp.terminal[:, None], 0.0, rewards))
        problem = reduce(mdp)
        best = best_choices(problem)
        if best is None:
            continue
        said += 1
        for choice in map(np.array, itertools.product(range(2), repeat=problem.n)):
            if problem.value(choice) >= problem.optimum - problem.tolerance:
                assert best[np.arange(problem.n), choice][visited(problem, choice)].all()
    assert said > (0 if horizon > 3 else -1)


@pytest.mark.parametrize(("horizon", "seed"), [(2, 22), (2, 59), (4, 103)])
def test_an_episode_that_is_cut_is_none_that_has_ended(horizon: int, seed: int) -> None:
    """From one of three starts nothing better can be done than to be cut: two leaves are enough for that."""
    mdp = with_ends(seed, horizon=horizon)
    tree, value = best_tree_exhaustive(mdp, 2)
    found = best_tree(mdp, 2, seconds=20)
    assert (found.value, found.tree.n_leaves, tree.n_leaves) == (pytest.approx(value), 2, 2)
    assert found.optimal
    assert found.fewest


def test_where_the_time_left_matters_nothing_is_said() -> None:
    assert best_choices(reduce(random_mdp(2, 2, seed=1, gamma=1.0, horizon=5))) is None  # chance
    shortest = with_ends(4, horizon=30)
    assert best_choices(reduce(shortest)) is not None
    assert best_choices(reduce(dataclasses.replace(shortest, gamma=0.9))) is None
    by_chance = shortest.transitions[1].tolil()
    by_chance[0] = 0.5 * np.eye(shortest.n_states)[[1, 2]].sum(axis=0)
    mixed = dataclasses.replace(shortest, transitions=(shortest.transitions[0], by_chance.tocsr()))
    assert best_choices(reduce(mixed)) is None  # one action of one state is enough
    free = np.where(shortest.transitions[0].toarray()[:, -1:] == 1.0, [[0.0, -1.0]], shortest.rewards)
    free = np.where(shortest.terminal[:, None], 0.0, free)
    assert best_choices(reduce(dataclasses.replace(shortest, rewards=free))) is not None  # to end costs nothing
    gains = np.where(shortest.terminal[:, None], 0.0, shortest.rewards + 2.5)
    assert best_choices(reduce(dataclasses.replace(shortest, rewards=gains))) is None
    assert best_choices(reduce(with_ends(4)), deadline=-np.inf) is None
    endless = random_mdp(2, 2, seed=0, gamma=1.0, ending=0.0)
    losing = np.where(endless.terminal[:, None], 0.0, -1.0 - np.abs(endless.rewards))
    assert best_choices(reduce(dataclasses.replace(endless, rewards=losing))) is None


@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_equal_to_trying_every_tree(kind: dict | None, depth: int) -> None:
    for seed in range(4):
        actions = 2 + seed % 2
        mdp = with_ends(seed, actions) if kind is None else random_mdp(2, actions, seed, **kind)
        problem = reduce(mdp)
        found = lossless_tree(problem, depth, np.inf)
        if problem.optimum == -np.inf:
            assert (found.shape, found.leaves, found.complete) == (None, 0, False)
            continue
        tree, value = best_tree_exhaustive(mdp, depth)
        assert found.complete
        assert (found.shape is not None) == (value >= problem.optimum - problem.tolerance)
        if found.shape is not None:
            assert problem.value(problem.decide(found.shape)[0]) == pytest.approx(problem.optimum, abs=1e-8)
            assert count_leaves(found.shape) == found.leaves == tree.n_leaves
            assert problem.tree(found.shape).depth <= depth
        else:
            assert found.leaves == 2**depth + 1  # that many are needed at the least
        known = best_choices(problem)
        again = lossless_tree(problem, depth, np.inf, known)
        assert again == found


def test_production_orders() -> None:
    """The fewest leaves at each depth, and that fewer splits are not enough; at any depth that has a name."""
    for m, depth, leaves in ((4, 2, 3), (5, 2, 4), (6, 3, 5)):
        problem = reduce(gym.make("custard/PrereqWorld-v0", m=m).unwrapped.mdp())  # type: ignore[attr-defined]
        found = lossless_tree(problem, depth, np.inf)
        assert (found.leaves, found.complete) == (leaves, True)
        assert lossless_tree(problem, depth - 1, np.inf) == labelling.Labelled(None, 2 ** (depth - 1) + 1, True)
        assert lossless_tree(problem, 10**9, np.inf).leaves == leaves


def fewest(labels: dict[int, int], depth: int, problem: ReducedMDP) -> int:
    """Try every tree."""
    if len(set(labels.values())) <= 1:
        return 1
    least = NO_TREE[0]
    for row in problem.goes_left if depth else ():
        sides = [{s: a for s, a in labels.items() if row[s] == side} for side in (True, False)]
        if all(sides):
            least = min(least, sum(fewest(side, depth - 1, problem) for side in sides))
    return min(least, NO_TREE[0])


def decided(shape: Shape, state: int, problem: ReducedMDP) -> Shape:
    while isinstance(shape, Split):
        left = problem.goes_left[problem.split_number[shape.feature, shape.threshold]][state]
        shape = shape.left if left else shape.right
    return shape


def test_the_smallest_tree_that_agrees_with_labels() -> None:
    problem = reduce(random_mdp(2, 4, seed=3, values=3, starts=9, ending=0.05))
    assert problem.n == 9
    trees = _SmallestTrees(problem, np.inf)
    assert trees.smallest({}, 0) == (1, 0)
    assert trees.smallest({4: 3}, 0) == (1, 3)
    for seed in range(25):
        rng = np.random.default_rng(seed)
        states = rng.permutation(9)[: rng.integers(1, 8)]
        labels = {int(s): int(rng.integers(4)) for s in states}
        for depth in range(4):
            leaves, shape = trees.smallest(labels, depth)
            assert leaves == fewest(labels, depth, problem)
            if leaves < NO_TREE[0]:
                assert count_leaves(shape) == leaves
                assert all(decided(shape, s, problem) == a for s, a in labels.items())
    assert not trees.late


def test_as_many_actions_as_a_tree_has_leaves() -> None:
    problem = reduce(random_mdp(3, 8, seed=1, starts=8))
    trees = _SmallestTrees(problem, np.inf)
    for count in range(1, 9):
        labels = {s: s for s in range(count)}
        for depth in range(4):
            assert trees.smallest(labels, depth)[0] == fewest(labels, depth, problem)
    assert trees.smallest({s: s for s in range(8)}, 3)[0] == 8


def test_out_of_time_nothing_is_complete() -> None:
    mdp = gym.make("custard/PrereqWorld-v0", m=5).unwrapped.mdp()  # type: ignore[attr-defined]
    problem = reduce(mdp)
    best = best_choices(problem)
    assert lossless_tree(problem, 3, -np.inf) == labelling.Labelled(None, 0, False)
    assert lossless_tree(problem, 3, -np.inf, best) == labelling.Labelled(None, 9, False)
    late = _SmallestTrees(problem, -np.inf)
    assert late.smallest({0: 0, 1: 1}, 2) == NO_TREE
    assert late.late
    assert late.smallest({0: 1, 1: 1}, 2) == (1, 1)


def test_out_of_time_in_the_middle_what_was_found_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever time ends: no tree is better than one that loses nothing, and fewer leaves are not denied."""
    problem = reduce(gym.make("custard/PrereqWorld-v0", m=5).unwrapped.mdp())  # type: ignore[attr-defined]
    best, whole, kept = best_choices(problem), lossless_tree(problem, 2, np.inf), 0
    calls = itertools.count()
    for limit in range(0, 400, 9):
        calls = itertools.count()
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda calls=calls: float(next(calls)))
            found = lossless_tree(problem, 2, float(limit), best)
        if found.complete:
            assert found == whole
            break
        if found.shape is not None:
            kept += 1
            assert count_leaves(found.shape) == found.leaves
            assert problem.value(problem.decide(found.shape)[0]) == pytest.approx(problem.optimum)
    else:
        pytest.fail("it never ends")


def test_a_tree_that_never_ends_is_no_best_one() -> None:
    """In a loop that is free of charge every action is best; only what comes to the reward counts."""
    mdp = FiniteMDP.from_entries(
        np.array([(0, 0, 0, 1.0), (1, 0, 1, 1.0), (0, 1, 0, 1.0), (1, 1, 2, 1.0), (0, 2, 2, 1.0), (1, 2, 2, 1.0)]),
        np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), terminal=np.arange(3) == 2, start=np.array([1.0, 0.0, 0.0]),
        gamma=1.0, x=np.arange(3.0)[:, None], features=random_mdp(1, 2, 0).features,
        actions=random_mdp(1, 2, 0).actions,
    )  # fmt: skip
    problem = reduce(mdp)
    best = best_choices(problem)
    assert best is not None
    assert best.tolist() == [[True, True], [True, True]]
    found = lossless_tree(problem, 1, np.inf)
    assert (found.shape, found.leaves, found.complete) == (1, 1, True)
    assert policy_value(np.array([1, 1, 0]), mdp) == 1.0


def test_a_state_that_is_lost_has_no_best_action_and_takes_none_from_others() -> None:
    mdp = FiniteMDP.from_entries(
        np.array([(0, 0, 2, 1.0), (1, 0, 1, 1.0), (0, 1, 1, 1.0), (1, 1, 1, 1.0), (0, 2, 2, 1.0), (1, 2, 2, 1.0)]),
        np.array([[-2.0, -1.0], [-1.0, -1.0], [0.0, 0.0]]), terminal=np.arange(3) == 2, start=np.array([1.0, 0.0, 0.0]),
        gamma=1.0, x=np.arange(3.0)[:, None], features=random_mdp(1, 2, 0).features,
        actions=random_mdp(1, 2, 0).actions,
    )  # fmt: skip
    best = best_choices(reduce(mdp))
    assert best is not None
    assert best.tolist() == [[True, False], [False, False]]
