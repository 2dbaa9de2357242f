"""The how-tos' examples run, in order, and print what the pages say; names and paths on all pages exist."""

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

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("name", ["explain", "export", "linear", "report", "verify"])
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ("linear", "verify") and importlib.util.find_spec("z3") is None:
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dotted_names_exist(page: Path) -> None:
    for name in sorted(set(re.findall(r"(?<![\w./-])custard(?:\.[A-Za-z_]\w*)+", page.read_text()))):
        try:
            assert_exists(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("custard"):
                raise
            continue  # an extra that is not installed here


def assert_exists(name: str) -> None:
    """Import the longest module that a dotted name begins with and look up the rest."""
    parts = name.split(".")
    count = max(k for k in range(1, len(parts) + 1) if k == 1 or _is_module(".".join(parts[:k])))
    found = importlib.import_module(".".join(parts[:count]))
    for part in parts[count:]:
        fields = getattr(found, "__annotations__", {})
        assert hasattr(found, part) or part in fields, f"{name}: {found!r} has no {part}"
        found = getattr(found, part, None)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    text = page.read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text)]
    for link in filter(None, links):
        assert (page.parent / link).exists(), link
    paths = re.findall(r"(?<![\w/.-])((?:src|tests|benchmarks|docs|results)/[\w./*-]*\w)", text)
    for path in set(paths) - {"results/paper-quick"}:  # which a command makes
        assert list(ROOT.glob(path)), path


def run(arguments: list[str]) -> str:
    """What a command prints, its mistakes included."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        main(arguments)
    return out.getvalue()
