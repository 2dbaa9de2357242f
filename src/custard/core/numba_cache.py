"""Where compiled code is kept, and when it is compiled again.

Numba keeps compiled code beside the source file of a function and compiles it again when that file changes. But a
function holds what it calls from other files: after an upgrade in place it would go on with the old form of those.
`use_stamps_of_imports` makes a function's stamp depend on its file and on all files of custard that this one imports.
And where neither the package nor the user's cache can be written, `settle_cache` finds a place.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["settle_cache", "source_stamp", "use_stamps_of_imports"]

_PACKAGE = Path(__file__).resolve().parent.parent
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(custard[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+(custard[\w.]*))",
    re.MULTILINE,
)


def settle_cache() -> None:
    """Point numba to a private temporary directory if neither the package nor the user's cache can be written."""
    if os.environ.get("NUMBA_CACHE_DIR") or _is_writable(Path(__file__).parent / "__pycache__"):
        return
    if _is_writable(Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())):
        return
    os.environ["NUMBA_CACHE_DIR"] = place = _private_directory()
    if "numba" in sys.modules:  # it has read its settings already
        sys.modules["numba"].config.CACHE_DIR = place


def _is_writable(place: Path) -> bool:
    """Return whether a directory can be written, or made."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return os.access(place, os.W_OK)


def _private_directory() -> str:
    """Return a directory of this user's alone: what is read from a cache is run, so nobody else may have filled it."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    place = Path(tempfile.gettempdir()) / f"custard-{user}"
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        about = place.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == user and not about.st_mode & 0o077:
            return str(place)
    return tempfile.mkdtemp(prefix="custard-")


def use_stamps_of_imports() -> None:
    """Let numba compile a function of custard again when its file, or one that it imports, has changed."""
    from numba.core import caching

    classes = caching.CacheImpl._locator_classes
    if not any(issubclass(locator, _StampOfImports) for locator in classes):
        ours: list[Any] = [type(f"Custard{kind.__name__}", (_StampOfImports, kind), {}) for kind in classes]
        caching.CacheImpl._locator_classes = [*ours, *classes]
        caching.IndexDataCacheFile = _index_that_is_read_if_current(caching.IndexDataCacheFile)


def _index_that_is_read_if_current(index: Any) -> Any:
    """Return a numba cache index that compares our stamps before it unpickles what was compiled.

    Numba compares only its own version first. What it unpickles names classes of custard, so the index of a version
    in which one of them had another name could not be read, nor replaced.
    """

    class Index(index):  # type: ignore[misc]
        _version: str

        def __init__(self, cache_path: str, filename_base: str, source_stamp: Any) -> None:
            super().__init__(cache_path, filename_base, source_stamp)
            if isinstance(source_stamp, str):  # that of `_StampOfImports`; numba's own are tuples
                self._version = f"{self._version} {source_stamp}"

    return Index


class _StampOfImports:
    """Part of a numba cache locator for functions of custard; for others there are numba's own."""

    _py_file: str

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """Return a locator for a function, or None if it is not one of custard's."""
        if not Path(py_file).resolve().is_relative_to(_PACKAGE):
            return None
        return super().from_function(py_func, py_file)  # type: ignore[misc]

    def get_source_stamp(self) -> str:
        """Return what must be equal for compiled code to be used again."""
        return source_stamp(Path(self._py_file).resolve())


@cache
def source_stamp(file: Path, package: Path = _PACKAGE) -> str:
    """Return a fingerprint of a file's content and of all files of the package that it imports, directly or not."""
    seen, waiting = set[Path](), [file]
    while waiting:
        here = waiting.pop()
        if here not in seen:
            seen.add(here)
            waiting += _imported_files(here, package)
    digest = hashlib.sha256()
    for each in sorted(seen):
        digest.update(f"{each.relative_to(package) if each.is_relative_to(package) else each.name}\0".encode())
        digest.update(each.read_bytes())
    return digest.hexdigest()


@cache
def _imported_files(file: Path, package: Path) -> tuple[Path, ...]:
    """Return the files of the package that a file imports, `from custard.a import b` being custard/a.py or a/b.py."""
    found: list[Path] = []
    for module, names, plain in _IMPORT.findall(file.read_text(encoding="utf-8")):
        place = package.joinpath(*(module or plain).split(".")[1:])
        inside = [place / name for name in re.findall(r"[\w]+", re.sub(r"#[^\n]*", "", names))]
        modules = [each for each in (place, *inside) if each != package]
        found += [each.with_suffix(".py") for each in modules] + [each / "__init__.py" for each in modules]
    return tuple(each for each in found if each.is_file())
