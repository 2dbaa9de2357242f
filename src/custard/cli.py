"""`custard`: the command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro

from custard.commands import COMMANDS
from custard.errors import CustardError, from_interrupt

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, run, and turn a user's mistake into one line and exit code 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] in (["--version"], ["-V"]):
        from custard.version import VERSION

        print(f"custard {VERSION}")
        return
    try:
        command: Any = tyro.cli(_union(), args=arguments, prog="custard", description=__doc__, config=_CONFIG)
        code = command.run()
    except CustardError as error:
        print(f"custard: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemError) as error:
        if not from_interrupt(error):
            raise
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code or 0)


_CONFIG = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)


def _union() -> Any:
    """All commands as one type for tyro to choose from."""
    parts = []
    for name in COMMANDS:
        module = importlib.import_module(f"custard.commands.{name}")
        parts.append(Annotated[module.Command, tyro.conf.subcommand(name)])
    return Union[tuple(parts)]  # noqa: UP007
