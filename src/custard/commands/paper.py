"""`custard paper`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from custard.commands.arguments import File, Flag, Whole
from custard.commands.engine import Engine

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Run the paper's evaluation, with tables and figures beside its numbers and beside what is proved."""

    experiment: Annotated[Literal["table1", "size", "depth", "all"], tyro.conf.Positional]
    """table1: the three environments; size: PrereqWorld m = 4 to 10; depth: PotholeWorld under depth limits."""

    trials: Whole = None
    """Trials of each cell: 50, or 5 with --quick, unless given."""

    preset: Annotated[
        Literal["tuned", "own", "paper", "both"] | None,
        tyro.conf.arg(metavar="{tuned,own,paper,both}", help_behavior_hint=""),
    ] = None
    """Which settings: ours, ours with the policies' own trees, the appendix's, or all of these (default)."""

    quick: Flag = False
    """Five trials with small budgets: the same code in minutes."""

    methods: Annotated[str | None, tyro.conf.arg(metavar="METHOD,METHOD,...", help_behavior_hint="")] = None
    """Run only these methods now, separated by commas; the tables still show all that is there."""

    out: File = None
    """Where CSVs and figures go: results/paper, or results/paper-quick, unless given."""

    page: File = None
    """The Markdown page whose tables are renewed: README.md in that directory unless given."""

    tables_only: Flag = False
    """Run nothing, only make tables and figures from the CSVs."""

    json: Flag = False
    """Print the summary as JSON, and no progress."""

    engine: Engine = field(default_factory=Engine)

    def run(self) -> int:
        """Run what is missing, then write tables and figures; the exit code is 1 if every trial failed."""
        from custard.commands.common import print_json
        from custard.commands.engine import print_table, split_names
        from custard.core.errors import CustardError, one_of
        from custard.lab.paper import EXPERIMENTS, FULL_TRIALS, METHOD_TITLES, QUICK_TRIALS
        from custard.lab.summary import summary

        count = self.trials if self.trials is not None else QUICK_TRIALS if self.quick else FULL_TRIALS
        if count < 1:
            raise CustardError(f"--trials {count}: at least one is needed")
        chosen = split_names(self.methods) if self.methods is not None else list(METHOD_TITLES)
        for name in chosen:
            if name not in METHOD_TITLES:
                raise CustardError(one_of("method", name, METHOD_TITLES))
        everything: list[dict[str, Any]] = []
        for experiment in EXPERIMENTS if self.experiment == "all" else (self.experiment,):
            rows = self._experiment(experiment, count, chosen)
            everything += rows
            if not self.json:
                print(f"\n{experiment}")
                print_table(summary(rows)) if rows else print("no trials yet")
        if self.json:
            print_json({"summary": summary(everything)})
        return int(bool(everything) and all(row["error"] != "" for row in everything))

    def _experiment(self, experiment: str, count: int, chosen: list[str]) -> list[dict[str, Any]]:
        from custard.lab.paper import EXPERIMENTS, FULL_TRIALS, PRESETS, experiment_file, trials_of
        from custard.lab.paper_figures import figure
        from custard.lab.paper_page import relative_link, section, write_page
        from custard.lab.sweep import sweep, trials_in
        from custard.tree.draw import save_figure

        out = self.out or Path("results") / ("paper-quick" if self.quick else "paper")
        preset = self.preset or ("tuned" if self.quick else "both")
        rows: dict[str, list[dict[str, Any]]] = {}
        files = {each: experiment_file(out, experiment, each) for each in PRESETS}
        for each in PRESETS:
            if preset in (each, "both") and not self.tables_only:
                now = [trial for trial in trials_of(experiment, each, count, self.quick) if trial.method in chosen]
                others = [experiment_file(out, other, each) for other in EXPERIMENTS]
                sweep(
                    now, files[each], borrow=others, strict=False, show=not self.json, title=f"{experiment}, {each}",
                    **self.engine.sweep_arguments(),
                )  # fmt: skip
            everything = trials_of(experiment, each, max(count, FULL_TRIALS), self.quick)
            rows[each], notes = trials_in(files[each], everything)
            for note in notes if self.tables_only and not self.json else ():  # otherwise the sweep has said so
                print(f"note: {files[each].name}: {note}", file=sys.stderr)
        drawn = figure(experiment, rows)
        if drawn is not None:
            for ending in ("png", "svg"):
                save_figure(drawn, out / f"{experiment}.{ending}")
            page = self.page or out / "README.md"
            links = {each: relative_link(file, page) for each, file in files.items()}
            picture = relative_link(out / f"{experiment}.svg", page)
            write_page(page, experiment, section(experiment, rows, links, picture, self._command(experiment)))
        return [row for some in rows.values() for row in some]

    def _command(self, experiment: str) -> str:
        """Return the command that runs what is missing and writes the section again."""
        words = ["custard paper", experiment, *(["--quick"] if self.quick else [])]
        given = (("--out", self.out), ("--page", self.page))
        return " ".join([*words, *(f"{name} {path}" for name, path in given if path is not None)])
