"""One trial, one row: what it measured, what is proved, what went wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import custard
from custard.lab.trials import COLUMNS, Trial, _fingerprint, code_fingerprint, grid, run_trial
from custard.planning.yardstick import exact_return
from custard.task.source import source
from custard.tree.simplify import simplify

WORLD = {"env": "custard/PrereqWorld-v0", "env_kwargs": {"m": 4}, "episodes": 10}


def test_a_row_has_everything() -> None:
    row = run_trial(Trial(method="plan", seed=3, max_depth=2, settings={"seconds": 20.0}, experiment="x", **WORLD))
    assert tuple(row) == COLUMNS
    assert (row["return"], row["exact"], row["bound"], row["gap"], row["optimal"]) == (-2.0, -2.0, -2.0, 0.0, 1)
    assert (row["depth"], row["leaves"], row["nodes"], row["trivial"], row["cut"]) == (2, 3, 5, 0, 0)
    assert (row["experiment"], row["seed"], row["version"], row["error"]) == ("x", "3", custard.__version__, "")
    assert row["settings"] == '{"seconds": 20.0}'
    assert json.loads(row["full_settings"])["seconds"] == 20.0
    assert json.loads(row["full_settings"])["climbing"] == 0.2
    assert row["seconds"] > 0
    assert row["cpu_seconds"] > 0
    assert json.loads(json.dumps(row)) == row, "plain data"


def test_trivial_trees_are_counted() -> None:
    row = run_trial(Trial(method="plan", max_depth=1, **WORLD))
    assert (row["return"], row["trivial"], row["optimal"], row["leaves"], row["time_limited"]) == (-1000.0, 1, 0, 1, 10)


def test_cut_trees_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = custard.learn(WORLD["env"], "plan", max_depth=2, env_kwargs=WORLD["env_kwargs"])
    raw = real.tree.with_origin(cut=2)
    run = SimpleNamespace(tree=simplify(raw), raw=raw, final=raw, message="", steps=1, value=0.0)
    monkeypatch.setattr("custard.lab.learn.learn", lambda *args, **kwargs: run)
    row = run_trial(Trial(method="plan", max_depth=2, **WORLD))
    assert (row["cut"], row["final_return"], row["final_leaves"]) == (2, -2.0, 3)


def test_what_goes_wrong_is_in_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_trial(Trial(method="plan", env="Nowhere-v0"))["error"].startswith("unknown environment 'Nowhere-v0'")
    assert "no exact model" in run_trial(Trial("CartPole-v1", "plan"))["error"]

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("on\nfire")

    monkeypatch.setattr("custard.lab.learn.learn", broken)
    assert run_trial(Trial(method="plan", **WORLD))["error"] == "RuntimeError: on fire"


def test_an_interrupt_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimpleNamespace(message="interrupted")
    monkeypatch.setattr("custard.lab.learn.learn", lambda *args, **kwargs: run)
    with pytest.raises(KeyboardInterrupt):
        run_trial(Trial(method="plan", **WORLD))


def test_exact_returns_agree_with_rollouts(tmp_path: Path) -> None:
    run = custard.learn("custard/PotholeWorld-v0", "plan", max_depth=2)
    exact = exact_return(source("custard/PotholeWorld-v0"), run.tree)
    assert exact == pytest.approx(custard.evaluate(run.tree, "custard/PotholeWorld-v0", 2000, seed=5).mean, abs=0.01)
    assert exact_return(source("CartPole-v1"), run.tree) is None


def test_grid_combines_everything() -> None:
    trials = grid(["A-v0", ("B-v0", {"m": 1})], ["tpi", "mfec"], [0, 1], max_depths=[None, 2],
                  settings={"": {"budget": 5}, "mfec": {"k": 3}}, choices={"mfec.zeta": [0, 1]})  # fmt: skip
    assert len(trials) == 2 * 2 * (2 + 2 * 2)
    assert {json.dumps(trial.settings) for trial in trials if trial.method == "mfec"} == {
        '{"budget": 5, "k": 3, "zeta": 0}', '{"budget": 5, "k": 3, "zeta": 1}'
    }  # fmt: skip
    assert next(trial.env_kwargs for trial in trials if trial.env == "B-v0") == {"m": 1}


def test_the_column_code_tells_any_change_that_may_decide_a_result(tmp_path: Path) -> None:
    package, copy = Path(custard.__file__).parent, tmp_path / "custard"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = _fingerprint(copy)
    assert before == code_fingerprint() == _fingerprint(package)
    rooms = [path for path in copy.iterdir() if path.is_dir() or path.suffix == ".py"]
    assert len(rooms) > 10
    for room in rooms:
        file = room if room.is_file() else sorted(room.rglob("*.py"))[-1]
        text = file.read_bytes()
        file.write_bytes(text + b"\n")
        shows = room.name in ("report", "commands", "cli.py", "__main__.py")
        assert (_fingerprint(copy) == before) == shows, file
        file.write_bytes(text)
    (copy / "core" / "another.py").touch()
    assert _fingerprint(copy) != before, "a new file counts as well"
