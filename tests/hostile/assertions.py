"""Assertions made of all their parts at random: refused in one line, or decided as trying many points decides it."""

from __future__ import annotations

import numpy as np

from custard import Tree
from custard.tree.verify import verify, where_holds
from tests.hostile.complaints import complaints_noted
from tests.strategies import hard_points, random_tree

__all__ = ["attack"]

NOISE = (
    "(", ")", "and", "or", "not", "->", "<", "<=", "==", "!=", "1e999", "nan", "-", "+", "*", "f9", "is", "in", "\x00",
    "\n", "'", "lambda", "__class__", "9" * 400, "0x1f", "1_0", ",", "[", "f0.f1", "f0(", "if", ":=", "≤", "é",
)  # fmt: skip


def condition(tree: Tree, rng: np.random.Generator, depth: int = 2) -> str:
    """Return a condition on features that can be read."""
    kind = int(rng.integers(4)) if depth else 3
    if kind == 0:
        return f"not ({condition(tree, rng, depth - 1)})"
    if kind in (1, 2):
        return f"({condition(tree, rng, depth - 1)}) {'and' if kind == 1 else 'or'} ({condition(tree, rng, depth - 1)})"
    c = int(rng.integers(tree.features.n))
    own = [*tree.threshold[tree.feature == c].tolist(), float(tree.features.low[c]), float(tree.features.high[c])]
    value = own[int(rng.integers(len(own)))]
    return f"{tree.features.names[c]} {rng.choice(['<', '<=', '>', '>='])} {value!r}"


def attack(count: int, seed: int = 0) -> list[str]:
    """Verify `count` assertions, every other one damaged; return what went wrong."""
    rng = np.random.default_rng(seed)
    wrong: list[str] = []
    for number in range(count):
        tree = random_tree(rng, n=int(rng.integers(1, 4)), splits=int(rng.integers(0, 6)))
        premise = condition(tree, rng)
        action = tree.actions.names[int(rng.integers(3))]
        text = f"{premise} -> {'not ' if rng.random() < 0.3 else ''}{action}"
        if number % 2:
            at = int(rng.integers(len(text)))
            text = text[:at] + f" {NOISE[int(rng.integers(len(NOISE)))]} " + text[at + int(rng.integers(4)) :]
        with complaints_noted(wrong, str(number), text):
            verdict = verify(tree, text, bounded=False)
            if number % 2 == 0 and verdict.holds:
                wrong += _counterexamples(tree, premise, text, number)
            if verdict.counterexample is not None and tree.act(verdict.counterexample) != verdict.action:
                wrong.append(f"{number}: the counterexample of {text!r} leads to another action")
    return wrong


def _counterexamples(tree: Tree, premise: str, text: str, number: int) -> list[str]:
    """Return a complaint if one of many points refutes what was said to hold."""
    points = hard_points(tree, 200, seed=number)
    points = np.where(tree.features.integer, np.floor(points), points)[np.isfinite(points).all(axis=1)]
    conclusion = text.rpartition("-> ")[2]
    wanted = tree.actions.names.index(conclusion.removeprefix("not ")) + tree.actions.start
    fits = tree.predict(points) == wanted
    broken = where_holds(premise, points, tree.features) & (fits if conclusion.startswith("not ") else ~fits)
    return [f"{number}: {text!r} is said to hold, but not at {points[broken][0].tolist()}"] if broken.any() else []
