"""`custard methods`."""

from __future__ import annotations

from dataclasses import dataclass

from custard.commands.arguments import Flag

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """List the methods that learn trees, one line each."""

    json: Flag = False
    """Print the list as JSON."""

    def run(self) -> None:
        """Print the methods."""
        from custard.commands.common import print_json
        from custard.lab.methods import DEFAULT_METHOD, methods

        found = methods()
        if self.json:
            print_json(
                [{"method": name, "default": name == DEFAULT_METHOD, "about": text} for name, text in found.items()]
            )
            return
        width = max(map(len, found))
        for name, text in found.items():
            print(f"{name:<{width}}  {text}")
        print("`custard settings METHOD` lists the settings of one; `custard train ENV --method METHOD` uses it.")
