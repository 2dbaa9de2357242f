"""Help, lists and mistakes in names: what the command line says of itself."""

import json

import pytest

import custard
from custard.commands import COMMANDS
from tests.command_line import call


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_fits_the_terminal_and_names_what_is_meant(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    for words in ([], *([name] for name in COMMANDS)):
        code, out, _ = call(capsys, *words, "--help")
        assert code == 0
        assert all(len(line) <= width for line in out.splitlines()), words
        for odd in ("{None}", "STR", "INT", "FLOAT", "PATH", "(default: None)", "(default: False)"):
            assert odd not in out, (words, odd)


def test_train_lists_the_methods(capsys):
    out = call(capsys, "train", "--help")[1]
    for name in custard.methods():
        assert f"{name}: " in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian", "CartPole-v1"], "unknown command 'trian'"),
        (["trian", "CartPole-v1"], "did you mean 'train'?"),
        (["train", "CartPole-v1", "--max-detph", "3"], "train has no option --max-detph: did you mean --max-depth?"),
        (["train", "CartPole-v1", "--max_detph=3"], "train has no option --max-detph: did you mean --max-depth?"),
        (["show", "tree.json", "--quite-another"], "show has no option --quite-another (`custard show --help`"),
        (["train"], "train needs ENV (`custard train --help` says what that is)"),
        (["show"], "show needs TREE"),
        (["settings", "tpu"], "unknown method 'tpu'"),
        (["settings", "tpi", "--preset", "papr"], "unknown preset 'papr'"),
        (["evaluate", "x.json", "A-v0", "--env", "B-v0"], "cannot read x.json"),
        (["train", "CartPole-v1", "--features", "lean"], "--features must be given as module:function, not 'lean'"),
        (["train", "CartPole-v1", "--features", "no_such:lean"], "--features no_such:lean could not be imported"),
        (["train", "CartPole-v1", "--features", "math:pi"], "--features math:pi is a float, not a function"),
    ],
)
def test_unknown_names_are_one_line_with_the_nearest(words, message, capsys):
    code, out, err = call(capsys, *words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_values_that_look_like_options_are_values(capsys):
    code, _, err = call(capsys, "explain", "x.json", "--obs", "-0.5", "-inf")
    assert (code, "cannot read" in err) == (2, True)


def test_an_option_stays_together_in_the_usage(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = call(capsys, "report", "--help")[1]
    assert "[--seed N]\n    [--purpose TEXT] [--json]\n" in out


def test_methods_and_settings(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    out = call(capsys, "methods")[1]
    assert [line.split()[0] for line in out.splitlines()[:-1]] == list(custard.methods())
    listed = json.loads(call(capsys, "methods", "--json")[1])
    assert [entry["method"] for entry in listed if entry["default"]] == ["tpi"]
    code, out, _ = call(capsys, "settings", "plan")
    assert code == 0
    assert "seconds = 60.0  (float)\n    stop after this long" in out
    assert all(len(line) <= 70 for line in out.splitlines()[1:])
    data = json.loads(call(capsys, "settings", "plan", "--json")[1])
    assert (data["method"], data["preset"]) == ("plan", "tuned")
    kinds = {entry["name"]: type(entry["default"]) for entry in data["settings"]}
    assert (kinds["seconds"], kinds["time_limit"], kinds["budget"]) == (float, bool, type(None))


def test_own_features_and_names_are_known_to_later_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lean_features.py").write_text("def lean(x):\n    return [x[2] + 0.3 * x[3], x[0]]\n")
    words = ["--features", "lean_features:lean", "--names", "lean,position", "--max-depth", 1, "--budget", 3000]
    code, _, err = call(capsys, "train", "CartPole-v1", *words, "--episodes", 3, "--out", "run", "--json")
    assert code == 0, err
    tree = custard.load("run")
    assert tree.features.raw.names == ("lean", "position")
    assert tree.origin["features"] == "lean_features:lean"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "always push_left" in page  # the report runs episodes with these features, of constant actions too
    assert "over 2 episodes" in call(capsys, "evaluate", "run", "--episodes", 2)[1]
    assert "of the states" in call(capsys, "explain", "run", "--episodes", 2)[1]
    assert json.loads(call(capsys, "evaluate", "run", "--env", "CartPole-v1", "--episodes", 2, "--json")[1])["mean"] > 5
    code, _, err = call(capsys, "evaluate", "run", "CartPole-v0", "--env", "CartPole-v1")
    assert (code, "two environments are given" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["export", "run", "--format"], "export: --format needs a value (`custard export --help`)"),
        (["train", "CartPole-v1", "--seed", "x"], "train: --seed takes a whole number, not 'x'"),
        (["train", "CartPole-v1", "--max-depth", "q"], "train: --max-depth takes a whole number, not 'q'"),
        (["train", "CartPole-v1", "--low", "0", "a"], "train: --low takes numbers, not '0', 'a'"),
        (["train", "CartPole-v1", "--gamma", "z"], "train: --gamma takes a number, not 'z'"),
        (["train", "CartPole-v1", "--engine", "loca"], "train: unknown --engine 'loca': choose one of local, ray (did"),
        (["train", "CartPole-v1", "more"], "train: unexpected more"),
        (["show", "--png", "x.png"], "show: TREE is missing"),
        ([], "give a command: train, evaluate, "),
    ],
)
def test_what_the_parser_refuses_is_one_line(capsys, words, says):
    code, out, err = call(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"custard: {says}")
