"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from custard.core.errors import CustardError

__all__ = ["write_atomically"]


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write beside the target and rename over it, so that a reader sees the old file or the new one, never a part."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    if path.parent == Path("/dev") or (path.exists() and not path.is_file() and not path.is_dir()):
        try:
            path.write_bytes(data)  # a terminal, a pipe: nothing to replace
        except OSError as error:
            raise CustardError(f"cannot write {path}: {error.strerror}") from None
        return
    path = Path(os.path.realpath(path))  # a link stays one
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise CustardError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise CustardError(f"cannot write {path}: {error.strerror}") from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
