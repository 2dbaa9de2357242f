"""Log a run's progress to TensorBoard, Weights & Biases or MLflow: one point per snapshot, by environment steps.

A logger is a function of `custard.lab.callbacks.Progress` with a `close`. Its package is an extra and imported when the
logger is made. None of them uses a network unless its own environment variables ask for it: TensorBoard and MLflow
write files here, and Weights & Biases runs offline unless WANDB_MODE says otherwise.
"""

from __future__ import annotations

import importlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from custard.core.errors import CustardError, one_line, one_of
from custard.core.files import make_directory
from custard.lab.callbacks import Progress
from custard.tree.export.names import missing_package

__all__ = ["LOGGERS", "logger_names", "loggers"]

PROJECT = "custard"  # of Weights & Biases, and experiment of MLflow, unless their variables name another
MAX_PARAMETER_CHARACTERS = 500  # of a setting's text, which is the least that MLflow's versions accept


class Logger(Protocol):
    """What takes the numbers of a run."""

    def log(self, numbers: dict[str, float], steps: int) -> None:
        """Add a point to every curve."""

    def close(self, succeeded: bool) -> None:
        """Write what is left and end the run."""


class TensorBoard:
    """Writes event files into the folder `tensorboard` of a run directory."""

    def __init__(self, name: str, config: Mapping[str, Any], directory: Path) -> None:
        module = _imported("tensorboardX", "tensorboard")
        make_directory(directory / "tensorboard")
        self._writer = module.SummaryWriter(str(directory / "tensorboard"))
        settings = "\n".join(f"    {key}: {value}" for key, value in _flat(config).items())
        self._writer.add_text("config", settings, 0)

    def log(self, numbers: dict[str, float], steps: int) -> None:
        """Add a point to every curve."""
        for key, number in numbers.items():
            self._writer.add_scalar(key, number, steps)

    def close(self, succeeded: bool) -> None:
        """Write what is left."""
        self._writer.close()


class WeightsAndBiases:
    """Starts a run of Weights & Biases; offline, in the run directory, unless WANDB_MODE says otherwise."""

    def __init__(self, name: str, config: Mapping[str, Any], directory: Path) -> None:
        module = _imported("wandb", "wandb")
        make_directory(directory)
        self._run = module.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=name, config=dict(config),
            dir=os.environ.get("WANDB_DIR", str(directory)), mode=os.environ.get("WANDB_MODE", "offline"),
        )  # fmt: skip
        self._run.define_metric("steps")
        self._run.define_metric("*", step_metric="steps")

    def log(self, numbers: dict[str, float], steps: int) -> None:
        """Add a point to every curve."""
        self._run.log({"steps": steps, **numbers})

    def close(self, succeeded: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if succeeded else 1)


class MLflow:
    """Starts a run of MLflow, where MLFLOW_TRACKING_URI says, else in files of the current directory."""

    def __init__(self, name: str, config: Mapping[str, Any], directory: Path) -> None:
        module = _imported("mlflow", "mlflow")
        self._client, self._metric = module.MlflowClient(), module.entities.Metric
        wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(wanted)
        experiment = self._client.create_experiment(wanted) if found is None else found.experiment_id
        self._run_id = self._client.create_run(experiment, run_name=name).info.run_id
        settings = {key: str(value)[:MAX_PARAMETER_CHARACTERS] for key, value in _flat(config).items()}
        self._client.log_batch(self._run_id, params=[module.entities.Param(*item) for item in settings.items()])

    def log(self, numbers: dict[str, float], steps: int) -> None:
        """Add a point to every curve."""
        now = int(1000 * time.time())  # one call for all curves: each may be a request or a transaction
        metrics = [self._metric(key, number, now, steps) for key, number in numbers.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, succeeded: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._run_id, "FINISHED" if succeeded else "FAILED")


#: name -> what makes the logger of a run from its name, its configuration and its directory
LOGGERS: dict[str, Callable[[str, Mapping[str, Any], Path], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def logger_names(log: str | Sequence[str] | None) -> list[str]:
    """Return the loggers that are asked for, each once; raise for one that does not exist.

    >>> logger_names("wandb"), logger_names(None)
    (['wandb'], [])
    """
    names: list[Any] = [] if log is None else list(log) if isinstance(log, (list, tuple)) else [log]
    for name in names:
        if not isinstance(name, str) or name not in LOGGERS:
            raise CustardError(one_of("logger", name, LOGGERS))
    return list(dict.fromkeys(names))


@contextmanager
def loggers(
    log: str | Sequence[str] | None, config: Mapping[str, Any], out: str | Path | None
) -> Iterator[dict[str, Callable[[Progress], None]]]:
    """Start the loggers that are asked for, yield their functions by name, and end them.

    log     one name of `LOGGERS`, several, or None
    config  what config.json holds
    out     the run directory; without one, files go into runs/<environment>-<method>-<seed>
    """
    name = "-".join(str(config[key]) for key in ("env", "method", "seed")).replace("/", "-").replace(":", "-")
    directory = Path("runs") / name if out is None else Path(out)
    with ExitStack() as ending:
        started: dict[str, Callable[[Progress], None]] = {}
        for kind in logger_names(log):
            try:
                logger = LOGGERS[kind](name, config, directory)
            except CustardError:
                raise
            except Exception as error:  # of somebody else's package: a server that is not there, a damaged store
                raise CustardError(f"{kind} cannot start a run ({type(error).__name__}: {one_line(error)})") from error
            ending.push(_closing(kind, logger))
            started[kind] = _for_progress(logger)
        yield started


def _closing(name: str, logger: Logger) -> Callable[..., None]:
    """Return the function that ends a logger's run; where that fails it warns, since the tree is learned by then."""

    def close(kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            logger.close(error is None)
        except Exception as failure:
            said = f"{name} could not end its run ({type(failure).__name__}: {one_line(failure)})"
            warnings.warn(said, stacklevel=2)

    return close


def _for_progress(logger: Logger) -> Callable[[Progress], None]:
    """Return the function that logs each snapshot once, though progress is reported between snapshots too."""
    logged: list[Mapping[str, float]] = []

    def log(progress: Progress) -> None:
        if progress.tree is None and not progress.metrics:
            return  # nothing is known yet
        if logged and logged[-1] is progress.metrics:
            return
        logged[:] = [progress.metrics]
        logger.log(_numbers(progress), progress.steps)

    return log


def _numbers(progress: Progress) -> dict[str, float]:
    """Return what is logged: the method's own metrics and those of every run; numbers that are not finite are not."""
    numbers: dict[str, float] = {"value": progress.value, "error": progress.error, "seconds": progress.seconds}
    if progress.tree is not None:
        numbers |= {"best_leaves": progress.leaves, "best_depth": progress.tree.depth}
    numbers |= progress.metrics
    return {key: float(number) for key, number in numbers.items() if math.isfinite(number)}


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without nesting.

    >>> _flat({"seed": 0, "settings": {"k": 3}})
    {'seed': 0, 'settings.k': 3}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        nested = _flat(value) if isinstance(value, Mapping) else None
        flat |= {key: value} if nested is None else {f"{key}.{inner}": part for inner, part in nested.items()}
    return flat


def _imported(module: str, extra: str) -> Any:
    """Import an optional package; raise one line that names our extra if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise missing_package(module, extra, f"the logger {extra}") from None
