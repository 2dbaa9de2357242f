"""Trees that were found elsewhere, by `tpi` for example, as trees that a search for the best one may begin from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from custard.core.errors import CustardError
from custard.planning.reduced import ReducedMDP
from custard.tree.loading import load
from custard.tree.mdp_policy import mdp_policy
from custard.tree.shape import Shape, Split, map_leaves, shape_of
from custard.tree.tree import Tree

__all__ = ["load_trees", "shape_on"]


def load_trees(names: str | None) -> list[Tree]:
    """Return the trees of files or run directories, separated by commas."""
    return [load(Path(name.strip())) for name in (names or "").split(",") if name.strip()]


def shape_on(tree: Tree, problem: ReducedMDP, max_depth: int) -> Shape:
    """Return a tree as a shape over the splits of a problem that decides alike in every state, without idle splits.

    Leaves are action numbers 0…A-1. Raises a CustardError where the tree does not fit the problem or is too deep.
    """
    mdp_policy(tree, problem.mdp)
    if tree.is_linear or tree.features.derived != problem.mdp.features.derived:
        raise CustardError("a tree to begin from must have constant leaves and ask about the model's own features")
    start = tree.actions.start
    shape = _placed(map_leaves(shape_of(tree), lambda action: int(action) - start), problem, np.ones(problem.n, bool))
    if _depth(shape) > max_depth:
        raise CustardError(f"a tree to begin from has depth {_depth(shape)}, more than max_depth={max_depth}")
    return shape


def _placed(shape: Shape, problem: ReducedMDP, inside: np.ndarray) -> Shape:
    """Return the shape with thresholds of the problem, without splits that divide none of the states inside [S]."""
    if not isinstance(shape, Split):
        return shape
    goes_left = problem.mdp.x[problem.states, shape.feature] <= shape.threshold
    if not (goes_left & inside).any():
        return _placed(shape.right, problem, inside)
    if (goes_left | ~inside).all():
        return _placed(shape.left, problem, inside)
    number = int(np.flatnonzero((problem.goes_left == goes_left).all(axis=1))[0])
    left, right = (_placed(part, problem, inside & side) for part, side in ((shape.left, goes_left),
                                                                            (shape.right, ~goes_left)))  # fmt: skip
    return left if left == right else Split(*problem.splits[number], left, right)


def _depth(shape: Shape) -> int:
    """Return the number of splits on the longest path."""
    return 1 + max(_depth(shape.left), _depth(shape.right)) if isinstance(shape, Split) else 0
