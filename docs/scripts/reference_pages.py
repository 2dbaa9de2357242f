"""The reference pages that are made from the program itself: the command line and the settings of every method."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys

__all__ = ["cli_page", "settings_page"]

CLI_HEAD = """# Command line

Made from the parser: this is what `custard --help` and `custard COMMAND --help` print.

`ENV` is the id of an environment such as `CartPole-v1`; `my_module:MyEnv-v0` imports a module first. `TREE` is a tree
file (`tree.json`) or a run directory. `RUN` is a run directory.

Commands that read a tree know the environment it was learned in, with its arguments; `--env` and `--env-args` override
them. Lists may be given at once (`--assert A B`) or in pieces (`--assert A --assert B`).

## Exit codes

| code | meaning |
|---|---|
| 0 | success |
| 1 | the command ran, and the answer is no: an assertion does not hold or stayed undecided, or every trial failed |
| 2 | a mistake in what was given; one line on standard error says which and how to fix it |
| 130 | interrupted with Ctrl-C before there was anything to keep |

Results are on standard output, progress and mistakes on standard error. With `--json` standard output holds one JSON
document and nothing else: numbers are JSON numbers, what is unknown or not finite is `null`.
[Files and formats](formats.md) lists the keys.

## Completion

`custard` prints a completion script for your shell. Once:

```
custard --tyro-print-completion bash > ~/.local/share/bash-completion/completions/custard
custard --tyro-print-completion zsh > ~/.zfunc/_custard
```
"""

SETTINGS_HEAD = """# Settings of every method

Made from the methods' own `Settings`. Give a setting as a keyword of `custard.learn` or as `--set name=value` on the
command line; `custard settings METHOD` prints the same list. `None` means: chosen from the environment, as the text
says. A preset may have other values for single environments; they are listed below the default.
"""


def help_text(words: list[str], width: int = 96) -> str:
    """Return what the command line prints as help."""
    from custard.cli import main

    before, name = os.environ.get("COLUMNS"), sys.argv[0]
    os.environ["COLUMNS"] = str(width)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        sys.argv[0] = name
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return out.getvalue().rstrip()


def cli_page() -> str:
    """Return the page of all commands."""
    from custard.commands import COMMANDS

    parts = [CLI_HEAD, "## custard\n", f"```text\n{help_text([])}\n```\n"]
    for name in COMMANDS:
        about = " ".join((importlib.import_module(f"custard.commands.{name}").Command.__doc__ or "").split())
        parts += [f"## custard {name}\n", f"{about}\n", f"```text\n{help_text([name])}\n```\n"]
    return "\n".join(parts)


def settings_page() -> str:
    """Return the page of all settings."""
    from custard.core.errors import CustardError
    from custard.lab.methods import methods
    from custard.lab.settings_list import settings

    parts = [SETTINGS_HEAD]
    for name, about in methods().items():
        parts.append(f"## {name}\n\n{about[:1].upper()}{about[1:]}.\n")
        for preset in ("tuned", "paper"):
            try:
                listed = settings(name, preset)
            except CustardError:  # a method without this preset
                continue
            parts.append(
                f"### {name}, preset {preset}\n\n| setting | default | type | what it does |\n|---|---|---|---|"
            )
            parts += [_row(entry) for entry in listed]
            parts.append("")
    return "\n".join(parts)


def _row(entry: object) -> str:
    own = "; ".join(f"{env}: `{value!r}`" for env, value in entry.presets.items())  # type: ignore[attr-defined]
    default = f"`{entry.default!r}`" + (f"<br>{own}" if own else "")  # type: ignore[attr-defined]
    kind = entry.kind.replace(" | ", " or ")  # type: ignore[attr-defined]
    about = entry.about.replace("|", "\\|")  # type: ignore[attr-defined]
    return f"| `{entry.name}` | {default} | `{kind}` | {about} |"  # type: ignore[attr-defined]
