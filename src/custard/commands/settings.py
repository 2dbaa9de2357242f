"""`custard settings`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from custard.commands.arguments import Flag, Name

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """List the settings of a method: default, type, and what each one does."""

    method: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[METHOD]", help_behavior_hint="")] = None
    """One of `custard methods`; the default method unless given."""

    preset: Name = None
    """The settings of this preset: tuned (unless given) or paper."""

    json: Flag = False
    """Print the list as JSON; defaults keep their types."""

    def run(self) -> None:
        """Print the settings."""
        import shutil
        import textwrap

        from custard.commands.common import print_json
        from custard.lab.settings_list import settings

        listed = settings(self.method, self.preset)
        if self.json:
            print_json({
                "method": listed.method, "preset": listed.preset,
                "settings": [
                    {"name": entry.name, "type": entry.kind, "default": entry.default, "about": entry.about,
                     "by_environment": entry.presets} for entry in listed
                ],
            })  # fmt: skip
            return
        print(f"Settings of {listed.method} under the preset {listed.preset}. Give them as --set NAME=VALUE.")
        columns = max(40, shutil.get_terminal_size().columns)
        for entry in listed:
            print(f"\n{entry.name} = {_number_text(entry.default)}  ({entry.kind})")
            own = [f"{_number_text(value)} on {env}" for env, value in entry.presets.items()]
            text = entry.about + (f". The preset has {', '.join(own)}" if own else "")
            print(textwrap.fill(text, columns, initial_indent="    ", subsequent_indent="    "))


def _number_text(value: object) -> str:
    """Return a value as Python reads it, with an underscore between thousands."""
    return f"{value:_}" if type(value) is int else repr(value)
