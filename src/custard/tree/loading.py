"""Load a tree from wherever it is: its file, a run directory, or a run in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from custard.core.errors import CustardError
from custard.tree.tree import Tree

__all__ = ["load", "require_one_run"]


def load(where: Any) -> Tree:
    """Return the tree of a file that `Tree.save` wrote, of a run directory, or of what `custard.learn` returned.

    >>> import custard, tempfile, pathlib
    >>> tree = custard.Tree.leaf(0, custard.Features(("x",), [0], [1]), custard.Actions("discrete", ("a", "b")))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     tree.save(pathlib.Path(directory) / "tree.json")
    ...     custard.load(directory) == custard.load(tree) == tree
    True
    """
    if isinstance(where, Tree):
        return where
    if isinstance(getattr(where, "tree", None), Tree):
        return where.tree
    if not isinstance(where, (str, Path)):
        raise CustardError(f"load takes a tree file, a run directory or a run, not a {type(where).__name__}")
    path = Path(where)
    require_one_run(path)
    return Tree.load(path / "tree.json" if path.is_dir() else path)


def require_one_run(path: Path) -> None:
    """Raise if a directory holds one run per seed, as `train --seeds` makes it."""
    runs = sorted(path.glob("seed-*")) if path.is_dir() and not (path / "config.json").exists() else []
    if runs and not (path / "tree.json").exists():
        raise CustardError(f"{path} holds the runs of several seeds: name one of them, such as {runs[0]}")
