"""`custard report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from custard.commands.arguments import Count, File, Flag, RunPath, Whole

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Write one HTML file that shows a run: the tree, a replay, what-if sliders, curves, evaluation and exports."""

    run_directory: RunPath
    """A run directory (config.json, metrics.csv, tree.json)."""

    out: File = None
    """The file to write; report.html in the run directory unless given."""

    episodes: Whole = None
    """Episodes of the evaluation: 1,000 for compiled environments and 100 for others, unless given."""

    seed: Count = 1
    """Where the episodes' seeds come from."""

    purpose: Annotated[str, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = ""
    """What the policy is for, in your words: stands in the report's audit section."""

    json: Flag = False
    """Print what was written as JSON."""

    def run(self) -> None:
        """Write the report and say where it is."""
        from custard.commands.common import print_json
        from custard.core.errors import CustardError, require_whole
        from custard.lab.progress import waiting
        from custard.report import write_report
        from custard.tree.loading import require_one_run

        require_whole(1, episodes=self.episodes)
        require_whole(0, seed=self.seed)
        if self.run_directory.is_file():
            raise CustardError(f"{self.run_directory} is a file: name the run directory it is in")
        require_one_run(self.run_directory)
        with waiting(f"report of {self.run_directory}", "reading the run", enabled=not self.json) as display:
            path = write_report(
                self.run_directory, episodes=self.episodes, seed=self.seed, out=self.out, purpose=self.purpose,
                on_progress=display.say,
            )  # fmt: skip
        size = path.stat().st_size
        if self.json:
            print_json({"report": str(path), "bytes": size})
        else:
            print(f"wrote {path} ({size:,} bytes): open it in a browser")
