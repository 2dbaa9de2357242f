"""Random search: a floor that is known, seeds and checkpoints."""

from __future__ import annotations

import custard
from custard.baselines import random_search
from custard.core.spaces import describe
from custard.task.problem import Problem
from custard.task.source import source


def test_a_tree_of_one_split_is_found_on_pothole_world():
    """No tree of depth 1 returns more than 45.25 there; one leaf returns 45."""
    run = custard.learn("custard/PotholeWorld-v0", "random", max_depth=1, seed=0, budget=300_000)
    assert 45.0 <= run.value <= 45.3
    assert run.tree.depth <= 1
    assert 300_000 <= run.steps < 340_000


def test_the_same_seed_gives_the_same_tree_also_after_a_break():
    def snapshots(state=None):
        where = source("custard/CartPole-v0")
        problem = Problem(where, describe(where.make_vec(1)), 3, 2)
        return random_search.solve(problem, random_search.Settings(budget=400_000), state)

    whole = list(snapshots())
    assert len(whole) > 1
    first = next(snapshots())
    rest = list(snapshots(first.state()))
    assert [(s.steps, s.tree, s.value) for s in rest] == [(s.steps, s.tree, s.value) for s in whole[1:]]
    assert whole[-1].message == "budget used"


def test_environments_that_python_steps_and_vectors_of_actions_are_searched_too():
    run = custard.learn("Pendulum-v1", "random", max_depth=2, seed=0, budget=20_000)
    assert run.tree.depth <= 2
    assert run.steps >= 20_000
