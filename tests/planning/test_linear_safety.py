"""Safety proofs of CartPole trees that test a sum."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.errors import CustardError
from custard.core.sums import Part, Sum
from custard.planning.cartpole_safety import _divided_by_sum, prove_safe

BASE = custard.describe(gym.make("CartPole-v1"))


def sum_test(weights: dict[int, float], threshold: float = 0.0) -> custard.Tree:
    return custard.Tree.stump(4, threshold, 0, 1, BASE.features.with_sums([weights]), BASE.actions)


def test_a_tree_with_one_sum_is_proved_safe():
    assert prove_safe(sum_test({2: 1.0, 3: 0.3}), 40, simulations=50).verdict == "proved"


def test_a_bad_sum_is_refuted():
    assert prove_safe(sum_test({2: -1.0, 3: -0.3}), 60, simulations=50).verdict == "refuted"


def test_both_parts_of_a_divided_box_hold_every_state_that_goes_there():
    rng = np.random.default_rng(0)
    tree = sum_test({0: 0.3, 1: -0.8, 2: 1.0, 3: 0.25}, 0.05)
    centre = rng.normal(size=(200, 4)) * 0.2
    low, high = centre - rng.random((200, 4)) * 0.1, centre + rng.random((200, 4)) * 0.1
    for k in range(200):
        x = low[k] + rng.random((300, 4)) * (high[k] - low[k])
        answers = tree.predict(x.astype(np.float32))
        for action, (part_low, part_high) in enumerate(_divided_by_sum(tree, 0, low[[k]], high[[k]])):
            went = x[answers == action]
            if len(went):
                assert len(part_low) == 1
                assert ((part_low[0] <= went) & (went <= part_high[0])).all()


def test_products_are_refused_in_one_line():
    angle = Sum(((2, 1.0),))
    features = BASE.features.with_sums([Sum(((Part("product", (angle, angle)), 1.0),))], ["square"])
    with pytest.raises(CustardError, match="feature 'square' is not: it is no weighted sum"):
        prove_safe(custard.Tree.stump(4, 0.0, 0, 1, features, BASE.actions), 5)
