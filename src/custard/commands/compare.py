"""`custard compare`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from custard.commands.arguments import Count, Env, File, Flag, KeyValues, Name, Whole, WholeNumbers
from custard.commands.engine import Engine

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Run several methods on one environment and show return, size, time and gap side by side."""

    env: Env
    """The environment's id. 'module:Id-v0' imports a module first."""

    methods: Annotated[str, tyro.conf.arg(metavar="METHOD,METHOD,...")]
    """The methods, separated by commas: mfec,viper-dqn,plan."""

    seeds: Count = 10
    """Trials of each method; they use the seeds from --first-seed on."""

    first_seed: Count = 0
    """The first trial's seed."""

    max_depth: WholeNumbers = ()
    """Depth limits, one or several; none unless given."""

    episodes: Count = 1000
    """Evaluation episodes of each tree, the same ones for all."""

    evaluation_seed: Count = 1
    """Where the evaluation episodes' seeds come from."""

    preset: Name = None
    """The methods' settings to start from: tuned (default) or paper."""

    set: KeyValues = ()
    """Settings, as key=value for every method or method.key=value for one."""

    history: Whole = None
    """Past steps whose features and actions the trees may ask about too."""

    env_args: KeyValues = ()
    """Arguments of the environment, as key=value."""

    out: File = None
    """A CSV with one row per trial, written as it finishes; trials it holds already are not run again."""

    plot: File = None
    """A picture of the comparison (.png, .svg or .pdf)."""

    json: Flag = False
    """Print rows and summary as JSON."""

    engine: Engine = field(default_factory=Engine)

    def run(self) -> int:
        """Run, print, draw; the exit code is 1 if every trial failed."""
        from custard.commands.common import assignments
        from custard.commands.engine import method_settings, run_and_print, split_names, with_history_setting
        from custard.core.errors import CustardError
        from custard.lab.trials import grid

        methods = split_names(self.methods)
        if not methods or self.seeds < 1:
            raise CustardError("compare needs at least one method and one seed")
        settings = with_history_setting(method_settings(self.set, methods, "--set"), self.history)
        trials = grid(
            [(self.env, assignments(self.env_args, "--env-args"))], methods,
            range(self.first_seed, self.first_seed + self.seeds), max_depths=self.max_depth or (None,),
            settings=settings, preset=self.preset or "tuned",
            episodes=self.episodes, evaluation_seed=self.evaluation_seed, experiment="compare",
        )  # fmt: skip
        return run_and_print(trials, self.out, self.engine, self.plot, self.json)
