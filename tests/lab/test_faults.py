"""Runs that are killed, interrupted, started twice, or whose files are damaged."""

import contextlib
import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import custard
from custard import CustardError
from custard.core.files import remove_leftovers, write_atomically
from custard.core.locks import Lock
from custard.lab import learn as learning

ROOT = Path(__file__).resolve().parents[2]
WORLD = dict(env_kwargs={"m": 4}, seed=1)


def learn(out, **given):
    return custard.learn("custard/PrereqWorld-v0", "mfec", out=out, **WORLD, **given)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    learn(out)
    return out


@pytest.fixture
def run(finished, tmp_path):
    import shutil

    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize(
    "damaged",
    [b"\xff\xfe{", b"[" * 10**5, b"[1]", b"{}", b'{"settings": 3}', b"", b'{"settings": {}}', b'"\xed\xa0\x80"'],
)
def test_a_damaged_configuration_is_one_line(run, damaged):
    (run / "config.json").write_bytes(damaged)
    with pytest.raises(CustardError):
        learn(run, resume=True)


def test_every_damage_of_a_checkpoint_is_one_line(run):
    file = run / "checkpoint" / "state.npz"
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    ends = [*range(60), *range(len(whole) - 120, len(whole))]  # headers and the directory of the zip file
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            data[rng.choice(ends) if rng.random() < 0.7 else rng.integers(len(data))] = rng.integers(256)
        file.write_bytes(bytes(data) if rng.random() < 0.8 else whole[: rng.integers(len(whole))])
        with contextlib.suppress(CustardError):  # some damages change nothing that is read
            learn(run, resume=True)


def test_a_checkpoint_with_other_arrays_than_were_written_is_one_line(run):
    """A sane file whose numbers, shapes or names differ would crash in a method, or be learned from."""
    file = run / "checkpoint" / "state.npz"
    whole = dict(np.load(file))
    assert "checksum" in whole
    for name in sorted(set(whole) - {"checksum"}):
        array = whole[name]
        as_text = [] if array.dtype.names else [array.astype(str)]
        for other in (array[..., None], np.zeros(0), np.array(f"{array}x"), *as_text):
            if (other.dtype, other.shape) == (array.dtype, array.shape) and other.tobytes() == array.tobytes():
                continue
            np.savez(file, **{**whole, name: other})
            with pytest.raises(CustardError, match="cannot be read: it does not hold what was written"):
                learn(run, resume=True)
    np.savez(file, **whole)
    learn(run, resume=True)
    np.savez(file, **{name: array for name, array in whole.items() if name != "checksum"})
    learn(run, resume=True)  # as older versions wrote it


@pytest.mark.parametrize(
    "progress", ["[]", "{}", '{"metrics": 3}', '{"metrics": [3]}', '{"metrics": [], "steps": "a"}', "[" * 10**5,
                 '{"metrics": [{"value": "x"}], "steps": 1, "seconds": 1}']
)  # fmt: skip
def test_damaged_progress_is_one_line(run, progress):
    np.savez(run / "checkpoint" / "state.npz", progress=np.array(progress))
    with pytest.raises(CustardError, match="cannot be read"):
        learn(run, resume=True)


def test_a_directory_that_is_written_is_refused_with_its_holder(run, tmp_path):
    held = Lock(run / ".lock", "the run")
    with pytest.raises(CustardError, match=rf"is being written by process {os.getpid()} on .* since .*: wait for it"):
        learn(run, resume=True)
    held.release()
    assert learn(run, resume=True).message == "nothing was left to do"
    assert not (run / ".lock").exists()
    new = tmp_path / "new"
    new.mkdir()
    held = Lock(new / ".lock", "the run")
    with pytest.raises(CustardError, match="is being written by"):
        learn(new)
    held.release()


def test_a_refused_resume_leaves_no_lock(run):
    with pytest.raises(CustardError, match="cannot resume it"):
        custard.learn("custard/PrereqWorld-v0", "mfec", out=run, env_kwargs={"m": 4}, seed=2, resume=True)
    assert not (run / ".lock").exists()


def test_what_killed_writers_left_is_removed_on_resume(run):
    left = [run / ".tree.json.abcdefgh.custard-part", run / "checkpoint" / ".state.npz.12345678.custard-part"]
    for file in left:
        file.write_text("half")
    (run / ".mine").write_text("kept")
    learn(run, resume=True)
    assert not any(file.exists() for file in left)
    assert (run / ".mine").exists()


def test_a_writer_that_dies_leaves_only_what_is_removed_later(tmp_path, monkeypatch):
    write_atomically(tmp_path / "a", "old")
    monkeypatch.setattr(os, "replace", lambda *_: os._exit(9))
    if (child := os.fork()) == 0:
        write_atomically(tmp_path / "a", "new")
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 2
    remove_leftovers(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def start(out, *more):
    words = ["train", "CartPole-v1", "--method", "mfec", "--budget", "50000000", "--episodes", "1", "--out", str(out)]
    paths = os.pathsep.join([str(Path(custard.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", "custard", *words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": paths}, cwd=out.parent,
    )  # fmt: skip


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_saves_says_how_to_go_on_and_exits_so(tmp_path, sent, code):
    out = tmp_path / "run"
    process = start(out)
    while not (out / "checkpoint" / "state.npz").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(sent)
    _, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    assert f"interrupted: the same command with --resume goes on with {out}" in said
    assert "Traceback" not in said
    assert custard.Tree.load(out / "tree.json").n_leaves >= 1
    assert not (out / ".lock").exists()
    assert not list(out.rglob("*.custard-part"))
    assert json.loads((out / "config.json").read_text())["method"] == "mfec"


def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path):
    table = tmp_path / "kills.csv"
    words = ["-m", "tests.hostile.kills", "--kills", "3", "--methods", "mfec", "--out", str(table)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert (row["kills"], row["differences"]) == ("3", "0")


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(tmp_path, monkeypatch):
    given = dict(env_kwargs={"m": 6}, seed=3, budget=300_000)
    whole = custard.learn("custard/PrereqWorld-v0", "mfec", out=tmp_path / "whole", **given)
    writes, sync = [0], os.fsync

    def full_after_eight(handle):
        writes[0] += 1
        if writes[0] > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(learning, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(os, "fsync", full_after_eight)
    with pytest.raises(CustardError, match="No space left on device"):
        custard.learn("custard/PrereqWorld-v0", "mfec", out=tmp_path / "run", **given)
    monkeypatch.undo()
    assert not list((tmp_path / "run").rglob("*.custard-part"))
    rest = custard.learn("custard/PrereqWorld-v0", "mfec", out=tmp_path / "run", resume=True, **given)
    assert (rest.tree, rest.steps, rest.value) == (whole.tree, whole.steps, whole.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step_timeout": -1}, "step_timeout=-1 must be a number above 0"), ({"step_timeout": 0}, "above 0"),
        ({"step_timeout": "x"}, "above 0"), ({"step_timeout": float("nan")}, "above 0"),
        ({"feature_names": 3}, "feature_names must be a list"), ({"feature_names": "has_0"}, "must be a list"),
        ({"log": 3}, "3"), ({"log": [3]}, "3"), ({"seeds": "ab"}, "seeds='a' must be a whole number"),
        ({"seeds": [0, 1.5]}, "seeds=1.5"), ({"out": 3}, "no file can be named '3'"),
        ({"out": "x" * 5000}, "no file can be named"), ({"env_kwargs": 3}, "env_kwargs must be a dictionary"),
        ({"env_kwargs": {3: 4}}, "env_kwargs must be a dictionary"),
    ],
)  # fmt: skip
def test_arguments_of_the_wrong_kind_are_one_line(given, message):
    with pytest.raises(CustardError) as caught:
        custard.learn("custard/PrereqWorld-v0", "mfec", **{"budget": 500, **given})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
