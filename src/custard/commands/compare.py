"""`custard compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Run several methods on one environment and show return, size, time and gap side by side."""

    env: Annotated[str, tyro.conf.Positional]
    """The environment's id. 'module:Id-v0' imports a module first."""

    methods: str
    """The methods, separated by commas: mfec,viper-dqn,plan."""

    seeds: int = 10
    """Trials of each method; they use the seeds from --first-seed on."""

    first_seed: int = 0
    """The first trial's seed."""

    max_depth: tuple[int, ...] = ()
    """Depth limits, one or several; none unless given."""

    episodes: int = 1000
    """Evaluation episodes of each tree, the same ones for all."""

    evaluation_seed: int = 1
    """Where the evaluation episodes' seeds come from."""

    preset: str | None = None
    """The methods' settings to start from: tuned (default) or paper."""

    set: tuple[str, ...] = ()
    """Settings, as key=value for every method or method.key=value for one."""

    env_args: tuple[str, ...] = ()
    """Arguments of the environment, as key=value."""

    out: Path | None = None
    """A CSV with one row a trial, written as it finishes; trials it holds already are not run again."""

    plot: Path | None = None
    """A picture of the comparison (.png, .svg or .pdf)."""

    json: bool = False
    """Print rows and summary as JSON."""

    def run(self) -> int:
        """Run, print, draw; the exit code is 1 if every trial failed."""
        from custard.baselines.compare import compare, plot, summary
        from custard.commands.common import assignments, print_json
        from custard.errors import CustardError

        methods = [name.strip() for name in self.methods.split(",") if name.strip()]
        if not methods or self.seeds < 1 or self.episodes < 1:
            raise CustardError("compare needs at least one method, one seed and one episode")
        settings: dict[str, dict[str, Any]] = {}
        for key, value in assignments(self.set, "--set").items():
            owner, dot, name = key.rpartition(".")
            owner = owner.replace("_", "-")
            if dot and owner not in methods:
                raise CustardError(f"--set {key}: {owner!r} is not among the methods {', '.join(methods)}")
            settings.setdefault(owner, {})[name] = value
        rows = compare(
            self.env, methods, seeds=range(self.first_seed, self.first_seed + self.seeds),
            max_depths=self.max_depth or (None,), episodes=self.episodes, evaluation_seed=self.evaluation_seed,
            env_kwargs=assignments(self.env_args, "--env-args"), settings=settings, preset=self.preset, file=self.out,
            on_row=None if self.json else _print_row,
        )  # fmt: skip
        entries = summary(rows)
        if self.plot is not None:
            plot(rows, self.plot)
        if self.json:
            print_json({"rows": rows, "summary": entries})
        else:
            _print_table(entries)
        return int(all(entry["failures"] == entry["trials"] for entry in entries))


def _print_row(row: dict[str, Any]) -> None:
    limit = f" depth ≤ {row['max_depth']}" if row["max_depth"] != "" else ""
    head = f"{row['method']}{limit} seed {row['seed']}:"
    if row["error"] != "":
        print(f"{head} failed: {row['error']}", flush=True)
        return
    print(
        f"{head} return {float(row['return']):.2f}, depth {int(row['depth'])}, {int(row['leaves'])} leaves, "
        f"{float(row['seconds']):.1f} s",
        flush=True,
    )


def _print_table(entries: list[dict[str, Any]]) -> None:
    lines = [
        ("method", "depth ≤", "trials", "failed", "return", "min … max", "depth", "leaves", "nodes", "seconds", "gap")
    ]
    for entry in entries:
        show = lambda key, form, entry=entry: "–" if entry[key] is None else format(entry[key], form)  # noqa: E731
        lines.append(
            (
                entry["method"], "–" if entry["max_depth"] is None else str(entry["max_depth"]), str(entry["trials"]),
                str(entry["failures"]), f"{show('return', '.2f')} ± {show('return_std', '.2f')}",
                f"{show('return_min', '.2f')} … {show('return_max', '.2f')}", show("depth", ".1f"),
                show("leaves", ".1f"), show("nodes", ".1f"), show("seconds", ".1f"), show("gap", ".3f"),
            )
        )  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    print()
    for line in lines:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells))
