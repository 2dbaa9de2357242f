"""`custard`: the command line."""

from __future__ import annotations

import codecs
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro

from custard.commands import COMMANDS
from custard.errors import CustardError, from_interrupt
from custard.tree.text import one_line

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, run, and turn a user's mistake into one line and exit code 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] in (["--version"], ["-V"]):
        from custard.version import VERSION

        print(f"custard {VERSION}")
        return
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # where a user's own environments are, as with `python -m`
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="custard.plain")
    warnings.formatwarning = lambda message, *_, **__: f"custard: {message}\n"  # nobody here looks for its line
    try:
        command: Any = tyro.cli(_union(), args=arguments, prog="custard", description=__doc__, config=_CONFIG)
        code = command.run()
        if sys.stdout is not None:  # closed by whoever called
            sys.stdout.flush()
    except CustardError as error:
        print(f"custard: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemError) as error:
        if not from_interrupt(error):
            raise
        sys.exit(130)
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except OSError as error:
        _drop_output()
        print(f"custard: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(code or 0)


def _drop_output() -> None:
    """Nobody takes what is still to be written: leave nothing that Python would fail to write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


_PLAIN = {"≤": "<=", "→": "->", "±": "+-", "×": "x", "…": "...", "•": "*", "├": "|", "└": "`", "│": "|", "─": "-"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What an output that cannot show a character, such as ASCII, shows instead."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error("custard.plain", _plain)

_CONFIG = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)


def _union() -> Any:
    """All commands as one type for tyro to choose from."""
    parts = []
    for name in COMMANDS:
        module = importlib.import_module(f"custard.commands.{name}")
        parts.append(Annotated[module.Command, tyro.conf.subcommand(name)])
    return Union[tuple(parts)]  # noqa: UP007
