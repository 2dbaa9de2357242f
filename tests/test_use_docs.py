"""The how-tos' examples run, in order, and print what the pages say."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import re
import shlex
from pathlib import Path

import pytest

from custard.cli import main

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", ["explain", "export", "report", "verify"])
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "verify" and importlib.util.find_spec("z3") is None:
        pytest.skip("z3-solver is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"^```(python|console)\n(.*?)^```$", (DOCS / f"{name}.md").read_text(), re.M | re.S)
    assert blocks
    for kind, text in blocks:
        if kind == "python":
            test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
            report = io.StringIO()
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            runner.run(test, out=report.write, clear_globs=False)
            names.update(test.globs)
            assert runner.failures == 0, report.getvalue()
            continue
        for command, expected in re.findall(r"^\$ custard (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
            printed = run(shlex.split(command))
            assert doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS), printed


def run(arguments: list[str]) -> str:
    """What a command prints, its mistakes included."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        main(arguments)
    return out.getvalue()
