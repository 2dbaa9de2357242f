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
