"""Trees whose branches can be differentiated: what `ddt` and `icct` share.

A soft tree has the shape of a binary tree: inner node i goes high with probability sigma(alpha (beta_i · z - phi_i)), z
being the standardised features, and a leaf holds numbers. It becomes crisp by keeping the feature with the largest
weight of every node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from custard.core.errors import CustardError, one_of
from custard.tree.shape import Shape, Split

__all__ = [
    "SHAPES", "Branches", "Paths", "Scaling", "branches_of", "crisp_shape", "leaf_probabilities", "paths_of",
    "scaling_of",
]  # fmt: skip

SHAPES = ("tree", "list")
MAX_THRESHOLD = 1e30  # beyond it a test has one answer


class Branches(NamedTuple):
    """The tests of a soft tree with I inner nodes over n features."""

    beta: Any  # [I, n]
    phi: Any  # [I]
    alpha: Any  # [] steepness


class Paths(NamedTuple):
    """Which leaves lie below which side of each inner node: I inner nodes, L leaves."""

    high: np.ndarray  # [I, L] float32: 1 where the leaf lies below the side that is taken where beta · z > phi
    low: np.ndarray  # [I, L] float32
    children: np.ndarray  # [I, 2] the nodes below, high side first; from I on they are leaves


class Scaling(NamedTuple):
    """Standardised features: (x - shift) / scale."""

    shift: np.ndarray  # [n]
    scale: np.ndarray  # [n]

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return standardised features, float32."""
        return ((x - self.shift) / self.scale).astype(np.float32)


def scaling_of(x: np.ndarray) -> Scaling:
    """Return the scaling that gives states [N, n] mean 0 and deviation 1; a constant feature keeps its unit."""
    deviation = x.std(axis=0)
    return Scaling(x.mean(axis=0), np.where(deviation > 1e-8, deviation, 1.0))


def branches_of(rng: np.random.Generator, n: int, inner: int) -> Branches:
    """Draw first tests as Silva et al. do: beta from U[0, 1), phi = 1 / n, alpha = 1."""
    beta = rng.random((inner, n)).astype(np.float32)
    return Branches(beta, np.full(inner, 1.0 / n, dtype=np.float32), np.ones((), dtype=np.float32))


def paths_of(shape: str, leaves: int, max_depth: int | None) -> Paths:
    """Return the paths of a complete tree, or of a list of rules: "tree" or "list".

    The number of leaves becomes smaller where the depth limit, or completeness, asks for it.

    >>> paths_of("tree", 4, None).children.tolist(), paths_of("list", 3, None).children.tolist()
    ([[1, 2], [3, 4], [5, 6]], [[2, 1], [3, 4]])
    """
    if shape not in SHAPES:
        raise CustardError(one_of("shape", shape, SHAPES))
    deepest = leaves if max_depth is None else max_depth
    if shape == "tree":
        leaves = 2 ** min(deepest, leaves.bit_length() - 1)
        children = [(2 * i + 1, 2 * i + 2) for i in range(leaves - 1)]
    else:
        leaves = min(leaves, deepest + 1)
        inner = leaves - 1
        children = [(inner + i, i + 1 if i + 1 < inner else 2 * inner) for i in range(inner)]
    high, low = np.zeros((2, leaves - 1, leaves), dtype=np.float32)

    def below(node: int) -> list[int]:
        if node >= leaves - 1:
            return [node - (leaves - 1)]
        sides = [below(child) for child in children[node]]
        high[node, sides[0]], low[node, sides[1]] = 1.0, 1.0
        return sides[0] + sides[1]

    below(0)
    return Paths(high, low, np.array(children, dtype=np.int64).reshape(-1, 2))


def leaf_probabilities(branches: Branches, paths: Paths, z: Any, xp: Any = np) -> Any:
    """Return the probability of reaching each leaf, [B, n] standardised -> [B, L]; `xp` is NumPy or jax.numpy."""
    steepness = branches.alpha * (z @ branches.beta.T - branches.phi)
    log_high, log_low = -xp.logaddexp(0.0, -steepness), -xp.logaddexp(0.0, steepness)
    return xp.exp(log_high @ paths.high + log_low @ paths.low)


def crisp_shape(branches: Branches, paths: Paths, scaling: Scaling, leaf: Callable[[int], Shape]) -> Shape:
    """Return the crisp tree: each node tests its feature with the largest |beta|; `leaf` makes a leaf of its number.

    The node goes high where alpha (beta_k z_k - phi) > 0, which is a threshold in the feature's own units.
    """
    beta, phi = np.asarray(branches.beta, dtype=np.float64), np.asarray(branches.phi, dtype=np.float64)
    sign = -1.0 if float(branches.alpha) < 0.0 else 1.0
    inner = len(phi)

    def part(node: int) -> Shape:
        if node >= inner:
            return leaf(node - inner)
        high, low = (part(int(child)) for child in paths.children[node])
        k = int(np.abs(beta[node]).argmax())
        slope = sign * beta[node, k] / scaling.scale[k]
        # The unit of the test's other side is z's: phi / beta_k, moved and scaled to the feature's own.
        threshold = scaling.shift[k] + scaling.scale[k] * phi[node] / beta[node, k] if slope else np.inf
        if not abs(threshold) < MAX_THRESHOLD:
            return high if -sign * phi[node] > 0.0 else low
        return Split(k, float(threshold), *((low, high) if slope > 0.0 else (high, low)))

    return part(0)
