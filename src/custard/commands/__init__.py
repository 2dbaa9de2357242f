"""The command line, one file per command: a documented dataclass whose fields are the options and whose `run` acts.

`arguments` holds the kinds of options, `engine` the options of commands that run trials, `common` what several commands
do, `parse_errors` what is said about a mistyped line. Modules here import nothing heavy at the top, so that
`custard --help` answers at once.
"""

from __future__ import annotations

import pkgutil

__all__ = ["COMMANDS", "INTERRUPTED"]

#: The exit code of a command that Ctrl-C ended, as shells have it; `cli.main` makes 143 of it after SIGTERM.
INTERRUPTED = 130

_ORDER = (
    "train", "evaluate", "show", "explain", "export", "verify", "report", "methods", "settings", "compare", "sweep",
    "frontier", "paper", "plan", "check",
)  # fmt: skip
_SHARED = {"arguments", "common", "engine", "parse_errors"}
_FOUND = {module.name for module in pkgutil.iter_modules(__path__)} - _SHARED

#: Each command's module defines a dataclass `Command`; its docstring is the help text.
COMMANDS = (*(name for name in _ORDER if name in _FOUND), *sorted(_FOUND.difference(_ORDER)))
