"""What exact planning proved about a tree, as the tree's file holds it."""

from __future__ import annotations

from typing import Any

from custard.tree.tree import Tree

__all__ = ["certificate_of", "certificate_text"]


def certificate_of(tree: Tree) -> dict[str, Any] | None:
    """Return what exact planning stored with a tree; None if it was not planned."""
    stored = tree.origin.get("certificate")
    return dict(stored) if isinstance(stored, dict) else None


def certificate_text(tree: Tree) -> str | None:
    """Return the certificate in one line: value, bound, tolerance and how it was found; None if there is none."""
    stored = certificate_of(tree)
    if stored is None:
        return None
    value, bound = ("-inf" if stored.get(key) is None else f"{stored[key]:.9g}" for key in ("value", "bound"))
    limit = f"depth <= {stored.get('max_depth')}".replace("<=", "≤")
    if stored.get("proved"):
        fewest = ", and none of fewer leaves as much" if stored.get("fewest_leaves") else ""
        proved = f"proved: no tree of {limit} returns more{fewest}"
    else:
        proved = f"no tree of {limit} returns more than {bound}"
    return f"return {value} (exact); {proved} (tolerance {stored.get('tolerance', 0.0):.1g}; {stored.get('how')})"
