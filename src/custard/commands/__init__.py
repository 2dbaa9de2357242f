"""The command line, one file a command: a documented dataclass whose fields are the options and whose `run` acts.

Modules here import nothing heavy at the top: `custard --help` must answer at once.
"""

from __future__ import annotations

__all__ = ["COMMANDS"]

#: Each command's module defines a dataclass `Command`; its docstring is the help text.
COMMANDS = ("train", "evaluate", "show", "explain", "export", "verify", "report", "compare")
