"""Draw the idea of each method as a small SVG: boxes in a row, arrows between them, and the loop that repeats.

python docs/scripts/method_pictures.py      writes docs/images/methods/*.svg
"""

from __future__ import annotations

import html
import textwrap
from pathlib import Path

OUT = Path(__file__).parents[1] / "images" / "methods"
WIDTH, HEIGHT, GAP, LINE = 170, 84, 42, 17  # pixels
COLOURS = {"env": "#2fa37a", "learn": "#3b7dd8", "tree": "#e8833a", "expert": "#8a6fd1"}

#: method -> boxes (kind, text) from left to right, then what is repeated: (from box, to box, why)
PICTURES: dict[str, tuple[tuple[tuple[str, str], ...], tuple[int, int, str]]] = {
    "tpi": (
        (
            ("tree", "the best tree so far"),
            ("env", "try every action in the states it meets"),
            ("learn", "fit the tree that collects most of these values"),
            ("env", "compare both trees on the same fresh episodes"),
        ),
        (3, 0, "keep the better one, try small changes, repeat"),
    ),
    "mfec": (
        (
            ("env", "a step of the environment"),
            ("learn", "tables: what is each action worth in this state?"),
            ("learn", "and at every node of bounds above it?"),
            ("tree", "read the tree from the table over bounds"),
        ),
        (3, 0, "the tree acts in the next episodes"),
    ),
    "dqn": (
        (
            ("env", "steps of the environment into a memory"),
            ("learn", "critic network: values in full states"),
            ("learn", "tree network: values at nodes of bounds"),
            ("tree", "extract the greedy tree, prune, judge"),
        ),
        (3, 0, "the tree plays the next round"),
    ),
    "ppo": (
        (
            ("env", "rollouts of the present policy"),
            ("learn", "critic: what would each action have gained?"),
            ("learn", "actor over bounds: clipped policy gradient"),
            ("tree", "extract the most likely tree, judge it"),
        ),
        (3, 0, "repeat with the new policy"),
    ),
    "viper": (
        (
            ("expert", "an expert: a network or a plan"),
            ("env", "states that the latest tree visits"),
            ("expert", "the expert says what to do there"),
            ("tree", "fit a tree (CART) to all answers so far"),
        ),
        (3, 1, "the new tree visits other states"),
    ),
    "plan": (
        (
            ("env", "the exact model: states, actions, chances"),
            ("learn", "bounds on what any completion can return"),
            ("tree", "the best tree so far"),
            ("learn", "cut what cannot be better"),
        ),
        (3, 1, "until nothing is left: the tree is proved best"),
    ),
}


def picture(boxes: tuple[tuple[str, str], ...], loop: tuple[int, int, str]) -> str:
    """Return the SVG of one method."""
    wide, high = len(boxes) * (WIDTH + GAP) - GAP + 8, HEIGHT + 74
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" '
        'style="max-width:100%;height:auto;font:14px system-ui,sans-serif">',
        '<defs><marker id="a" markerWidth="9" markerHeight="9" refX="7" refY="4" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#9aa7b3"/></marker></defs>',
    ]
    left = [4 + k * (WIDTH + GAP) for k in range(len(boxes))]
    for k, (kind, text) in enumerate(boxes):
        parts.append(f'<rect x="{left[k]}" y="4" width="{WIDTH}" height="{HEIGHT}" rx="9" fill="{COLOURS[kind]}"/>')
        lines = textwrap.wrap(text, 21)
        top = 4 + HEIGHT / 2 - LINE * (len(lines) - 1) / 2
        parts += [
            f'<text x="{left[k] + WIDTH / 2}" y="{top + LINE * i}" text-anchor="middle" dominant-baseline="central" '
            f'fill="#fff">{html.escape(line)}</text>'
            for i, line in enumerate(lines)
        ]
        if k:
            parts.append(_line(f"M{left[k - 1] + WIDTH + 4} {4 + HEIGHT / 2}L{left[k] - 4} {4 + HEIGHT / 2}"))
    start, end, why = loop
    x0, x1, y = left[start] + WIDTH / 2, left[end] + WIDTH / 2, HEIGHT + 36
    parts.append(_line(f"M{x0} {HEIGHT + 6}L{x0} {y}L{x1} {y}L{x1} {HEIGHT + 10}"))
    parts.append(
        f'<text x="{(x0 + x1) / 2}" y="{y + 18}" text-anchor="middle" fill="#6b7884">{html.escape(why)}</text></svg>'
    )
    return "".join(parts) + "\n"


def _line(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="#9aa7b3" stroke-width="1.8" marker-end="url(#a)"/>'


def main() -> None:
    """Write all pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    for name, (boxes, loop) in PICTURES.items():
        (OUT / f"{name}.svg").write_text(picture(boxes, loop), encoding="utf-8")


if __name__ == "__main__":
    main()
