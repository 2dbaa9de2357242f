"""`custard export`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from custard.commands.arguments import File, Flag, KeyValues, Name, TreePath

if TYPE_CHECKING:
    from custard.core.mdp import FiniteMDP
    from custard.tree.tree import Tree

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Write a tree in another language or format: python, c, rust, json, dot, text, sklearn, onnx, smt2 or prism."""

    tree: TreePath
    """A tree file (tree.json) or a run directory."""

    format: Annotated[str, tyro.conf.arg(metavar="FORMAT")]
    """One of text, json, dot, python, c, rust, sklearn, onnx, smt2, prism."""

    out: File = None
    """The file to write; standard output unless given (onnx needs a file)."""

    env: Name = None
    """prism only: the environment whose exact model the tree acts in; the one it was learned in, unless given."""

    env_args: KeyValues = ()
    """Arguments of that environment, as key=value."""

    layout: Annotated[str | None, tyro.conf.arg(metavar="LAYOUT", help_behavior_hint="")] = None
    """c only: nested (ifs, for observations that follow each other), table (for random ones), or auto."""

    json: Flag = False
    """Print what was written as JSON."""

    def run(self) -> None:
        """Export and write."""
        from custard.commands.common import load_tree, print_json
        from custard.core.errors import CustardError
        from custard.core.files import write_atomically
        from custard.tree.export import export

        tree = load_tree(self.tree)
        if self.format == "onnx" and self.out is None:
            raise CustardError("onnx is a binary format: name a file with --out")
        if self.json and self.out is None:
            raise CustardError("--json tells what was written: name a file with --out")
        if (self.env is not None or self.env_args) and self.format != "prism":
            raise CustardError(f"--env and --env-args are for the format prism, not for {self.format}: leave them out")
        options: dict[str, Any] = {"mdp": self._model(tree)} if self.format == "prism" and tree.actions.discrete else {}
        if self.layout is not None:
            if self.format != "c":
                raise CustardError("--layout chooses the layout of the c format")
            options = {"layout": self.layout}
        content = export(tree, self.format, **options)
        if self.out is None:
            print(content, end="")
            return
        write_atomically(self.out, content)
        size = self.out.stat().st_size
        if self.json:
            print_json({"tree": str(self.tree), "format": self.format, "out": str(self.out), "bytes": size})
        else:
            print(f"wrote {self.out} ({self.format}, {size:,} bytes)")

    def _model(self, tree: Tree) -> FiniteMDP:
        from custard.commands.common import assignments
        from custard.planning.model import model_of
        from custard.task.history import remembered
        from custard.task.origin import environment_of
        from custard.task.source import source

        where = source(*environment_of(tree, self.env, assignments(self.env_args, "--env-args")))
        return model_of(remembered(tree, where)[0])
