"""Runs: kept, interrupted, resumed."""

import csv
import io
import json
import time

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

import custard
from custard import CustardError, Tree, describe
from custard.lab import learn as learning
from custard.lab import progress
from custard.lab.methods import METHODS
from custard.lab.progress import Display, snapshot_text
from custard.task.problem import Problem, Snapshot
from custard.task.settings import settings_for

WORLD = dict(env_kwargs={"m": 6}, seed=3)


class Interrupting(Display):
    """A display that behaves like a person who presses Ctrl-C after some snapshots."""

    after = 1

    def show(self, snapshot, seconds):
        super().show(snapshot, seconds)
        type(self).after -= 1
        if type(self).after == 0:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    whole = custard.learn("custard/PrereqWorld-v0", "mfec", **WORLD, budget=300_000, out=tmp_path / "whole")
    monkeypatch.setattr(learning, "Display", Interrupting)
    part = custard.learn("custard/PrereqWorld-v0", "mfec", **WORLD, budget=300_000, out=tmp_path / "part")
    assert part.message == "interrupted"
    assert part.steps < whole.steps
    assert (tmp_path / "part" / "tree.json").exists()
    monkeypatch.undo()
    rest = custard.learn("custard/PrereqWorld-v0", "mfec", **WORLD, budget=300_000, out=tmp_path / "part", resume=True)
    assert rest.steps == whole.steps
    assert rest.tree == whole.tree
    assert rest.raw == whole.raw
    plain = [{k: v for k, v in row.items() if "second" not in k and "per_" not in k} for row in rest.metrics]
    expected = [{k: v for k, v in row.items() if "second" not in k and "per_" not in k} for row in whole.metrics]
    np.testing.assert_equal(plain, expected)


@pytest.mark.parametrize("preset", ["tuned", "paper"])
def test_a_run_that_is_stopped_after_its_last_tree_has_nothing_left_to_do(tmp_path, monkeypatch, preset):
    """Its last snapshot is stored before it is known to be finished: going on from there must add nothing."""
    monkeypatch.setattr(learning, "CHECKPOINT_SECONDS", 0.0)
    given = dict(**WORLD, preset=preset, budget=20_000)
    whole = custard.learn("custard/PrereqWorld-v0", "mfec", out=tmp_path / "whole", **given)
    count = len(whole.metrics)

    def stops(progress, seen=[]):  # noqa: B006
        seen.append(progress)
        return len(seen) >= count

    custard.learn("custard/PrereqWorld-v0", "mfec", out=tmp_path / "part", on_progress=stops, **given)
    stored = tmp_path / "part" / "config.json"
    stored.write_text(stored.read_text().replace('"keep_best"', '"keep"'))  # as an earlier version called it
    resumed = custard.learn("custard/PrereqWorld-v0", "mfec", out=tmp_path / "part", resume=True, **given)
    assert (resumed.tree, resumed.steps, resumed.value) == (whole.tree, whole.steps, whole.value)
    assert (resumed.final is None) == (whole.final is None)
    assert len(resumed.metrics) == count


@pytest.mark.parametrize("method", ["mfec", "tpi", "dqn", "ppo"])
def test_a_checkpoint_of_another_version_is_one_line(tmp_path, monkeypatch, method):
    monkeypatch.setattr(learning, "Display", Interrupting)
    monkeypatch.setattr(Interrupting, "after", 1)
    given = dict(**WORLD, budget=30_000, out=tmp_path / "part")
    custard.learn("custard/PrereqWorld-v0", method, **given)
    monkeypatch.undo()
    file = tmp_path / "part" / "checkpoint" / "state.npz"
    with np.load(file) as data:
        kept = {"progress": data["progress"], "other": np.zeros(1)}
    np.savez(file, **kept)
    with pytest.raises(CustardError, match="version"):
        custard.learn("custard/PrereqWorld-v0", method, resume=True, **given)


def test_a_run_directory_tells_everything(tmp_path):
    run = custard.learn("custard/PrereqWorld-v0", "mfec", env_kwargs={"m": 4}, seed=1, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["method"] == "mfec"
    assert config["versions"]["custard"] == custard.__version__
    assert config["settings"]
    assert Tree.load(tmp_path / "run" / "tree.json") == run.tree
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert len(rows) == len(run.metrics)
    assert float(rows[-1]["steps"]) == run.steps
    again = custard.learn("custard/PrereqWorld-v0", "mfec", env_kwargs=config["env_kwargs"], seed=config["seed"])
    assert again.tree == run.tree


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("tpi", {}), ("mfec", {}), ("mfec", {"preset": "paper", "budget": 5000}), ("dqn", {"budget": 3000}),
        ("dqn", {"preset": "paper", "budget": 3000}), ("ppo", {"budget": 3000}),
        ("ppo", {"preset": "paper", "budget": 3000}), ("viper-bi", {"iterations": 3}), ("plan", {}),
    ],
)  # fmt: skip
def test_a_finished_run_has_nothing_left_to_do(tmp_path, method, settings):
    if method in ("dqn", "ppo"):
        pytest.importorskip("jax", reason='needs the extra "neural"')
    given = {"env_kwargs": {"m": 4}, "max_depth": 2, "out": tmp_path / "run", **settings}
    first, again = (custard.learn("custard/PrereqWorld-v0", method, resume=resume, **given) for resume in (False, True))
    assert (again.tree, again.steps, again.value) == (first.tree, first.steps, first.value)
    assert again.message == "nothing was left to do"
    assert len(again.metrics) == len(first.metrics)


@pytest.mark.parametrize("damage", ["missing", "state", "progress"])
def test_damaged_checkpoints_are_one_line(tmp_path, damage):
    out = tmp_path / "run"
    custard.learn("custard/PrereqWorld-v0", "mfec", env_kwargs={"m": 4}, seed=1, out=out)
    if damage == "missing":
        (out / "config.json").write_text("{")
    elif damage == "state":
        (out / "checkpoint" / "state.npz").write_bytes(b"PK nonsense")
    else:
        np.savez(out / "checkpoint" / "state.npz", progress=np.array("{"))
    with pytest.raises(CustardError):
        custard.learn("custard/PrereqWorld-v0", "mfec", env_kwargs={"m": 4}, seed=1, out=out, resume=True)


def test_mistakes(tmp_path):
    with pytest.raises(CustardError, match="resume needs out="):
        custard.learn("custard/PrereqWorld-v0", "mfec", resume=True)
    with pytest.raises(CustardError, match="unknown method 'mfcc'"):
        custard.learn("CartPole-v1", "mfcc")
    (tmp_path / "file").write_text("")
    with pytest.raises(CustardError, match="cannot make the directory"):
        custard.learn("custard/PrereqWorld-v0", "mfec", out=tmp_path / "file" / "run")
    with pytest.raises(CustardError, match="must be"):
        custard.learn("custard/PrereqWorld-v0", "mfec", zeta="cheap")


def test_every_method_declares_its_settings():
    from importlib import import_module

    for name, module in METHODS.items():
        try:
            loaded = import_module(module)
        except ModuleNotFoundError as error:
            pytest.skip(f"{name} needs an extra: {error}")
        assert loaded.Settings.__doc__
        assert callable(loaded.solve)
        settings_for(loaded, "Unheard-v0", None, {})


def test_seeds_for_purposes_are_independent_and_stable():
    a = Problem.seeds_of(0, "learning", "selection")
    assert a["learning"] != a["selection"]
    assert Problem.seeds_of(0, "selection")["selection"] == a["selection"]
    assert Problem.seeds_of(1, "selection")["selection"] != a["selection"]


def test_facts():
    assert (
        snapshot_text(Snapshot(10, None, float("nan"), metrics={"return": 1.25})) == "10 steps, return 1.2, no tree yet"
    )


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (120, f"title  {'━' * 24}  100 steps  return 7.0  best tree 9.00  depth 1  2 leaves  0 s  at most 22 s left"),
        (80, f"{'━' * 10}  100 steps  best tree 9.00  depth 1  2 leaves  0 s  at most 22 s left"),
        (60, f"{'━' * 10}  100 steps  best tree 9.00  at most 22 s left"),
        (50, "100 steps  best tree 9.00  at most 22 s left"),
        (30, "100 steps  best tree 9.00"),
        (5, "100 …"),
    ],
)
def test_a_narrow_terminal_shows_what_matters_most(width, shown):
    base = describe(gym.make("CartPole-v1"))
    tree = Tree.stump(2, 0.0, 0, 1, base.features, base.actions)
    display = Display("title", enabled=False)
    display.show(Snapshot(0, tree, 9.0, budget=1000), 0.5)  # it may have compiled code before this
    display.show(Snapshot(50, tree, 9.0, budget=1000), 1.75)
    display.show(Snapshot(100, tree, 9.0, budget=1000, metrics={"return": 7.0}), 3.0)
    text = io.StringIO()
    Console(file=text, width=width).print(display._renderable(width))
    assert text.getvalue() == shown + "\n"


def test_plain_lines_where_there_is_no_terminal(capsys):
    with Display("title", enabled=True) as display:
        display.show(Snapshot(100, None, float("nan"), budget=1000), 1.0)
        display.show(Snapshot(200, None, float("nan"), budget=1000), 2.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["title: 100 steps, no tree yet, 1.0 s", "title: 200 steps, no tree yet, 2.0 s"]


def test_no_silence_while_code_is_compiled_or_a_unit_of_work_takes_long(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_LINE_SECONDS", 0.05)
    with Display("title", enabled=True) as display:
        time.sleep(0.3)
        display.show(Snapshot(100, None, float("nan"), message="racing trees"), 1.0)
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert sum("compiling (once, about 20 s)" in line for line in lines) >= 2
    seconds = [line.partition("title: 100 steps, no tree yet, racing trees, ")[2] for line in lines]
    assert {"1.0 s", "1.2 s"} <= set(seconds)  # the time goes on, so that nobody believes it hangs


def test_what_has_no_steps_says_what_it_does_and_how_long(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_LINE_SECONDS", 0.05)
    with progress.waiting("title", "writing the report", enabled=True):
        time.sleep(0.3)
    with progress.waiting("title", "writing the report", enabled=False):
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 6
    assert all(line.startswith("title: writing the report, 0") for line in lines)


def test_a_time_is_measured_aloud(capsys):
    heard = []
    custard.learn(
        "custard/PrereqWorld-v0", "mfec", env_kwargs={"m": 4}, time="2s", on_progress=heard.append, progress=True
    )
    assert "measuring what a step takes" in {one.message for one in heard} or heard[0].steps > 0


def test_the_best_value_is_shown_with_its_interval():
    base = describe(gym.make("CartPole-v1"))
    tree = Tree.leaf(0, base.features, base.actions)
    shown = snapshot_text(Snapshot(10, tree, 9.0, metrics={"error": 0.5, "judged": 16.0}))
    assert shown == "10 steps, best tree 9.00 ± 0.98 (16 episodes), depth 0, 1 leaf"
    shown = snapshot_text(Snapshot(10, tree, 9.0, metrics={"error": 0.0, "judged": 16.0}))
    assert shown == "10 steps, best tree 9.00 in each of 16 episodes, depth 0, 1 leaf"
