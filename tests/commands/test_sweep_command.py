"""`custard sweep` and `custard frontier`: the engine for a person's own environments."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from custard.lab.trial_file import read_rows
from tests.command_line import exit_code

PLAN = """
envs = ["FrozenLake-v1", {id = "custard/PrereqWorld-v0", m = 4}]
methods = ["plan", "viper-bi"]
max_depth = [2]
seeds = [7]
episodes = 20

[settings.viper-bi]
iterations = 2

[vary]
"plan.climbing" = [0.1, 0.2]
"""


@pytest.mark.parametrize("spelt", ["viper-bi", "viper_bi"])
def test_sweep_from_a_file_and_from_options(spelt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace("settings.viper-bi", f"settings.{spelt}"))
    how = ("--file", str(tmp_path / "plan.toml"), "--workers", "0", "--out", str(tmp_path / "rows.csv"))
    assert exit_code("sweep", *how, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [(row["env"], row["method"], row["settings"]) for row in data["rows"]] == [
        (env, method, settings)
        for env in ("FrozenLake-v1", "custard/PrereqWorld-v0")
        for method, settings in (
            ("plan", '{"climbing": 0.1}'),
            ("plan", '{"climbing": 0.2}'),
            ("viper-bi", '{"iterations": 2}'),
        )
    ]
    assert {row["seed"] for row in data["rows"]} == {"7"}
    assert [entry["return"] for entry in data["summary"] if "Prereq" in entry["env"]] == [-2.0] * 3
    words = ("--methods", "plan", "--seeds", "1", "--first-seed", "7", "--max-depth", "2", "3")
    assert exit_code("sweep", *how, *words) == 0
    assert len(read_rows(tmp_path / "rows.csv")) == 6 + 4
    assert "settings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "at least one environment"),
        (("CartPole-v1", "--vary", "zeta=0.1"), "a list of values is needed"),
        (("CartPole-v1", "--methods", "tpi", "--vary", "mfec.zeta=[0]"), "not among the methods"),
        (("--file", "missing.toml"), "cannot read missing.toml"),
        (("--file", "bad.toml"), "unknown entry 'env'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text('env = "CartPole-v1"\n')
    assert exit_code("sweep", *arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_frontier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = ("frontier", "custard/PrereqWorld-v0", "--env-args", "m=4", "--method", "plan", "--max-depth", "1", "2", "3",
           "--zeta", "0", "--episodes", "10", "--workers", "0", "--out", str(tmp_path))  # fmt: skip
    assert exit_code(*how) == 0
    assert "custard train custard/PrereqWorld-v0 --method plan --max-depth 2" in capsys.readouterr().out
    pictures = [(tmp_path / name).read_bytes() for name in ("frontier.png", "frontier.svg")]
    assert exit_code(*how, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(point["leaves"], point["return"]) for point in found["frontier"]] == [(1, -1000.0), (3, -2.0)]
    places = [shlex.split(point["command"])[-2:] for point in found["frontier"]]
    assert [option for option, _ in places] == ["--out", "--out"]
    assert len({place for _, place in places}) == 2  # so that each command can be given after the other
    assert json.loads((tmp_path / "frontier.json").read_text()) == found
    assert [(tmp_path / name).read_bytes() for name in ("frontier.png", "frontier.svg")] == pictures


def test_frontier_tries_leaf_limits_where_there_are_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = ("frontier", "custard/PrereqWorld-v0", "--env-args", "m=4", "--method", "viper-bi", "--set", "iterations=2",
           "--max-depth", "1", "--max-leaves", "2", "3", "--episodes", "10", "--workers", "0",
           "--out", str(tmp_path))  # fmt: skip
    assert exit_code(*how, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trials"] == 3
    assert found["frontier"][-1]["return"] == -2.0
    assert "max_leaves=3" in found["frontier"][-1]["command"]
