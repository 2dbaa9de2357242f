"""The command line as a person meets it: results on stdout, mistakes in one line with exit code 2."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import pytest

from custard import Tree, cli, describe
from tests.command_line import call

GOOD = ["custard/PrereqWorld-v0", "--env-args", "m=4"]


@pytest.fixture
def tree(tmp_path):
    base = describe(gym.make("CartPole-v1"))
    path = tmp_path / "tree.json"
    Tree.stump(2, 0.0, 0, 1, base.features, base.actions).with_origin(env="CartPole-v1").save(path)
    return path


def test_help_and_version(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for name in ("train", "evaluate", "show"):
        assert name in out
    assert "decision trees" in out
    assert "--version" in out
    cli.main(["--version"])
    assert "custard " in capsys.readouterr().out


def test_a_list_given_in_several_pieces_is_one_list(tree, tmp_path, capsys):
    pytest.importorskip("z3", reason="z3-solver is not installed")
    for pieces in (["--assert", "push_left", "--assert", "true"], ["--assert", "push_left", "true"]):
        code, out, _ = call(capsys, "verify", tree, *pieces)
        assert code == 1
        assert out.startswith("does not hold: push_left\n")
        assert out.endswith("holds within the features' bounds: true\n")
    Tree.load(tree).with_origin(seed=1).save(tmp_path / "same.json")
    base = describe(gym.make("CartPole-v1"))
    Tree.leaf(0, base.features, base.actions).save(tmp_path / "other.json")
    same = ["--same", tmp_path / "other.json", "--json", f"--same={tmp_path / 'same.json'}"]
    code, out, _ = call(capsys, "verify", tree, *same)
    assert (code, [result["holds"] for result in json.loads(out)]) == (1, [False, True])
    obs = ["--obs", 0, -1, "--obs=-0.5", "--obs", "-inf", "--fixed", "pole_angle", "--fixed", "pole_velocity"]
    told = json.loads(call(capsys, "explain", tree, *obs, "--json")[1])
    assert [told["observation"][name] for name in ("cart_position", "cart_velocity", "pole_angle")] == [0, -1, -0.5]
    assert told["unreachable"] == ["push_right"]
    limits = ["--set", "episodes=50", "--env-args", "m=2", "--set", "states=500", "--env_args", "rho=0.5"]
    words = ["custard/PrereqWorld-v0", *limits, "--out", tmp_path / "run", "--budget", 2000, "--episodes", 0]
    assert call(capsys, "train", *words)[0] == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["env_kwargs"] == {"m": 2, "rho": 0.5}
    assert (config["settings"]["episodes"], config["settings"]["valued_states"]) == (50, 500)


def test_show(tree, capsys):
    code, out, _ = call(capsys, "show", tree)
    assert code == 0
    assert "pole_angle ≤ 0?" in out
    assert "leaves 2" in out
    assert json.loads(call(capsys, "show", tree, "--json")[1])["depth"] == 1


def test_evaluate(tree, capsys):
    code, out, _ = call(capsys, "evaluate", tree, "CartPole-v1", "--episodes", 20)
    assert code == 0
    assert "over 20 episodes" in out
    data = json.loads(call(capsys, "evaluate", tree, "--episodes", 20, "--json")[1])
    assert data["env"] == "CartPole-v1"
    assert len(data["returns"]) == 20


def test_one_episode_has_no_interval(tree, capsys):
    out = call(capsys, "evaluate", tree, "--episodes", 1)[1]
    assert " over 1 episode of " in out
    data = json.loads(call(capsys, "evaluate", tree, "--episodes", 1, "--json")[1])
    assert (data["std"], data["ci95"]) == (None, None)


def test_train_writes_a_whole_run(tmp_path, capsys):
    out = tmp_path / "run"
    code, text, err = call(capsys, "train", *GOOD, "--seed", 1, "--out", out)
    assert code == 0
    assert "return -2.00" in text
    assert "steps" in err
    for name in ("config.json", "metrics.csv", "tree.json", "tree.svg", "report.html", "evaluation.json"):
        assert (out / name).stat().st_size > 0
    found = Tree.load(out / "tree.json")
    assert (found.depth, found.n_leaves) == (2, 3)
    assert found.origin["method"]
    assert found.origin["seed"] == 1
    config = json.loads((out / "config.json").read_text())
    assert config["env_kwargs"] == {"m": 4}
    assert json.loads(call(capsys, "evaluate", out, "--episodes", 5, "--json")[1])["mean"] == -2.0
    code, _, err = call(capsys, "train", *GOOD, "--seed", 1, "--out", out)
    assert code == 2
    assert "--resume" in err
    code, _, err = call(capsys, "train", *GOOD, "--seed", 2, "--out", out, "--resume")
    assert code == 2
    assert "seed" in err


def test_train_as_json(tmp_path, capsys):
    code, text, err = call(capsys, "train", *GOOD, "--out", tmp_path / "run", "--json", "--episodes", 10)
    assert code == 0
    data = json.loads(text)
    assert data["evaluation"]["mean"] == -2.0
    assert data["tree"]["leaves"] == 3
    assert err == ""


MISTAKES = [
    (["show", "missing.json"], "cannot read"),
    (["evaluate", "TREE", "Nothing-v0"], "unknown environment"),
    (["evaluate", "TREE", "MountainCar-v0"], "position"),
    (["evaluate", "TREE", "--episodes", "0"], "episodes"),
    (["evaluate", "TREE", "--env-args", "m"], "key=value"),
    (["evaluate", "TREE", "--env-args", "nothing=3"], "could not be made"),
    (["train", "Nothing-v0"], "unknown environment"),
    (["train", "CartPole-v1", "--method", "magic"], "unknown method"),
    (["train", "CartPole-v1", "--preset", "magic"], "unknown preset"),
    (["train", "CartPole-v1", "--set", "magic=3"], "unknown setting"),
    (["train", "CartPole-v1", "--low", "1", "2"], "low="),
    (["train", "custard/PrereqWorld-v0", "--env-args", "m=99"], "m=99"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), MISTAKES, ids=lambda part: " ".join(part) if isinstance(part, list) else ""
)
def test_mistakes_are_one_line_and_exit_code_two(arguments, message, tree, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *[str(tree) if part == "TREE" else part for part in arguments])
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree.json"]  # nothing half-written


@pytest.mark.parametrize("arguments", [[], ["fly"], ["train"], ["evaluate", "x", "--episodes", "many"]])
def test_usage_errors_exit_with_code_two(arguments, capsys):
    assert call(capsys, *arguments)[0] == 2


def test_resuming_nothing_says_so(tmp_path, capsys):
    words = ["train", *GOOD, "--resume", "--budget", 2000, "--episodes", 0, "--json"]
    for seeds in ([], ["--seeds", 1]):
        out = tmp_path / f"run{len(seeds)}"
        said = f"note: there is no run in {out} to resume: a new one begins\n"
        assert call(capsys, *words, "--out", out, *seeds)[2].count(said) == 1
        assert said not in call(capsys, *words, "--out", out, *seeds)[2]


def test_warnings_have_colours_in_a_terminal_only(monkeypatch):
    yellow = "\x1b[33mWARN: old\x1b[0m"
    assert cli._one_line_warning(yellow) == "custard: WARN: old\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli._one_line_warning(yellow) == f"custard: {yellow}\n"


def test_bad_tree_files(tmp_path, capsys):
    path = tmp_path / "tree.json"
    for content in ("", "{", '{"format": "custard-tree", "version": 99}'):
        path.write_text(content)
        code, _, err = call(capsys, "show", path)
        assert code == 2
        assert err.count("\n") == 1


def interruptible(command):
    """A process that Ctrl-C ends, also where the tests are a shell's background job, which ignores it."""
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def test_an_interrupt_saves_and_resume_goes_on(tmp_path):
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "custard",
        "train",
        "custard/PotholeWorld-v0",
        "--out",
        str(out),
        "--episodes",
        "50",
    ]
    process = interruptible(command)
    deadline = time.monotonic() + 200
    while not (out / "metrics.csv").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)  # compiling for the first time may take long; the first tree is saved at once
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert (out / "tree.json").exists()
    again = subprocess.run([*command, "--resume", "--budget", "1000"], capture_output=True, text=True, timeout=200)
    assert again.returncode == 2  # another budget is another run
    assert "with budget=None, not 1000: cannot resume" in again.stderr


def test_an_interrupt_of_several_seeds_keeps_all_their_trees(tmp_path):
    how = ["custard/PotholeWorld-v0", "--method", "mfec", "--budget", "2000000000", "--episodes", "10", "--seeds", "2"]
    command = [sys.executable, "-m", "custard", "train", *how, "--out", str(tmp_path)]
    process = interruptible(command)
    files, deadline = [tmp_path / f"seed-{k}" / "metrics.csv" for k in range(2)], time.monotonic() + 200
    while not all(file.exists() for file in files) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()  # its workers end with it
    assert process.returncode == 130, err
    assert out.count("(interrupted)") == 2
    assert all((tmp_path / f"seed-{k}" / "tree.json").exists() for k in range(2))


def test_own_environments_are_found_where_the_command_is_given(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\nfrom custard.envs.prereq_world import PrereqWorld\n"
        "class Mine(PrereqWorld):\n    def __init__(self, **given):\n"
        "        print('made')\n        super().__init__(m=3)\n"
        "gymnasium.register('Mine-v0', Mine, max_episode_steps=20)\n"
    )
    command = [str(Path(sys.executable).parent / "custard"), "train", "mine:Mine-v0", "--budget", "2000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] > 0  # what the environment prints is elsewhere


@pytest.mark.parametrize("method", ["dqn", "ppo"])
def test_a_missing_jax_is_one_line(method):
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from custard.cli import main\n"
        f"main(['train', 'custard/PrereqWorld-v0', '--method', '{method}'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip() == f'custard: {method} needs jax: pip install "custard-rl[neural]"'
