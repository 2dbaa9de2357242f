"""Imports tell the architecture, and cold start is a feature."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import custard
from custard.commands import COMMANDS

SOURCE = Path(custard.__file__).parent

#: Each room imports only from rooms before it, in functions too.
ROOMS = (
    "core", "tree", "envs", "ibmdp", "task", "planning", "nn", "experts", "solvers", "baselines", "lab", "report",
    "commands", "cli",
)  # fmt: skip

HEAVY = {"jax", "torch", "matplotlib", "z3", "onnx", "stormpy", "ray", "sklearn", "stable_baselines3"}


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_imported(path: Path):
    """The rooms whose modules a file names, however it imports them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("custard."))


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_from_rooms_before_them(room):
    files = [*(SOURCE / room).rglob("*.py")] or [SOURCE / f"{room}.py"]
    allowed = {*ROOMS[: ROOMS.index(room) + 1]}
    for path in files:
        beyond = set(rooms_imported(path)) - allowed
        assert not beyond, f"{path.relative_to(SOURCE)} imports from {sorted(beyond)}"


def test_everything_is_in_a_room():
    found = {path.stem for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert found - {"__init__", "__main__", "__pycache__"} == set(ROOMS)


@pytest.mark.parametrize(
    "folder", [*ROOMS[:-1], *(f"solvers/{name}" for name in ("common", "tpi", "direct", "mfec", "dqn", "ppo"))]
)
def test_each_room_has_a_map_that_names_its_files(folder):
    place = SOURCE / folder
    readme = place / "README.md"
    room_map = (
        readme.read_text() if readme.exists() else ast.get_docstring(ast.parse((place / "__init__.py").read_text()))
    )
    files = {path.stem for path in place.glob("*.py") if path.stem != "__init__"}
    if folder == "commands":
        files -= set(COMMANDS)  # each is what `custard --help` says
    assert not {name for name in files if not re.search(rf"\b{name}\b", room_map)}


def test_each_algorithm_is_read_in_at_most_six_files_and_all_exist():
    page = (Path(__file__).parent.parent / "docs/explanation/architecture.md").read_text()
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", page.split("## For each algorithm")[1], re.MULTILINE)[1:]
    named = {files: re.findall(r"`(\w+/[\w/]+\.py)`", files) for _, files in rows}
    assert len(rows) > 10
    for files in named.values():
        assert all((SOURCE / file).exists() for file in files)
    for algorithm in ("tpi", "direct", "mfec", "dqn", "ppo"):
        files = next(named[text] for name, text in rows if name == f"`{algorithm}`")
        own = [file for file in files if not file.startswith("solvers/common")]
        here = {f"solvers/{algorithm}/{path.name}" for path in (SOURCE / "solvers" / algorithm).glob("*.py")}
        assert len(own) <= 6
        assert set(own) == here - {f"solvers/{algorithm}/__init__.py"}
    baselines = {f"baselines/{path.name}" for path in (SOURCE / "baselines").glob("*.py")} - {"baselines/__init__.py"}
    assert baselines <= {file for files in named.values() for file in files}


def test_no_pickle_and_no_global_randomness():
    for path in SOURCE.rglob("*.py"):
        names = set(imports(path))
        assert not names & {"pickle", "cloudpickle", "dill", "joblib"}, path
        assert "np.random.seed" not in path.read_text(), path


@pytest.mark.parametrize("statement", ["import custard", "import custard.cli", "from custard import Tree"])
def test_light_imports_stay_light(statement):
    code = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & (HEAVY | {"numba", "scipy"})


@pytest.mark.parametrize("first", ["import custard, gymnasium", "import gymnasium, custard", "import custard.cli"])
def test_environments_are_registered_whichever_is_imported_first(first):
    code = f"""{first}
import sys
if "gymnasium" not in sys.modules:
    assert "numpy" not in sys.modules  # the command line answers without waiting for either
import gymnasium
gymnasium.make("custard/PrereqWorld-v0", m=4).reset(seed=0)
assert type(gymnasium.__loader__).__name__ == "SourceFileLoader"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_have_docstrings_and_exist():
    for name in custard.__all__:
        assert getattr(custard, name).__doc__, name
    assert set(custard.__all__) <= set(dir(custard))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        custard.nothing  # noqa: B018
