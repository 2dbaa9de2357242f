"""Proofs about trees with sums and linear leaves: rounding errors are part of them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import Actions, Features, Tree
from custard.core.errors import CustardError
from custard.tree.balance import balance
from custard.tree.verify import certify, difference, verify
from tests.tree.linear_trees import observations_for, random_linear_tree, random_nonlinear_tree

pytest.importorskip("z3")

ACTIONS = Actions("discrete", ("left", "right"))


def lean(threshold: float = 0.3, weights: tuple[float, float] = (0.1, 0.7)) -> Tree:
    features = Features(("x", "y"), [-1.0, -1.0], [1.0, 1.0]).with_sums([dict(enumerate(weights))], ["lean"])
    return Tree.stump(2, threshold, 0, 1, features, ACTIONS)


def test_assertions_about_raw_features_are_decided():
    assert verify(lean(), "x > 0.9 and y > 0.9 -> right").holds is True
    verdict = verify(lean(), "y > 0.4 -> right")
    assert verdict.holds is False
    assert verdict.counterexample is not None
    assert verdict.counterexample.shape == (2,)
    assert lean().act(verdict.counterexample) == 0


def test_assertions_may_name_the_sum_itself():
    assert verify(lean(), "lean > 0.3 -> right").holds is True
    assert verify(lean(), "lean > 0.29 -> right").holds is False


def test_a_proof_does_not_cross_the_rounding_of_the_sum():
    # 0.1*x + 0.7*y <= 0.3 in exact arithmetic and in float64 part ways for some observations: neither is claimed.
    x = observations_for(lean(), 4000, 0)
    x = x[(np.abs(x) <= 1).all(axis=1)]
    exact = [(0.1).as_integer_ratio(), (0.7).as_integer_ratio()]
    from fractions import Fraction

    apart = [
        row
        for row in x
        if (sum(Fraction(*w) * Fraction(v) for w, v in zip(exact, row, strict=True)) > Fraction(0.3))
        != bool(lean().act(row))
    ]
    assert apart  # such observations exist
    verdict = verify(lean(), "0.1*x + 0.7*y > 0.3 -> right")
    assert verdict.holds is not True


def test_linear_leaves_are_bounded_by_their_clip_and_by_what_they_compute():
    features = Features(("x", "y"), [-1.0, -1.0], [1.0, 1.0])
    torque = Actions("box", ("torque",), low=[-2.0], high=[2.0])
    tree = Tree([-1], [0], [-1], [-1], [[0.5]], features, torque, gains=[[[1.0, 0.25]]])
    assert verify(tree, "action.torque <= 2").holds is True
    assert verify(tree, "action.torque <= 1.7500001").holds is True
    assert verify(tree, "action.torque <= 1.5").holds is False
    assert verify(tree, "x > 0 and y > 0 -> action.torque > 0.4999").holds is True


def test_of_products_the_bounds_are_known():
    tree = random_nonlinear_tree(0)
    assert verify(tree, "far >= 0").holds is True
    assert verify(tree, "far <= 1000").holds is True


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_balanced_trees_are_proved_equal(seed):
    tree = random_linear_tree(seed)
    assert difference(tree, balance(tree)) is None


def test_trees_with_other_sums_are_compared_over_raw_features():
    assert difference(lean(), lean(threshold=0.31)) is not None
    point = difference(lean(), lean(weights=(0.1, 0.8)))
    assert point is not None
    assert lean().act(point) != lean(weights=(0.1, 0.8)).act(point)
    # Twice the sum against twice the threshold is the same test, bit by bit; real arithmetic cannot tell.
    with pytest.raises(CustardError, match="within the rounding of a sum"):
        difference(lean(), lean(threshold=0.6, weights=(0.2, 1.4)))


def test_leaves_that_compute_differently_differ():
    features = Features(("x",), [-1.0], [1.0])
    torque = Actions("box", ("torque",), low=[-2.0], high=[2.0])
    one, two = (
        Tree([-1], [0], [-1], [-1], [[0.5]], features, torque, gains=[[[gain]]]) for gain in (1.0, 1.5)
    )  # fmt: skip
    point = difference(one, two)
    assert point is not None
    assert one.act(point) != two.act(point)
    assert difference(one, one) is None


def test_a_leaf_that_computes_is_certified_against_no_constant_action() -> None:
    """One gain of one component is enough: elsewhere the leaf's action is the policy's."""
    env = custard.IBMDP(gym.make("Pendulum-v1"), splits="parameterised", max_depth=1)

    def policy(bounds: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        count = len(bounds)
        return {"choice": np.zeros(count, np.int64), "v": np.zeros((count, 1)), "base": np.zeros((count, 1))}

    tree = custard.extract(policy, env)
    assert certify(tree, policy, env).exact
    gains = np.zeros((1, 1, 3))
    gains[0, 0, 1] = 0.5
    wrong = Tree(
        tree.feature, tree.threshold, tree.children_left, tree.children_right, tree.value, tree.features,
        tree.actions, gains=gains,
    )  # fmt: skip
    assert not certify(wrong, policy, env).exact
