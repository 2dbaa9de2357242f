"""Pytrees of JAX arrays (networks, optimiser states) as named NumPy arrays, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["from_arrays", "to_arrays"]


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
