"""The language of derived features: what it computes, and that text can do nothing else."""

from __future__ import annotations

import ast
import builtins
import math
from fractions import Fraction
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import custard
from custard.core.errors import CustardError
from custard.core.expressions import with_expressions
from custard.core.features import Features

POLE = Features(("angle", "rate", "other angle"), [-4.0, -2.0, -4.0], [4.0, 2.0, 4.0])


def value(text: str, x: tuple[float, ...] = (1.0, -2.0, 3.0)) -> float:
    return float(with_expressions(POLE, [text]).extend(np.array(x))[-1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tilt = angle + 0.5*rate", 0.0),
        ("angle - rate - 1", 2.0),
        ("2*(angle - 3*rate)/4", 3.5),
        ("-angle + +rate - -angle - `other angle`", -5.0),
        ("(angle + rate) * (angle - rate)", -3.0),
        ("abs(rate) * 2 - angle", 3.0),
        ("wrap(`other angle` + angle)", 4.0 - 2 * math.pi),
        ("1e1 * angle·2 − .5", 19.5),
    ],
)
def test_values(text, expected):
    assert value(text) == pytest.approx(expected, abs=1e-12)


def test_linear_expressions_become_one_sum_with_weights_rounded_once():
    features = with_expressions(POLE, ["a = 0.1*angle + 0.2*rate", "b = a + a + a - 0.2*rate"])
    (first, second) = features.derived
    assert first.terms == ((0, 0.1), (1, 0.2))
    assert second.is_linear
    assert second.terms == ((0, float(3 * Fraction(0.1))), (1, float(2 * Fraction(0.2))))
    assert features.low[3:] == pytest.approx([-0.8, -2.0])


def test_derived_features_use_earlier_ones_and_products_are_kept():
    features = with_expressions(POLE, ["a = angle + rate", "square = a*a", "far = abs(square - 1)"])
    assert features.extend([3.0, -1.0, 0.0])[3:].tolist() == [2.0, 4.0, 3.0]
    assert [entry.is_linear for entry in features.derived] == [True, False, False]
    again = Features.from_json(features.to_json())
    assert again.same_as(features)


def test_what_a_sum_prints_is_read_back():
    features = with_expressions(POLE, ["a = 0.25*angle - rate*(angle + 2) + wrap(angle - rate)*3 - 1"])
    text = features.derived[0].text([*POLE.names[:2], "`other angle`"], repr)
    assert with_expressions(POLE, ["a = " + text]).derived == features.derived


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["tilt = angel"], "feature 'tilt', column 8: unknown name 'angel' (did you mean 'angle'?)"),
        (["a = b", "b = a"], "feature 'a', column 5: 'b' is defined after it, and a feature may use earlier ones only"),
        (["a = a + angle"], "feature 'a', column 5: it is computed from itself"),
        (["angle = rate"], "feature 'angle' is defined, but there is one of that name already"),
        (["a = 1e999*angle"], "feature 'a', column 5: 1e999 is too large a number"),
        (["a = nan*angle"], "feature 'a', column 5: unknown name 'nan'"),
        (["a = angle / 0"], "feature 'a', column 13: division by zero"),
        (["a = 1 / angle"], "feature 'a', column 9: only a number can divide"),
        (["a = angle - angle"], "feature 'a' is the same number for every observation"),
        (["a = 3"], "feature 'a' is the same number for every observation"),
        (["a = "], "feature 'a', column 4: nothing to compute"),
        (["a = (angle"], "feature 'a', column 5: this parenthesis is not closed"),
        (["a = angle rate"], "feature 'a', column 11: unexpected 'rate'"),
        (["a = angle ** 2"], "feature 'a', column 12: unexpected '*'"),
        (["a = angle.real"], "feature 'a', column 10: unexpected '.'"),
        (["a = angle[0]"], "feature 'a', column 10: unexpected '['"),
        (["a = __import__('os')"], "feature 'a', column 16: unexpected \"'\""),
        (["a = __import__(angle)"], "feature 'a', column 5: unknown name '__import__'"),
        (["a = eval(angle)"], "feature 'a', column 5: unknown name 'eval'"),
        (["a = abs angle"], "feature 'a', column 5: abs needs parentheses"),
        (["abs = angle"], "a feature cannot be called 'abs': that is a function"),
        (["a = 1e300*1e300*angle"], "feature 'a': a weight is too large a number"),
        (["a = " + "(" * 99 + "angle" + ")" * 99], "parentheses or signs nest too deeply"),
        (["a = " + "-" * 99 + "angle"], "parentheses or signs nest too deeply"),
        (["a = angle" + " + angle" * 9999], "at most 5000 characters"),
        (["f0 = angle*rate"] + [f"f{k} = f{k - 1}*f{k - 1}" for k in range(1, 40)], "at most 200 products"),
    ],
)  # fmt: skip
def test_bad_text_is_one_clear_line(texts, message):
    with pytest.raises(CustardError) as error:
        with_expressions(POLE, texts)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def parsed_or_message(text: str) -> tuple[Features | None, str]:
    try:
        return with_expressions(POLE, [text]), ""
    except CustardError as error:
        return None, str(error)


words = st.sampled_from(
    [
        "angle",
        "rate",
        "`other",
        "angle`",
        "abs",
        "wrap",
        "(",
        ")",
        "+",
        "-",
        "*",
        "/",
        "=",
        "0.5",
        "1e-3",
        "2",
        ".",
        "..",
        "[",
        "]",
        "{",
        "}",
        ":",
        ";",
        ",",
        "'",
        '"',
        "\\",
        "@",
        "%",
        "&",
        "|",
        "~",
        "^",
        "<",
        ">",
        "!",
        "?",
        "#",
        "$",
        "__import__",
        "__class__",
        "eval",
        "exec",
        "lambda",
        "import",
        "os",
        "system",
        "open",
        "print",
        "getattr",
        "angle.real",
        "().__class__",
        "\n",
        "\t",
        "\x00",
        "é",
        "∞",
        "inf",
        "nan",
        "1e400",
        "0x10",
        "1_000",
        "٣",
        "**",
        "//",
        "==",
        "->",
        ":=",
        "f'{angle}'",
        "`",
    ]
)
hostile = st.one_of(st.text(max_size=60), st.lists(words, max_size=14).map("".join), st.lists(words).map(" ".join))


@settings(max_examples=400, deadline=None)
@given(hostile)
def test_hostile_text_is_a_feature_or_one_line_and_runs_nothing(text):
    def forbidden(*args, **kwargs):
        raise AssertionError("text was run")

    names = ("eval", "exec", "compile", "open", "__import__", "getattr")
    kept = {name: getattr(builtins, name) for name in names}
    with patch.multiple(builtins, **dict.fromkeys(("eval", "exec", "compile", "open"), forbidden)):
        features, message = parsed_or_message(text)
    if features is None:
        assert message
        assert "\n" not in message
        return
    assert {name: getattr(builtins, name) for name in names} == kept
    x = features.extend(np.array([0.3, -0.7, 1.1]))
    assert x.shape == (4,)
    assert features.derived[0].raw_features() <= {0, 1, 2}


numbers = st.floats(0.001, 1000).map(lambda v: round(v, 3)).filter(bool)


@st.composite
def sums(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["name", "number", "add", "subtract", "times", "negative"] if depth else ["name"]))
    if kind == "name":
        return draw(st.sampled_from(["angle", "rate"]))
    if kind == "number":
        return repr(draw(numbers))
    if kind == "negative":
        return f"-({draw(sums(depth=depth - 1))})"
    sign = {"add": "+", "subtract": "-", "times": "*"}[kind]
    left = draw(sums(depth=depth - 1))
    right = repr(draw(numbers)) if kind == "times" else draw(sums(depth=depth - 1))
    return f"({left}) {sign} ({right})"


@settings(max_examples=150, deadline=None)
@given(sums(depth=3))
def test_values_are_what_arithmetic_says(text):
    features, message = parsed_or_message(text)
    if features is None:
        assert "same number" in message
        return
    found = features.extend([1.0, -2.0, 3.0])[-1]

    def exact(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            a, b = exact(node.left), exact(node.right)
            return a + b if isinstance(node.op, ast.Add) else a - b if isinstance(node.op, ast.Sub) else a * b
        if isinstance(node, ast.UnaryOp):
            return -exact(node.operand)
        if isinstance(node, ast.Name):
            return Fraction({"angle": 1.0, "rate": -2.0}[node.id])
        assert isinstance(node, ast.Constant)
        return Fraction(node.value)

    truth = float(exact(ast.parse(text, mode="eval").body))
    assert found == pytest.approx(truth, rel=1e-12, abs=1e-9)


def test_the_source_never_evaluates_text():
    from custard.core import expressions

    with open(expressions.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"eval", "exec", "compile", "getattr", "__import__", "open"}


# -- in environments --------------------------------------------------------------------------------------------------


def test_describe_and_ibmdps_add_the_features():
    base = custard.describe(gym.make("CartPole-v1"), features=["tilt = pole_angle + 0.5*pole_velocity"])
    assert base.features.names[-1] == "tilt"
    assert base.observe(np.array([0, 1, 0.2, 0.4], dtype=np.float32))[-1] == pytest.approx(0.4)
    env = custard.IBMDP(
        gym.make("CartPole-v1"), features=["tilt = pole_angle + 0.5*pole_velocity"], low=[-2, -2, -0.2, -2],
        high=[2, 2, 0.2, 2], max_depth=2,
    )  # fmt: skip
    assert env.observation_space.shape == (15,)
    assert env.rules.features.low.tolist() == [-2.0, -2.0, -0.2, -2.0, -1.2]
    with pytest.raises(CustardError, match="features= takes a function of one observation or a list of expressions"):
        custard.describe(gym.make("CartPole-v1"), features=3)


def test_compiled_environments_compute_the_features_of_every_step():
    text = ["tilt = pole_angle + 0.3*pole_velocity", "far = abs(tilt)"]
    venv = custard.VectorIBMDP(
        gym.make_vec("custard/CartPole-v0", num_envs=3), features=text, low=[-2, -2, -0.2, -2], high=[2, 2, 0.2, 2]
    )
    venv.reset(seed=0)
    for action in (0, 1, 1):
        venv.step(np.full(3, action))
        x = venv.base_envs.x
        assert x.shape == (3, 6)
        np.testing.assert_array_equal(x, venv.rules.features.extend(x[:, :4]))


def test_finite_mdps_are_planned_over_expressions():
    plain = custard.learn("FrozenLake-v1", "plan", max_depth=1, seed=0)
    run = custard.learn("FrozenLake-v1", "plan", features=["slope = row - 0.5*column"], max_depth=1, seed=0)
    assert run.message.startswith("proved")
    assert run.value > plain.value + 0.01  # one question about the sum does what no question about a feature can
    assert run.tree.features.names == ("row", "column", "slope")


def test_a_tree_is_learned_over_an_expression_and_judged_without_it():
    run = custard.learn(
        "CartPole-v1", features=["tilt = pole_angle + 0.3*pole_velocity"], seed=0, max_depth=1, budget=8000,
        expert="none",
    )  # fmt: skip
    assert run.config["features"] == ["tilt = pole_angle + 0.3*pole_velocity"]
    result = custard.evaluate(run.tree, "CartPole-v1", episodes=20, seed=3)
    assert result.mean > 50
    tree = custard.Tree.stump(
        4,
        0.0,
        0,
        1,
        custard.describe(gym.make("CartPole-v1"), features=run.config["features"]).features,
        run.tree.actions,
    )
    assert custard.evaluate(tree, "CartPole-v1", episodes=20, seed=3).mean == 500.0
