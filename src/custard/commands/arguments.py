"""The kinds of arguments that commands have in common: how each is called in help texts.

A default is named in help only where it says something: never for options that are off or absent unless given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

__all__ = [
    "Count", "Directory", "Env", "File", "Flag", "KeyValues", "Method", "Name", "Names", "Numbers", "OptionalEnv",
    "RunPath", "Seconds", "Texts", "TreePath", "Trees", "Whole", "WholeNumbers",
]  # fmt: skip

_SILENT = ""  # no "(default: None)" behind an option that is absent unless given

Env = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
OptionalEnv = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ENV]", help_behavior_hint=_SILENT)]
TreePath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TREE")]
RunPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Trees = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="TREE [TREE ...]", help_behavior_hint=_SILENT)]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint=_SILENT)]
Directory = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint=_SILENT)]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint=_SILENT)]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint=_SILENT)]
Method = Annotated[str | None, tyro.conf.arg(metavar="METHOD", help_behavior_hint=_SILENT)]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [NAME ...]", help_behavior_hint=_SILENT)]
Texts = Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT [TEXT ...]", help_behavior_hint=_SILENT)]
KeyValues = Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE [...]", help_behavior_hint=_SILENT)]
Count = Annotated[int, tyro.conf.arg(metavar="N")]
Whole = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint=_SILENT)]
WholeNumbers = Annotated[tuple[int, ...], tyro.conf.arg(metavar="N [N ...]", help_behavior_hint=_SILENT)]
Numbers = Annotated[tuple[float, ...] | None, tyro.conf.arg(metavar="X [X ...]", help_behavior_hint=_SILENT)]
Seconds = Annotated[float, tyro.conf.arg(metavar="SECONDS")]
