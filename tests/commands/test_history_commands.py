"""--history: learned with it, every later command knows it from the tree."""

from __future__ import annotations

import json

import pytest

from custard.cli import main
from tests.command_line import call
from tests.commands.test_mistakes import refused

MAZE = "benchmarks.hidden_maze:CheeseMaze-v0"


@pytest.fixture(scope="module")
def maze_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("maze") / "run"
    words = ["train", MAZE, "--method", "cutree", "--history", "1", "--budget", "20000", "--episodes", "20", "--json"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--out", str(out)])
    assert not left.value.code
    return out


def test_later_commands_know_the_history(maze_run, tmp_path, capsys):
    code, out, _ = call(capsys, "evaluate", maze_run, "--episodes", 50, "--json")
    assert (code, json.loads(out)["time_limited"]) == (0, 0)
    assert call(capsys, "show", maze_run, "--episodes", 5, "--svg", tmp_path / "tree.svg")[0] == 0
    assert "wall_west[-1]" in call(capsys, "explain", maze_run, "--episodes", 5)[1]
    assert "wall_west[-1]" in (maze_run / "report.html").read_text()
    code, out, _ = call(capsys, "verify", maze_run, "--value", "--assert", "action[-1] == 1 -> action[-1] > 0.5")
    assert (code, "exact value 4.6" in out) == (0, True)
    assert "void custard_reset(void)" in call(capsys, "export", maze_run, "--format", "c")[1]
    assert "dtmc" in call(capsys, "export", maze_run, "--format", "prism")[1]


@pytest.mark.parametrize("command", [
    ["train", MAZE], ["compare", MAZE, "--methods", "cutree"], ["sweep", MAZE, "--methods", "cutree"],
    ["frontier", MAZE],
])  # fmt: skip
@pytest.mark.parametrize(("steps", "says"), [("-1", "at least 0"), ("1000000", "at most 100")])
def test_bad_histories_are_one_line(command, steps, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in refused(capsys, [*command, "--history", steps])


def test_compare_takes_a_history_for_all_methods(capsys):
    code, out, _ = call(
        capsys, "compare", MAZE, "--methods", "cutree", "--history", 1, "--seeds", 1, "--episodes", 20, "--workers", 0,
        "--set", "budget=4000", "--json",
    )  # fmt: skip
    row = json.loads(out)["rows"][0]
    assert (code, row["error"], row["bound"] >= row["exact"] > 0) == (0, "", True)
    assert json.loads(row["settings"]) == {"budget": 4000, "history": 1}
