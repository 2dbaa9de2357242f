"""Proofs about trees with sums and linear leaves: rounding errors are part of them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import Actions, Features, Tree
from custard.core.errors import CustardError
from custard.core.sums import Part, Sum
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


def test_sums_of_opposite_sign_are_two_numbers():
    """Each tree's test is about its own sum: at most one of the two is above the threshold."""
    one, two = lean(), lean(weights=(-0.1, -0.7))
    point = difference(one, two)
    assert point is not None
    assert one.act(point) != two.act(point)
    both = two.features
    never = Tree([2, 2, -1, -1, -1], [0.3, 0.9, 0, 0, 0], [1, 3, -1, -1, -1], [2, 4, -1, -1, -1], [0, 0, 1, 0, 0],
                 both, ACTIONS)  # fmt: skip
    assert difference(two, never) is None  # the third leaf of it is out of reach
    assert difference(two, lean()) is not None


def test_a_difference_of_the_width_of_rounding_is_undecided_in_the_smallest_box():
    """Where observations are too small for room of any size, that nothing was found proves nothing."""
    pairs = []
    for scale in (1.0, 2.0):
        features = Features(("x", "y"), [-1.0, -1.0], [1.0, 1.0]).with_sums([{0: 0.1 * scale, 1: 0.7 * scale}], ["s"])
        pairs.append(
            Tree(
                [0, -1, 0, 1, -1, -1, 1, 2, -1, -1, -1], [0.0, 0, 1e-9, 0.0, 0, 0, 1e-9, 4e-10 * scale, 0, 0, 0],
                [1, -1, 3, 5, -1, -1, 7, 9, -1, -1, -1], [2, -1, 4, 6, -1, -1, 8, 10, -1, -1, -1],
                [0] * 10 + [1], features, ACTIONS,
            )
        )  # fmt: skip
    with pytest.raises(CustardError, match="within the rounding of a sum"):
        difference(*pairs)


def test_equal_trees_with_products_are_proved_equal():
    tree = random_nonlinear_tree(0)
    assert difference(tree, tree) is None
    assert difference(tree, balance(tree)) is None


def test_a_tree_with_a_sum_is_compared_with_one_without():
    plain = Tree.stump(1, 0.3, 0, 1, Features(("x", "y"), [-1.0, -1.0], [1.0, 1.0]), ACTIONS)
    for pair in ((plain, lean()), (lean(), plain)):
        point = difference(*pair)
        assert point is not None
        assert pair[0].act(point) != pair[1].act(point)


def clipped(gain: float, bias: float, *, split: bool = False) -> Tree:
    """A tree of one feature whose leaf computes; with `split`, only above zero, and -2 elsewhere."""
    features, torque = Features(("x",), [-1.0], [1.0]), Actions("box", ("torque",), low=[-2.0], high=[2.0])
    if split:
        return Tree([0, -1, -1], [0.0, 0, 0], [1, -1, -1], [2, -1, -1], [[0.0], [-2.0], [bias]], features, torque,
                    gains=[[[0.0]], [[0.0]], [[gain]]])  # fmt: skip
    return Tree([-1], [0], [-1], [-1], [[bias]], features, torque, gains=[[[gain]]])


def test_leaves_that_are_clipped_to_the_same_do_not_differ():
    """Above zero both compute more than the largest torque there is."""
    assert difference(clipped(1.0, 5.0, split=True), clipped(2.0, 6.0, split=True)) is None
    assert difference(clipped(2.0, 6.0, split=True), clipped(1.0, 5.0, split=True)) is None


@pytest.mark.parametrize(("one", "two"), [((-10.0, 0.0), (-20.0, 0.0)), ((0.5, 0.0), (0.5, 0.005)),
                                          ((0.5, 0.0), (0.5, -0.005)), ((0.5, 0.0), (0.5, 1e-7))])  # fmt: skip
def test_leaves_that_differ_a_little_or_in_few_places_differ(one, two):
    for pair in ((one, two), (two, one)):
        first, second = (clipped(*each) for each in pair)
        point = difference(first, second)
        assert point is not None
        assert first.act(point) != second.act(point)


def test_observations_near_the_largest_number_are_no_exception():
    """What a sum makes of them is not left out: neither before it overflows nor after."""
    features = Features(("x", "y"), [-1.0, -1.0], [1.0, 1.0]).with_sums([{0: 2.0, 1: 1.0}], ["big"])
    tree = Tree.stump(2, 0.5, 0, 1, features, ACTIONS)
    for limit in ("5e307", "1e308", "1.7e308"):
        verdict = verify(tree, f"x <= {limit}", bounded=False)
        assert verdict.holds is False
        assert verdict.counterexample[0] > float(limit)
    assert verify(tree, "x <= 1.7976931348623157e308", bounded=False).holds is True
    assert verify(tree, "x > 1 and y > 1 -> right", bounded=False).holds is True  # infinity goes right
    assert verify(tree, "x < -1 and y < -1 -> left", bounded=False).holds is True
    # The sum may overflow to both sides, so that it is NaN, which goes right.
    verdict = verify(tree, "x < -1 and y > 1e308 -> left", bounded=False)
    assert verdict.holds is not True
    assert verify(tree, "x < -1 and y < 1e300 -> left or x > -1e300", bounded=False).holds is True
    assert verify(tree, "big <= 1e308 or right", bounded=False).holds is True
    assert verify(tree, "big <= 1e308", bounded=False).holds is not True
    assert verify(tree, "big <= 3.0000001").holds is True


def test_a_computed_action_is_bounded_though_it_overflows():
    features, torque = Features(("x",), [-1.0], [1.0]), Actions("box", ("torque",), low=[-2.0], high=[2.0])
    tree = Tree([-1], [0], [-1], [-1], [[0.5]], features, torque, gains=[[[4.0]]])
    assert verify(tree, "action.torque <= 2 and action.torque >= -2", bounded=False).holds is True
    assert verify(tree, "x > 1e308 -> action.torque == 2", bounded=False).holds is True
    assert verify(tree, "x < -1e308 -> action.torque == 2", bounded=False).holds is False
    assert verify(tree, "action.torque < 1.99", bounded=False).holds is False


def test_outside_the_bounds_nothing_is_known_of_products():
    """Their bounds follow from the features': where those do not hold, the product may be anything."""
    part = Part("product", (Sum(((0, 1.0),)), Sum(((1, 1.0),))))
    features = Features(("x", "y"), [-1.0, -1.0], [1.0, 1.0]).with_sums([Sum(((part, 1.0),))], ["xy"])
    tree = Tree.stump(2, 2.0, 0, 1, features, ACTIONS)
    assert verify(tree, "left").holds is True
    assert verify(tree, "left", bounded=False).holds is not True
    with pytest.raises(CustardError, match="could not be decided"):
        difference(tree, Tree.leaf(0, features, ACTIONS).keep_used_sums())


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
