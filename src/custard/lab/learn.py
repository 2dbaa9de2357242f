"""`custard.learn`: an environment in, a small tree out."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, Literal, Unpack, overload

import numpy as np

from custard.core.clusters import require_engine
from custard.core.errors import CustardError, from_interrupt, one_line, one_of, require_positive, require_whole
from custard.core.features import is_expressions
from custard.core.history import require_history
from custard.core.metadata import representative
from custard.core.spaces import Base, FeaturesArgument, describe
from custard.core.version import VERSION
from custard.lab.callbacks import COMPILING, TRYING_CONSTANTS, Callbacks, Progress
from custard.lab.keywords import LearnKeywords, LearnOptions
from custard.lab.loggers import logger_names, loggers
from custard.lab.methods import method as find_method
from custard.lab.multi_seed import learn_seeds
from custard.lab.progress import Display, is_shown, waiting
from custard.lab.run import Run, RunDirectory
from custard.lab.time_left import may_stop_early
from custard.task.budget import budget_of_time, parse_time
from custard.task.history import spread_bounds, with_history
from custard.task.problem import DEFAULT_STEP_TIMEOUT, Problem, Snapshot
from custard.task.recipes import function_recipe
from custard.task.settings import present_names, setting_names, settings_for
from custard.task.source import source
from custard.tree.balance import balance
from custard.tree.store import fingerprint
from custard.tree.tree import Tree

__all__ = ["learn"]

CHECKPOINT_SECONDS = 20.0
STARTING = "making the environment"
MEASURING = "measuring what a step takes"  # where a time is given


@overload
def learn(env: Any, method: str | None = ..., *, seeds: None = ..., **given: Unpack[LearnKeywords]) -> Run: ...
@overload
def learn(
    env: Any, method: str | None = ..., *, seeds: int | Sequence[int], **given: Unpack[LearnKeywords]
) -> list[Run]: ...
@overload
def learn(
    env: Any, method: str | None = ..., *, seeds: int | None, **given: Unpack[LearnKeywords]
) -> Run | list[Run]: ...
def learn(
    env: Any,
    method: str | None = None,
    *,
    max_depth: int | None = None,
    seed: int = 0,
    budget: int | None = None,
    time: str | float | None = None,
    preset: str | None = None,
    low: Any = None,
    high: Any = None,
    features: FeaturesArgument = None,
    feature_names: Sequence[str] | None = None,
    history: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | Literal["auto"] = "auto",
    on_progress: Callable[[Progress], Any] | None = None,
    log: str | Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    workers: int | None = None,
    step_timeout: float | None = DEFAULT_STEP_TIMEOUT,
    engine: str = "local",
    address: str | None = None,
    **settings: Any,
) -> Run | list[Run]:
    """Learn a decision tree policy.

    `env` is an id, an environment (single or vector) or a function that makes one; `method` one of `custard.methods()`.
    `budget` limits environment steps, `max_depth` the tree; `time` ("10m", or seconds) stands for the steps that take
    about so long. Environments that Python steps run in `workers` processes (one per core unless given, 0 for none),
    which give up a step after `step_timeout` seconds; results do not depend on their number. With `engine="ray"` the
    workers are actors of the Ray cluster at `address` ("host:port"), one per core of it. Further keywords are
    settings of the method (`custard.settings(method)` lists them), over those of the `preset`. With `out` the run is
    stored in a directory and can be resumed; an interrupt (Ctrl-C) ends the run with the best tree so far.

    `features` replaces the observation's entries (a function of one observation) or adds to them (expressions such as
    "tilt = angle + 0.5*rate"; see `custard.core.expressions`). `history` adds the features and actions of so many past
    steps, named "angle[-1]", "action[-1]", … (`custard.core.history`).

    `progress` shows how far the run is: "auto" in terminals and notebooks, True or False always or never. `on_progress`
    is called with a `custard.Progress` for every snapshot and at least every five seconds, one call at a time, between
    snapshots from another thread; if it returns True, the run ends as if interrupted. `log` names one or several of
    "tensorboard", "wandb" and "mlflow".

    With `seeds` (a number of seeds, counted from `seed`, or a list of them) there is one run per seed, side by side in
    the `workers` processes, and a list is returned; each run is the one that its seed gives alone.

    >>> import custard
    >>> run = custard.learn("custard/PrereqWorld-v0", "mfec", env_kwargs={"m": 4}, seed=0)
    >>> run.tree.depth, run.tree.n_leaves, run.value
    (2, 3, -2.0)
    """
    require_whole(0, seed=seed, max_depth=max_depth)
    require_positive(step_timeout=step_timeout)
    if feature_names is not None and not isinstance(feature_names, (list, tuple, np.ndarray)):
        raise CustardError(f"feature_names must be a list of names, not {feature_names!r}")
    require_engine(engine, address)
    if on_progress is not None and not callable(on_progress):
        raise CustardError(f"on_progress must be a function of one argument, not {type(on_progress).__name__}")
    listeners = {} if on_progress is None else {"on_progress": on_progress}
    names, is_displayed = logger_names(log), is_shown(progress)
    feature_options = _FeatureOptions(low, high, features, feature_names, history)
    if seeds is not None:
        _require_other_processes_can(on_progress, engine, features)
        if not isinstance(seeds, Iterable):
            require_whole(1, seeds=seeds)
            seeds = range(seed, seed + seeds)
        seeds = list(seeds)
        for each in seeds:
            require_whole(0, seeds=each)
        given = {
            **feature_options.plain_data(), "max_depth": max_depth, "budget": budget, "preset": preset,
            "env_kwargs": env_kwargs, "resume": resume, "time": time, "step_timeout": step_timeout, "log": names,
            **settings,
        }  # fmt: skip
        return learn_seeds(env, method, seeds=seeds, workers=workers, out=out, **given)
    name, module = find_method(method)
    settings = present_names(settings)
    _require_known(settings, module)
    require_history(history)
    require_whole(0, workers=workers)
    if time is not None and budget is not None:
        raise CustardError("give a budget or a time, not both: the time stands for a number of steps")
    with waiting(f"{name} on {env if isinstance(env, str) else 'the environment'}", STARTING, is_displayed):
        env_source = with_history(source(env, env_kwargs), history or 0, features, feature_names)
        venv = env_source.make_vec(1)
    given = {k: v for k, v in {"budget": budget, **settings}.items() if v is not None}
    preset_key = env_source.preset_key if features is None or is_expressions(features) else ""
    chosen = settings_for(module, preset_key, preset, given)
    require_whole(1, budget=getattr(chosen, "budget", None))
    base, encoder, feature_options = feature_options.describe(venv, chosen, seed)
    if not env_source.is_single_instance:
        venv.close()
    problem = Problem(env_source, base, seed, max_depth, encoder, workers, step_timeout, engine=engine, address=address)
    _require_steps(name, module, problem, chosen)
    if time is not None:
        stored = RunDirectory(out).stored_budget() if resume and out is not None else None
        if stored is None:
            with waiting(f"{name} on {env_source.name}", MEASURING, is_displayed):
                stored = _measured_budget(module, problem, chosen, parse_time(time), listeners)
        chosen = dataclasses.replace(chosen, budget=stored)
    problem = dataclasses.replace(problem, budget=getattr(chosen, "budget", None))
    config = {
        "env": env_source.name, "env_kwargs": _plain_data(dict(env_source.kwargs)), "method": name,
        "preset": preset or "tuned", "seed": seed, "max_depth": max_depth, **feature_options.plain_data(),
        "settings": _plain_data(dataclasses.asdict(chosen)),
        "versions": {"custard": VERSION, "python": platform.python_version(), "numpy": np.__version__},
    }  # fmt: skip
    return _run(module, problem, chosen, config, out, resume, is_displayed, names, listeners)


@dataclasses.dataclass(frozen=True)
class _FeatureOptions:
    """What `learn` is told about features, by the same names."""

    low: Any
    high: Any
    features: FeaturesArgument
    feature_names: Sequence[str] | None
    history: int | None

    def describe(self, venv: Any, settings: Any, seed: int) -> tuple[Base, FeaturesArgument, _FeatureOptions]:
        """Return features and actions, the encoder of observations, and the options with the bounds that hold.

        Where the user gave no bounds they are those of the settings: a preset may know which suit its environment.
        """
        low = getattr(settings, "low", None) if self.low is None else self.low
        high = getattr(settings, "high", None) if self.high is None else self.high
        encoder, names = self.features, self.feature_names
        if self.history:  # a function of the user's, and the names, are those of the present observation
            low, high = (spread_bounds(bound, representative(venv)) for bound in (low, high))
            encoder, names = encoder if is_expressions(encoder) else None, None
        base = describe(venv, low=low, high=high, features=encoder, feature_names=names, seed=seed)
        return base, encoder, dataclasses.replace(self, low=low, high=high)

    def plain_data(self) -> dict[str, Any]:
        """Return the options as config.json holds them; a function by the name under which others can import it."""
        is_plain = self.features is None or is_expressions(self.features)
        return {
            "low": _plain_data(self.low), "high": _plain_data(self.high),
            "features": _plain_data(self.features) if is_plain else _importable_name(self.features),
            "feature_names": _plain_data(self.feature_names), "history": self.history or None,
        }  # fmt: skip


def _require_other_processes_can(on_progress: Any, engine: str, features: FeaturesArgument) -> None:
    """Raise for options of a run that other processes on this machine cannot do with, which run several seeds."""
    if on_progress is not None:
        raise CustardError("several seeds at once cannot do with on_progress=, since other processes run them")
    if engine != "local":
        raise CustardError("several seeds at once run on this machine: custard sweep runs them on a Ray cluster")
    if features is not None and not is_expressions(features):
        raise CustardError("several seeds at once cannot do with features=, since other processes make them")


def _require_steps(name: str, module: ModuleType, problem: Problem, settings: Any) -> None:
    """Raise where a method cannot learn from an environment as it is given, or on the engine that is asked for."""
    env_source = problem.source
    if env_source.vector is not None and not hasattr(module, "searches_directly"):
        raise CustardError(
            f"{name} steps single environments, not a vector environment: the methods direct and tpi take one, or give "
            "an id, a single environment or a function that makes one"
        )
    if problem.engine == "ray" and env_source.vector is not None:
        raise CustardError("the engine ray makes environments of its own, not a vector environment that exists")
    if problem.engine == "ray" and not _runs_whole_episodes(module, problem, settings):
        raise CustardError(
            f"the engine ray runs whole episodes of trees: the methods direct and tpi do so where Python steps the "
            f"environment, and {name} on {env_source.name} does not"
        )


def _run(
    module: ModuleType, problem: Problem, settings: Any, config: dict[str, Any], out: str | Path | None, resume: bool,
    is_displayed: bool, log: Sequence[str], listeners: Mapping[str, Callable[[Progress], Any]],
) -> Run:  # fmt: skip
    """Run a method from the start, or from where the run in `out` stopped, and store it there.

    module        the method's
    problem       what is to be solved
    settings      the method's
    config        what config.json holds
    out           the run directory, or None
    resume        whether to go on with the run in it
    is_displayed  whether progress is displayed
    log           loggers, by name
    listeners     the user's functions that are called with the progress, by name
    """
    directory, state, done = _open_directory(out, resume, config)
    try:
        early = may_stop_early(settings)
        compiles = problem.is_compiled or not _runs_whole_episodes(module, problem, settings)
        doing = COMPILING if compiles else TRYING_CONSTANTS
        display = Display(f"{config['method']} on {problem.source.name}", is_displayed, early, doing)
        last = directory.last(done) if directory is not None else None
        is_finished = done.get("finished") and last is not None
        snapshots = iter(()) if is_finished else module.solve(problem, settings, state)
        if state is not None:
            snapshots = _resumed(snapshots, directory)
        with loggers(log, config, out) as functions:
            callbacks = Callbacks({**functions, **listeners}, problem.budget, early, doing)
            return _run_to_end(snapshots, config, directory, float(done.get("seconds", 0.0)), last, display, callbacks)
    except Exception as error:
        if directory is not None:
            directory.discard_if_empty()
        if isinstance(error, MemoryError):
            method = config["method"]
            raise CustardError(f"{method} needs more memory than there is here ({one_line(error)})") from error
        raise
    finally:
        if directory is not None:
            directory.release()


def _measured_budget(
    module: ModuleType,
    problem: Problem,
    settings: Any,
    seconds: float,
    listeners: Mapping[str, Callable[[Progress], Any]],
) -> int | None:
    """Return the environment steps that a method takes in `seconds`; listeners are told that this is measured."""
    with Callbacks(listeners, message=MEASURING) as callbacks:
        try:
            budget = budget_of_time(module, problem, settings, seconds)
            callbacks.finish()
        except KeyboardInterrupt:
            if isinstance(callbacks.failure, Exception):  # a function failed
                raise callbacks.failure from None
            if callbacks.failure is not None:  # a function wants the run to end
                raise CustardError("no tree was found before the interrupt") from None
            raise
    return budget


def _runs_whole_episodes(module: ModuleType, problem: Problem, settings: Any) -> bool:
    """Return whether a method learns from whole episodes, which any runner can run."""
    if not hasattr(module, "searches_directly"):
        return False
    return not problem.is_compiled or module.searches_directly(problem, settings)


def _open_directory(
    out: str | Path | None, resume: bool, config: dict[str, Any]
) -> tuple[RunDirectory | None, Any, dict[str, Any]]:
    """Return the run's directory, the state to resume from, and the progress stored with it."""
    if out is None:
        if resume:
            raise CustardError("resume needs out=, the directory of the run to go on with")
        return None, None, {}
    directory = RunDirectory(out)
    if not resume or not (directory.path / "config.json").exists():
        directory.create(config)
        return directory, None, {}
    try:
        stored, state, done = directory.reopen()
        before, asked = ({**flat.pop("settings", {}), **flat} for flat in (dict(stored), dict(config)))
        for key in asked:
            if key != "versions" and before.get(key) != asked[key]:
                raise CustardError(
                    f"{out} holds a run with {key}={before.get(key)!r}, not {asked[key]!r}: cannot resume it"
                )
    except BaseException:
        directory.release()
        raise
    return directory, state, done


def _resumed(snapshots: Iterator[Snapshot], directory: Any) -> Iterator[Snapshot]:
    """Yield a resumed run's snapshots; a checkpoint that lacks what this version stores is one line."""
    try:
        first = next(snapshots, None)
    except KeyError as error:
        raise CustardError(
            f"the checkpoint in {directory.path} was written by another version of custard (it has no {error}): "
            "train again without --resume"
        ) from None
    except CustardError:
        raise
    except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise CustardError(
            f"the checkpoint in {directory.path} is damaged or was written by another version of custard "
            f"({one_line(error)}): train again without --resume"
        ) from error
    if first is not None:
        yield first
        yield from snapshots


def _run_to_end(
    snapshots: Any, config: dict[str, Any], directory: RunDirectory | None, before: float, known: Snapshot | None,
    display: Any, callbacks: Callbacks,
) -> Run:  # fmt: skip
    """Run a method to its end while displaying, logging and saving; an interrupt keeps the best tree so far.

    snapshots  the method's iterator of them
    config     what config.json holds
    directory  where to save, or None
    before     seconds that earlier parts of a resumed run took
    known      the snapshot an earlier part ended with, if there is one
    display    the progress display
    callbacks  the functions that are called with the progress
    """
    started = perf_counter() - before
    saved_at = float("-inf")  # so that the first tree is saved at once
    rows: list[dict[str, float]] = directory.rows if directory else []
    last, message, stopped, finished = known, "", None, False
    with display, callbacks:
        try:
            for last in snapshots:
                seconds = perf_counter() - started
                if directory is None:
                    rows.append({"steps": last.steps, "seconds": seconds, "value": last.value, **last.metrics})
                else:
                    directory.log(last, seconds)
                    if perf_counter() - saved_at > CHECKPOINT_SECONDS:
                        directory.checkpoint(last, seconds)
                        saved_at = perf_counter()
                display.show(last, seconds)
                callbacks.report(last, seconds)
            callbacks.finish()
            finished = True
        except (KeyboardInterrupt, SystemError) as error:
            if not from_interrupt(error):
                raise
            message, stopped = "interrupted", error
        finally:
            seconds = perf_counter() - started
            if directory is not None and last is not None and last is not known:
                directory.checkpoint(last, seconds, finished)
    if isinstance(callbacks.failure, Exception):  # not the interrupt by which its thread ended the run
        raise callbacks.failure
    if last is None or last.tree is None:
        raise CustardError("no tree was found" + (" before the interrupt" if message else "")) from stopped
    message = message or last.message
    keys = (
        "env", "env_kwargs", "method", "preset", "seed", "max_depth", "features", "feature_names", "history", "versions"
    )  # fmt: skip
    optional = ("features", "feature_names", "history")
    origin = {key: config[key] for key in keys if key not in optional or config[key] is not None}
    raw = last.tree.with_origin(**origin, steps=last.steps)
    final = None if last.final is None else last.final.with_origin(**origin, steps=last.steps)
    run = Run(
        tree=_as_learned(balance(raw).keep_used_sums()), value=last.value, steps=last.steps, seconds=seconds,
        config=config, metrics=rows, raw=raw, final=final, message=message,
        directory=directory.path if directory else None,
    )  # fmt: skip
    if directory is not None:
        run.tree.save(directory.path / "tree.json")
        if final is not None:
            final.save(directory.path / "final.json")
    return run


def _importable_name(function: Any) -> str | None:
    """Return "module:function" of a function that others can import by that name, else None."""
    recipe = None if function is None else function_recipe(function)
    return f"{recipe['module']}:{recipe['name']}" if recipe is not None and "module" in recipe else None


def _require_known(settings: Mapping[str, Any], module: ModuleType) -> None:
    """Raise for a keyword that is neither an option of `learn` nor a setting of the method."""
    known = setting_names(module)
    for name in settings:
        if name not in known:
            options = [option for option in LearnOptions.__annotations__ if option not in known]
            raise CustardError(one_of("setting", name, [*known, *options]))


def _as_learned(tree: Tree) -> Tree:
    """Return a tree whose origin holds the fingerprint of its nodes, by which a later change is noticed."""
    return tree.with_origin(fingerprint=fingerprint(tree))


def _plain_data(value: Any) -> Any:
    """Return a value as JSON would give it back: numbers, strings, lists and dictionaries only."""
    if isinstance(value, Mapping):
        return {str(key): _plain_data(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return _plain_data(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain_data(entry) for entry in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)
