"""Trees with sums and linear leaves on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import pytest

import custard
from tests.command_line import call
from tests.commands.test_mistakes import refused


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    base = custard.describe(gym.make("CartPole-v1"), features=["tilt = pole_angle + 0.3*pole_velocity"])
    made = custard.Tree.stump(4, 0.0, 0, 1, base.features, base.actions).with_origin(env="CartPole-v1")
    made.save(tmp_path / "tree.json")
    return tmp_path / "tree.json"


def test_size_counts_coefficients(tree: Path, capsys: pytest.CaptureFixture) -> None:
    _, out, _ = call(capsys, "show", tree)
    printed = out.splitlines()
    assert printed[0] == "tilt ≤ 0?"
    assert printed[-2:] == ["where tilt = pole_angle + 0.3*pole_velocity", "depth 1, leaves 2, nodes 3, coefficients 2"]
    _, out, _ = call(capsys, "show", tree, "--json")
    assert json.loads(out)["coefficients"] == 2


def test_evaluate_explain_and_export(tree: Path, capsys: pytest.CaptureFixture) -> None:
    _, out, _ = call(capsys, "evaluate", tree, "CartPole-v1", "--episodes", "5", "--json")
    assert json.loads(out)["mean"] == 500.0
    _, out, _ = call(capsys, "explain", tree, "--obs", "0", "0", "0.1", "0.2", "--json")
    told = json.loads(out)
    assert list(told["observation"]) == ["cart_position", "cart_velocity", "pole_angle", "pole_velocity"]
    assert told["counterfactuals"][0]["action"] == "push_left"
    _, out, _ = call(capsys, "export", tree, "--format", "c", "--layout", "table")
    assert "custard_child" in out
    _, out, _ = call(capsys, "export", tree, "--format", "c")
    assert "custard_tilt(obs) <= " in out


def test_mistakes_are_one_line(tree: Path, capsys: pytest.CaptureFixture) -> None:
    message = "scikit-learn's trees compare single features, and this tree asks about 'tilt'"
    assert message in refused(capsys, ["export", str(tree), "--format", "sklearn"])
    assert "unknown layout 'rows'" in refused(capsys, ["export", str(tree), "--format", "c", "--layout", "rows"])
    said = refused(capsys, ["export", str(tree), "--format", "rust", "--layout", "table"])
    assert "--layout chooses the layout of the c format" in said
    said = refused(capsys, ["train", "CartPole-v1", "--feature", "tilt = pole_angel"])
    assert "unknown name 'pole_angel' (did you mean 'pole_angle'?)" in said
    said = refused(capsys, ["train", "CartPole-v1", "--feature", "a = b", "--feature", "b = a"])
    assert "'b' is defined after it" in said
    said = refused(capsys, ["explain", str(tree), "--obs", "tilt=1"])
    assert "unknown feature 'tilt'" in said
