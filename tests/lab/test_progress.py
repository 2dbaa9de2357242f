"""Functions that hear of a run's progress, and where it is displayed."""

import itertools
import math
import re
import sys
import threading
import time
import types

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import CustardError, Tree, describe
from custard.baselines import random_search
from custard.lab import callbacks, progress
from custard.lab.callbacks import COMPILING, Callbacks, judging_of
from custard.lab.progress import Display, is_shown, snapshot_text
from custard.lab.time_left import TimeLeft
from custard.task.problem import Snapshot

WORLD = dict(env_kwargs={"m": 4}, seed=0, budget=60_000)


def learn(on_progress, **given):
    return custard.learn("custard/PrereqWorld-v0", "mfec", **WORLD, on_progress=on_progress, **given)


def stump():
    base = describe(gym.make("CartPole-v1"))
    return Tree.stump(2, 0.0, 0, 1, base.features, base.actions)


def test_a_function_hears_of_every_snapshot():
    heard = []
    run = learn(heard.append)
    known = [one for one in heard if one.tree is not None]
    assert [row["steps"] for row in run.metrics] == list(dict.fromkeys(one.steps for one in known))
    last = known[-1]
    assert (last.steps, last.value, last.leaves, last.message) == (run.steps, run.value, 3, run.message)
    assert last.tree is not None
    assert (last.tree.feature == run.raw.feature).all()
    assert last.budget == 60_000
    assert dict(last.metrics) == {key: run.metrics[-1][key] for key in last.metrics}
    assert (last.error, last.episodes > 1) == (0.0, True)  # every episode of this world is the same
    with pytest.raises(TypeError):
        last.metrics["value"] = 1.0


def test_a_function_that_returns_true_ends_the_run_as_an_interrupt_does(tmp_path):
    whole = learn(None, out=tmp_path / "whole")
    part = learn(lambda told: told.tree is not None, out=tmp_path / "part")
    assert part.message == "interrupted"
    assert part.steps < whole.steps
    rest = learn(lambda told: 1, out=tmp_path / "part", resume=True)  # only True itself ends a run
    assert (rest.steps, rest.tree) == (whole.steps, whole.tree)


def interrupt(told):
    raise KeyboardInterrupt


def divide(told):
    return 1 / 0


def test_a_function_that_raises(tmp_path):
    with pytest.raises(CustardError, match=r"^on_progress raised ZeroDivisionError: division by zero$") as caught:
        learn(divide, out=tmp_path / "run")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert learn(None, out=tmp_path / "run", resume=True).tree.n_leaves == 3  # what was learned before is kept
    assert learn(lambda told: interrupt(told) if told.tree is not None else None).message == "interrupted"


def slow_solve(problem, settings, state=None):
    """A method whose second unit of work takes until somebody ends it."""
    yield Snapshot(10, Tree.leaf(0, problem.base.features, problem.base.actions), 1.0, budget=100)
    for _ in range(1000):
        time.sleep(0.01)
    raise AssertionError("nobody ended it")


@pytest.mark.parametrize(("function", "message"), [(divide, "ZeroDivisionError"), (interrupt, None), (bool, None)])
def test_a_function_ends_a_unit_of_work_that_takes_long(monkeypatch, function, message):
    monkeypatch.setattr(random_search, "solve", slow_solve)
    monkeypatch.setattr(callbacks, "MAX_SILENT_SECONDS", 0.05)
    threads = []

    def heard(told):
        threads.append(threading.current_thread())
        return function(told) if len(threads) > 1 else None

    given = dict(budget=100, on_progress=heard)
    if message is None:
        assert custard.learn("CartPole-v1", "random", **given).message == "interrupted"
    else:
        with pytest.raises(CustardError, match=message):
            custard.learn("CartPole-v1", "random", **given)
    assert len(threads) == 2
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


def test_functions_are_called_while_nothing_new_comes(monkeypatch):
    monkeypatch.setattr(callbacks, "MAX_SILENT_SECONDS", 0.05)
    heard = []
    with Callbacks({"heard": heard.append}, budget=1000) as told:
        time.sleep(0.3)
        told.report(Snapshot(100, None, math.nan, budget=1000), 1.0)
        told.report(Snapshot(150, None, math.nan, budget=1000), 3.0)
        told.report(Snapshot(200, None, math.nan, budget=1000, metrics={"k": 1.0}), 5.0)
        time.sleep(0.3)
        told.finish()
    before, after = ([one for one in heard if one.steps == steps] for steps in (0, 200))
    assert len(before) >= 2
    assert {(one.message, one.budget, one.seconds_left) for one in before} == {(COMPILING, 1000, None)}
    assert len(after) >= 2
    assert after[0].seconds_left == 32.0
    assert all(a.seconds < b.seconds and a.seconds_left > b.seconds_left for a, b in itertools.pairwise(after))
    assert all(one.metrics is after[0].metrics for one in after)  # by which loggers know what they have seen


def test_the_time_left_follows_the_recent_speed():
    limit, estimate = TimeLeft(may_stop_early=True), TimeLeft(may_stop_early=False)
    for seconds, steps in [(10.0, 0), (12.0, 100), (14.0, 200), (16.0, 400)]:
        for one in (limit, estimate):
            one.note(Snapshot(steps, None, math.nan, budget=1000), seconds)
    assert estimate.seconds(16.0) == pytest.approx(6.0)  # 600 steps at 100 a second; compiling took the first 10 s
    assert limit.seconds(16.0) == 14.0  # by the speed until 14 s the run ends at 30 s
    for one in (limit, estimate):
        one.note(Snapshot(500, None, math.nan, budget=1000, slow_until=math.inf), 26.0)
        assert one.seconds(26.0) is None  # a phase of slow steps says nothing about the others
        one.note(Snapshot(900, None, math.nan, budget=1000), 28.0)
    assert estimate.seconds(28.0) == pytest.approx(100 / 150)  # in the median part of the last 4 s measured
    assert limit.seconds(28.0) == 2.0  # 30 s, as was expected after 14 s
    for one in (limit, estimate):
        one.note(Snapshot(1000, None, math.nan, budget=1000), 29.0)
        assert one.seconds(29.0) is None  # it is over


def test_steps_that_one_tree_was_judged_on_are_not_the_recent_speed():
    left = TimeLeft(may_stop_early=False)
    for second in range(11):
        judged = 5000 if second >= 8 else 0  # within a second
        left.note(Snapshot(100 * second + judged, None, 0.0, budget=10_000), float(second))
    assert left.seconds(10.0) == pytest.approx((10_000 - 6000) / 100)


def test_no_time_left_is_shown_before_two_seconds_were_measured():
    left = TimeLeft(may_stop_early=False)
    for seconds, steps in [(10.0, 0), (11.5, 500)]:
        left.note(Snapshot(steps, None, math.nan, budget=10_000), seconds)
        assert left.seconds(seconds) is None
    left.note(Snapshot(1000, None, math.nan, budget=10_000), 13.0)
    assert left.seconds(13.0) == 27.0


def test_what_the_value_is_the_mean_of():
    returns = np.array([8.0, 10.0, 12.0])
    judged = Snapshot(10, stump(), 10.0, state=lambda: {"best.shown": returns})
    assert judging_of(judged) == (2.0 / math.sqrt(3), 3)
    other = Snapshot(10, stump(), 9.0, state=lambda: {"best.shown": returns})  # the value is of other episodes
    assert math.isnan(judging_of(other)[0])
    assert judging_of(Snapshot(10, stump(), 9.0, metrics={"error": 0.5, "judged": 16.0})) == (0.5, 16)


def test_mistakes():
    with pytest.raises(CustardError, match="on_progress must be a function of one argument, not int"):
        learn(3)
    with pytest.raises(CustardError, match="cannot do with on_progress="):
        learn(print, seeds=2)
    with pytest.raises(CustardError, match="progress='yes' must be True, False or 'auto'"):
        learn(None, progress="yes")


class FakeIPython(types.ModuleType):
    """As much of IPython as a notebook's kernel shows to us."""

    def __init__(self, has_kernel):
        super().__init__("IPython")
        self.shown = []
        self.get_ipython = lambda: types.SimpleNamespace(**({"kernel": None} if has_kernel else {}))
        self.display = types.ModuleType("IPython.display")
        self.display.display = self.show

    def show(self, data, raw, display_id):
        self.shown.append(data["text/plain"])
        return types.SimpleNamespace(update=lambda data, raw: self.shown.append(data["text/plain"]))


@pytest.fixture
def notebook(monkeypatch):
    fake = FakeIPython(has_kernel=True)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", fake.display)
    return fake


def test_progress_is_automatic_in_terminals_and_notebooks(monkeypatch, notebook):
    assert is_shown("auto")
    monkeypatch.setitem(sys.modules, "IPython", FakeIPython(has_kernel=False))  # IPython in a terminal
    assert not is_shown("auto")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert is_shown("auto")
    assert (is_shown(True), is_shown(False)) == (True, False)


def test_a_notebook_has_one_line_that_changes(notebook, monkeypatch, capsys):
    monkeypatch.setattr(progress, "NOTEBOOK_LINE_SECONDS", 0.05)
    with Display("title", enabled=True) as display:
        time.sleep(0.2)
        display.show(Snapshot(100, None, math.nan, budget=1000), 1.0)
        display.show(Snapshot(150, None, math.nan, budget=1000), 3.0)
        display.show(Snapshot(200, None, math.nan, budget=1000), 5.0)
        time.sleep(0.2)
    assert notebook.shown[0] == ""
    assert notebook.shown[1].startswith(f"title: {COMPILING}")
    assert any(
        re.fullmatch(r"title: 200 steps, no tree yet, 5\.\d s, at most 32 s left", line) for line in notebook.shown
    )
    assert notebook.shown[-1] == "title: 200 steps, no tree yet, 5.0 s"  # a run that is over has no time left
    assert capsys.readouterr() == ("", "")


def test_while_the_best_tree_is_not_judged_the_value_of_one_before_is_shown():
    judged, later = Snapshot(10, stump(), 9.0, metrics={"error": 0.5, "judged": 16.0}), Snapshot(20, stump(), math.nan)
    assert "best tree 9.00 ± 0.98 (16 episodes)" in snapshot_text(judged, judged)
    assert "best tree not judged yet, one before 9.00 ± 0.98 (16 episodes)" in snapshot_text(later, judged)
    assert "best tree not judged yet, depth" in snapshot_text(later)
