"""Imports tell the architecture, and cold start is a feature."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import custard

SOURCE = Path(custard.__file__).parent

FORBIDDEN = {
    "tree": {"solvers", "lab", "baselines", "ibmdp", "commands", "report"},
    "ibmdp": {"lab", "solvers", "baselines", "planning", "commands", "report"},
    "envs": {"lab", "solvers", "baselines", "ibmdp", "commands", "report", "tree"},
    "planning": {"solvers", "baselines", "commands", "report"},
    "solvers": {"baselines", "commands", "report"},
    "lab": {"commands"},
}

HEAVY = {"jax", "torch", "matplotlib", "z3", "onnx", "stormpy", "ray", "sklearn", "stable_baselines3"}


def imports(path: Path, top_only: bool = False):
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_packages_import_only_what_they_may(package):
    for path in (SOURCE / package).rglob("*.py"):
        for name in imports(path, top_only=True):
            parts = name.split(".")
            if parts[0] == "custard" and len(parts) > 1 and not name.startswith("custard.solvers.api"):  # the contract
                assert parts[1] not in FORBIDDEN[package], f"{path.name} imports {name}"


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
