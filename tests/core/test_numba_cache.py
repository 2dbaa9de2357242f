import os
from pathlib import Path

import pytest

from custard.core import numba_cache


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No place can be written but the temporary directory, and nothing is left behind in the environment."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setattr(numba_cache, "_is_writable", lambda place: False)
    monkeypatch.setattr(numba_cache.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(numba_cache.tempfile, "mkdtemp", lambda prefix: str(tmp_path / f"{prefix}fresh"))
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    return numba.config


def test_compiled_code_goes_to_a_private_directory(nowhere, tmp_path):
    numba_cache.settle_cache()
    place = Path(os.environ["NUMBA_CACHE_DIR"])
    assert place.parent == tmp_path
    assert place.stat().st_mode & 0o777 == 0o700
    assert str(place) == nowhere.CACHE_DIR
    os.environ["NUMBA_CACHE_DIR"] = ""
    numba_cache.settle_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == str(place)


def test_a_directory_that_others_may_have_filled_is_not_used(nowhere, tmp_path):
    open_to_all = tmp_path / f"custard-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    numba_cache.settle_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path / "custard-fresh")


def test_a_place_that_can_be_written_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(numba_cache, "__file__", str(tmp_path / "not" / "there" / "numba_cache.py"))
    numba_cache.settle_cache()
    assert "NUMBA_CACHE_DIR" not in os.environ


def _package(folder, inner="return 1"):
    (folder / "envs").mkdir(exist_ok=True)
    (folder / "envs" / "__init__.py").write_text("")
    (folder / "envs" / "native.py").write_text(f"def advance():\n    {inner}\n")
    (folder / "middle.py").write_text("from custard.envs import (\n    native,  # the rules\n)\n")
    (folder / "outer.py").write_text("import os\nif os:\n    from custard.middle import advance as go\n")
    (folder / "other.py").write_text("import numpy\n")
    return folder


def test_a_stamp_changes_with_what_a_file_imports(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    old, new = _package(tmp_path / "a"), _package(tmp_path / "b", "return 2")
    for name, changes in (("outer", True), ("middle", True), ("envs/native", True), ("other", False)):
        stamps = {numba_cache.source_stamp(folder / f"{name}.py", folder) for folder in (old, new)}
        assert (len(stamps) == 2) == changes, name


def test_an_index_that_names_what_is_gone_is_replaced(tmp_path, monkeypatch):
    """Compiled code of another version may name a class that has another name now."""
    numba_cache.use_stamps_of_imports()
    from numba.core.caching import IndexDataCacheFile

    gone = type("Gone", (), {"__module__": __name__, "__qualname__": "Gone"})
    monkeypatch.setitem(globals(), "Gone", gone)
    IndexDataCacheFile(str(tmp_path), "f", "old").save(gone, "compiled")
    assert IndexDataCacheFile(str(tmp_path), "f", "old").load(gone) == "compiled"
    monkeypatch.delitem(globals(), "Gone")
    fresh = IndexDataCacheFile(str(tmp_path), "f", "new")
    assert fresh.load("key") is None
    fresh.save("key", "compiled anew")
    assert IndexDataCacheFile(str(tmp_path), "f", "new").load("key") == "compiled anew"


def test_every_compiled_function_has_such_a_stamp():
    """In a process of its own, each module first: what is imported later must not matter."""
    code = """
import importlib, pkgutil, sys, custard
from pathlib import Path
folder = Path(custard.__file__).parent
for file in sorted(folder.rglob("*.py")):
    if "njit" in file.read_text() and file.stem != "numba_tools" and "paper" not in file.stem:
        name = ".".join(("custard", *file.relative_to(folder).with_suffix("").parts))
        module = importlib.import_module(name)
        for function in vars(module).values():
            cache = getattr(getattr(function, "_cache", None), "_impl", None)
            if cache is not None and function.py_func.__module__.startswith("custard"):
                assert type(cache.locator).__name__.startswith("Custard"), function
                print(function.py_func.__qualname__)
"""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(set(done.stdout.split())) > 100
