"""`custard show`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Print a tree with names and units; draw it with --png or --svg."""

    tree: Annotated[Path, tyro.conf.Positional]
    """A tree file (tree.json) or a run directory."""

    json: bool = False
    """Print the tree's size and origin as JSON."""

    def run(self) -> None:
        """Print."""
        from custard.commands.common import load_tree, print_json

        tree = load_tree(self.tree)
        size = {"depth": tree.depth, "leaves": tree.n_leaves, "nodes": tree.n_nodes}
        if self.json:
            print_json({**size, "features": list(tree.features.names), "origin": dict(tree.origin)})
            return
        print(tree)
        print(", ".join(f"{name} {count}" for name, count in size.items()))
