"""`custard check`."""

from __future__ import annotations

from dataclasses import dataclass

from custard.commands.arguments import Count, Env, Flag, KeyValues

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Check an environment: does it keep what a tree learner relies on? Exit code 1 means that it does not."""

    env: Env
    """The environment's id. 'module:Id-v0' imports a module first."""

    env_args: KeyValues = ()
    """Arguments of the environment, as key=value."""

    steps: Count = 2000
    """How many random steps to take."""

    seed: Count = 0
    """Where the episodes' seeds come from."""

    json: Flag = False
    """Print the report as JSON."""

    def run(self) -> int:
        """Check and print."""
        from custard.commands.common import assignments, print_json
        from custard.core.errors import require_whole
        from custard.task.check import check_env

        require_whole(1, 10**9, steps=self.steps)
        require_whole(0, 2**31, seed=self.seed)
        report = check_env(
            self.env, env_kwargs=assignments(self.env_args, "--env-args"), seed=self.seed, steps=self.steps
        )
        if self.json:
            print_json(report.to_json())
        else:
            print(report)
        return 0 if report.ok else 1
