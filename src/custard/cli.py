"""`custard`: the command line."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import difflib
import importlib
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import typing
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from custard.commands import COMMANDS, INTERRUPTED
from custard.commands.parse_errors import parse_error
from custard.core.errors import CustardError, from_interrupt, one_of, shortened
from custard.tree.text import one_line

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, run, and turn a user's mistake into one line and exit code 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] in (["--version"], ["-V"]):
        from custard.core.version import VERSION

        print(f"custard {VERSION}")
        return
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())  # where a user's own environments are, as with `python -m`
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="custard.plain")
    warnings.formatwarning = _one_line_warning
    stopping = _Stopping()
    try:
        _require_known(arguments)
        arguments = _with_repeats_joined(arguments)
        command: Any = _parsed(arguments)
        _require_named_paths(command, arguments)
        try:
            code = command.run()
        except SystemExit as error:  # no command exits by itself, so a module or an environment did: that is no success
            raise CustardError(f"a module or an environment ended the program (SystemExit: {error})") from None
        if sys.stdout is not None:  # closed by whoever called
            sys.stdout.flush()
    except CustardError as error:
        if from_interrupt(error):  # before there was anything to show
            print(f"custard: {one_line(str(error))}", file=sys.stderr)
            sys.exit(stopping.exit_code)
        print(f"custard: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemError) as error:
        if not from_interrupt(error):
            raise
        print(f"custard: interrupted{_how_to_go_on(arguments)}", file=sys.stderr)
        sys.exit(stopping.exit_code)
    except MemoryError as error:
        why = one_line(str(error))
        print(f"custard: this needs more memory than there is here{f' ({why})' if why else ''}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        _discard_output()
        sys.exit(0)
    except OSError as error:
        _discard_output()
        name = shortened(str(error.filename or "standard output"))
        print(f"custard: {name}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    finally:
        stopping.restore()
    sys.exit(stopping.exit_code if code == INTERRUPTED else code or 0)


class _Stopping:
    """What SIGTERM does while a command runs, as Ctrl-C: KeyboardInterrupt. Knows which of the two it was."""

    def __init__(self) -> None:
        self.exit_code, self.before = INTERRUPTED, None
        with contextlib.suppress(ValueError):  # not the main thread: signals are not ours to handle
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self.before = signal.signal(signal.SIGTERM, self.handle)

    def handle(self, number: int, frame: object) -> None:
        self.exit_code = 128 + number
        raise KeyboardInterrupt

    def restore(self) -> None:
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)


def _parse(arguments: list[str]) -> Any:
    """Return the command that arguments name; raise for a mistake in one line, where tyro prints a box."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(_command_union(), args=arguments, prog="custard", description=_ABOUT, config=_CONFIG)
    except SystemExit as error:
        if not error.code:  # help
            raise
        command = arguments[0] if arguments and arguments[0] in COMMANDS else ""
        raise CustardError(shortened(parse_error(said.getvalue(), command))) from None


def _how_to_go_on(arguments: list[str]) -> str:
    """Say how to go on with a command that stores what it has done; nothing for other commands."""
    if arguments[:1] in (["sweep"], ["paper"], ["frontier"]) or ("compare" in arguments[:1] and "--out" in arguments):
        return ": the same command goes on with what is missing"
    return ""


def _discard_output() -> None:
    """Send the rest of the output nowhere, so that Python does not fail to write it when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


_ABOUT = """Small decision trees that are the policy: learn one for any Gymnasium environment, judge it, draw it,
explain its decisions, prove things about it, and write it as Python, C, Rust and more. `custard COMMAND --help` lists
a command's options; `custard --version` says which version this is.

Exit codes: 0 success; 1 something asked for does not hold, or every trial failed; 2 a mistake in what was given; 130
interrupted."""


class _HelpText(io.StringIO):
    """Takes the help text instead of the terminal, with the terminal's colours."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def _parsed(arguments: list[str]) -> Any:
    """Return the command with its options; print help, if that is asked for, as wide as the terminal."""
    if not {"-h", "--help"} & set(arguments):
        return _parse(arguments)
    text = _HelpText()
    try:
        with contextlib.redirect_stdout(text):
            return _parse(arguments)
    finally:
        print(_wrapped(text.getvalue(), shutil.get_terminal_size().columns), end="")


def _wrapped(text: str, width: int) -> str:
    """Return a help text with lines of at most this width: tyro wraps what is in boxes, and nothing above them."""
    text = re.sub(r"\{train,[^}]*\}", "COMMAND [OPTIONS]", text)
    lines = text.splitlines(keepends=True)
    return "".join(line if len(line) <= width else _filled(line, max(40, width)) + "\n" for line in lines)


def _filled(line: str, width: int) -> str:
    """Return a line of a help text in lines of this width; an option in brackets stays together."""
    whole = re.sub(r"\[[^\]]*\]+", lambda option: option[0].replace(" ", "\0"), line)
    indent = "    " if "usage:" in line else ""
    return textwrap.fill(whole, width, subsequent_indent=indent, break_on_hyphens=False).replace("\0", " ")


def _require_known(arguments: Sequence[str]) -> None:
    """Raise for a command or an option that does not exist, with the nearest that does."""
    if not arguments or arguments[0].startswith("-"):
        return
    name = arguments[0]
    if name not in COMMANDS:
        raise CustardError(one_of("command", name, COMMANDS))
    command = importlib.import_module(f"custard.commands.{name}").Command
    if len(arguments) == 1 and (needed := _required_positionals(command)):
        raise CustardError(f"{name} needs {' '.join(needed)} (`custard {name} --help` says what that is)")
    known = [*_values_per_option(command), "--help"]
    for word in arguments[1:]:
        if word == "--":
            return
        option = word.partition("=")[0].replace("_", "-")
        if word.startswith("--") and _is_option(word) and option not in known and not option.startswith("--tyro-"):
            near = difflib.get_close_matches(option, known, n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise CustardError(f"{name} has no option {option}{hint} (`custard {name} --help` lists them)")


def _require_named_paths(command: Any, arguments: Sequence[str]) -> None:
    """Raise for an empty path, as an unset variable of a shell gives: it would be read as the present directory."""
    words = [word.partition("=")[2] if _is_option(word) and "=" in word else word for word in arguments]
    if "" not in words or any(word and Path(word) == Path() for word in words):
        return
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        if dataclasses.is_dataclass(value):
            _require_named_paths(value, arguments)
        elif Path() in (value if isinstance(value, tuple) else (value,)):
            option = "--" + field.name.replace("_", "-")
            name = option if any(word.partition("=")[0] == option for word in arguments) else field.name
            raise CustardError(f"{name} is empty: give a path (. is the present directory)")


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> str:
    """Return a warning in one line, without its place in the code; without Gymnasium's colours outside a terminal."""
    coloured = sys.stderr is not None and sys.stderr.isatty()
    said = str(message) if coloured else re.sub("\x1b\\[[0-9;]*m", "", str(message))
    return f"custard: {shortened(said)}\n"


_ASCII_FORMS = {"≤": "<=", "→": "->", "±": "+-", "×": "x", "…": "...", "•": "*", "├": "|", "└": "`", "│": "|", "─": "-"}


def _ascii_form(error: UnicodeError) -> tuple[str, int]:
    """Return what an output that cannot encode a character, such as ASCII, shows instead."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII_FORMS.get(character, "?") for character in error.object[error.start : error.end]), error.end


codecs.register_error("custard.plain", _ascii_form)

_CONFIG = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)


def _command_union() -> Any:
    """Return all commands as one type for tyro to choose from."""
    parts = []
    for name in COMMANDS:
        module = importlib.import_module(f"custard.commands.{name}")
        parts.append(Annotated[module.Command, tyro.conf.subcommand(name)])
    return Union[tuple(parts)]  # noqa: UP007


def _with_repeats_joined(arguments: list[str]) -> list[str]:
    """Return the arguments with all values of a repeated list option behind its last mention.

    tyro keeps the last mention only, so that `--assert A --assert B` would silently not check A; with UseAppendAction
    `--assert A B` would no longer work and values would be added to an option's default. For the same reason an option
    of one value must be given once.

    >>> _with_repeats_joined(["verify", "tree.json", "--assert", "a", "b", "--json", "--assert=c"])
    ['verify', 'tree.json', '--json', '--assert', 'a', 'b', 'c']
    """
    if not arguments or arguments[0] not in COMMANDS:
        return arguments
    takes = _values_per_option(importlib.import_module(f"custard.commands.{arguments[0]}").Command)
    ended = arguments.index("--") if "--" in arguments else len(arguments)
    runs: list[list[str]] = [[]]  # each an option with what stands behind it
    for word in arguments[:ended]:
        if _is_option(word):
            runs.append([])
        runs[-1].append(word)
    mentions: dict[str, list[int]] = {}
    for k, run in enumerate(runs[1:], start=1):
        mentions.setdefault(run[0].partition("=")[0].replace("_", "-"), []).append(k)
    for name, places in mentions.items():
        if len(places) > 1 and takes.get(name) == "one":
            raise CustardError(f"{name} is given {len(places)} times, but takes one value: give it once")
        if takes.get(name) == "some" and not all(_values_of(runs[k]) for k in places):
            raise CustardError(f"{name} is given without a value: give one or several, or leave it out")
        if len(places) > 1 and takes.get(name) in ("some", "any"):
            runs[places[-1]] = [name, *(value for k in places for value in _values_of(runs[k]))]
            for k in places[:-1]:
                runs[k] = []
    return [word for run in runs for word in run] + arguments[ended:]


def _values_of(run: list[str]) -> list[str]:
    """Return the values behind an option, including one behind its equals sign."""
    _, equals, value = run[0].partition("=")
    return [*([value] if equals else []), *run[1:]]


def _is_option(word: str) -> bool:
    """Return whether tyro takes a word for an option rather than for a value such as -0.5 or -inf."""
    letters = word.lstrip("-")
    return word.startswith("-") and letters[:1].isalpha() and letters.lower() not in ("inf", "infinity", "nan")


def _required_positionals(command: type) -> list[str]:
    """Return what a command calls the arguments that it cannot do without."""
    required = [field.name for field in dataclasses.fields(command) if field.default is dataclasses.MISSING]
    found = []
    for name, hint in typing.get_type_hints(command, include_extras=True).items():
        about = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
        if name in required and tyro.conf.Positional in about:
            found.append(next((part.metavar for part in about if getattr(part, "metavar", None)), name.upper()))
    return found


def _values_per_option(command: type) -> dict[str, str]:
    """Return a command's options with the values each takes: "one", "some" (at least one), "any" number, or "none"."""
    found: dict[str, str] = {}
    for name, hint in typing.get_type_hints(command, include_extras=True).items():
        kind, *about = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        if dataclasses.is_dataclass(kind):
            found |= _values_per_option(typing.cast(type, kind))
        elif tyro.conf.Positional not in about:
            called = next((part.name for part in about if getattr(part, "name", None)), name)
            lists = tuple in (typing.get_origin(kind), *map(typing.get_origin, typing.get_args(kind)))
            # No value says something only where it takes the place of values.
            accepted = "any" if getattr(command, name, None) else "some"
            found["--" + called.replace("_", "-")] = accepted if lists else "none" if kind is bool else "one"
    return found
