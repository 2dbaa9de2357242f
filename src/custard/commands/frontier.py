"""`custard frontier`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from custard.commands.arguments import Count, Env, File, Flag, KeyValues, Method, Name, Whole
from custard.commands.engine import Engine

if TYPE_CHECKING:
    from custard.lab.trials import Trial

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Draw return against tree size over depth limits, leaf limits and prices of a question; list the best trees."""

    env: Env
    """The environment's id. 'module:Id-v0' imports a module first."""

    method: Method = None
    """How to learn (tpi unless given); `custard methods` lists them."""

    max_depth: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N [N ...]")] = (1, 2, 3, 4, 5)
    """Depth limits to try."""

    zeta: Annotated[tuple[float, ...], tyro.conf.arg(metavar="X [X ...]")] = (-0.1, -0.01, -0.001)
    """Prices of a question to try with each depth limit, where the method has one."""

    max_leaves: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N [N ...]")] = (2, 3, 4, 5, 6, 8, 12, 16)
    """Leaf limits to try without a depth limit, where the method has one."""

    seeds: Count = 1
    """Trials of each combination."""

    first_seed: Count = 0
    """The first trial's seed."""

    preset: Name = None
    """The method's settings to start from: tuned (default) or paper."""

    set: KeyValues = ()
    """Further settings of the method, as key=value."""

    history: Whole = None
    """Past steps whose features and actions the trees may ask about too."""

    env_args: KeyValues = ()
    """Arguments of the environment, as key=value."""

    episodes: Count = 1000
    """Evaluation episodes of each tree, the same ones for all."""

    out: File = None
    """Where trials.csv, frontier.json, .png and .svg go; runs/frontier-<environment>-<method> unless given."""

    json: Flag = False
    """Print the frontier as JSON, and no progress."""

    engine: Engine = field(default_factory=Engine)

    def run(self) -> int:
        """Run what is missing, draw, print; the exit code is 1 if every trial failed."""
        import json

        from custard.commands.common import print_json
        from custard.core.files import write_atomically
        from custard.core.number_format import format_numbers
        from custard.lab.frontier_plot import draw_frontier, pareto_front
        from custard.lab.methods import method
        from custard.lab.sweep import sweep
        from custard.tree.draw import save_figure

        name, _ = method(self.method)
        out = self.out or Path("runs") / f"frontier-{self.env.replace('/', '-').replace(':', '-')}-{name}"
        rows = sweep(
            self._trials(name),
            out / "trials.csv",
            show=not self.json,
            title="frontier",
            **self.engine.sweep_arguments(),
        )
        if all(row["error"] != "" for row in rows):
            print(f"every trial failed: {rows[0]['error']}", file=sys.stderr)
            return 1
        points = [_point(row) for row in pareto_front(rows)]
        result = {"env": self.env, "method": name, "trials": len(rows), "frontier": points}
        write_atomically(out / "frontier.json", json.dumps(result, indent=2) + "\n")
        drawn = draw_frontier(rows, f"{self.env}, {name}")
        files = [out / f"frontier.{ending}" for ending in ("png", "svg")]
        for file in files:
            save_figure(drawn, file)
        if self.json:
            print_json(result)
            return 0
        print("leaves  depth    return   95 % interval        learned by")
        for point in points:
            value, low, high = format_numbers(point["return"], *(point["ci95"] or (None, None)))
            print(f"{point['leaves']:6d} {point['depth']:6d} {value:>9}   {low:>8} … {high:>8}   {point['command']}")
        print(f"wrote {', '.join(str(file) for file in [*files, out / 'frontier.json', out / 'trials.csv'])}")
        return 0

    def _trials(self, name: str) -> list[Trial]:
        import dataclasses

        from custard.commands.common import assignments
        from custard.commands.engine import with_history_setting
        from custard.core.errors import CustardError
        from custard.lab.methods import method
        from custard.lab.trials import grid
        from custard.task.settings import settings_class

        if self.seeds < 1:
            raise CustardError("frontier needs at least one seed")
        if varied := {"zeta", "max_leaves", "max_depth"} & set(assignments(self.set, "--set")):
            option = f"--{min(varied).replace('_', '-')}"
            raise CustardError(f"--set {min(varied)}: a frontier goes over several, which {option} gives")
        known = {entry.name for entry in dataclasses.fields(settings_class(method(name)[1], self.preset))}
        common: dict[str, Any] = {
            "envs": [(self.env, assignments(self.env_args, "--env-args"))], "methods": [name],
            "seeds": range(self.first_seed, self.first_seed + self.seeds),
            "settings": with_history_setting({"": assignments(self.set, "--set")}, self.history),
            "preset": self.preset or "tuned", "episodes": self.episodes, "experiment": "frontier",
        }  # fmt: skip
        prices = {"zeta": self.zeta} if "zeta" in known and self.zeta else {}
        trials = grid(max_depths=self.max_depth, choices=prices, **common)
        if "max_leaves" in known:
            trials += grid(choices={"max_leaves": self.max_leaves}, **common)
        if not trials:
            raise CustardError(f"there is nothing to vary: give --max-depth, or --max-leaves if {name} has it")
        return trials


def _point(row: Any) -> dict[str, Any]:
    """Return a row's point of the frontier as plain data."""
    from custard.lab.frontier_plot import train_command

    return {
        "leaves": int(row["leaves"]), "depth": int(row["depth"]), "return": row["return"],
        "ci95": None if row["ci_low"] == "" else [row["ci_low"], row["ci_high"]], "command": train_command(row),
    }  # fmt: skip
