"""What goes wrong around an experiment: interrupts, odd files, environments that leave things behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.errors import CustardError
from custard.core.files import write_atomically
from custard.lab.frontier import frontier
from custard.lab.frontier_plot import train_command
from custard.lab.summary import plot
from custard.lab.sweep import sweep, trials_in
from custard.lab.trial_file import TrialFile, read_rows
from custard.lab.trials import grid, run_trial
from tests.command_line import exit_code

PREREQ = [("custard/PrereqWorld-v0", {"m": 4})]
TINY = ("sweep", "custard/PrereqWorld-v0", "--env-args", "m=4", "--methods", "plan", "--episodes", "2")


class Corridor(gym.Env):
    """Ten steps to the right; may be slow, may leave, and counts how many of it are open."""

    observation_space, action_space = gym.spaces.Box(0, 10, (1,)), gym.spaces.Discrete(2)
    opened = 0

    def __init__(self, pause: float = 0.0, leaves: bool = False, says: bool = False) -> None:
        type(self).opened += 1
        self.pause, self.leaves, self.says = pause, leaves, says

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = 0.0, 0
        return np.array([self.at], np.float32), {}

    def step(self, action):
        if self.leaves:
            sys.exit(7)
        if self.says:
            sys.stdout.write("chatter")
        time.sleep(self.pause)
        self.at, self.t = min(10.0, max(0.0, self.at + 2.0 * int(action) - 1.0)), self.t + 1
        return np.array([self.at], np.float32), -1.0, self.at >= 10.0, self.t >= 30, {}

    def close(self):
        type(self).opened -= 1


@pytest.fixture(autouse=True)
def corridor():
    gym.register("Corridor-v0", Corridor)
    gym.register("other/Corridor-v0", Corridor)
    yield
    del gym.registry["Corridor-v0"], gym.registry["other/Corridor-v0"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where these tests run as a shell's background job, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_a_sweep_in_this_process(tmp_path: Path) -> None:
    trials = grid([("Corridor-v0", {"pause": 0.02})], ["tpi"], [0, 1], settings={"": {"budget": 5000}}, episodes=2)
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        sweep(trials, tmp_path / "rows.csv", workers=0)
    assert not (tmp_path / "rows.csv").exists() or read_rows(tmp_path / "rows.csv") == []


def test_an_interrupt_ends_a_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    import custard.lab.frontier as module

    class Stopped:
        message = "interrupted"

    monkeypatch.setattr(module, "learn", lambda *_, **__: Stopped())
    with pytest.raises(KeyboardInterrupt):
        frontier("custard/PrereqWorld-v0", max_leaves=3, env_kwargs={"m": 4})


def test_an_environment_that_leaves_is_a_failed_trial() -> None:
    (trial,) = grid([("Corridor-v0", {"leaves": True})], ["tpi"], [0], settings={"": {"budget": 500}})
    assert "raised SystemExit" in run_trial(trial)["error"]


def test_what_environments_print_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    how = ("--env-args", "says=True", "--set", "budget=500", "--episodes", "2", "--seeds", "1", "--workers", "0")
    assert exit_code("sweep", "Corridor-v0", *how, "--json") == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["rows"]) == 1
    assert "chatter" in captured.err


@pytest.mark.parametrize("method", ["tpi", "mfec", "viper-dqn"])
def test_environments_are_closed(method: str) -> None:
    if method == "viper-dqn":
        pytest.importorskip("jax", reason='needs the extra "neural"')
    quick = {"iterations": 2, "expert_settings": {"steps": 500}} if method == "viper-dqn" else {}
    before = Corridor.opened
    custard.learn("Corridor-v0", method, budget=1000, **quick)
    gc.collect()
    assert Corridor.opened == before


def test_what_a_worker_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""
import subprocess, time
def run(job):
    child = subprocess.Popen(["sleep", "60"])
    open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
    return {{"error": "", "return": 1.0}}
"""
    (tmp_path / "starting.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    sweep(grid(PREREQ, ["plan"], [0]), workers=1, run="starting:run")
    for _ in range(50):  # a killed process may take a moment to be gone on a busy machine
        command = ["ps", "-o", "stat=", "-p", (tmp_path / "pid").read_text()]
        status = subprocess.run(command, capture_output=True, text=True)
        if status.stdout.strip() in ("", "Z"):  # gone, or dead and not yet buried
            return
        time.sleep(0.1)
    pytest.fail("what the worker started is still there")


def test_workers_find_the_standard_library_first(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("x = 1\n")
    command = [sys.executable, "-c", "from custard.cli import main; main()", *TINY, "--seeds", "1", "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(custard.__file__).parents[1]), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_links_stay_and_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "rows.csv"
    link.symlink_to(tmp_path / "real" / "rows.csv")
    with TrialFile(link) as store:
        store.add({"env": "a", "seed": 1})
        with pytest.raises(CustardError, match="is being written by process"):
            TrialFile(tmp_path / "real" / "rows.csv")
    assert link.is_symlink()
    assert len(read_rows(tmp_path / "real" / "rows.csv")) == 1
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(CustardError, match="not a file"):
        TrialFile(tmp_path / "pipe.csv")
    write_atomically(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "real" / "rows.csv").read_text() == "new"
    write_atomically("/dev/null", "nothing")
    assert not Path("/dev/null").is_file()


def test_numbers_of_numpy_are_numbers() -> None:
    envs = [("custard/PrereqWorld-v0", {"m": np.int64(4)})]
    rows = sweep(grid(envs, ["plan"], np.arange(2), max_depths=np.arange(2, 3), episodes=3), workers=0)
    assert [(row["error"], row["return"], row["seed"], row["env_args"]) for row in rows] == [
        ("", -2.0, "0", '{"m": 4}'), ("", -2.0, "1", '{"m": 4}'),
    ]  # fmt: skip


def test_names_of_methods_are_checked_and_single_ones_come_first() -> None:
    tried = grid(PREREQ, ["mfec", "viper-bi"], [3, 3], choices={"mfec.zeta": [-0.3], "zeta": [-0.1, -0.2]})
    assert [(trial.method, trial.settings["zeta"]) for trial in tried] == [
        ("mfec", -0.3), ("viper-bi", -0.1), ("viper-bi", -0.2),
    ]  # fmt: skip
    assert grid(PREREQ, ["viper-bi"], [0], choices={"viper_bi.iterations": [1]})[0].settings == {"iterations": 1}
    assert grid(PREREQ, ["viper-bi"], [0], settings={"viper_bi": {"iterations": 1}})[0].settings == {"iterations": 1}
    for given, words in (
        ({"choices": {"mfecc.zeta": [-0.1]}}, "did you mean 'mfec'"),
        ({"settings": {"zeta": -0.1}}, "where a method's settings should"),
    ):
        with pytest.raises(CustardError, match=words):
            grid(PREREQ, ["mfec"], [0], **given)  # type: ignore[arg-type]
    with pytest.raises(CustardError, match="unknown setting of plan 'zetaa'"):
        sweep(grid(PREREQ, ["plan"], [0], settings={"plan": {"zetaa": 1}}), workers=0)


def test_options_come_before_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.toml").write_text(
        'envs = [{id = "custard/PrereqWorld-v0", m = 4}]\nmethods = ["mfec"]\nseeds = 1\nepisodes = 2\n'
        "[settings.mfec]\nbudget = 3000\n[vary]\nmfec.zeta = [-0.3, -0.2]\n"
    )
    how = ("--file", str(tmp_path / "plan.toml"), "--workers", "0", "--json")
    assert exit_code("sweep", *how, "--set", "budget=2000", "zeta=-0.5") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["settings"] for row in rows] == ['{"budget": 2000, "zeta": -0.5}']
    assert exit_code("sweep", *how, "--set", "mfec.budget=2000") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [json.loads(row["settings"])["zeta"] for row in rows] == [-0.3, -0.2]
    assert exit_code("frontier", "CartPole-v1", "--set", "zeta=-0.7") == 2
    assert "--zeta gives" in capsys.readouterr().err
    for line in ("max_depth = []", 'methods = [["tpi"]]'):
        (tmp_path / "bad.toml").write_text(f'envs = ["CartPole-v1"]\n{line}\n')
        assert exit_code("sweep", "--file", str(tmp_path / "bad.toml")) == 2
        assert capsys.readouterr().err.startswith("custard: m")


def test_a_picture_that_cannot_be_drawn_costs_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.png").mkdir()
    how = ("sweep", "custard/PrereqWorld-v0", "--methods", "plan", "--seeds", "1", "--episodes", "2", "--workers", "0")
    assert exit_code(*how, "--env-args", "m=4", "--plot", str(tmp_path / "a.png")) == 2
    assert "is a directory" in capsys.readouterr().err
    assert exit_code(*how, "--env-args", "m=99", "--plot", str(tmp_path / "b.png"), "--json") == 1
    assert json.loads(capsys.readouterr().out)["summary"][0]["failures"] == 1


def test_every_group_has_its_own_place_in_a_picture(tmp_path: Path) -> None:
    row = {"env_args": "{}", "method": "tpi", "preset": "tuned", "settings": "{}", "max_depth": "", "error": "",
           "depth": 1, "leaves": 2, "seconds": 1.0, "bound": 5.0}  # fmt: skip
    rows = [{**row, "env": env, "return": float(value)} for env, value in (("a/T-v0", 1), ("b/T-v0", 9))]
    plot(rows, tmp_path / "two.svg")
    text = (tmp_path / "two.svg").read_text()
    assert "a T-v0 tpi" in text
    assert "b T-v0 tpi" in text
    assert text.count("no tree returns more") == 1
    many = [{**row, "env": "E-v0", "return": 1.0, "settings": json.dumps({"splits": k})} for k in range(30)]
    plot(many, tmp_path / "many.png")
    assert (tmp_path / "many.png").stat().st_size > 0


def test_long_messages_and_odd_cells(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    with TrialFile(file) as store:
        store.add({"env": "a", "seed": 1, "error": "x" * 200_000})
    assert len(read_rows(file)[0]["error"]) == 2000
    for column, cell in (("env_args", "[4]"), ("settings", "5"), ("settings", "{")):
        file.unlink()
        with TrialFile(file) as store:
            store.add({"env": "a", "seed": 1, column: cell})
        with pytest.raises(CustardError, match=f"as {column}, which is not"):
            read_rows(file)
    file.write_text("\ufeff" + file.read_text().replace("[4]", "{}"), encoding="utf-8")
    file.write_text(file.read_text().replace(",{,", ",,"), encoding="utf-8")
    assert read_rows(file)[0]["env"] == "a"


def test_rows_without_a_version_are_shown(tmp_path: Path) -> None:
    trials = grid(PREREQ, ["plan"], [0], episodes=2)
    file = tmp_path / "rows.csv"
    sweep(trials, file, workers=0)
    with TrialFile(file) as store:
        store.replace([{**row, "trial": "", "version": ""} for row in store.rows])
    assert [row["return"] for row in trials_in(file, trials)[0]] == [-2.0]


def test_commands_keep_what_is_text() -> None:
    row = {"env": "E-v0", "env_args": '{"name": "7", "kind": "fast", "size": 3}', "method": "tpi", "preset": "tuned",
           "max_depth": "", "settings": "{}", "seed": "0"}  # fmt: skip
    assert """'name='"'"'7'"'"'' kind=fast size=3""" in train_command(row)


def test_progress_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    how = ("--seeds", "2", "--workers", "0", "--out", str(tmp_path / "rows.csv"))
    command = [sys.executable, "-m", "custard", *TINY, *how]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stderr=full, stdout=subprocess.PIPE, cwd=tmp_path, check=False)
    assert len(read_rows(tmp_path / "rows.csv")) == 2
    assert done.stdout
