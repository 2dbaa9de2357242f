"""`custard sweep`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from custard.commands.arguments import File, Flag, KeyValues, Name, Whole, WholeNumbers
from custard.commands.engine import Engine

if TYPE_CHECKING:
    from custard.lab.trials import Trial

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Run environments × methods × depth limits × settings × seeds, on all cores or on a cluster."""

    envs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[ENV [ENV ...]]", help_behavior_hint="")
    ] = ()
    """The environments' ids. 'module:Id-v0' imports a module first."""

    file: File = None
    """A TOML or JSON file that describes the sweep; what is given here comes before what it says."""

    methods: Annotated[str | None, tyro.conf.arg(metavar="METHOD,METHOD,...", help_behavior_hint="")] = None
    """The methods, separated by commas; the best default unless given."""

    seeds: Whole = None
    """Trials of each combination (10 unless given); they use the seeds from --first-seed on."""

    first_seed: Whole = None
    """The first trial's seed (0 unless given)."""

    max_depth: WholeNumbers = ()
    """Depth limits, one or several; none unless given."""

    preset: Name = None
    """The methods' settings to start from: tuned (default) or paper."""

    set: KeyValues = ()
    """Settings, as key=value for every method or method.key=value for one."""

    vary: KeyValues = ()
    """Settings to try in turn, as key=[value, value, …] or method.key=[…]; several are combined."""

    history: Whole = None
    """Past steps whose features and actions the trees may ask about too."""

    env_args: KeyValues = ()
    """Arguments of the environments, as key=value."""

    episodes: Whole = None
    """Evaluation episodes of each tree, the same ones for all (1,000 unless given)."""

    evaluation_seed: Whole = None
    """Where the evaluation episodes' seeds come from (1 unless given)."""

    out: File = None
    """A CSV with one row per trial, written as it finishes; trials it holds already are not run again."""

    plot: File = None
    """A picture of the results (.png, .svg or .pdf)."""

    json: Flag = False
    """Print rows and summary as JSON."""

    engine: Engine = field(default_factory=Engine)

    def run(self) -> int:
        """Run, print, draw; the exit code is 1 if every trial failed."""
        from custard.commands.engine import run_and_print

        plan = {} if self.file is None else _read(self.file)
        return run_and_print(self._trials(plan), self.out, self.engine, self.plot, self.json)

    def _trials(self, plan: dict[str, Any]) -> list[Trial]:
        from custard.commands.common import assignments
        from custard.commands.engine import method_settings, split_names, with_history_setting
        from custard.core.errors import CustardError
        from custard.lab.methods import DEFAULT_METHOD
        from custard.lab.trials import grid, method_and_setting

        methods = split_names(self.methods) if self.methods is not None else plan.get("methods", [DEFAULT_METHOD])
        arguments = assignments(self.env_args, "--env-args")
        envs = [(env, arguments) for env in self.envs] or [_place(env, arguments) for env in plan.get("envs", [])]
        count = self.seeds if self.seeds is not None else plan.get("seeds", 10)
        first = self.first_seed if self.first_seed is not None else plan.get("first_seed", 0)
        seeds = count if isinstance(count, list) else range(first, first + count)
        if not envs or not methods or not seeds:
            raise CustardError("a sweep needs at least one environment, one method and one seed")
        settings, vary = _by_method(plan.get("settings", {})), _flat(plan.get("vary", {}))
        settings = with_history_setting(settings, self.history)
        for name, own in method_settings(self.set, methods, "--set").items():
            if name == "":  # for every method: before what the file says of single ones
                settings = {other: {k: v for k, v in some.items() if k not in own} for other, some in settings.items()}
            settings[name] = {**settings.get(name, {}), **own}
            fixed = {
                key for key in vary if method_and_setting(key)[1] in own and name in ("", method_and_setting(key)[0])
            }
            vary = {key: values for key, values in vary.items() if key not in fixed}
        given = method_settings(self.vary, methods, "--vary")
        vary |= {
            ".".join(filter(None, [name, key])): values for name, some in given.items() for key, values in some.items()
        }
        for name, values in vary.items():
            if not isinstance(values, list) or not values:
                raise CustardError(f"--vary {name}: a list of values is needed, such as {name}=[0.1, 0.2]")
        common = {
            name: value if value is not None else plan[name]
            for name in ("preset", "episodes", "evaluation_seed")
            if (value := getattr(self, name)) is not None or name in plan
        }
        limits = self.max_depth or plan.get("max_depth", [None])
        limits = limits if isinstance(limits, list | tuple) else [limits]
        if not limits:
            raise CustardError("max_depth = []: leave it out for no limit")
        return grid(
            envs, methods, seeds, max_depths=limits, settings=settings, choices=vary, experiment="sweep", **common
        )


#: What a file may hold, and as what.
KEYS: dict[str, tuple[type, ...]] = {
    "envs": (list,), "methods": (list,), "seeds": (int, list), "first_seed": (int,), "max_depth": (int, list),
    "preset": (str,), "settings": (dict,), "vary": (dict,), "episodes": (int,), "evaluation_seed": (int,),
}  # fmt: skip
_CALLED = {list: "a list", int: "a whole number", str: "text", dict: "a table"}


def _read(file: Path) -> dict[str, Any]:
    """Read the description of a sweep from a TOML or JSON file."""
    import json
    import tomllib

    from custard.core.errors import CustardError, one_line, one_of

    try:
        text = file.read_text(encoding="utf-8")
        plan = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # what is no text, no JSON, no TOML is a ValueError
        why = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
        raise CustardError(f"cannot read {file}: {why}") from None
    if not isinstance(plan, dict):
        raise CustardError(f"{file} must hold a table of {', '.join(KEYS)}")
    for key, value in plan.items():
        if key not in KEYS:
            raise CustardError(f"{file}: {one_of('entry', key, KEYS)}")
        if not isinstance(value, KEYS[key]) or isinstance(value, bool):
            raise CustardError(f"{file}: {key} = {value!r} must be {' or '.join(_CALLED[kind] for kind in KEYS[key])}")
    return plan


def _place(env: Any, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return id and arguments of an environment of the file: its id, or a table with the id and its arguments."""
    from custard.core.errors import CustardError

    if isinstance(env, str):
        return env, arguments
    if isinstance(env, dict) and isinstance(env.get("id"), str):
        return env["id"], {**{key: value for key, value in env.items() if key != "id"}, **arguments}
    raise CustardError(f"envs: {env!r} is neither an id nor a table with an entry id")


def _flat(vary: dict[str, Any]) -> dict[str, Any]:
    """Return what varies by setting or method.setting; TOML makes a table of `mfec.splits = […]` without quotes."""
    flat: dict[str, Any] = {}
    for name, values in vary.items():
        flat |= {f"{name}.{key}": some for key, some in values.items()} if isinstance(values, dict) else {name: values}
    return flat


def _by_method(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return settings by method; those outside a method's own table hold for all and stand under ""."""
    from custard.lab.methods import METHODS
    from custard.lab.trials import dashed_name

    own = {name for name, values in settings.items() if dashed_name(name) in METHODS and isinstance(values, dict)}
    everyone = {name: value for name, value in settings.items() if name not in own}
    return {"": everyone, **{dashed_name(name): dict(settings[name]) for name in own}}
