"""The best of many trees: what a run shows of it, and what that costs."""

import math

import numpy as np
import pytest

import custard
from custard.core.errors import CustardError
from custard.core.spaces import describe
from custard.solvers.common.selection import LAST_SHOWN_BUDGET_SHARE, MAX_SHOWN_EPISODES, SHOWN_BUDGET_SHARE, Selection
from custard.task.problem import Problem
from custard.task.source import source

CART_POLE = source("CartPole-v1")
BASE = describe(CART_POLE.make_vec(1))


def stump(threshold: float) -> custard.Tree:
    """A tree whose CartPole episodes differ by chance more than they do from one threshold to the next."""
    return custard.Tree.stump(2, threshold, 0, 1, BASE.features, BASE.actions)


def chosen(seed: int, **settings) -> Selection:
    """The best of forty trees that are about the same, each judged on four episodes."""
    selection = Selection(Problem(CART_POLE, BASE, seed), 4, 4, **settings)
    for threshold in np.linspace(-0.02, 0.02, 40):
        selection.consider(stump(float(threshold)))
    return selection


def test_what_a_run_shows_was_not_chosen_by_luck():
    lucky, shown = [], []
    for seed in range(12):
        selection = chosen(seed)
        value = selection.show(is_last=True)
        truth = custard.evaluate(selection.best.tree, "CartPole-v1", 2000, seed=1).mean
        lucky.append(selection.best.mean - truth)
        shown.append(value - truth)
        error = selection.best.shown.std(ddof=1) / math.sqrt(MAX_SHOWN_EPISODES)
        assert abs(value - truth) < 4.0 * error
    assert np.mean(lucky) > 3.0 * np.std(lucky) / math.sqrt(12) > 0.0  # why other episodes are needed
    assert abs(np.mean(shown)) < 3.0 * np.std(shown) / math.sqrt(12)


def test_the_episodes_shown_have_a_share_of_the_budget():
    selection = chosen(0, budget=50_000)
    assert selection.shown_steps == 0
    values = [selection.show() for _ in range(60)]
    limit = (SHOWN_BUDGET_SHARE - LAST_SHOWN_BUDGET_SHARE) * selection.budget
    assert limit <= selection.shown_steps < limit + selection.longest
    assert len(set(values)) > 2  # more episodes ran at first
    assert values[-1] == values[-2] == selection.best.shown.mean()
    selection.spent = int(selection.budget) - selection.steps - selection.shown_steps - 200
    assert selection.show(is_last=True) != values[-1]
    used = selection.spent + selection.steps + selection.shown_steps
    assert selection.budget <= used < selection.budget + selection.longest


def test_what_is_not_known_is_not_shown():
    selection = Selection(Problem(CART_POLE, BASE), 4, 4, budget=1000)
    assert math.isnan(selection.show())
    selection.consider(stump(0.0))
    selection.shown_steps = 1000
    assert math.isnan(selection.show())
    assert selection.show(is_last=True) == selection.best.shown[0]  # one episode, whatever it takes


def test_the_last_tree_of_a_run_that_keeps_none_is_shown_by_its_own_episodes():
    selection = Selection(Problem(CART_POLE, BASE), 64, 4)
    selection.judge(stump(0.0), keep=False)
    assert selection.best.shown is selection.best.returns
    assert selection.last_mean == selection.best.shown.mean()


def test_a_checkpoint_goes_on_with_the_episodes_shown():
    selection = chosen(0, budget=50_000)
    selection.show()
    other = Selection(selection.problem, 4, 4, budget=50_000)
    other.restore(selection.state())
    assert other.show() == selection.show()
    assert (other.shown_steps, other.longest) == (selection.shown_steps, selection.longest)
    with pytest.raises(CustardError, match="earlier version"):
        other.restore({**selection.state(), "selection.numbers": np.zeros(5)})
