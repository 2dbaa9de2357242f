"""`custard compare`: rows as they finish, resumed without running again, failures kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import custard
from custard.baselines.compare import COLUMNS, compare, plot, read_rows, summary
from custard.cli import main

WORLD = ("custard/PrereqWorld-v0", "--env-args", "m=4", "--episodes", "20", "--seeds", "2")


def test_rows_are_written_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.csv"
    how = {
        "settings": {"viper-bi": {"iterations": 3}},
        "seeds": [0, 1],
        "max_depths": [2],
        "episodes": 20,
        "env_kwargs": {"m": 4},
        "file": file,
    }
    rows = compare("custard/PrereqWorld-v0", ["plan", "viper-bi"], **how)  # type: ignore[arg-type]
    assert [row["return"] for row in rows] == [-2.0] * 4
    assert all(row["gap"] == 0.0 and row["bound"] == -2.0 for row in rows)
    assert tuple(rows[0]) == COLUMNS
    monkeypatch.setattr("custard.baselines.compare.learn", None)  # running anything again would fail
    again = compare("custard/PrereqWorld-v0", ["plan", "viper-bi"], **how)  # type: ignore[arg-type]
    assert [row["return"] for row in again] == [-2.0] * 4
    assert len(read_rows(file)) == 4


def test_failures_are_counted(tmp_path: Path) -> None:
    rows = compare("CartPole-v1", ["plan"], seeds=[0, 1], episodes=5, file=tmp_path / "c.csv")
    (entry,) = summary(rows)
    assert (entry["failures"], entry["trials"], entry["return"]) == (2, 2, None)
    assert "no exact model" in rows[0]["error"]
    with pytest.raises(custard.CustardError, match="no finished trial"):
        plot(rows, tmp_path / "c.png")


def test_the_command_prints_plots_and_gives_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ending in ("png", "svg"):
        files = ("--out", str(tmp_path / "c.csv"), "--plot", str(tmp_path / f"c.{ending}"))
        some = ("--methods", "plan,viper-bi", "--max-depth", "1", "2", "--set", "viper-bi.iterations=3")
        with pytest.raises(SystemExit) as left:
            main(["compare", *WORLD, *some, *files])
        assert left.value.code == 0
        assert (tmp_path / f"c.{ending}").stat().st_size > 1000
    text = capsys.readouterr().out
    assert "plan depth ≤ 2 seed 1: return -2.00, depth 2, 3 leaves" in text
    with pytest.raises(SystemExit):
        main(["compare", *WORLD, "--methods", "plan", "--max-depth", "2", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["summary"][0]["return"] == -2.0
    assert len(data["rows"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--methods", "plann"), "unknown method 'plann'"),
        (("--methods", ","), "at least one method"),
        (("--methods", "plan", "--set", "mfec.zeta=0"), "not among the methods"),
        (("--methods", "plan", "--max-depth", "2", "--plot", "c.bmp"), "choose a name that ends in"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["compare", *WORLD, *arguments])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    with pytest.raises(custard.CustardError, match="columns differ"):
        compare("custard/PrereqWorld-v0", ["plan"], seeds=[0], file=tmp_path / "notes.csv")
    assert (tmp_path / "notes.csv").read_text() == "a,b\n1,2\n"
