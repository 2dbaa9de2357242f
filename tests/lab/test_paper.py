"""The paper's experiments: which trials they are, what is proved, and the page they make."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from custard.lab.methods import METHODS
from custard.lab.paper import PAPER_TABLE1, PREREQ_SIZES, pothole_limits, smallest_trees, trials_of
from custard.lab.paper_page import write_page
from custard.lab.trial_file import read_rows
from tests.command_line import exit_code


def test_trials_of_the_experiments() -> None:
    table1 = trials_of("table1", "tuned", 50)
    cells = {(trial.env, trial.method) for trial in table1}
    assert len(table1) == 50 * len(cells) == 50 * 21
    assert {trial.max_depth for trial in table1 if "CartPole" in trial.env} == {2}
    assert {trial.seed for trial in table1} == set(range(1000, 1050))
    assert len(trials_of("size", "tuned", 50)) == 50 * 7 * 3
    assert {trial.method for trial in trials_of("size", "paper", 1)} == {"viper-bi", "mfec"}
    own = trials_of("table1", "own", 1)
    assert {trial.method for trial in own} == {"mfec", "dqn", "ppo"}
    assert all(trial.preset == "tuned" and trial.settings for trial in own)
    assert trials_of("size", "own", 1) == []
    assert {trial.max_depth for trial in trials_of("depth", "tuned", 1)} == {1, 2, 3, 4, 5, 6}
    assert all(trial.settings for trial in trials_of("depth", "tuned", 1, quick=True))


def test_what_is_proved() -> None:
    trees = smallest_trees()
    assert [trees[m] for m in PREREQ_SIZES] == [
        (-2, 2, 3),
        (-3, 2, 4),
        (-4, 3, 5),
        (-4, 3, 5),
        (-5, 3, 6),
        (-6, 3, 7),
        (-6, 3, 7),
    ]
    limits, leaves = pothole_limits()
    assert [round(limits[depth], 2) for depth in range(7)] == [45.0, 45.25, 46.44, 47.77, 49.64, 50.0, 50.0]
    assert leaves == 18
    assert str(PAPER_TABLE1["mfec"]["PotholeWorld"][0]) == "49.18 (1.04)"


def test_a_page_keeps_what_was_written_by_hand(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    write_page(page, "size", "one\n")
    page.write_text(page.read_text().replace("## ", "by hand\n\n## ") + "\nby hand too\n")
    write_page(page, "depth", "other\n")
    write_page(page, "size", "two \\1\n")
    text = page.read_text()
    assert text.count("by hand") == 2
    assert "two \\1\n" in text
    assert "one\n" not in text
    assert text.count("generated: size") == 1
    assert "other" in text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(METHODS, "ppo", raising=False)
    how = ("table1", "--quick", "--trials", "1", "--workers", "0", "--out", str(tmp_path))
    assert exit_code("paper", *how, "--methods", "ppo") == 1  # a method that is missing gives rows that say so
    assert {row["error"][:20] for row in read_rows(tmp_path / "table1-tuned.csv")} == {"unknown method 'ppo'"}
    assert exit_code("paper", *how, "--methods", "viper-bi") == 0
    page = (tmp_path / "README.md").read_text()
    row = r"\| VIPER \(BI\) \| [\d.]+ \(–\) \| 200\.00 \(0\.00\) \| -4\.00 \(–\) \| -4\.00 \(0\.00\) \|"
    assert re.search(row, page), "a single trial has no spread"
    assert "| CUSTARD (PPO) | CartPole | 1 | 1 | – |" in page
    files = {file: (tmp_path / file).read_bytes() for file in ("table1.png", "table1.svg", "README.md")}
    assert exit_code("paper", *how, "--tables-only") == 0
    assert {file: (tmp_path / file).read_bytes() for file in files} == files, "drawn again, the same bytes"
    capsys.readouterr()
    assert exit_code("paper", *how, "--methods", "ppoo") == 2
    assert "unknown method 'ppoo'" in capsys.readouterr().err
