"""`custard train`."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from custard.commands.arguments import Count, Directory, Env, Flag, KeyValues, Name, Names, Numbers, Whole
from custard.lab.methods import methods

if TYPE_CHECKING:
    from custard.lab.run import Run

__all__ = ["Command"]

LOADING_SECONDS = 2.5  # before it is said that packages load, as on a machine that never loaded them

#: Settings of some methods that have options of their own.
_OPTIONAL = (
    "max_leaves", "expert", "experts", "expert_depth", "choose", "tests", "leaves", "digits", "step_timeout",
    "gamma",
)  # fmt: skip
_METHODS = "How to learn:\n" + "\n".join(f"{name}: {text}" for name, text in methods().items())


@dataclass(frozen=True)
class Command:
    """Learn a decision tree policy for an environment and keep the run in a directory."""

    env: Env
    """The environment's id. 'module:Id-v0' imports a module first."""

    method: Annotated[str | None, tyro.conf.arg(metavar="METHOD", help=_METHODS, help_behavior_hint="")] = None

    max_depth: Whole = None
    """The largest number of questions on a path."""

    max_leaves: Whole = None
    """The largest number of leaves, for methods with such a limit (tpi, direct, viper-dqn, viper-bi, ddt, icct)."""

    expert: Name = None
    """What to begin from or to imitate: linear, dqn, bi, a file (.npz of ours, .zip of Stable-Baselines3) or none."""

    experts: Whole = None
    """The number of trees that a mixture chooses among (moet)."""

    expert_depth: Whole = None
    """The largest depth of each of them (moet)."""

    choose: Name = None
    """Which of trees with equal return to keep: smaller, or moet, most like the expert (viper-dqn, viper-bi)."""

    seed: Count = 0
    """The seed of all randomness."""

    seeds: Whole = None
    """Run this many seeds side by side, from --seed on, one process per core; each has a directory in --out."""

    budget: Whole = None
    """The largest number of environment steps to use, those that judge trees included."""

    time: Annotated[str | None, tyro.conf.arg(metavar="TIME", help_behavior_hint="")] = None
    """Instead of a budget, how long to learn: 90s, 10m or 1h. About 5m where Python steps, unless either is given."""

    tests: Name = None
    """What splits may ask about: axis (one feature), linear (weighted sums) or auto (tpi, direct)."""

    leaves: Name = None
    """What leaves may hold: constant, linear (real-valued actions) or auto (tpi, direct); icct: also linear:2, …"""

    digits: Whole = None
    """Digits to which the numbers of sums are rounded if the return allows (tpi, direct)."""

    gamma: Annotated[float | None, tyro.conf.arg(metavar="GAMMA", help_behavior_hint="")] = None
    """The discount of returns, per step, for methods that have one (tpi, direct, plan)."""

    workers: Whole = None
    """Processes that step environments (or run seeds), one per core unless given; results do not depend on it."""

    engine: Literal["local", "ray"] = "local"
    """Where workers are: processes on this machine, or actors of a Ray cluster (tpi and direct, where Python steps)."""

    address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT", help_behavior_hint="")] = None
    """The Ray cluster's address; the one this machine belongs to unless given."""

    step_timeout: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None
    """Seconds that one step may take before its worker process is given up; 300 unless given."""

    preset: Name = None
    """The method's settings to start from: tuned (default) or paper."""

    low: Numbers = None
    """Lower bounds of the features, where the environment's own are infinite or too wide."""

    high: Numbers = None
    """Upper bounds of the features."""

    feature: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=SUM", help_behavior_hint="")] = ()
    """More features to ask about, such as "tilt = angle + 0.5*angular_velocity": sums, products, abs(), wrap()."""

    features: Annotated[str | None, tyro.conf.arg(metavar="MODULE:FUNCTION", help_behavior_hint="")] = None
    """A function of yours from an observation to numbers: what the tree may ask about, instead of the observation."""

    names: Names = ()
    """Names of the features, in order, where the environment's own do not suit."""

    history: Whole = None
    """Past steps whose features and actions the tree may ask about too, named position[-1], action[-1] and so on."""

    env_args: KeyValues = ()
    """Arguments of the environment, as key=value."""

    set: KeyValues = ()
    """Settings of the method, as key=value; `custard settings METHOD` lists them."""

    out: Directory = None
    """The run directory; runs/<environment>-<method>-<seed> unless given."""

    resume: Flag = False
    """Resume the run in the directory."""

    log: Annotated[
        tuple[Literal["tensorboard", "wandb", "mlflow"], ...],
        tyro.conf.arg(metavar="NAME [NAME ...]", help_behavior_hint=""),
    ] = ()
    """Log the progress to tensorboard (in the run directory), wandb (offline unless WANDB_MODE is set) or mlflow."""

    episodes: Whole = None
    """Episodes for the final evaluation, 0 for none; 1,000 unless given, fewer if they take a tenth of the learning."""

    json: Flag = False
    """Print the result as JSON, and no progress."""

    def run(self) -> int:
        """Learn, evaluate, save, print; the exit code is that of an interrupt if there was one."""
        said = Timer(LOADING_SECONDS, lambda: self.json or print("custard: loading packages", file=sys.stderr))
        said.start()
        try:
            return self._train(said)
        finally:
            said.cancel()

    def _train(self, said: Timer) -> int:
        """Run, and cancel what is said while packages load, once they are."""
        from custard.commands import INTERRUPTED
        from custard.commands.common import assignments, feature_function, print_json, with_settings
        from custard.core.errors import CustardError, require_whole
        from custard.core.threads import meanwhile
        from custard.lab.learn import learn
        from custard.lab.methods import METHODS, method
        from custard.task.settings import setting_names
        from custard.task.source import MAX_EPISODES_PER_CALL

        require_whole(0, MAX_EPISODES_PER_CALL, episodes=self.episodes)
        name, module = method(self.method)
        said.cancel()
        suffix = "" if self.seeds is None else f"+{self.seeds}"
        out = self.out or Path("runs") / f"{self.env.replace('/', '-').replace(':', '-')}-{name}-{self.seed}{suffix}"
        kwargs = assignments(self.env_args, "--env-args")
        options = {
            "method": self.method, "preset": self.preset, "budget": self.budget, "max_depth": self.max_depth,
            "low": _one_or_all(self.low), "high": _one_or_all(self.high), "seed": self.seed, "seeds": self.seeds,
            "out": out, "resume": self.resume, "features": list(self.feature) or feature_function(self.features),
            "history": self.history, "log": self.log, "time": self.time, "workers": self.workers, "engine": self.engine,
            "address": self.address,
            **{name: getattr(self, name) for name in _OPTIONAL if getattr(self, name) is not None},
        }  # fmt: skip
        known = list(dict.fromkeys(["max_depth", "low", "high", *setting_names(module)]))
        if self.max_leaves is not None and "max_leaves" not in known:
            limited = ", ".join(other for other in METHODS if _limits_leaves(other))
            raise CustardError(f"{name} has no limit of leaves: give --max-depth, or a method that has one ({limited})")
        options = with_settings(options, assignments(self.set, "--set"), known)
        begun = [out] if self.seeds is None else [out / f"seed-{self.seed + k}" for k in range(self.seeds)]
        if self.resume and not any((one / "config.json").exists() for one in begun):
            print(f"note: there is no run in {out} to resume: a new one begins", file=sys.stderr)
        # What environments print must not come between the JSON.
        with contextlib.redirect_stdout(sys.stderr) if self.json else contextlib.nullcontext():
            with meanwhile(import_module, "matplotlib.figure"):  # what draws the tree takes its time to load
                names = _split_names(self.names)
                run = learn(self.env, env_kwargs=kwargs, feature_names=names, progress=not self.json, **options)
            runs = run if isinstance(run, list) else [run]
            interrupted = any(one.message == "interrupted" for one in runs)
            if interrupted:
                print(f"interrupted: the same command with --resume goes on with {out}", file=sys.stderr)
            results = [self._finish(one, kwargs) for one in runs]
        if self.json:
            print_json(results if isinstance(run, list) else results[0])
        return INTERRUPTED if interrupted else 0

    def _finish(self, run: Run, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Evaluate the tree and complete the run directory; print the result, or return it for JSON."""
        from custard.report.completion import complete_run
        from custard.tree.certificate import certificate_text

        result, files = complete_run(run, self.env, kwargs, self.episodes, progress=not self.json)
        tree = run.tree
        if self.json:
            return {
                "out": str(run.directory), "files": [str(file) for file in files], "steps": run.steps,
                "seconds": run.seconds, "message": run.message, "selection_value": run.value,
                "tree": {
                    "depth": tree.depth, "leaves": tree.n_leaves, "nodes": tree.n_nodes,
                    **({"coefficients": tree.n_coefficients} if tree.is_linear else {}),
                },
                "evaluation": None if result is None else result.to_json(),
            }  # fmt: skip
        print(tree)
        coefficients = f", coefficients {tree.n_coefficients}" if tree.is_linear else ""
        print(f"depth {tree.depth}, leaves {tree.n_leaves}, nodes {tree.n_nodes}{coefficients}")
        if result is not None:
            print(result)
        if (proved := certificate_text(tree)) is not None:
            print(proved)
        print(f"{run.steps:,} environment steps, {run.seconds:.1f} s{f' ({run.message})' if run.message else ''}")
        print(f"kept in {run.directory}: {', '.join(file.name for file in files)}")
        return {}


def _limits_leaves(name: str) -> bool:
    """Return whether a method has a limit of leaves; False for one whose packages are missing."""
    from custard.core.errors import CustardError
    from custard.lab.methods import method
    from custard.task.settings import setting_names

    try:
        return "max_leaves" in setting_names(method(name)[1])
    except CustardError:
        return False


def _split_names(names: tuple[str, ...]) -> list[str] | None:
    """Return names given apart or joined by commas; None if there are none."""
    return [name for text in names for name in text.split(",") if name] or None


def _one_or_all(bound: tuple[float, ...] | None) -> Any:
    """Return the bounds; a single one holds for every feature."""
    return bound[0] if bound is not None and len(bound) == 1 else bound
