"""The pages' examples run, in order, and print what the pages say; names, paths and links on all pages exist.

README and tutorial run always. Pages that learn trees, and the notebooks, are marked slow: `make test-all` runs them.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import re
import runpy
import shlex
from pathlib import Path

import pytest

from custard.cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
GENERATED = {DOCS / "reference" / "cli.md", DOCS / "reference" / "settings.md"}  # by `make docs`
TUTORIAL = ("first-tree", "read-it", "prove-something", "ship-it")
QUICK = (
    "check",
    "explain",
    "export",
    "history",
    "microcontroller",
    "other-libraries",
    "own-learner",
    "report",
    "verify",
)
SLOW = ("bring-an-expert", "experiments", "features", "limit-size", "own-environment", "resume-log-share")
EXPLANATION = ("linear", "planning", "tpi")
REFERENCE = ("files",)


def needs_z3(text: str) -> None:
    if "verify" in text and importlib.util.find_spec("z3") is None:
        pytest.skip("z3-solver is not installed")


def run_examples(page: Path, names: dict) -> None:
    """Run a page's doctests and commands; a command without an expected output must only succeed."""
    blocks = re.findall(r"^```(python|console)\n(.*?)^```$", page.read_text(), re.M | re.S)
    assert blocks, page
    for kind, text in blocks:
        if kind == "python":
            test = doctest.DocTestParser().get_doctest(text, names, page.name, None, 0)
            report = io.StringIO()
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            runner.run(test, out=report.write, clear_globs=False)
            names.update(test.globs)
            assert runner.failures == 0, report.getvalue()
            continue
        for command, expected in re.findall(r"^\$ custard (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
            code, printed = run(shlex.split(command, comments=True))
            if expected:
                assert doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS), printed
            else:
                assert code == 0, printed


@pytest.fixture
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", QUICK)
def test_examples(name: str, in_directory: Path) -> None:
    if name == "verify":
        needs_z3("verify")
    run_examples(DOCS / "how-to" / f"{name}.md", {})


def test_examples_of_files(in_directory: Path) -> None:
    run_examples(DOCS / "reference" / "files.md", {})


@pytest.mark.slow
@pytest.mark.parametrize("page", [*(f"how-to/{n}" for n in SLOW), *(f"explanation/{n}" for n in EXPLANATION)])
def test_examples_that_learn(page: str, in_directory: Path) -> None:
    run_examples(DOCS / f"{page}.md", {})


def test_readme_and_tutorial(in_directory: Path) -> None:
    """One directory for all of them: the README's first command is the tutorial's, too."""
    needs_z3("verify")
    readme = (ROOT / "README.md").read_text()
    run_examples_of_readme(readme, in_directory)
    (in_directory / "runs" / "cartpole").rename(in_directory / "runs" / "readme")
    names: dict = {}
    for page in TUTORIAL:
        run_examples(DOCS / "tutorial" / f"{page}.md", names)


def run_examples_of_readme(readme: str, where: Path) -> None:
    for text in re.findall(r"^```console\n(.*?)^```$", readme, re.M | re.S):
        for command in re.findall(r"^\$ custard (.*)$", text, re.M):
            code, printed = run(shlex.split(command, comments=True))
            assert code == 0, printed
    (script,) = re.findall(r"^```python\n(.*?)^```$", readme, re.M | re.S)
    (where / "readme.py").write_text(script)
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(where / "readme.py"))
    assert (where / "tree.json").stat().st_size > 0


def test_every_page_with_examples_is_run() -> None:
    pages = [page for page in DOCS.rglob("*.md") if page.name != "package.md"]
    have = {page.stem for page in pages if re.search(r"^```(python|console)", page.read_text(), re.M)}
    assert have == {*TUTORIAL, *QUICK, *SLOW, *EXPLANATION, *REFERENCE}


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
        target = (page.parent / link).resolve()
        assert target.exists() or target in GENERATED, link
    paths = re.findall(r"(?<![\w/.-])((?:src|tests|benchmarks|docs|results|examples)/[\w./*-]*\w)", text)
    for path in set(paths) - {"results/paper-quick"}:  # which a command makes
        assert list(ROOT.glob(path)), path


def test_the_index_page_has_no_relative_links() -> None:
    assert re.findall(r"\]\((?!https?:)", (DOCS / "package.md").read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_not_run_are_valid(page: Path) -> None:
    """Those that take long, or need files that are not there, are parsed only."""
    from custard import cli

    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S):
        for line in block.splitlines() if kind == "" else ():
            if line.startswith("custard ") and "--tyro" not in line:
                words = shlex.split(line.removeprefix("custard "), comments=True)
                cli._require_known(words)
                assert cli._parsed(cli._with_repeats_joined(words)) is not None


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook: Path, in_directory: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    book = nbformat.read(notebook, as_version=4)
    assert all(not cell.get("outputs") for cell in book.cells), "notebooks are stored without outputs"
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(in_directory)}}).execute()


def run(arguments: list[str]) -> tuple[int, str]:
    """The exit code of a command and what it prints, mistakes included, but for lines on how long it takes."""
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
    lines = out.getvalue().splitlines(keepends=True)
    return code, "".join(line for line in lines if not re.search(r", \d+ s$", line.rstrip()))
