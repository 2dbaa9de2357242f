"""A tree as indented text, for terminals and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["draw_text", "number", "one_line", "plural"]


def number(value: float) -> str:
    """A threshold for people: six significant digits. Exports write all of them.

    >>> number(0.1 + 0.2), number(-1e-9), number(3.0)
    ('0.3', '-1e-09', '3')
    """
    return f"{value:.6g}"


def one_line(name: str) -> str:
    """A name that stays on its line and cannot steer a terminal.

    >>> one_line("a\\nb")
    'a b'
    """
    return "".join(c if c.isprintable() else " " for c in name)


def plural(noun: str, count: int) -> str:
    """A noun beside a number.

    >>> plural("step", 1), plural("step", 2), plural("leaf", 0)
    ('step', 'steps', 'leaves')
    """
    return noun if count == 1 else {"leaf": "leaves"}.get(noun, f"{noun}s")


def draw_text(tree: Tree, max_lines: int = 1000) -> str:
    """The tree, one line a node; a tree with more nodes than `max_lines` is cut and says so."""
    lines: list[str] = []
    stack = [(0, "", "", "")]  # node, the lead of its own line, the lead of its children's, its answer
    while stack:
        if len(lines) == max_lines:
            lines.append(f"… {tree.n_nodes - max_lines} more nodes")
            break
        node, lead, rest, answer = stack.pop()
        if tree.feature[node] < 0:
            lines.append(f"{lead}{answer}{one_line(tree.actions.name(tree.value[node]))}")
            continue
        lines.append(f"{lead}{answer}{one_line(tree.question(node))}?")
        stack.append((int(tree.children_right[node]), f"{rest}└─ ", f"{rest}   ", "no:  "))
        stack.append((int(tree.children_left[node]), f"{rest}├─ ", f"{rest}│  ", "yes: "))
    return "\n".join(lines)
