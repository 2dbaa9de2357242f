"""Measuring speed: what is measured is there and decides as the tree does. How fast it is belongs to benchmarks."""

import json
import shutil

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import Actions, Features, Tree
from custard.lab import speed
from tests.command_line import exit_code


@pytest.fixture
def tree(tmp_path):
    base = custard.describe(gym.make("CartPole-v1"))
    Tree.stump(2, 0.0, 0, 1, base.features, base.actions).with_origin(env="CartPole-v1").save(tmp_path / "tree.json")
    return str(tmp_path / "tree.json")


def bench(*arguments):
    assert exit_code("bench", *arguments) == 0


def test_bench_measures_every_way_to_decide(tree, capsys):
    bench(tree)
    out = capsys.readouterr().out
    assert all(part in out for part in ("exported C", "tree.predict", "tree.act", "CartPole-v1", "steps per second"))
    bench(tree, "--json")
    found = json.loads(capsys.readouterr().out)
    assert all(found[name] > 0 for name in ("act", "predict", "steps"))
    assert (found["c"] is None) == (shutil.which("cc") is None and shutil.which("gcc") is None)


@pytest.mark.parametrize(
    ("actions", "values"),
    [
        (Actions("discrete", "ab", start=-1), (-1, 0)),
        (Actions("box", ("force", "angle"), low=[-1, 0], high=[1, 3]), ([-0.25, 1.0], [0.7, 0.0])),
        (Actions("multi", ("gear", "lamp"), low=[0, 0], high=[4, 1]), ([3, 0], [1, 1])),
    ],
)
def test_c_is_timed_for_every_kind_of_action(actions, values):
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    stump = Tree.stump(1, 0.1, *values, Features(("a", "b"), [-1, -1], [1, 1]), actions)
    assert speed.c_nanoseconds(stump, np.random.default_rng(0).uniform(-1, 1, (1000, 2)), repeats=2) > 0.0


def test_without_a_compiler_there_is_no_number_for_c(tree, capsys, monkeypatch):
    monkeypatch.setattr(speed.shutil, "which", lambda name: None)
    bench(tree)
    assert "no C compiler found" in capsys.readouterr().out
