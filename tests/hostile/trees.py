"""Mutated trees: each is refused in one line, or is a tree whose every use agrees with itself."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from custard import Tree
from custard.tree.explain import explain, rule
from custard.tree.export import FORMATS, export
from custard.tree.simplify import simplify
from custard.tree.verify import difference
from tests.hostile.complaints import complaints_noted
from tests.strategies import hard_points, random_tree

__all__ = ["attack"]

ODD = (
    None, True, False, 0, 1, -1, 2, 7, 10**6, 2**63, 10**400, -(2**31), 0.5, -0.0, 1e308, -1e308, 1e-320, math.inf,
    -math.inf, math.nan, "", "0", "a\nb", "\x1b[31m", "x" * 5000, "\ud800", [], {}, [[]], {"a": []}, [0], {"name": 3},
)  # fmt: skip


def attack(count: int, seed: int = 0) -> list[str]:
    """Mutate `count` trees; return what went wrong."""
    rng = np.random.default_rng(seed)
    wrong: list[str] = []
    for number in range(count):
        tree = random_tree(rng, n=int(rng.integers(1, 4)), splits=int(rng.integers(0, 7)),
                           kind=str(rng.choice(["discrete", "box", "multi"])))  # fmt: skip
        data = tree.to_json()
        for _ in range(int(rng.integers(1, 4))):
            mutate(data, rng)
        with complaints_noted(wrong, str(number), data):
            use(Tree.from_json(data), number)
    return wrong


def mutate(data: Any, rng: np.random.Generator) -> None:
    """Change one place of plain data: another value, one entry fewer or more, two entries exchanged."""
    here = data
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return
        key = keys[int(rng.integers(len(keys)))]
        deeper = isinstance(here[key], (dict, list)) and len(here[key]) and rng.random() < 0.85
        if not deeper:
            break
        here = here[key]
    kind, odd = int(rng.integers(5)), ODD[int(rng.integers(len(ODD)))]
    if kind == 0:
        del here[key]
    elif kind == 1 and isinstance(here, list):
        here.insert(key, odd)
    elif kind == 2 and isinstance(here, list):
        other = int(rng.integers(len(here)))
        here[key], here[other] = here[other], here[key]
    elif kind == 3 and isinstance(here[key], (int, float)) and not isinstance(here[key], bool):
        here[key] = here[key] + int(rng.integers(-2, 3))
    else:
        here[key] = odd


def use(tree: Tree, number: int) -> None:
    """Use a tree that was accepted in every way that does not need an environment."""
    again = Tree.from_json(json.loads(json.dumps(tree.to_json(), allow_nan=False)))
    if again != tree:
        raise AssertionError("saved and loaded it is another tree")
    points = hard_points(tree, 20, seed=number)
    points = np.where(tree.features.integer, np.floor(points), points)  # what such features can be
    actions = tree.predict(points)
    for point, action in zip(points, actions, strict=True):
        np.testing.assert_array_equal(np.asarray(tree.act(point)), action)
    np.testing.assert_array_equal(simplify(tree).predict(points), actions)
    if difference(tree, again) is not None:
        raise AssertionError("it differs from itself")
    str(tree)
    rule(tree, int(tree.leaves()[0]))
    finite = points[np.isfinite(points).all(axis=1)]
    if len(finite):
        explain(tree, finite[0])
    formats = [name for name in FORMATS if name not in ("prism", "onnx")]
    name = formats[number % len(formats)]
    with np.errstate(all="raise"):
        text = export(tree, name)
    if name == "json":
        assert Tree.from_json(json.loads(text)) == tree
