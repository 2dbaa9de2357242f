"""Proofs: the assertion language, Z3's verdicts against dense sampling, trees compared everywhere."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from fractions import Fraction

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings

import custard
from custard import Actions, CustardError, Features, Tree
from custard.tree.assertions import constant, holds, parse
from custard.tree.verify import certify, difference, verify
from tests.strategies import hard_points, seeds
from tests.strategies import random_tree as mixed_tree

FEATURES = Features(
    ("cart_position", "cart_velocity", "pole_angle", "pole_velocity"), [-2.4, -3, -0.21, -3.5], [2.4, 3, 0.21, 3.5]
)
ACTIONS = Actions("discrete", ("push_left", "push_right"))
#: A tree that balances the pole in every episode.
CARTPOLE = Tree(
    [1, -1, 2, -1, -1],
    [-0.3499, 0, 0.01526, 0, 0],
    [1, -1, 3, -1, -1],
    [2, -1, 4, -1, -1],
    [0, 1, 0, 0, 1],
    FEATURES,
    ACTIONS,
)
needs_z3 = pytest.mark.skipif(importlib.util.find_spec("z3") is None, reason="z3-solver is not installed")


@needs_z3
@pytest.mark.parametrize(
    "text",
    [
        "pole_angle > 0.1 and pole_velocity > 0.5 -> push_right",
        "cart_velocity <= -0.3499 -> push_right",
        "pole_angle <= 0.01526 and cart_velocity > -0.3499 -> push_left",
        "push_left or push_right",
        "not (push_left and push_right)",
        "2 * pole_angle - cart_velocity / 3 > 1.2 -> push_right",
        "abs(pole_angle) <= 0.01 and abs(cart_velocity) < 0.3 -> not push_right",
        "-0.2 < pole_angle <= 0.01 → push_left or cart_velocity ≤ -0.3",
        "false -> true",
        "pole_angle != pole_angle -> false",
    ],
)
def test_true_properties_are_proved(text: str) -> None:
    verdict = verify(CARTPOLE, text)
    assert verdict.holds is True
    assert verdict
    assert verdict.leaves == 3
    term = parse(text, FEATURES, ACTIONS)
    x = hard_points(CARTPOLE, 3000)
    x = x[(np.abs(x) <= FEATURES.high).all(axis=1)]
    assert len(x) > 100
    assert all(holds(term, row, int(a)) for row, a in zip(x.tolist(), CARTPOLE.predict(x, compiled=False), strict=True))


@needs_z3
@pytest.mark.parametrize(
    "text",
    [
        "pole_angle > 0.01 -> push_right",
        "pole_angle >= 0.01526 -> push_right",  # false at one single float64
        "cart_velocity < -0.3498 -> push_right",
        "push_left",
        "pole_velocity + pole_angle <= 3.7 or push_left",
        "pole_angle == 0.01526 -> push_right or cart_velocity > 0",
        "cart_position + cart_velocity == 0.3 -> push_right",  # its real solutions are rarely floats
        "not true",
    ],
)
def test_false_properties_have_a_counterexample_that_the_tree_confirms(text: str) -> None:
    verdict = verify(CARTPOLE, text)
    assert verdict.holds is False
    x = verdict.counterexample
    assert x is not None
    assert (np.abs(x) <= FEATURES.high).all()
    assert CARTPOLE.act(x) == verdict.action
    assert not holds(parse(text, FEATURES, ACTIONS), x.tolist(), int(verdict.action))


@needs_z3
def test_bounds_and_whole_numbers() -> None:
    assert verify(CARTPOLE, "pole_angle <= 0.21").holds
    assert verify(CARTPOLE, "pole_angle <= 0.21", bounded=False).holds is False
    features = Features(("items",), [0], [9], ("integer",))
    tree = Tree.stump(0, 2.5, 0, 1, features, ACTIONS)
    assert verify(tree, "items > 2 -> push_right").holds
    assert verify(tree, "items >= 2 -> push_right").counterexample.tolist() == [2.0]


@needs_z3
def test_vector_actions() -> None:
    actions = Actions("box", ("torque", "brake"), low=[-2, 0], high=[2, 1])
    tree = Tree.stump(2, 0.0, [-1.5, 0.25], [1.5, 0.75], FEATURES, actions)
    assert verify(tree, "pole_angle > 0 -> action.torque >= 1 and action.brake == 0.75").holds
    assert verify(tree, "action.torque + pole_angle > -1.6").holds is False
    with pytest.raises(CustardError, match=r"unknown name 'torque' \(did you mean 'action.torque'"):
        verify(tree, "torque > 1")


@needs_z3
def test_hostile_names_can_be_quoted() -> None:
    features = Features(("a b", "push_left", "and"), [-1] * 3, [1] * 3)
    tree = Tree.stump(0, 0.0, 0, 1, features, ACTIONS)
    assert verify(tree, "`a b` > 0 -> push_right").holds
    assert verify(tree, "`a b` <= 0 -> action.push_left").holds
    assert verify(tree, "push_left <= 1 and `and` <= 1").holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 1: nothing to check"),
        ("pole_angle >", "column 13: unexpected end"),
        ("pole_angle > 0.1 -> push_rihgt", "column 21: unknown name 'push_rihgt' (did you mean 'push_right'?)"),
        ("pole_angel > 0.1", "column 1: unknown name 'pole_angel' (did you mean 'pole_angle'?)"),
        ("pole_angle > 0.1 push_right", "column 18: unexpected 'push_right'"),
        ("pole_angle", "column 1: the assertion must be a condition"),
        ("(pole_angle > 1", "column 1: this parenthesis is not closed"),
        ("pole_angle * pole_velocity > 1", "column 14: arithmetic must be linear"),
        ("1 / pole_angle > 1", "column 5: arithmetic must be linear"),
        ("pole_angle / 0 > 1", "column 14: division by zero"),
        ("push_left > 1", "column 1: only numbers can be compared"),
        ("pole_angle and push_left", "column 1: 'and' joins conditions"),
        ("pole_angle > 1 -> 3", "column 19: what follows -> must be a condition"),
        ("pole_angle $ 1", "column 12: unexpected '$'"),
        ("__import__(3)", "column 1: unknown name '__import__'"),
        ("abs 3 > 1", "column 1: abs needs parentheses"),
        ("pole_angle < 1e999", "column 14: 1e999 is too large"),
        ("(" * 500 + "true" + ")" * 500, "parentheses nest too deeply"),
        ("pole_angle" + " * 1e300" * 20 + " < 1", "too large or too small a number"),
    ],
)
def test_mistakes_say_where(text: str, message: str) -> None:
    with pytest.raises(CustardError) as caught:
        parse(text, FEATURES, ACTIONS)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed > 1 -> action_-3", "unknown name 'action_' (names with other signs need backquotes: `action_-3`)"),
        ("speed > 1 -> a.b.c", "unexpected '.' (names with other signs need backquotes: `a.b.c`)"),
        ("speed limit > 1", "(names with other signs need backquotes: `speed limit`)"),
        ("speed > 1 -> action_-9", "did you mean `action_-3`, in backquotes?"),
    ],
)
def test_names_that_need_backquotes_are_told_so(text: str, message: str) -> None:
    features = Features(("speed", "speed limit"), [0, 0], [9, 9])
    with pytest.raises(CustardError) as caught:
        parse(text, features, Actions("discrete", ("action_-3", "a.b.c"), start=-3))
    assert message in str(caught.value)


@needs_z3
def test_long_chains_are_no_deep_ones() -> None:
    assert verify(CARTPOLE, " + ".join(["pole_angle"] * 2000) + " <= 420").holds
    assert verify(CARTPOLE, "-" * 2001 + "pole_angle <= 0.21").holds
    assert verify(CARTPOLE, "pole_angle" + " * 3 / 3" * 1000 + " <= 0.21").holds
    assert verify(CARTPOLE, "pole_angle" + " - -1" * 1000 + " < 1000").holds is False


@needs_z3
def test_the_largest_numbers_there_are() -> None:
    most = "1.7976931348623157e308"
    assert verify(CARTPOLE, f"pole_angle <= {most}", bounded=False).holds is True
    assert verify(CARTPOLE, f"pole_angle < {most}", bounded=False).holds is False
    tree = Tree.stump(0, 0.5, 0, 1, Features(("i",), [-np.inf], [np.inf], ("integer",)), ACTIONS)
    verdict = verify(tree, "i <= 1e300", bounded=False)
    assert verdict.holds is False
    assert verdict.counterexample[0] > 1e300


@needs_z3
def test_a_name_of_two_actions_means_either() -> None:
    tree = Tree.stump(2, 0.0, 0, 2, FEATURES, Actions("discrete", ("go", "stay", "go")))
    assert verify(tree, "go").holds
    assert verify(tree, "not stay").holds
    twins = Actions("box", ("u", "u"), low=[0, 0], high=[1, 1])
    with pytest.raises(CustardError, match="'u' is the name of 2 components"):
        parse("action.u > 0", FEATURES, twins)


def test_numbers_are_the_nearest_float64() -> None:
    assert constant(parse("0.1 > 0", FEATURES, ACTIONS).parts[1]) == Fraction(0.1)


def test_a_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(CustardError, match=r'pip install "custard-rl\[verify\]"'):
        verify(CARTPOLE, "true")


def random_tree(seed: int, splits: int) -> Tree:
    rng = np.random.default_rng(seed)
    nodes, leaves = [[-1, 0.0, -1, -1, 0]], [0]
    for _ in range(splits):
        at = leaves.pop(int(rng.integers(len(leaves))))
        nodes[at] = [int(rng.integers(4)), float(rng.integers(-3, 4)) / 10, len(nodes), len(nodes) + 1, 0]
        leaves += [len(nodes), len(nodes) + 1]
        nodes += [[-1, 0.0, -1, -1, int(rng.integers(2))] for _ in range(2)]
    return Tree(*(np.array(column) for column in zip(*nodes, strict=True)), FEATURES, ACTIONS)


def test_trees_compared_everywhere() -> None:
    alike = 0
    for seed in range(60):
        tree = random_tree(seed, 6)
        assert difference(tree, custard.simplify(tree)) is None
        assert difference(tree, tree) is None
        other = random_tree(seed + 1000, seed % 3)
        point = difference(tree, other)
        x = hard_points(tree, 4000, seed=seed)
        differ = (tree.predict(x, compiled=False) != other.predict(x, compiled=False)).any()
        if point is None:
            alike += 1
            assert not differ
        else:
            assert tree.act(point) != other.act(point)
    assert alike < 60


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_no_tree_differs_from_its_simpler_self(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = mixed_tree(rng, n=int(rng.integers(1, 4)), splits=int(rng.integers(0, 12)))  # reals, whole numbers, binary
    for other in (custard.simplify(tree), custard.balance(tree)):
        assert difference(tree, other) is None
        assert difference(other, tree) is None


def test_whole_numbers_differ_at_whole_numbers_only() -> None:
    features = Features(("i",), [0], [10], ("integer",))
    nodes = [0, -1, 0, -1, -1], [0.3, 0, 0.7, 0, 0], [1, -1, 3, -1, -1], [2, -1, 4, -1, -1], [0, 0, 0, 0, 1]
    tree = Tree(*(np.array(column) for column in nodes), features, ACTIONS)
    assert difference(tree, Tree.stump(0, 0.5, 0, 1, features, ACTIONS)) is None
    assert difference(tree, Tree.stump(0, 1.5, 0, 1, features, ACTIONS)).tolist() == [1.0]
    real = Features(("i",), [0], [10])
    assert 0 < difference(tree, Tree.stump(0, 0.2, 0, 1, real, ACTIONS))[0] < 1


def test_trees_of_other_actions_are_not_compared() -> None:
    other = Tree.leaf(0, FEATURES, Actions("discrete", ("push_right", "push_left")))
    with pytest.raises(CustardError, match=r"same actions: push_left, push_right .* against push_right, push_left"):
        difference(CARTPOLE, other)


def test_a_tree_is_certified_against_its_policy() -> None:
    env = custard.IBMDP(
        gym.make("CartPole-v1"), splits=3, low=[-2, -2, -0.14, -1.4], high=[2, 2, 0.14, 1.4], max_depth=4
    )
    weights = np.random.default_rng(0).standard_normal((8, int(env.action_space.n)))

    def policy(bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.where(mask, bounds @ weights + np.where(np.arange(mask.shape[1]) < 2, -1.0, 0.5), -np.inf).argmax(
            axis=1
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a policy that asks to the very limit is said to be cut there
        tree = custard.extract(policy, env)
    certificate = certify(custard.simplify(tree), policy, env)
    assert certificate.exact
    assert certificate.bounds == tree.n_nodes
    assert certificate.cells == tree.n_leaves
    leaf = int(tree.leaves()[0])
    value = tree.value.copy()
    value[leaf] = 1 - value[leaf]
    wrong = Tree(
        tree.feature, tree.threshold, tree.children_left, tree.children_right, value, tree.features, tree.actions
    )
    refuted = certify(wrong, policy, env)
    assert not refuted.exact
    assert wrong.act(refuted.counterexample) != tree.act(refuted.counterexample)


def test_a_certificate_covers_every_observation_up_to_the_last_float() -> None:
    env = custard.IBMDP(gym.make("CartPole-v1"), splits=1, low=[-2, -2, -0.14, -1.4], high=[2, 2, 0.14, 1.4])
    features, actions = env.rules.features, env.rules.actions
    asks_angle = env.rules.n_base + 2

    def act_at_once(bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.zeros(len(bounds), dtype=np.int64)

    def ask_once(bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        left, right = bounds[:, 6] <= 0.5, bounds[:, 2] >= 0.5
        return np.where(left, 0, np.where(right, 1, asks_angle))

    beyond = [Tree.stump(2, -5.0, 1, 0, features, actions), Tree.stump(2, 5.0, 0, 1, features, actions)]
    beyond += [Tree.stump(0, np.nextafter(-2.0, -3.0), 1, 0, features, actions)]
    assert certify(Tree.leaf(0, features, actions), act_at_once, env)
    assert certify(Tree.stump(2, 0.0, 0, 1, features, actions), ask_once, env)
    wrong = [(tree, act_at_once) for tree in beyond]
    wrong += [(Tree.stump(2, shift, 0, 1, features, actions), ask_once) for shift in (-5e-324, 5e-324, -0.15, 0.2)]
    wrong += [(Tree.stump(2, 0.0, 1, 0, features, actions), ask_once), (Tree.leaf(1, features, actions), ask_once)]
    for tree, policy in wrong:
        refuted = certify(tree, policy, env)
        assert not refuted, tree
        point = refuted.counterexample
        right = 0 if policy is act_at_once else int(point[2] > 0.0)
        assert tree.act(point) != right


@needs_z3
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("not (pole_angle < 0.01526) -> push_right", 0.01526),
        ("not (pole_angle > 0.01526) or push_left", None),
        ("not (pole_angle <= 0.01526) -> push_left", None),
        ("not (not (pole_angle >= 0.01526)) -> push_right", 0.01526),
        ("not (pole_angle < 0.01526 or pole_angle > 0.01526) -> push_right", 0.01526),
        ("not (cart_velocity < 0 and pole_angle < 0) and pole_angle < -0.01 -> push_right", None),
    ],
)
def test_negations_are_refuted_at_the_very_threshold(text: str, where: float | None) -> None:
    tree = Tree.stump(2, 0.01526, 0, 1, FEATURES, ACTIONS)
    verdict = verify(tree, text)
    assert verdict.holds is False
    point = verdict.counterexample
    assert not holds(parse(text, FEATURES, ACTIONS), [Fraction(v) for v in point.tolist()], tree.act(point), [])
    if where is not None:
        assert point[2] == where


@needs_z3
def test_a_premise_that_is_met_at_any_leaf_is_met() -> None:
    tree = Tree.stump(2, 0.0, 0, 1, FEATURES, ACTIONS)
    for premise in ("pole_angle < -0.1", "pole_angle > 0.1"):  # at the first leaf only, at the last one only
        verdict = verify(tree, f"{premise} -> push_left or push_right")
        assert verdict.holds
        assert not verdict.vacuous
    assert verify(tree, "pole_angle > 0.3 -> push_left").vacuous
    assert not verify(tree, "push_left or push_right").vacuous


@needs_z3
@pytest.mark.parametrize("side", [1, -1])
def test_counterexamples_lie_within_the_bounds(side: int) -> None:
    """The real solution lies within them but is no float64; of the floats beside it only the one beyond would do."""
    bound = 0.3
    product = 3 * Fraction(bound)
    near = float(product)
    while Fraction(near) >= product:
        near = float(np.nextafter(near, 0.0))
    assert np.nextafter(bound, 0.0) < Fraction(near) / 3 < Fraction(bound)
    features = Features(("a",), [-bound], [bound])
    compared = f"a <= {bound!r}" if side > 0 else f"a >= {-bound!r}"
    text = f"not (3 * a == {side * near!r}) and {compared}"
    assert verify(Tree.leaf(0, features, ACTIONS), text).holds is None
    assert verify(Tree.leaf(0, features, ACTIONS), text, bounded=False).holds is False


@needs_z3
def test_counterexamples_keep_to_the_bounds_of_every_feature() -> None:
    """Of two features the first lies well inside, and only beyond the second one's bound the assertion is false."""
    near = 0.8999999999999999
    features = Features(("b", "a"), [-1, -0.3], [1, 0.3])
    assert Fraction(near) < 3 * Fraction(0.3)
    tree = Tree.leaf(0, features, ACTIONS)
    text = f"not (3 * a == {near!r}) and a <= 0.3 and b <= 1"
    assert verify(tree, text).holds is None
    assert verify(tree, text, bounded=False).holds is False


@needs_z3
@pytest.mark.parametrize("text", ["pole_angle > -0.21", "pole_angle < 0.21", "cart_position > -2.4"])
def test_the_bounds_themselves_are_observations(text: str) -> None:
    verdict = verify(CARTPOLE, text)
    assert verdict.holds is False
    assert abs(verdict.counterexample[2 if "pole" in text else 0]) == (0.21 if "pole" in text else 2.4)


@needs_z3
@pytest.mark.parametrize("start", [-3, 0, 2])
def test_actions_are_named_by_the_number_they_begin_with(start: int) -> None:
    actions = Actions("discrete", ("push_left", "push_right"), start=start)
    tree = Tree.stump(2, 0.0, start, start + 1, FEATURES, actions)
    assert verify(tree, "pole_angle > 0 -> push_right").holds
    assert verify(tree, "pole_angle <= 0 -> push_left").holds
    assert verify(tree, "pole_angle > 0 -> push_left").holds is False
    assert verify(tree, "pole_angle > -0.1 -> push_right").holds is False
    assert verify(tree, "pole_angle > 0 -> not push_right").holds is False
    assert verify(tree, "not push_left").holds is False


def test_a_certificate_counts_actions_from_where_they_begin() -> None:
    env = custard.IBMDP(StartsAtThree(), splits=1, max_depth=1)

    def policy(bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.where(bounds[:, 1] <= 0.5, 0, np.where(bounds[:, 0] >= 0.5, 1, env.rules.n_base))

    tree = custard.extract(policy, env)
    assert tree.value[tree.leaves()].tolist() == [3, 4]
    assert certify(tree, policy, env).exact
    assert not certify(Tree.leaf(3, tree.features, tree.actions), policy, env).exact


class StartsAtThree(gym.Env):
    """One feature in [0, 1] and the actions 3 and 4."""

    observation_space = gym.spaces.Box(0, 1, (1,), dtype=np.float64)
    action_space = gym.spaces.Discrete(2, start=3)


def test_points_in_boxes_without_ends_are_numbers() -> None:
    """Where a feature is not asked about its point is zero; above a threshold it is the first number there."""
    tree, other = Tree.leaf(0, FEATURES, ACTIONS), Tree.stump(1, 0.5, 0, 1, FEATURES, ACTIONS)
    assert difference(tree, other).tolist() == [0, np.nextafter(0.5, 1), 0, 0]
    assert difference(tree, Tree.stump(1, -1e308, 1, 0, FEATURES, ACTIONS)).tolist() == [0, -1e308, 0, 0]


@pytest.mark.parametrize("limit", [{}, {"max_nodes": 5}])
def test_the_first_split_and_the_last_question_are_certified_too(limit: dict) -> None:
    env = custard.IBMDP(
        gym.make("CartPole-v1"), splits=1, low=[-2, -2, -0.14, -1.4], high=[2, 2, 0.14, 1.4], max_depth=3
    )
    first = env.rules.n_base

    def policy(bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Ask the first question that is afforded, the very first one of all included, then go by where that led."""
        asks = mask[:, first:].any(axis=1)
        return np.where(asks, first + mask[:, first:].argmax(axis=1), (bounds[:, 0] > 0.4).astype(int))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = custard.extract(policy, env, **limit)
    assert tree.feature[0] == 0
    certificate = certify(tree, policy, env, **limit)
    assert certificate.exact
    assert (certificate.bounds, certificate.cells) == (tree.n_nodes, tree.n_leaves)
