"""What a person sees while trials run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from custard.lab.trial_file import TrialFile
from custard.lab.trial_table import TrialTable
from custard.lab.trials import Trial, identity


def rows() -> list[dict[str, str]]:
    store = TrialFile(None)
    for seed in range(4):
        about = identity(Trial("CartPole-v1", "tpi", seed, max_depth=2))
        store.add({**about, "return": 100.0 * seed, "depth": 2, "leaves": 3, "seconds": 50.0, "error": ""})
    return store.rows


def test_the_live_picture_has_counts_time_left_and_the_table() -> None:
    first, second, third, fourth = rows()
    table = TrialTable("demo", [second, third, fourth], [first], workers=2, notes=[], enabled=False)
    table.started(second["trial"])
    table.started(third["trial"])
    table.finished({**second, "error": "gone wrong"})
    text = io.StringIO()
    Console(file=text, width=100).print(table._renderable())
    lines = text.getvalue().splitlines()
    assert lines[0] == "demo: 2 of 4 done, 1 running, 1 failed; about 50 s left"
    assert "CartPole-v1 tpi depth ≤ 2 seed 2, 0 s" in lines[1]
    assert lines[3].split()[:6] == ["tpi", "2", "2", "1", "0.00", "±"]


@pytest.mark.parametrize(("width", "height"), [(50, 24), (40, 8), (120, 10)])
def test_the_live_picture_fits_the_terminal(width: int, height: int) -> None:
    several = [{**row, "max_depth": str(depth)} for row in rows() for depth in range(10)]
    table = TrialTable("demo", [{**several[0], "trial": "next"}], several, workers=2, notes=[], enabled=False)
    table.started("next")
    text = io.StringIO()
    Console(file=text, width=200).print(table._renderable(width, height))
    lines = text.getvalue().splitlines()
    assert len(lines) <= height
    assert max(len(line.rstrip()) for line in lines) <= width
    assert lines[2].split()[:2] == ["method", "depth"]
    assert "±" in lines[3]


def test_nothing_is_left_above_what_is_printed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setattr("rich.live.Live.refresh", lambda live: drawn.append(live.get_renderable()))
    with TrialTable("demo", rows()[:1], rows()[1:], workers=1, notes=[], enabled=True):
        pass
    assert drawn[-1] == ""


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = rows()
    with TrialTable("demo", [second], [first], workers=1, notes=["look here"], enabled=True) as table:
        table.finished({**second, "error": "gone wrong"})
    assert capsys.readouterr().err.splitlines() == [
        "demo: 1 trial to run, 1 done before",
        "[2/2] CartPole-v1 tpi depth ≤ 2 seed 1: failed: gone wrong",
        "note: look here",
    ]
