"""Command lines made from the parser itself: every command, each option with values of the wrong kind.

None ends with a traceback; one with a value that cannot be meant ends with code 2 and says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import os
import signal
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import tyro

import custard
from custard.cli import main
from custard.commands import COMMANDS

__all__ = ["attack"]

SECONDS = 120  # after which a command counts as hanging
#: For each command, words that make it do little; the mutations come on top. Nothing here: only refusals are tried.
CHEAP = {
    "train": ["train", "custard/PrereqWorld-v0", "--env-args", "m=2", "--budget", "300", "--episodes", "1"],
    "evaluate": ["evaluate", "tree.json", "--episodes", "2"], "show": ["show", "tree.json"],
    "explain": ["explain", "tree.json", "--episodes", "1"], "export": ["export", "tree.json", "--format", "text"],
    "verify": ["verify", "tree.json", "--assert", "pole_angle > 0 -> push_right"],
    "report": ["report", "run", "--episodes", "1"], "check": ["check", "FrozenLake-v1", "--steps", "50"],
    "compare": ["compare", "NoSuch-v0"], "sweep": ["sweep", "NoSuch-v0"], "frontier": ["frontier", "NoSuch-v0"],
    "paper": ["paper", "nothing-like-it"], "bench": ["bench", "--seconds", "none"],
}  # fmt: skip
#: Values that cannot be meant, by the type of an option.
NEVER = {
    int: ["x", "", "1.5", "nan", "inf", "0x10", "1e3", "--", "１.0"], float: ["x", "", "--", "1,5"],
    str: [], Path: [""], bool: [],
}  # fmt: skip
#: Values that may or may not be refused.
ODD = {
    int: ["-1", "0", "99999999999999999999", "-99999999999999999999"],
    float: ["nan", "inf", "-inf", "-1", "0", "1e999"],
    str: ["", " ", "x", "=", "a=b=c", "[", "{", "'", "\n", "\x1b[31m", "é☃", "\ud800", "./.", "-x",
          "y" * 3000, "__import__('os')", "1e999", "a=" + "[" * 500, "nan", "*", "%s", "{0}"],
    Path: [".", "/proc", "/dev/null", "/proc/self/mem", "no/such/place", "tree.json/x", "a\nb", "é☃",
           "x" * 300],
    bool: [],
}  # fmt: skip
#: Options that no negative number is meant for.
COUNTS = ("seed", "seeds", "budget", "episodes", "max_depth", "max_steps", "first_seed", "steps", "within", "workers")


def options(command: type) -> Iterator[tuple[str, str, type, bool]]:
    """Yield each option: its field, its name on the command line ("" if positional), the type of its values, a list?"""
    for name, hint in typing.get_type_hints(command, include_extras=True).items():
        kind, *about = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
        if dataclasses.is_dataclass(kind):
            yield from options(typing.cast(type, kind))
            continue
        called = next((part.name for part in about if getattr(part, "name", None)), name)
        parts = [part for part in (typing.get_args(kind) or (kind,)) if part is not type(None)]
        lists = tuple in (typing.get_origin(kind), *map(typing.get_origin, parts))
        inner = [entry for part in parts for entry in (typing.get_args(part) or (part,)) if isinstance(entry, type)]
        plain = next((entry for entry in inner if entry in NEVER), str)
        yield name, "" if tyro.conf.Positional in about else "--" + called.replace("_", "-"), plain, lists


def command_lines(count: int, seed: int) -> Iterator[tuple[list[str], bool]]:
    """Yield words, and whether they must be refused."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        name = COMMANDS[number % len(COMMANDS)]
        words = list(CHEAP.get(name, [name, "nothing-like-it"]))
        refuse = name not in CHEAP or words[-1] in ("NoSuch-v0", "nothing-like-it", "none")
        known = list(options(importlib.import_module(f"custard.commands.{name}").Command))
        for _ in range(int(rng.integers(1, 3))):
            field, option, kind, _ = known[int(rng.integers(len(known)))]
            never, odd = NEVER[kind], ODD[kind]
            values = [*never, *odd] or ["x"]
            value = values[int(rng.integers(len(values)))]
            impossible = value in never or (field in COUNTS and kind is int and value.startswith("-9"))
            if option in words:
                where = words.index(option)
                words[where + 1 : where + 2] = [value]
            elif option == "":
                words[1:2] = [value]
                impossible = impossible or value == ""
            else:
                words += [f"{option}={value}"] if rng.random() < 0.5 else [option, value]
            refuse = refuse or impossible or kind is bool  # a flag takes no value
        if rng.random() < 0.05:
            words.append(["--no-such-option", "--", "-", "--json=3"][int(rng.integers(4))])
        yield words, refuse


def run(words: list[str]) -> tuple[int | None, str, str]:
    """Return the exit code of a command line (None for a traceback), and what it said on both outputs."""
    out, err = io.StringIO(), io.StringIO()

    def too_long(*_: Any) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    before, stdout = signal.signal(signal.SIGALRM, too_long), os.dup(1)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(words)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue(), err.getvalue()
    except BaseException as error:
        return None, out.getvalue(), f"{err.getvalue()}{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        os.dup2(stdout, 1)  # a command that cannot write discards its output
        os.close(stdout)
    return 0, out.getvalue(), err.getvalue()


def attack(count: int, seed: int = 0) -> list[str]:
    """Run `count` command lines; return what went wrong."""
    wrong, here = [], os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            base = custard.describe(gym.make("CartPole-v1"))
            tree = custard.Tree.stump(2, 0.0, 0, 1, base.features, base.actions).with_origin(env="CartPole-v1")
            tree.save("tree.json")
            custard.learn("custard/PrereqWorld-v0", "mfec", env_kwargs={"m": 2}, budget=500, out="run")
            for words, refuse in command_lines(count, seed):
                code, out, err = run(words)
                shown = str([word[:60] for word in words])
                if code is None or code not in (0, 1, 2):
                    wrong.append(f"{shown}: code {code}: {err[-300:]}")
                elif refuse and code == 0:
                    wrong.append(f"{shown}: accepted: {out[:200]!r}")
                elif code == 2 and (not err.strip() or "Traceback" in err):
                    wrong.append(f"{shown}: says {err[-300:]!r}")
                elif len(err) > 8000:
                    wrong.append(f"{shown}: says {len(err):,} characters")
        finally:
            os.chdir(here)
    return wrong
