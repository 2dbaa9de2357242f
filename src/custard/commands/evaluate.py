"""`custard evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from custard.commands.arguments import Count, Flag, KeyValues, Name, OptionalEnv, TreePath, Whole

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Run a tree in an environment: mean return with a 95 % interval over seeded episodes."""

    tree: TreePath
    """A tree file (tree.json) or a run directory."""

    env_id: OptionalEnv = None
    """The environment's id, as with --env."""

    env: Name = None
    """The environment's id; the one the tree was learned in, unless given. 'module:Id-v0' imports a module first."""

    episodes: Count = 1000
    """How many episodes."""

    seed: Count = 1
    """Where the episodes' seeds come from."""

    env_args: KeyValues = ()
    """Arguments of the environment, as key=value."""

    history: Whole = None
    """Past steps among the features; those the tree was learned with, unless given."""

    max_steps: Whole = None
    """Cut episodes after this many steps where the environment sets no limit (10,000 unless given)."""

    gamma: Annotated[float, tyro.conf.arg(metavar="GAMMA", help_behavior_hint="")] = 1.0
    """The discount of the returns, per step; 1 (none) unless given."""

    json: Flag = False
    """Print the result as JSON, with every return and length."""

    def run(self) -> None:
        """Evaluate and print."""
        from custard.commands.common import assignments, load_tree, one_environment, print_json
        from custard.lab.progress import waiting
        from custard.task.evaluate import evaluate
        from custard.task.origin import environment_of

        tree = load_tree(self.tree)
        given, arguments = one_environment(self.env, self.env_id), assignments(self.env_args, "--env-args")
        env, kwargs = environment_of(tree, given, arguments, f"custard evaluate {self.tree} CartPole-v1")
        with waiting(f"evaluate on {env}", f"{self.episodes:,} episodes", enabled=not self.json) as display:
            result = evaluate(
                tree, env, self.episodes, self.seed, env_kwargs=kwargs, max_steps=self.max_steps, gamma=self.gamma,
                history=self.history, on_progress=lambda done, of: display.say(f"{done:,} of {of:,} episodes"),
            )  # fmt: skip
        if self.json:
            print_json({"env": env, "tree": str(self.tree), **result.to_json()})
        else:
            print(result)
