"""`custard bench`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from custard.commands.arguments import Flag, KeyValues, Name, OptionalEnv, TreePath

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Measure how fast a tree decides on this machine: in Python, in batches, as C; and steps of its environment."""

    tree: TreePath
    """A tree file (tree.json) or a run directory."""

    env_id: OptionalEnv = None
    """The environment's id, as with --env."""

    env: Name = None
    """The environment whose states it decides on; the one the tree was learned in, unless given."""

    env_args: KeyValues = ()
    """Arguments of the environment, as key=value."""

    json: Flag = False
    """Print the result as JSON."""

    def run(self) -> None:
        """Measure and print."""
        from custard.commands.common import assignments, load_tree, one_environment, print_json
        from custard.lab.speed import measure
        from custard.task.origin import environment_of

        tree = load_tree(self.tree)
        how = f"custard bench {self.tree} CartPole-v1"
        env, kwargs = environment_of(
            tree, one_environment(self.env, self.env_id), assignments(self.env_args, "--env-args"), how
        )
        speed = measure(tree, env, kwargs)
        size = {"coefficients": tree.n_coefficients} if tree.is_linear else {}
        if self.json:
            print_json(
                {
                    "env": env,
                    "tree": str(self.tree),
                    "depth": tree.depth,
                    "leaves": tree.n_leaves,
                    **size,
                    **asdict(speed),
                }
            )
            return
        in_c = "no C compiler found" if speed.c is None else f"{speed.c:.1f} ns per decision"
        if speed.c_table is not None:
            in_c += f" (as a table {speed.c_table:.1f})"
        print(f"exported C    {in_c}")
        print(f"tree.predict  {speed.predict:.1f} ns per row of a large batch")
        print(f"tree.act      {speed.act:,.0f} ns per decision")
        print(f"{env}  {speed.steps:,.0f} steps per second, the tree deciding")
