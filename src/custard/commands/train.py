"""`custard train`."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from custard.lab.run import Run

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Learn a decision tree policy for an environment and keep the run in a directory."""

    env: Annotated[str, tyro.conf.Positional]
    """The environment's id. 'module:Id-v0' imports a module first."""

    method: str | None = None
    """How to learn; the best default if not given."""

    max_depth: int | None = None
    """The largest number of questions on a path."""

    max_leaves: int | None = None
    """The largest number of leaves, for methods with such a limit (tpi, viper-dqn, viper-bi)."""

    expert: str | None = None
    """An expert to begin from or to imitate: dqn, bi, a file (.npz of ours, .zip of Stable-Baselines3), or none."""

    seed: int = 0
    """The seed of all randomness."""

    seeds: int | None = None
    """Run this many seeds side by side, from --seed on, one process per core; each has a directory in --out."""

    budget: int | None = None
    """The largest number of environment steps to use."""

    preset: str | None = None
    """The method's settings to start from: tuned (default) or paper."""

    low: tuple[float, ...] | None = None
    """Lower bounds of the features, where the environment's own are infinite or too wide."""

    high: tuple[float, ...] | None = None
    """Upper bounds of the features."""

    env_args: tuple[str, ...] = ()
    """Arguments of the environment, as key=value."""

    set: tuple[str, ...] = ()
    """Settings of the method, as key=value."""

    out: Path | None = None
    """The run directory; runs/<environment>-<method>-<seed> unless given."""

    resume: bool = False
    """Resume the run in the directory."""

    episodes: int = 1000
    """Episodes for the final evaluation; 0 for none."""

    json: bool = False
    """Print the result as JSON, and no progress."""

    def run(self) -> None:
        """Learn, evaluate, save, print."""
        from custard.commands.common import assignments, print_json, with_settings
        from custard.core.errors import CustardError, require_whole
        from custard.core.threads import meanwhile
        from custard.lab.learn import learn
        from custard.lab.methods import METHODS, method
        from custard.task.settings import setting_names

        require_whole(0, episodes=self.episodes)
        name, module = method(self.method)
        many = "" if self.seeds is None else f"+{self.seeds}"
        out = self.out or Path("runs") / f"{self.env.replace('/', '-').replace(':', '-')}-{name}-{self.seed}{many}"
        kwargs = assignments(self.env_args, "--env-args")
        options = {
            "method": self.method, "preset": self.preset, "budget": self.budget, "max_depth": self.max_depth,
            "low": _one_or_all(self.low), "high": _one_or_all(self.high), "seed": self.seed, "seeds": self.seeds,
            "out": out, "resume": self.resume,
            **{k: v for k, v in (("max_leaves", self.max_leaves), ("expert", self.expert)) if v is not None},
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
                run = learn(self.env, env_kwargs=kwargs, progress=not self.json, **options)
            results = [self._finish(one, kwargs) for one in (run if isinstance(run, list) else [run])]
        if self.json:
            print_json(results if isinstance(run, list) else results[0])

    def _finish(self, run: Run, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Evaluate the tree and complete the run directory; print the result, or return it for JSON."""
        from custard.report.completion import complete_run
        from custard.tree.certificate import certificate_text

        result, files = complete_run(run, self.env, kwargs, self.episodes)
        tree = run.tree
        if self.json:
            return {
                "out": str(run.directory), "files": [str(file) for file in files], "steps": run.steps,
                "seconds": run.seconds, "message": run.message, "selection_value": run.value,
                "tree": {"depth": tree.depth, "leaves": tree.n_leaves, "nodes": tree.n_nodes},
                "evaluation": None if result is None else result.to_json(),
            }  # fmt: skip
        print(tree)
        print(f"depth {tree.depth}, leaves {tree.n_leaves}, nodes {tree.n_nodes}")
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


def _one_or_all(bound: tuple[float, ...] | None) -> Any:
    """Return the bounds; a single one holds for every feature."""
    return bound[0] if bound is not None and len(bound) == 1 else bound
