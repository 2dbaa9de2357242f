"""`custard evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Run a tree in an environment: mean return with a 95 % interval over seeded episodes."""

    tree: Annotated[Path, tyro.conf.Positional]
    """A tree file (tree.json) or a run directory."""

    env: Annotated[str | None, tyro.conf.Positional] = None
    """The environment's id; the one the tree was learned in, unless given. 'module:Id-v0' imports a module first."""

    episodes: int = 1000
    """How many episodes."""

    seed: int = 1
    """Where the episodes' seeds come from."""

    env_args: tuple[str, ...] = ()
    """Arguments of the environment, as key=value."""

    max_steps: int | None = None
    """Cut episodes after this many steps where the environment sets no limit (10,000 unless given)."""

    json: bool = False
    """Print the result as JSON, with every return and length."""

    def run(self) -> None:
        """Evaluate and print."""
        from custard.commands.common import assignments, load_tree, print_json
        from custard.task.evaluate import evaluate
        from custard.task.origin import environment_of

        tree = load_tree(self.tree)
        env, kwargs = environment_of(
            tree, self.env, assignments(self.env_args, "--env-args"), f"custard evaluate {self.tree} CartPole-v1"
        )
        result = evaluate(tree, env, self.episodes, self.seed, env_kwargs=kwargs, max_steps=self.max_steps)
        if self.json:
            print_json({"env": env, "tree": str(self.tree), **result.to_json()})
        else:
            print(result)
