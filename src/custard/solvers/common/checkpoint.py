"""Checkpoints: arrays that change in place, and dataclasses of plain fields as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from custard.tree.store import ARRAYS
from custard.tree.tree import Tree

__all__ = ["copy_arrays", "from_arrays", "restore_arrays", "to_arrays"]

Record = TypeVar("Record")


def copy_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return copies of named arrays."""
    return {name: array.copy() for name, array in arrays.items()}


def restore_arrays(arrays: Mapping[str, np.ndarray], data: Mapping[str, np.ndarray]) -> None:
    """Write what `copy_arrays` returned, and maybe more, back into the same arrays."""
    for name, array in arrays.items():
        array[...] = data[name]


def to_arrays(record: Any) -> dict[str, np.ndarray]:
    """Return the fields of a dataclass (numbers, text, arrays, trees) as arrays; a field that is None is left out."""
    data: dict[str, np.ndarray] = {}
    for name in (field.name for field in fields(record)):
        value = getattr(record, name)
        if isinstance(value, Tree):
            data |= {f"{name}_{part}": getattr(value, part) for part in ARRAYS}
        elif value is not None:
            data[name] = np.array(value)
    return data


def from_arrays(kind: type[Record], data: dict[str, np.ndarray], like: Tree) -> Record:
    """Return the dataclass that `to_arrays` turned into `data`; its trees have the features and actions of `like`."""
    values: dict[str, Any] = {}
    for name in (field.name for field in fields(kind)):  # type: ignore[arg-type]
        if f"{name}_feature" in data:
            parts: dict[str, Any] = {part: data[f"{name}_{part}"] for part in ARRAYS}
            values[name] = Tree(**parts, features=like.features, actions=like.actions)
        else:
            value = data.get(name)
            values[name] = value.item() if value is not None and value.ndim == 0 else value
    return kind(**values)
