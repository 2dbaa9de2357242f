"""Run a trial: one method on one environment with one seed, learned, evaluated and put into one row."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError, from_interrupt, one_line, one_of, require_whole
from custard.core.version import VERSION
from custard.lab.methods import METHODS
from custard.lab.methods import method as find_method
from custard.task.settings import present_names, settings_for

__all__ = [
    "COLUMNS",
    "KEY_COLUMNS",
    "NUMBER_COLUMNS",
    "TIME_COLUMNS",
    "Trial",
    "as_json",
    "code_fingerprint",
    "dashed_name",
    "grid",
    "identity",
    "json_text",
    "key",
    "method_and_setting",
    "run_trial",
]

#: The columns that say what was asked for; all columns: those, then what is known beforehand, then what is measured.
KEY_COLUMNS = ("env", "env_args", "method", "preset", "settings", "max_depth", "seed", "episodes", "evaluation_seed")
COLUMNS = (
    "experiment", *KEY_COLUMNS, "trial", "version", "code",
    "return", "std", "ci_low", "ci_high", "exact", "bound", "gap", "optimal", "depth", "leaves", "nodes",
    "coefficients", "raw_depth", "raw_nodes", "trivial", "cut", "time_limited", "final_return", "final_leaves",
    "seconds", "cpu_seconds", "steps", "selection_value", "message", "error", "full_settings",
)  # fmt: skip
COMPARABLE_SINCE = "0.1.0"  # the last version that changed results: rows of earlier ones are other trials
TIME_COLUMNS = ("seconds", "cpu_seconds")  # the only columns that differ when a trial is repeated
NUMBER_COLUMNS = COLUMNS[COLUMNS.index("return") : COLUMNS.index("message")]


@dataclass(frozen=True)
class Trial:
    """What to run. All fields are plain data, so that a trial can be sent to another process or machine."""

    env: str
    method: str
    seed: int = 0
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    preset: str = "tuned"
    max_depth: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # over the preset's
    episodes: int = 1000  # of the evaluation
    evaluation_seed: int = 1
    experiment: str = ""


def grid(
    envs: Iterable[str | tuple[str, Mapping[str, Any]]],
    methods: Sequence[str],
    seeds: Iterable[int],
    *,
    max_depths: Sequence[int | None] = (None,),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    choices: Mapping[str, Sequence[Any]] | None = None,
    **common: Any,
) -> list[Trial]:
    """Return a trial for every environment × depth limit × method × choice of settings × seed.

    An element of `envs` is an id, or an id with its arguments; `max_depths` are depth limits, None for none.
    `settings` maps a method ("" for all) to settings of its own. `choices` maps a setting, or "method.setting", to the
    values to try in turn.

    >>> [trial.settings["zeta"] for trial in grid(["CartPole-v1"], ["tpi"], [0], choices={"zeta": [-0.1, -0.01]})]
    [-0.1, -0.01]
    """
    seeds = list(dict.fromkeys(seeds))
    for name in methods:
        if not isinstance(name, str):
            raise CustardError(f"methods: {name!r} is not a name")
    given: dict[str, Mapping[str, Any]] = {}
    for name, own in (settings or {}).items():
        if not isinstance(own, Mapping):
            raise CustardError(f"settings: {name}={own!r} stands where a method's settings should")
        given[_require_method(name)] = own
    tried: dict[str, dict[str, Sequence[Any]]] = {}
    for name, values in (choices or {}).items():
        owner, setting = method_and_setting(name)
        tried.setdefault(_require_method(owner), {})[setting] = values
    for seed in seeds:
        require_whole(0, seed=seed)
    for depth in max_depths:
        require_whole(0, max_depth=depth)
    require_whole(0, evaluation_seed=common.get("evaluation_seed"))
    require_whole(1, episodes=common.get("episodes"))
    places = [(env, {}) if isinstance(env, str) else env for env in envs]
    return [
        Trial(env, name, seed, dict(kwargs), max_depth=depth,
              settings={**given.get("", {}), **given.get(name, {}), **choice}, **common)
        for (env, kwargs), depth, name in itertools.product(places, max_depths, methods)
        for choice in _combinations({**tried.get("", {}), **tried.get(name, {})}) for seed in seeds
    ]  # fmt: skip


def method_and_setting(name: str) -> tuple[str, str]:
    """Return the method ("" for all) and the setting named by "method.setting" or "setting".

    >>> method_and_setting("viper_bi.iterations"), method_and_setting("zeta")
    (('viper-bi', 'iterations'), ('', 'zeta'))
    """
    method, _, setting = name.rpartition(".")
    return dashed_name(method), setting


def dashed_name(method: str) -> str:
    """Return a method's name with dashes: in TOML and Python viper_bi is easier to write than "viper-bi"."""
    return method.replace("_", "-")


def _require_method(method: str) -> str:
    """Return a method's dashed name; raise if there is no such method. "" stands for all methods."""
    method = dashed_name(method)
    if method and method not in METHODS:
        raise CustardError(one_of("method", method, METHODS))
    return method


def _combinations(tried: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of one value per setting."""
    return [dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values())]


def key(trial: Trial) -> dict[str, str]:
    """Return what is asked for, as cells of the columns `KEY_COLUMNS`."""
    return {
        "env": trial.env, "env_args": json_text(trial.env_kwargs), "method": trial.method, "preset": trial.preset,
        "settings": json_text(present_names(trial.settings)),
        "max_depth": "" if trial.max_depth is None else str(trial.max_depth), "seed": str(trial.seed),
        "episodes": str(trial.episodes), "evaluation_seed": str(trial.evaluation_seed),
    }  # fmt: skip


def identity(trial: Trial, strict: bool = True) -> dict[str, str]:
    """Return the key, every setting that results from it, the version, and a name made from key and settings.

    Rows made with other defaults therefore belong to other trials; the column `code` tells states of the code apart.
    `strict` raises what is wrong with the environment's id, the method or its settings; otherwise the settings stay
    empty and the trial's own row reports it.
    """
    row, full = key(trial), ""
    try:
        if strict:
            from custard.task.source import registered_spec

            registered_spec(trial.env)
        module = find_method(trial.method)[1]
        given = {name: value for name, value in trial.settings.items() if name not in _LEARN_ARGUMENTS}
        chosen = settings_for(module, trial.env, trial.preset, given, f"setting of {trial.method}")
        full = json_text({field.name: getattr(chosen, field.name) for field in dataclasses.fields(chosen)})
    except (CustardError, ImportError):
        if strict:
            raise
    content = json.dumps([row, full, COMPARABLE_SINCE], sort_keys=True)
    name = hashlib.sha256(content.encode()).hexdigest()[:12]
    return {"experiment": trial.experiment, **row, "trial": name, "version": VERSION, "full_settings": full}


def is_comparable(version: str) -> bool:
    """Return whether rows made by a version belong to the same trials as those of this one.

    >>> is_comparable("0.1.0"), is_comparable("0.0.9")
    (True, False)
    """
    made, since = ([int(part) for part in text.split(".") if part.isdigit()] for text in (version, COMPARABLE_SINCE))
    return made >= since


def run_trial(trial: Trial | Mapping[str, Any]) -> dict[str, Any]:
    """Learn, evaluate, compare with what is proved, and return the trial's row; errors go to the column `error`."""
    trial = trial if isinstance(trial, Trial) else Trial(**trial)
    row: dict[str, Any] = {**identity(trial, strict=False), "code": code_fingerprint()}
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever matters is in the row
            row |= _measure(trial)
    except (Exception, SystemExit) as error:  # an error in one trial must not stop the others
        if from_interrupt(error):
            raise KeyboardInterrupt from None
        kind = "" if isinstance(error, CustardError) else f"{type(error).__name__}: "
        row["error"] = kind + one_line(error)
    row = {"seconds": round(time.perf_counter() - wall, 3), "cpu_seconds": round(time.process_time() - cpu, 3), **row}
    return {column: row.get(column, "") for column in COLUMNS}


def _measure(trial: Trial) -> dict[str, Any]:
    """Learn and evaluate a trial's tree and return the columns that were measured."""
    from custard.lab.learn import learn
    from custard.planning.yardstick import exact_return
    from custard.task.evaluate import evaluate
    from custard.task.history import remembered
    from custard.task.source import source

    wall, cpu = time.perf_counter(), time.process_time()
    run = learn(
        trial.env, trial.method, max_depth=trial.max_depth, seed=trial.seed, preset=trial.preset,
        env_kwargs=trial.env_kwargs, workers=0, progress=False, **trial.settings,  # other cores run other trials
    )  # fmt: skip
    seconds, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if run.message == "interrupted":
        raise KeyboardInterrupt
    judge = functools.partial(
        evaluate,
        env=trial.env,
        episodes=trial.episodes,
        seed=trial.evaluation_seed,
        env_kwargs=trial.env_kwargs,
        workers=0,
    )
    result, tree, raw = judge(run.tree), run.tree, run.raw or run.tree
    low, high = result.ci95
    env_source, _ = remembered(tree, source(trial.env, trial.env_kwargs))
    limit = None if env_source.history else trial.max_depth  # a bound for a depth is one for trees without memory
    bound, exact = _proved_bound(trial.env, json_text(trial.env_kwargs), limit), exact_return(env_source, tree)
    gap = None if bound is None else bound - (result.mean if exact is None else exact)
    final = None if run.final is None else judge(run.final)
    return {
        "return": result.mean, "std": _number_or_empty(result.std), "ci_low": _number_or_empty(low),
        "ci_high": _number_or_empty(high), "exact": _number_or_empty(exact),
        "bound": _number_or_empty(bound), "gap": _number_or_empty(gap), "optimal": _is_optimal(env_source, bound, gap),
        "depth": tree.depth, "leaves": tree.n_leaves, "nodes": tree.n_nodes, "coefficients": tree.n_coefficients,
        "raw_depth": raw.depth, "raw_nodes": raw.n_nodes, "trivial": int(tree.n_leaves == 1),
        "cut": int(raw.origin.get("cut", 0)), "time_limited": int(result.time_limited.sum()),
        "final_return": "" if final is None else final.mean,
        "final_leaves": "" if run.final is None else run.final.n_leaves, "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3), "steps": run.steps, "selection_value": run.value, "message": run.message,
        "error": "",
    }  # fmt: skip


def _is_optimal(env_source: Any, bound: float | None, gap: float | None) -> Any:
    from custard.planning.yardstick import slack

    return "" if bound is None or gap is None else int(gap <= slack(env_source, bound))


@functools.lru_cache(maxsize=64)
def _proved_bound(env: str, kwargs: str, max_depth: int | None) -> float | None:
    from custard.planning.yardstick import best_return
    from custard.task.source import source

    return best_return(source(env, json.loads(kwargs)), max_depth)


@functools.cache
def code_fingerprint() -> str:
    """Return a fingerprint of the sources that decide results: all but those that only show them."""
    return _fingerprint(Path(__file__).parents[1])


def _fingerprint(root: Path) -> str:
    """Return a hash over the names and contents of a package's files, without `_PARTS_THAT_ONLY_SHOW`."""
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root)
        if name.parts[0] not in _PARTS_THAT_ONLY_SHOW:
            digest.update(str(name).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:8]


_PARTS_THAT_ONLY_SHOW = ("report", "commands", "cli.py", "__main__.py")
_LEARN_ARGUMENTS = ("low", "high", "features", "feature_names", "history")  # `learn` takes these itself


def _number_or_empty(value: float | None) -> Any:
    return "" if value is None or math.isnan(value) else value


def json_text(values: Mapping[str, Any]) -> str:
    """Return arguments or settings as a row holds them."""
    return json.dumps(dict(values), sort_keys=True, default=as_json)


def as_json(value: Any) -> Any:
    """Return what JSON cannot write in a form it can: NumPy's values as plain ones, anything else as its repr."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else repr(value)
