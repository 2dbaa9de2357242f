"""show, explain, export, verify and report from the command line: what they print, and one line for a mistake."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings

import custard
from custard import Actions, Features, Tree
from custard.commands.explain import Command as Explain
from tests.command_line import call
from tests.strategies import probing_points, random_tree, seeds


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    base = custard.describe(gym.make("CartPole-v1"))
    made = Tree(
        [1, -1, 2, -1, -1], [-0.3499, 0, 0.01526, 0, 0], [1, -1, 3, -1, -1], [2, -1, 4, -1, -1], [0, 1, 0, 0, 1],
        base.features, base.actions, {"env": "CartPole-v1", "method": "mfec", "seed": 0},
    )  # fmt: skip
    made.save(tmp_path / "tree.json")
    return tmp_path / "tree.json"


def test_show_draws(capsys: pytest.CaptureFixture, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("steps,value,leaves\n0,9,1\n100,500,3\n")
    pictures = [tmp_path / name for name in ("t.png", "t.svg", "p.png", "c.png")]
    code, out, _ = call(
        capsys, "show", tmp_path, "--png", pictures[0], "--svg", pictures[1], "--partition", pictures[2], "--curves",
        pictures[3], "--episodes", 2,
    )  # fmt: skip
    assert code == 0
    assert "cart_velocity ≤ -0.3499?" in out
    assert all(path.stat().st_size > 1000 for path in pictures)
    code, out, _ = call(capsys, "show", tree, "--json")
    assert json.loads(out)["leaves"] == 3


def test_explain(capsys: pytest.CaptureFixture, tree: Path) -> None:
    code, out, _ = call(capsys, "explain", tree, "--obs", 0, 0.5, -0.1, 0.3)
    assert code == 0
    assert out.splitlines() == [
        "cart_velocity > -0.3499 and pole_angle ≤ 0.01526 → push_left",
        "push_right if pole_angle rose from -0.1 to just above 0.01526 (distance 0.138)",
    ]
    named = ["cart_position=0", "cart_velocity=0.5", "pole_angle=-0.1", "pole_velocity=0.3"]
    code, out, _ = call(capsys, "explain", tree, "--obs", *named, "--fixed", "pole_angle", "--json")
    told = json.loads(out)
    assert told["action"] == "push_left"
    assert told["counterfactuals"][0]["observation"]["cart_velocity"] == -0.3499
    code, out, _ = call(capsys, "explain", tree, "--episodes", 3, "--json")
    used = json.loads(out)
    assert used["never_matter"] == ["cart_position", "pole_velocity"]
    assert sum(leaf["share"] for leaf in used["leaves"]) == pytest.approx(1)


def test_watching_needs_the_environment_the_tree_is_for(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    features = Features(("a", "b"), [-2, -1], [2, 1])  # as many as MountainCar has
    Tree.stump(0, 0.0, 0, 1, features, Actions("discrete", ("x", "y", "z"))).save(tmp_path / "tree.json")
    for command in (["explain"], ["show", "--png", tmp_path / "tree.png", "--episodes", 1]):
        code, _, err = call(capsys, command[0], tmp_path, *command[1:], "--env", "MountainCar-v0")
        assert code == 2
        assert "the tree asks about a, b, but the environment has position, velocity" in err


def test_explain_says_thresholds_not_the_floats_beside_them(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    features = Features(("x",), [-1], [1])
    Tree.stump(0, 0.0, 0, 1, features, Actions("discrete", ("a", "b"))).save(tmp_path / "tree.json")
    _, out, _ = call(capsys, "explain", tmp_path, "--obs", "x=-0.3")
    assert "b if x rose from -0.3 to just above 0 (" in out
    _, out, _ = call(capsys, "explain", tmp_path, "--obs", "x=nan")
    assert "a if x changed from nan to 0 (" in out


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_the_numbers_that_explain_prints_do_what_it_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = random_tree(rng, n=2, splits=5)
    x = probing_points(made, rng, 1)[0]
    told = Explain(Path("tree.json"), tuple(repr(float(value)) for value in x))._decision(made)
    condition = told["rule"].partition(" → ")[0]
    assert condition == "always" or true_of(condition, x)
    for change in told["counterfactuals"]:
        before, after = x.copy(), x.copy()
        for c, start, above, end in re.findall(r"f(\d) \w+ from (\S+) to (just above )?(\S+)", change["change"]):
            before[int(c)] = float(start)
            after[int(c)] = np.nextafter(float(end), np.inf) if above else float(end)
            assert start != end or x[int(c)] == float(end)
        assert made.actions.name(made.act(before)) == told["action"], change
        assert made.actions.name(made.act(after)) == change["action"], change
        if condition != "always":
            assert true_of(condition, before)
            assert not true_of(condition, after)


def true_of(condition: str, x: np.ndarray) -> bool:
    """Whether a rule holds as it is printed; NaN goes right, as in the tree."""
    holds = []
    for part in condition.split(" and "):
        low, c, sign, high = re.fullmatch(r"(?:(\S+) < )?f(\d) (≤|>) (\S+)", part).groups()
        most = x[int(c)] <= float(high)
        holds.append(most == (sign == "≤") and (low is None or not x[int(c)] <= float(low)))
    return all(holds)


def test_large_numbers_are_told_apart(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    for kind, offset in (("integer", 0.0), ("real", 0.5)):
        features = Features(("x",), [1e9], [1e9 + 4], (kind,))
        cuts = [1e9 + 2 + offset, 1e9 + 1 + offset]
        columns = ([0, 0, -1, -1, -1], [*cuts, 0, 0, 0], [1, 3, -1, -1, -1], [2, 4, -1, -1, -1], [0, 0, 0, 1, 2])
        Tree(*columns, features, Actions("discrete", ("a", "b", "c"))).save(tmp_path / "tree.json")
        _, out, _ = call(capsys, "show", tmp_path / "tree.json")
        assert all(f"x ≤ {cut:.16g}?" in out for cut in cuts)
        _, out, _ = call(capsys, "explain", tmp_path / "tree.json", "--obs", 1e9 + 2)
        assert f"b if x fell from 1000000002 to {cuts[1]:.16g}" in out


def test_names_cannot_steer_the_terminal(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    hostile = "\x1b]0;evil\x07\n\u202e\u2066"
    features = Features((f"x{hostile}", f"y{hostile}"), [-1, -1], [1, 1])
    actions = Actions("discrete", (f"a{hostile}", f"b{hostile}", f"c{hostile}"))
    one, two = Tree.stump(0, 0.0, 0, 1, features, actions), Tree.stump(1, 0.0, 0, 1, features, actions)
    one.save(tmp_path / "one.json")
    two.save(tmp_path / "two.json")
    asked = [
        ("explain", tmp_path / "one.json", "--obs", "0", "0"),
        ("explain", tmp_path / "one.json", "--obs", "0", "0", "--fixed", "z"),
        ("verify", tmp_path / "one.json", "--same", tmp_path / "two.json"),
        ("verify", tmp_path / "one.json", "--assert", f"`x{hostile}` > 0 -> `a{hostile}`"),
    ]
    for arguments in asked:
        _, out, err = call(capsys, *arguments)
        assert (out + err).count("evil") >= 2
        assert all(c.isprintable() for c in (out + err).replace("\n", ""))
        assert len((out + err).splitlines()) <= 3


def test_export_to_a_file_that_compiles(capsys: pytest.CaptureFixture, tree: Path, tmp_path: Path) -> None:
    code, out, _ = call(capsys, "export", tree, "--format", "c", "--out", tmp_path / "tree.c", "--json")
    assert code == 0
    assert json.loads(out)["bytes"] == (tmp_path / "tree.c").stat().st_size
    if shutil.which("gcc"):
        flags = ["-Wall", "-Wextra", "-Werror", "-std=c99", "-c", "-o", str(tmp_path / "tree.o")]
        subprocess.run(["gcc", *flags, str(tmp_path / "tree.c")], check=True)
    code, out, _ = call(capsys, "export", tree, "--format", "python")
    assert "def act(obs):" in out


def test_prism_of_a_finite_environment(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    mdp = gym.make("custard/PrereqWorld-v0", m=2).unwrapped.mdp()
    made = Tree.stump(1, 0.5, 1, 0, mdp.features, mdp.actions)
    made.with_origin(env="custard/PrereqWorld-v0", env_kwargs={"m": 2}).save(tmp_path / "tree.json")
    code, out, _ = call(capsys, "export", tmp_path / "tree.json", "--format", "prism")
    assert code == 0
    assert out.splitlines()[1] == "dtmc"
    code, out, _ = call(
        capsys, "verify", tmp_path / "tree.json", "--value", "--reach", "has_0 == 1", "--within", 1, "--json"
    )
    assert code == 0
    value, reach = json.loads(out)
    assert value["value"] == value["optimum"] == -1.0
    assert reach["probability"] == 0.0
    _, out, _ = call(capsys, "verify", tmp_path / "tree.json", "--reach", "has_0 == 1")
    assert out == "reaches has_0 == 1 ever with probability 1 (2 target states)\n"


def test_exact_values_are_those_within_the_time_limit(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    base = custard.describe(gym.make("FrozenLake-v1"))
    walk = Tree.stump(0, 1.5, 1, 2, base.features, base.actions)  # down, then right
    walk.with_origin(env="FrozenLake-v1").save(tmp_path / "lake.json")
    _, out, _ = call(capsys, "verify", tmp_path / "lake.json", "--value", "--json")
    (found,) = json.loads(out)
    assert (found["limit"], round(found["optimum"], 3)) == (100, 0.744)  # 0.8235 if episodes never ended
    returns = custard.evaluate(walk, "FrozenLake-v1", 2000).mean
    assert found["value"] == pytest.approx(returns, abs=0.03)
    code, out, _ = call(capsys, "verify", tmp_path / "lake.json", "--value", "--env-args", "max_episode_steps=1")
    assert (code, out) == (
        0, "exact value 0, optimum 0 over all policies of FrozenLake-v1, within its time limit of 1 step\n"
    )  # fmt: skip
    mdp = gym.make("custard/PrereqWorld-v0", m=3).unwrapped.mdp()
    loop = Tree.leaf(0, mdp.features, mdp.actions).with_origin(env="custard/PrereqWorld-v0", env_kwargs={"m": 3})
    loop.save(tmp_path / "loop.json")
    for limit, value in ((10, -10.0), (-1, None)):
        words = ("--value", "--env-args", f"max_episode_steps={limit}", "--json")
        code, out, _ = call(capsys, "verify", tmp_path / "loop.json", *words)
        assert (code, json.loads(out)[0]["value"], "holds" in json.loads(out)[0]) == (0, value, False)


def test_verify(capsys: pytest.CaptureFixture, tree: Path) -> None:
    pytest.importorskip("z3", reason="z3-solver is not installed")
    code, out, _ = call(capsys, "verify", tree, "--assert", "pole_angle > 0.1 and pole_velocity > 0.5 -> push_right")
    assert code == 0
    assert out.startswith("holds")
    code, out, _ = call(capsys, "verify", tree, "--assert", "pole_angle > 0 -> push_right", "--json")
    assert code == 1
    found = json.loads(out)[0]
    assert found["holds"] is False
    assert Tree.load(tree).act(list(found["counterexample"].values())) == 0
    code, out, _ = call(capsys, "verify", tree, "--same", tree, "--safe-steps", 10)
    assert code == 0
    assert "proved for 10 steps" in out


def test_a_proof_of_nothing_says_so(capsys: pytest.CaptureFixture, tree: Path) -> None:
    pytest.importorskip("z3", reason="z3-solver is not installed")
    for assertion in ("pole_angle > 5 -> push_left", "pole_angle > 0 -> pole_angle < 0 -> push_left"):
        code, out, _ = call(capsys, "verify", tree, "--assert", assertion)
        assert code == 0
        assert out == f"holds, but nothing meets its premise within the features' bounds: {assertion}\n"
    # Something meets these, and only numbers beyond the bounds meet the next.
    for assertion in (
        "pole_angle > 0.1 -> push_right or cart_velocity > -0.4",
        "pole_angle > 0 -> not push_left or true",
    ):
        assert "nothing meets" not in call(capsys, "verify", tree, "--assert", assertion)[1]
    _, out, _ = call(capsys, "verify", tree, "--assert", "pole_angle > 5 -> true", "--anywhere", "--json")
    assert (json.loads(out)[0]["holds"], json.loads(out)[0]["vacuous"]) == (True, False)


def test_a_directory_of_several_seeds_leads_to_one_of_them(capsys: pytest.CaptureFixture, tree: Path) -> None:
    runs = tree.parent / "runs"
    (runs / "seed-0").mkdir(parents=True)
    for command in ("show", "evaluate", "report", "explain"):
        code, _, err = call(capsys, command, runs)
        assert (code, err.endswith(f"name one of them, such as {runs / 'seed-0'}\n")) == (2, True)


def test_a_tree_from_nowhere_is_told_how_to_name_the_environment(capsys: pytest.CaptureFixture, tree: Path) -> None:
    Tree.from_json({**Tree.load(tree).to_json(), "origin": {}}).save(tree)
    assert f"as in custard evaluate {tree} CartPole-v1" in call(capsys, "evaluate", tree)[2]
    assert "as in --env CartPole-v1" in call(capsys, "explain", tree)[2]


def test_an_unknown_name_beside_features_only(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    mdp = gym.make("custard/PrereqWorld-v0", m=2).unwrapped.mdp()
    small = Tree.leaf(0, mdp.features, mdp.actions).with_origin(env="custard/PrereqWorld-v0", env_kwargs={"m": 2})
    small.save(tmp_path / "small.json")
    _, _, err = call(capsys, "verify", tmp_path / "small.json", "--reach", "foo == 1")
    assert "there are has_0, has_1 in 'foo == 1'" in err


def test_report(capsys: pytest.CaptureFixture, tree: Path) -> None:
    (tree.parent / "config.json").write_text(json.dumps({"env": "CartPole-v1", "method": "mfec"}))
    code, out, _ = call(capsys, "report", tree.parent, "--episodes", 5, "--out", tree.parent / "r.html", "--json")
    assert code == 0
    assert json.loads(out)["bytes"] < 3_000_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explain", "TREE", "--obs", "1", "2"], "4 values"),
        (["explain", "TREE", "--obs", "a", "b", "c", "d"], "numbers or name=value"),
        (["explain", "TREE", "--obs", "cart_position=1"], "--obs lacks cart_velocity"),
        (["explain", "TREE", "--obs", "pole_angle=0", "1", "2", "3"], "--obs mixes names and numbers"),
        (["explain", "TREE", "--obs", "pole_angle=0", "pole_angle=1"], "--obs gives pole_angle more than once"),
        (["explain", "TREE", "--fixed", "pole_angle"], "--fixed holds features of an observation as they are: give"),
        (["explain", "TREE", "--obs", "0", "0", "0", "0", "--episodes", "3"], "--episodes is for usage"),
        (["explain", "TREE", "--obs", "0", "0", "0", "0", "--env-args", "a=3"], "--env-args is for usage"),
        (["show", "TREE", "--episodes", "3"], "--episodes shows in pictures only: give --png"),
        (["show", "TREE", "--png", "tree.png", "--env", "CartPole-v1"], "give --episodes too"),
        (["verify", "TREE", "--safe-steps", "10", "--seconds", "-1"], "--seconds -1 must be more than 0"),
        (["verify", "TREE", "--same", "TREE", "--within", "3"], "give --reach too"),
        (["verify", "TREE", "--same", "TREE", "--anywhere"], "give --assert too"),
        (["report", "TREE"], "is a file: name the run directory it is in"),
        (["sweep", "--file", "nowhere.toml"], "cannot read nowhere.toml: No such file or directory"),
        (["train", "CartPole-v1", "--method", "mfec", "--max-leaves", "3"], "mfec has no limit of leaves: give --max"),
        (["explain", "TREE", "--obs", "0", "0", "0", "0", "--fixed", "poleangle"], "did you mean 'pole_angle'"),
        (["export", "TREE", "--format", "cc"], "unknown format 'cc'"),
        (["export", "TREE", "--format", "onnx"], "name a file with --out"),
        (["export", "TREE", "--format", "prism"], "no exact model"),
        (["verify", "TREE"], "nothing to verify"),
        (["verify", "TREE", "--assert", "pole_angle > "], "column 14: unexpected end"),
        (["verify", "TREE", "--assert", "pole_angle > 1 -> jump"], "unknown name 'jump'"),
        (["verify", "TREE", "--reach", "x > 1"], "no exact model"),
        (["show", "TREE", "--png", "tree.svg"], "must end in .png"),
        (["show", "TREE", "--curves", "c.png"], "needs a run directory"),
        (["report", "nowhere"], "holds no run"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture, tree: Path, arguments: list[str], says: str
) -> None:
    code, _, err = call(capsys, *[str(tree) if argument == "TREE" else argument for argument in arguments])
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
