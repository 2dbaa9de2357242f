"""Damaged files: whoever reads one says so in one line, or reads it as if nothing had happened."""

from __future__ import annotations

import csv
import io
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np

import custard
from custard import Tree
from custard.commands.sweep import _read as read_sweep
from custard.lab.run import RunDirectory
from custard.lab.trial_file import read_rows
from custard.planning.store import load as load_mdp
from custard.planning.store import save as save_mdp
from custard.report.html_page import _config, _evaluation, metrics_rows
from tests.hostile.complaints import complaints_noted

__all__ = ["attack"]

SWEEP = """envs = ["CartPole-v1", {id = "custard/PrereqWorld-v0", m = 4}]
methods = ["tpi", "mfec"]
seeds = 3
max_depth = [2, 3]
[settings]
budget = 1000
[vary]
mfec.splits = [3, 7]
"""


def attack(count: int, seed: int = 0) -> list[str]:
    """Damage files `count` times; return what went wrong."""
    rng = np.random.default_rng(seed)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        readers = make_files(Path(place))
        names = sorted(readers)
        for number in range(count):
            name = names[number % len(names)]
            file = Path(place) / name
            whole = file.read_bytes()
            file.write_bytes(damage(whole, rng))
            with complaints_noted(wrong, f"{number} {name}", name):
                readers[name](file)
            file.write_bytes(whole)
    return wrong


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a file's content with a few bytes changed, a part missing, repeated, or replaced by something odd."""
    kind = int(rng.integers(7))
    if not data:
        return bytes(rng.integers(256, size=8).astype(np.uint8))
    at, other = sorted(int(place) for place in rng.integers(len(data), size=2))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[other:]
    if kind == 2:
        return data[:other] + data[at:]
    if kind == 3:
        return data[:at] + bytes(rng.integers(256, size=4).astype(np.uint8)) + data[at:]
    if kind == 4:
        odd = (b"[" * 10**5, b"\xff\xfe", b"NaN", b"1e999", b'"', b"{}", b"\x00", b"null", b"-1", b",", b"\n")
        return data[:at] + odd[int(rng.integers(len(odd)))] + data[min(len(data), at + 3) :]
    changed = bytearray(data)
    places = rng.integers(len(data), size=int(rng.integers(1, 6)))
    if kind == 6:  # headers: both ends of a zip file
        places = np.where(rng.random(len(places)) < 0.5, places % 64, len(data) - 1 - places % min(200, len(data)))
    for place in places.tolist():
        changed[place] = int(rng.integers(256))
    return bytes(changed)


def make_files(place: Path) -> dict[str, Callable[[Path], object]]:
    """Write one sane file of each kind; return who reads it."""
    run = custard.learn("custard/PrereqWorld-v0", "mfec", env_kwargs={"m": 3}, budget=2000, out=place / "run")
    shutil.copy(place / "run" / "checkpoint" / "state.npz", place / "state.npz")
    for name in ("config.json", "metrics.csv", "tree.json"):
        shutil.copy(place / "run" / name, place / name)
    result = custard.evaluate(run.tree, "custard/PrereqWorld-v0", 5, env_kwargs={"m": 3})
    (place / "evaluation.json").write_text(str(result.to_json()).replace("'", '"').replace("None", "null"))
    (place / "sweep.toml").write_text(SWEEP)
    mdp = gym.make("custard/PrereqWorld-v0", m=2).unwrapped.mdp()  # type: ignore[attr-defined]
    for name in ("mdp.json", "mdp.npz"):
        save_mdp(mdp, place / name)
    text = io.StringIO()
    from custard.lab.trials import COLUMNS

    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerow(
        {"env": "CartPole-v1", "method": "tpi", "seed": 0, "preset": "tuned", "return": 3.5, "settings": "{}"}
    )
    (place / "trials.csv").write_text(text.getvalue())
    assert tomllib.loads(SWEEP)

    def resume(file: Path) -> None:
        folder = place / "run"
        target = folder / ("checkpoint/state.npz" if file.suffix == ".npz" else file.name)
        kept = target.read_bytes()
        target.write_bytes(file.read_bytes())
        directory = RunDirectory(folder)
        try:
            _, _, done = directory.reopen()
            directory.last(done)
        finally:
            directory.release()
            target.write_bytes(kept)

    def both(file: Path) -> None:
        _config(file)
        resume(file)

    return {
        "state.npz": resume, "config.json": both, "metrics.csv": metrics_rows, "tree.json": Tree.load,
        "evaluation.json": _evaluation, "sweep.toml": read_sweep, "mdp.json": load_mdp, "mdp.npz": load_mdp,
        "trials.csv": read_rows,
    }  # fmt: skip
