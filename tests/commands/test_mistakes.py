"""Mistakes on the command line: one line on standard error, exit code 2, nothing left behind."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import custard
from tests.command_line import call, exit_code


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = custard.describe(gym.make("CartPole-v1"))
    custard.Tree.stump(2, 0.0, 0, 1, base.features, base.actions).with_origin(env="CartPole-v1").save("tree.json")
    return json.loads((tmp_path / "tree.json").read_text())


def refused(capsys, words):
    code, _, err = call(capsys, *words)
    # What is being done may have been said before, on a busy machine.
    said = "\n".join(line for line in err.strip().splitlines() if not re.search(r", \d+ s$|: loading packages$", line))
    assert code == 2, said
    assert said.startswith("custard: ")
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train CartPole-v1 --seed -1", "seed=-1 must be a whole number of at least 0"),
        ("train CartPole-v1 --seed -1 --seeds 2", "seed=-1 must be"),
        ("train CartPole-v1 --max-depth -1", "max_depth=-1 must be a whole number of at least 0"),
        ("train CartPole-v1 --budget -5", "budget=-5 must not be negative"),
        ("train CartPole-v1 --budget 0", "budget=0 must be"),
        ("train CartPole-v1 --episodes -1", "episodes=-1 must be a whole number of at least 0"),
        ("train CartPole-v1 --set episodes=1e999", "episodes=inf must be a finite number"),
        ("train CartPole-v1 --set seed=3", "--set seed: give it as --seed"),
        ("train CartPole-v1 --budget 9 --set budget=8", "--set budget: give it as --budget"),
        ("train CartPole-v1 --set progress=1", "unknown setting 'progress'"),
        ("train CartPole-v1 --set features=abc", "--set features: give it as --features"),
        ("train CartPole-v1 --set zeta=0.5", "zeta=0.5 must be zero or a negative number"),
        ("train CartPole-v1 --set valued_states=-1", "valued_states=-1 must not be negative"),
        ("evaluate tree.json --seed -1", "seed=-1 must be"),
        ("evaluate tree.json --max-steps 0", "max_steps=0 must be"),
        ("explain tree.json --seed -1", "seed=-1 must be"),
        ("show tree.json --svg a.svg --episodes -1", "episodes=-1 must be"),
        ("show tree.json --svg a.svg --episodes 2 --seed -1", "seed=-1 must be"),
        ("compare CartPole-v1 --methods tpi --first-seed -1", "seed=-1 must be"),
        ("compare CartPole-v1 --methods tpi --max-depth -1", "max_depth=-1 must be"),
        ("compare NoSuch-v0 --methods tpi", "unknown environment 'NoSuch-v0'"),
        ("sweep CartPole-v1 --episodes 0", "episodes=0 must be"),
        ("frontier NoSuch-v0", "unknown environment 'NoSuch-v0'"),
        ("train CartPole-v1 --seed 1 --seed=2", "--seed is given 2 times, but takes one value"),
        ("verify tree.json --reach a --reach b", "--reach is given 2 times, but takes one value"),
        ("verify tree.json --same tree.json --assert", "--assert is given without a value"),
        ("explain tree.json --obs", "--obs is given without a value"),
        ("explain tree.json --obs 0 0 1e999 0", "1e999 is too large for a float64"),
        ("evaluate tree.json --episodes 10000000000000", "episodes=10000000000000 must be at most 10,000,000"),
        ("train CartPole-v1 --episodes 10000000000000", "must be at most 10,000,000"),
        ("report . --seed -1", "seed=-1 must be a whole number of at least 0"),
        ("export tree.json --format c --env CartPole-v1", "--env and --env-args are for the format prism, not for c"),
        ("verify tree.json --same tree.json --env CartPole-v1", "--env and --env-args say where --value and --reach"),
    ],
)
def test_numbers_that_cannot_be(tree, tmp_path, capsys, words, message):
    assert message in refused(capsys, words.split())
    assert [file.name for file in tmp_path.glob("runs/*/*")] == []


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("envs = 5", "envs = 5 must be a list"),
        ('methods = "tpi"', "methods = 'tpi' must be a list"),
        ('seeds = "three"', "seeds = 'three' must be a whole number or a list"),
        ('seeds = [0, "a"]', "seed='a' must be a whole number"),
        ("settings = 3", "settings = 3 must be a table"),
        ("vary = [1]", "vary = [1] must be a table"),
        ('max_depth = "deep"', "max_depth = 'deep' must be a whole number or a list"),
        ('first_seed = "a"', "first_seed = 'a' must be a whole number"),
    ],
)
def test_a_sweeps_file_is_checked(tree, tmp_path, capsys, entry, message):
    envs = "" if entry.startswith("envs") else 'envs = ["CartPole-v1"]\n'
    (tmp_path / "s.toml").write_text(envs + entry)
    assert message in refused(capsys, ["sweep", "--file", "s.toml"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree["features"][0].update(low="x"), "features must be a list of objects"),
        (lambda tree: tree["features"][0].update(kind="odd"), "tree.json: unknown feature kind 'odd'"),
        (lambda tree: tree["actions"].update(start="q"), "actions must be an object"),
        (lambda tree: tree["origin"].update(env_kwargs=[1]), "the tree's env_kwargs must be an object"),
    ],
)
def test_a_trees_file_is_checked(tree, tmp_path, capsys, change, message):
    change(tree)
    (tmp_path / "tree.json").write_text(json.dumps(tree))
    assert message in refused(capsys, ["evaluate", "tree.json", "--episodes", "1"])


def test_a_run_that_never_began_leaves_its_directory_free(tree, capsys):
    words = [
        "train",
        "custard/PrereqWorld-v0",
        "--env-args",
        "m=2",
        "--out",
        "run",
        "--budget",
        "2000",
        "--episodes",
        "0",
    ]
    assert "no such file" in refused(capsys, [*words, "--expert", "nowhere.zip"])
    assert exit_code(*words) == 0


def in_a_shell(command, **environment):
    source = Path(custard.__file__).parent.parent
    words = f"{sys.executable} -m custard {command}"
    variables = {**os.environ, "PYTHONPATH": str(source), **environment}
    return subprocess.run(["sh", "-c", words], capture_output=True, env=variables, timeout=120)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_output_that_cannot_be_written_is_one_line(tree):
    end = in_a_shell("show tree.json > /dev/full")
    assert end.returncode == 2
    assert end.stderr.decode() == "custard: standard output: No space left on device\n"


@pytest.mark.parametrize(
    "command", ["show tree.json", "explain tree.json --obs 0 0 0 0", "export tree.json --format text"]
)
def test_an_output_of_ascii_only_is_served(tree, command):
    end = in_a_shell(command, PYTHONIOENCODING="ascii")
    assert end.returncode == 0, end.stderr.decode()
    assert "pole_angle <= 0" in end.stdout.decode("ascii")
    assert "pole_angle ≤ 0" in in_a_shell(command, PYTHONIOENCODING="utf-8").stdout.decode()


def test_a_finished_run_is_resumed_with_what_it_has(tree, tmp_path, capsys):
    words = ["train", "custard/PrereqWorld-v0", "--env-args", "m=2", "--out", "run", "--budget", "2000", "--json"]
    results = []
    for more in ([], ["--resume"]):
        code, out, _ = call(capsys, *words, *more)
        assert code == 0
        results.append(json.loads(out))
    assert results[1]["message"] == "nothing was left to do"
    for same in ("tree", "steps", "selection_value", "evaluation"):
        assert results[1][same] == results[0][same]
    (tmp_path / "run" / "checkpoint" / "state.npz").write_bytes(b"PK\x03\x04 cut short")
    assert "the checkpoint in run cannot be read" in refused(capsys, [*words, "--resume"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "CartPole-v1", "--method", ""], "unknown method ''"),
        (["evaluate", "tree.json", ""], "the environment's name is empty"),
        (["evaluate", "tree.json", " "], "the environment's name is empty"),
        (["show", ""], "tree is empty: give a path"),
        (["explain", "", "--episodes", "1"], "tree is empty: give a path"),
        (["train", "CartPole-v1", "--out="], "--out is empty: give a path"),
        (["train", "CartPole-v1", "--out", ""], "--out is empty: give a path"),
        (["verify", "tree.json", "--same", ""], "--same is empty: give a path"),
    ],
)
def test_empty_names_are_not_taken_for_the_default(tree, capsys, words, message):
    assert message in refused(capsys, words)


@pytest.mark.parametrize("where", ["on import", "when made", "on reset", "at a step"])
@pytest.mark.parametrize("code", [0, None, 3])
def test_a_module_or_environment_that_exits_is_no_success(tree, tmp_path, capsys, monkeypatch, where, code):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"leaving_{where.replace(' ', '_')}_{code}"
    (tmp_path / f"{name}.py").write_text(f"""
import gymnasium as gym, numpy as np
class Leaving(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
    def __init__(self):
        leave("when made")
    def reset(self, *, seed=None, options=None):
        leave("on reset")
        return np.zeros(4, dtype=np.float32), {{}}
    def step(self, action):
        leave("at a step")
        return np.zeros(4, dtype=np.float32), 0.0, False, False, {{}}
def leave(here):
    if here == {where!r}:
        raise SystemExit({code})
leave("on import")
gym.register("{name}-v0", Leaving, disable_env_checker=True)
""")
    assert "SystemExit" in refused(capsys, ["train", f"{name}:{name}-v0", "--budget", "2000", "--out", "run"])


@pytest.mark.parametrize(
    "words",
    [
        ["train", "CartPole-v1", "--method", "x" * 100_000], ["train", "y" * 100_000], ["evaluate", "z" * 100_000],
        ["train", "CartPole-v1", "--set", "x" * 100_000], ["verify", "tree.json", "--assert", "(" * 100_000],
        ["show", "tree.json", "--" + "w" * 20_000], ["train", "CartPole-v1", "--seed", "9" * 4000],
        ["train", "CartPole-v1", "--seed", "v" * 100_000], ["train", "CartPole-v1", "--set", "zeta=" + "[" * 100_000],
        ["u" * 100_000],
    ],
)  # fmt: skip
def test_messages_repeat_at_most_a_screenful_of_their_input(tree, capsys, words):
    code, out, err = call(capsys, *words)
    assert code == 2
    assert 0 < len(err) < 2500
    assert len(out) < 2500


def test_a_tree_whose_origin_is_nested_deep_is_refused(tree, tmp_path, capsys):
    deep = 0
    for _ in range(600):
        deep = {"in": deep}
    (tmp_path / "tree.json").write_text(json.dumps({**tree, "origin": {"note": deep}}))
    assert "nested more than 50 deep" in refused(capsys, ["show", "tree.json"])


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 cut", b"\x93NUMPY\x01\x00", b"PK\x05\x06" + bytes(18), b"nonsense"]
)
def test_a_damaged_expert_is_one_line(tree, tmp_path, capsys, content):
    pytest.importorskip("jax", reason='needs the extra "neural"')
    (tmp_path / "expert.npz").write_bytes(content)
    words = ["train", "CartPole-v1", "--method", "viper-dqn", "--expert", "expert.npz", "--out", "run"]
    assert "expert.npz" in refused(capsys, words)
