"""The project's files agree with each other: targets, extras, versions, pages."""

import re
import tomllib
from pathlib import Path

import gymnasium as gym
import pytest

import custard
from custard import CustardError
from custard.core.version import VERSION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_workflows_run_make_targets():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        commands = re.findall(r"run: make ([\w -]+?)(?: [A-Z]+=.*)?$", workflow.read_text(), re.M)
        assert commands, workflow
        for command in commands:
            assert set(command.split()) <= targets, (workflow, command)


def test_extras():
    extras = PROJECT["optional-dependencies"]
    assert not [entry for name in extras for entry in extras[name] if "==" in entry], "a pin belongs into the Makefile"
    (everything,) = extras["all"]
    named = set(re.search(r"\[(.*)\]", everything)[1].split(","))
    assert named == set(extras) - {"all", "dev", "docs"}


def test_versions_and_pythons_agree():
    assert f"version: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    tested = re.search(r"python: \[(.*?)\]", (ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert re.findall(r'"(.*?)"', tested[1]) == pythons
    assert PROJECT["requires-python"] == f">={pythons[0]}"


def test_every_page_is_in_the_menu():
    menu = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("gallery/")} - {"package.md"} <= menu


@pytest.mark.parametrize("library", ["Box2D", "MuJoCo"])
def test_what_an_environment_misses_names_our_extra(monkeypatch, library):
    def fail(*_, **__):
        raise gym.error.DependencyNotInstalled(f"{library} is not installed, you can install it by run `pip install x`")

    monkeypatch.setattr(gym, "make", fail)
    extra = rf'pip install "custard-rl\[{library.lower()}\]"'
    with pytest.raises(CustardError, match=f"CartPole-v1.* needs {library}: {extra}"):
        custard.learn("CartPole-v1", "plan")
