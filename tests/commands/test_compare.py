"""`custard compare`: rows as they finish, resumed without running again, failures kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import custard
from custard.lab.summary import plot, summary
from custard.lab.sweep import sweep
from custard.lab.trial_file import read_rows
from custard.lab.trials import grid
from tests.command_line import call

WORLD = ("custard/PrereqWorld-v0", "--env-args", "m=4", "--episodes", "20", "--seeds", "2", "--workers", "0")


def test_failures_are_counted(tmp_path: Path) -> None:
    rows = sweep(grid(["CartPole-v1"], ["plan"], [0, 1], episodes=5), workers=0)
    (entry,) = summary(rows)
    assert (entry["failures"], entry["trials"], entry["return"]) == (2, 2, None)
    assert "no exact model" in rows[0]["error"]
    with pytest.raises(custard.CustardError, match="no finished trial"):
        plot(rows, tmp_path / "c.png")


def test_the_command_prints_plots_and_gives_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ending in ("png", "svg"):
        files = ("--out", str(tmp_path / "c.csv"), "--plot", str(tmp_path / f"c.{ending}"))
        some = ("--methods", "plan,viper-bi", "--max-depth", "1", "2", "--set", "viper-bi.iterations=3")
        code, out, err = call(capsys, "compare", *WORLD, *some, *files)
        assert code == 0
        assert (tmp_path / f"c.{ending}").stat().st_size > 1000
        assert ("plan depth ≤ 2 seed 1: return -2.00, depth 2, 3 leaves" in err) == (ending == "png")
        assert "-2.00 ± 0.00" in out
    assert len(read_rows(tmp_path / "c.csv")) == 8
    data = json.loads(call(capsys, "compare", *WORLD, "--methods", "plan", "--max-depth", "2", "--json")[1])
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
    code, _, error = call(capsys, "compare", *WORLD, *arguments)
    assert code == 2
    assert words in error
    assert error.count("\n") == 1
