"""Pytrees of JAX arrays (networks, optimiser states) as named NumPy arrays, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["StoredPytree", "from_arrays", "to_arrays"]


def to_arrays(learned: Any) -> dict[str, np.ndarray]:
    """Return copies of a pytree's leaves by name.

    >>> {name: array.tolist() for name, array in to_arrays((jnp.ones(2), [jnp.zeros(1)])).items()}
    {'learned.0': [1.0, 1.0], 'learned.1': [0.0]}
    """
    return {f"learned.{k}": np.array(leaf) for k, leaf in enumerate(jax.tree.leaves(learned))}


def from_arrays(like: Any, data: Mapping[str, np.ndarray]) -> Any:
    """Return the pytree that `to_arrays` was given; `like` has the same structure."""
    leaves, shape = jax.tree.flatten(like)
    return jax.tree.unflatten(shape, [jnp.asarray(data[f"learned.{k}"]) for k in range(len(leaves))])


class StoredPytree:
    """A pytree kept as NumPy arrays that change in place, so that a checkpoint can be written into them.

    >>> stored = StoredPytree((jnp.ones(2), [jnp.zeros(1)]))
    >>> stored.put(jax.tree.map(lambda leaf: leaf + 1.0, stored.pytree()))
    >>> {name: array.tolist() for name, array in stored.arrays().items()}
    {'learned.0': [2.0, 2.0], 'learned.1': [1.0]}
    """

    def __init__(self, learned: Any) -> None:
        leaves, self._structure = jax.tree.flatten(learned)
        self.leaves = [np.array(leaf) for leaf in leaves]

    def pytree(self) -> Any:
        """Return the pytree, its leaves copied."""
        return jax.tree.unflatten(self._structure, [jnp.array(leaf) for leaf in self.leaves])

    def numpy(self) -> Any:
        """Return the pytree with the arrays themselves as leaves."""
        return jax.tree.unflatten(self._structure, self.leaves)

    def put(self, learned: Any) -> None:
        """Write another pytree of the same structure into the arrays."""
        for array, leaf in zip(self.leaves, jax.tree.leaves(learned), strict=True):
            array[...] = leaf

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the leaves by name, as `to_arrays` names them, not copied."""
        return {f"learned.{k}": array for k, array in enumerate(self.leaves)}
