"""`custard show`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from custard.commands.arguments import Count, File, Flag, KeyValues, Name, TreePath

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Print a tree with names and units; draw it with --png or --svg."""

    tree: TreePath
    """A tree file (tree.json) or a run directory."""

    png: File = None
    """Draw the tree into this PNG file."""

    svg: File = None
    """Draw the tree into this SVG file."""

    partition: File = None
    """Trees of one or two used features: draw what they decide over the plane (.png, .svg or .pdf)."""

    curves: File = None
    """A run directory's learning curve and tree size (.png, .svg or .pdf)."""

    episodes: Count = 0
    """Run this many episodes, so that edges show the share of visited states and the partition shows trajectories."""

    env: Name = None
    """The environment for those; the one the tree was learned in, unless given."""

    env_args: KeyValues = ()
    """Arguments of that environment, as key=value."""

    seed: Count = 1
    """Where the episodes' seeds come from."""

    json: Flag = False
    """Print the tree's size and origin as JSON."""

    def run(self) -> None:
        """Print, and draw what was asked for."""
        from custard.commands.common import load_tree, print_json
        from custard.core.errors import require_whole
        from custard.tree.certificate import certificate_text

        require_whole(0, episodes=self.episodes)
        tree = load_tree(self.tree)
        drawn = self._draw(tree)
        size = {"depth": tree.depth, "leaves": tree.n_leaves, "nodes": tree.n_nodes}
        if tree.is_linear:
            size["coefficients"] = tree.n_coefficients
        if self.json:
            about: dict[str, Any] = {"features": list(tree.features.names), "origin": dict(tree.origin)}
            print_json({**size, **about, "drawn": [str(path) for path in drawn]})
            return
        print(tree)
        print(", ".join(f"{name} {count}" for name, count in size.items()))
        if (proved := certificate_text(tree)) is not None:
            print(proved)
        for path in drawn:
            print(f"wrote {path}")

    def _draw(self, tree: Tree) -> list[Path]:
        from custard.core.errors import CustardError

        for path, suffix in ((self.png, ".png"), (self.svg, ".svg")):
            if path is not None and path.suffix.lower() != suffix:
                raise CustardError(f"--{suffix[1:]} {path}: the name must end in {suffix}")
        pictures = [path for path in (self.png, self.svg) if path is not None]
        if (self.env is not None or self.env_args) and not self.episodes:
            raise CustardError("--env and --env-args say where episodes are run: give --episodes too")
        if self.episodes and not pictures and self.partition is None:
            raise CustardError("--episodes shows in pictures only: give --png, --svg or --partition too")
        if not pictures and self.partition is None and self.curves is None:
            return []
        from custard.tree.draw import draw_partition, save_figure, save_picture

        visits, paths = self._watch(tree)
        for path in pictures:
            save_picture(tree, path, visits)
        if self.partition is not None:
            save_figure(draw_partition(tree, paths), self.partition)
            pictures.append(self.partition)
        if self.curves is not None:
            from custard.report.curves import draw_curves
            from custard.report.html_page import metrics_rows

            if not self.tree.is_dir():
                raise CustardError(f"--curves needs a run directory, {self.tree} is a file")
            save_figure(draw_curves(metrics_rows(self.tree / "metrics.csv")), self.curves)
            pictures.append(self.curves)
        return pictures

    def _watch(self, tree: Tree) -> tuple[Any, list[Any]]:
        """Return the visits of each node and some trajectories, if episodes are asked for."""
        if self.episodes < 1:
            return None, []
        import numpy as np

        from custard.commands.common import watch_episodes
        from custard.tree.explain import node_visits

        _, runs = watch_episodes(tree, self.env, self.env_args, self.episodes, self.seed)
        return node_visits(tree, np.concatenate([run.x for run in runs])), [run.x for run in runs[:20]]
