"""The engine: every finished trial is kept, none is repeated, nothing that dies takes others with it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import custard
from custard.lab.engines import events
from custard.lab.sweep import sweep, trials_in
from custard.lab.trial_file import TrialFile, read_rows
from custard.lab.trials import COLUMNS, TIME_COLUMNS, Trial, grid, identity

HERE = Path(__file__).parent


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JOBS_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.syspath_prepend(str(HERE))
    return tmp_path / "log"


def trials(count: int, **settings: object) -> list[Trial]:
    # `settings` are not tpi's: only the jobs of these tests read them.
    return [Trial("CartPole-v1", "tpi", seed, settings=settings) for seed in range(count)]


def told(log: Path, what: str) -> list[int]:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [int(line[1]) for line in lines if line[0] == what]


def apart_from_times(file: Path) -> list[list[str]]:
    with file.open(newline="") as text:
        rows = list(csv.reader(text))
    keep = [i for i, name in enumerate(rows[0]) if name not in TIME_COLUMNS]
    return [[row[i] for i in keep] for row in rows]


def run(trials: list[Trial], file: Path | None, **how: object) -> list[dict]:
    return sweep(trials, file, **{"run": "jobs:run", "strict": False, "workers": 2, **how})  # type: ignore[arg-type]


def test_a_second_call_repeats_nothing(log: Path, tmp_path: Path) -> None:
    first = run(trials(3), tmp_path / "a.csv")
    assert [row["return"] for row in first] == [0.0, 1.0, 2.0]
    again = run(trials(5), tmp_path / "a.csv")
    assert again[:3] == first
    assert sorted(told(log, "begin")) == [0, 1, 2, 3, 4]
    assert not list(tmp_path.glob(".*")), "no lock or part of a file is left"


def test_workers_use_one_native_thread(log: Path, tmp_path: Path) -> None:
    run(trials(2), None)
    assert {line.split()[3] for line in log.read_text().splitlines() if line.startswith("begin")} == {"1"}


def test_one_that_is_killed_is_recorded_and_others_go_on(log: Path, tmp_path: Path) -> None:
    rows = run(trials(6, deadly=2, wrong=4), tmp_path / "a.csv")
    assert [row["error"] for row in rows] == ["", "", "the process was killed by SIGKILL", "", "could not be done", ""]
    assert rows[2]["seed"] == "2"
    assert rows[2]["version"] == custard.__version__
    run(trials(6, deadly=2, wrong=4), tmp_path / "a.csv")
    assert sorted(told(log, "begin")) == list(range(6)), "failures are run again only if asked for"


def test_failures_are_retried_if_asked_for(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    assert [row["error"] for row in run(trials(3, cured=1), file)] == ["", "ill", ""]
    Path(f"{log}.cure").touch()
    assert [row["error"] for row in run(trials(3, cured=1), file, retry=True)] == ["", "", ""]
    assert sorted(told(log, "begin")) == [0, 1, 1, 2]
    assert len(read_rows(file)) == 3, "the failure has been made good"
    run(trials(3, cured=1), tmp_path / "b.csv")
    assert apart_from_times(file) == apart_from_times(tmp_path / "b.csv")


DRIVER = """
import sys, pathlib
sys.path.insert(0, {here!r})
from custard.lab.sweep import sweep
from custard.lab.trials import Trial
trials = [Trial("CartPole-v1", "tpi", seed, settings={{"sleep": 0.3}}) for seed in range(10)]
sweep(trials, pathlib.Path({file!r}), workers=2, run="jobs:run", strict=False)
"""


def test_kill_of_the_driver_loses_only_what_ran(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER.format(here=str(HERE), file=str(file))])
    _until(lambda: file.exists() and len(read_rows(file)) >= 3)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    kept = [int(row["seed"]) for row in read_rows(file)]
    _until(lambda: not any(_alive(int(line.split()[2])) for line in log.read_text().splitlines()), "orphans go on")
    assert 3 <= len(kept) < 10
    begun = told(log, "begin")
    log.unlink()
    with file.open("ab") as torn:
        torn.write(b"paper,CartPole-v1,{},tpi,tu")  # as if it had been killed while writing
    rows = run(trials(10, sleep=0.3), file)
    assert [row["return"] for row in rows] == [float(seed) for seed in range(10)]
    assert sorted(told(log, "begin")) == [seed for seed in range(10) if seed not in kept]
    assert len(set(begun) - set(kept)) <= 2
    run(trials(10, sleep=0.0), tmp_path / "other.csv")
    whole = apart_from_times(tmp_path / "other.csv")
    names = [row[COLUMNS.index("settings")] for row in whole[1:]]
    assert set(names) == {'{"sleep": 0.0}'}
    run(trials(10, sleep=0.3), tmp_path / "whole.csv", workers=4)
    assert apart_from_times(file) == apart_from_times(tmp_path / "whole.csv")


def _until(holds: object, message: str = "waited too long") -> None:
    end = time.monotonic() + 30
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, message
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_two_writers_are_kept_apart(tmp_path: Path) -> None:
    with TrialFile(tmp_path / "a.csv"), pytest.raises(custard.CustardError, match="is being written by process"):
        TrialFile(tmp_path / "a.csv")
    TrialFile(tmp_path / "a.csv").close()


def test_trials_are_known_by_their_content(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, depth = Trial("CartPole-v1", "tpi"), Trial("CartPole-v1", "tpi", max_depth=2)
    assert len({identity(trial)["trial"] for trial in (plain, depth, Trial("CartPole-v1", "mfec"))}) == 3
    assert identity(plain)["trial"] == identity(Trial("CartPole-v1", "tpi", experiment="x"))["trial"]
    file = tmp_path / "a.csv"
    run([plain], file)
    monkeypatch.setattr("custard.lab.trials.VERSION", "99")
    assert len(trials_in(file, [plain])[0]) == 1, "a new version alone changes no result"
    monkeypatch.setattr("custard.lab.trials.COMPARABLE_SINCE", "99")
    rows, notes = trials_in(file, [plain])
    assert rows == []
    assert "not counted" in notes[0]
    run([plain], file, workers=0)
    assert told(log, "begin") == [0, 0], "the row of a version that is not comparable is not taken for this one's"
    assert {row["version"] for row in read_rows(file)} == {custard.__version__, "99"}


def test_rows_made_before_a_setting_was_removed_still_count(log: Path, tmp_path: Path) -> None:
    trial, file = Trial("CartPole-v1", "tpi"), tmp_path / "a.csv"
    run([trial], file)
    with TrialFile(file) as store:
        (row,) = store.rows
        settings = json.loads(row["full_settings"])
        gone = json.dumps({**settings, "gone": 1})
        other = json.dumps({**settings, "budget": 1, "gone": 1})
        store.replace([{**row, "trial": "a", "full_settings": gone}, {**row, "trial": "b", "full_settings": other}])
    (found,), notes = trials_in(file, [trial])
    assert found["trial"] == "a"
    assert "1 rows were made with other default settings" in notes[0]
    run([trial], file)
    run([trial], tmp_path / "b.csv", borrow=[file])
    assert told(log, "begin") == [0], "neither file needs the trial again"


def test_rows_made_before_a_setting_was_added_count_where_it_has_its_default(log: Path, tmp_path: Path) -> None:
    plain, given = Trial("CartPole-v1", "tpi"), Trial("CartPole-v1", "tpi", settings={"gamma": 0.5})
    file = tmp_path / "a.csv"
    run([plain, given], file)
    with TrialFile(file) as store:
        before = [json.loads(row["full_settings"]) for row in store.rows]
        for settings in before:
            del settings["gamma"]
        store.replace([{**row, "trial": f"old{k}", "full_settings": json.dumps(each)}
                       for k, (row, each) in enumerate(zip(store.rows, before, strict=True))])  # fmt: skip
    (found,), notes = trials_in(file, [plain, given])
    assert found["settings"] == "{}"
    assert "1 rows were made with other default settings" in notes[0]


def test_rows_made_before_a_setting_was_renamed_still_count(log: Path, tmp_path: Path) -> None:
    plain, given = (Trial("CartPole-v1", "tpi", settings=each) for each in ({}, {"max_changes": 50}))
    file = tmp_path / "a.csv"
    run([plain, given], file)
    with TrialFile(file) as store:
        store.replace([{**row, "trial": f"old{k}", **{name: row[name].replace("max_changes", "polish")
                        for name in ("settings", "full_settings")}} for k, row in enumerate(store.rows)])  # fmt: skip
    assert "polish" in file.read_text()
    found, notes = trials_in(file, [plain, given])
    assert {row["settings"] for row in found} == {"{}", '{"max_changes": 50}'}
    assert notes == []
    run([plain, Trial("CartPole-v1", "tpi", settings={"polish": 50})], file)
    assert told(log, "begin") == [0, 0], "no trial is run again, by whichever name its setting is given"


def test_rows_are_lent_between_files(log: Path, tmp_path: Path) -> None:
    run(trials(3), tmp_path / "a.csv")
    rows = run(trials(4), tmp_path / "b.csv", borrow=[tmp_path / "a.csv", tmp_path / "missing.csv"])
    assert [row["return"] for row in rows] == [0.0, 1.0, 2.0, 3.0]
    assert sorted(told(log, "begin")) == [0, 1, 2, 3]
    assert len(read_rows(tmp_path / "b.csv")) == 4


def test_files_of_earlier_formats_go_on(log: Path, tmp_path: Path) -> None:
    old = [name for name in COLUMNS if name not in ("experiment", "trial", "version", "code", "full_settings", "exact")]
    about = {**identity(trials(1)[0], strict=False), "return": "7.0"}
    file = tmp_path / "a.csv"
    with file.open("w", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([old, [about.get(name, "") for name in old]])
    assert [row["return"] for row in run(trials(2), file)] == [7.0, 1.0]
    assert told(log, "begin") == [1]
    assert read_rows(file)[0]["version"] == ""


@pytest.mark.parametrize("text", ["a,b\n1,2\n", ",".join(COLUMNS) + "\n1,2\n", "\n"])
def test_other_files_are_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "notes.csv").write_text(text)
    with pytest.raises(custard.CustardError, match=r"no column|a cell for every column"):
        sweep(trials(1), tmp_path / "notes.csv", strict=False)
    assert (tmp_path / "notes.csv").read_text() == text


def test_an_empty_file_counts_as_none(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.touch()
    with TrialFile(file) as store:
        assert not store.rows
        store.add({"env": "a", "seed": 1})
    assert [row["seed"] for row in read_rows(file)] == ["1"]


@pytest.mark.parametrize(
    ("column", "cell"), [("seed", "x"), ("max_depth", "1.5"), ("return", "much"), ("env_args", "{")]
)
def test_cells_that_are_no_numbers_are_named(column: str, cell: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    with TrialFile(file) as store:
        store.add({"env": "a", "seed": 1, column: cell})
    with pytest.raises(custard.CustardError, match=f"line 2 has .* as {column}"):
        read_rows(file)


def test_mistakes_are_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(custard.CustardError, match="unknown method 'tpii'"):
        sweep(grid(["CartPole-v1"], ["tpii"], [0]), tmp_path / "a.csv")
    with pytest.raises(custard.CustardError, match="unknown setting"):
        sweep(trials(1, sleep=0.0), tmp_path / "a.csv")
    with pytest.raises(custard.CustardError, match="unknown engine"):
        list(events([{}], "jobs:run", "cloud", None, None))
    assert not (tmp_path / "a.csv").exists()


def test_real_trials_resumed_equal_those_never_interrupted(tmp_path: Path) -> None:
    some = grid([("custard/PrereqWorld-v0", {"m": 4})], ["plan", "viper-bi"], [0, 1], max_depths=[2],
                settings={"viper-bi": {"iterations": 3}}, episodes=20)  # fmt: skip
    sweep(some[1:3], tmp_path / "a.csv", workers=1)
    rows = sweep(some, tmp_path / "a.csv", workers=0)
    assert [(row["return"], row["gap"], row["optimal"], row["trivial"]) for row in rows] == [(-2.0, 0.0, 1.0, 0.0)] * 4
    sweep(some, tmp_path / "b.csv", workers=0)
    assert apart_from_times(tmp_path / "a.csv") == apart_from_times(tmp_path / "b.csv")


def test_losing_a_node_of_a_ray_cluster_loses_no_trial(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import jobs
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        other = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        file = tmp_path / "a.csv"
        killed: list[float] = []

        def kill() -> None:
            _until(lambda: len(jobs.processes(log)) >= 2 and file.exists() and len(read_rows(file)) >= 2)
            cluster.remove_node(other, allow_graceful=False)
            killed.append(time.monotonic())

        import threading

        thread = threading.Thread(target=kill)
        thread.start()
        rows = run(trials(8, sleep=0.7, together=2), file, engine="ray", address=cluster.address, workers=None)
        thread.join()
        assert killed
        assert [row["return"] for row in rows] == [float(seed) for seed in range(8)]
        assert all(row["error"] == "" for row in rows)
        ends = told(log, "end")
        assert set(ends) == set(range(8))
        assert len(told(log, "begin")) <= 8 + 2, "only what ran on the lost node is repeated"
        before = log.read_text()
        run(trials(8, sleep=0.7, together=2), file, engine="ray", address=cluster.address)
        assert log.read_text() == before
    finally:
        cluster.shutdown()


def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    with pytest.raises(custard.CustardError, match=r"no Ray cluster at 127\.0\.0\.1:1 "):
        sweep(trials(1), engine="ray", address="127.0.0.1:1", strict=False)
