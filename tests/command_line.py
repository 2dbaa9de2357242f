"""The command line in this process."""

from __future__ import annotations

import pytest

from custard.cli import main

__all__ = ["call", "exit_code"]


def exit_code(*arguments: object) -> int:
    """Run a command that exits; return its code."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run a command that exits; return its code, what it wrote to stdout and what to stderr."""
    code = exit_code(*arguments)
    out, err = capsys.readouterr()
    return code, out, err
