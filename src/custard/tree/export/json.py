"""custard's own format: what `Tree.save` writes and `Tree.load` reads."""

from __future__ import annotations

import json

import numpy as np

from custard.core.errors import CustardError
from custard.tree.tree import Tree

__all__ = ["to_json"]


def to_json(tree: Tree) -> str:
    """Return the tree as a JSON document, one array per line."""
    if not np.isfinite(tree.value).all():
        raise CustardError("json holds finite numbers only, but a leaf of this tree holds an infinite action")
    data = tree.to_json()
    nodes = data.pop("nodes")
    head = json.dumps(data, indent=2, allow_nan=False)
    arrays = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(values, allow_nan=False)}" for name, values in nodes.items()
    )
    return f'{head[:-2]},\n  "nodes": {{\n{arrays}\n  }}\n}}\n'
