"""A tuple of many arrays, handed to compiled code as one thing.

A compiled function that Python calls takes a tuple apart into its arrays at every call, which for some dozens costs
more than a step of an environment. `hold` does it once; what it returns costs hardly more to hand over than one array.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.experimental import structref

__all__ = ["Held", "hold"]


@structref.register
class HeldType(types.StructRef):  # type: ignore[misc]
    """The compiler's type of `Held`."""

    def preprocess_fields(self, fields: Any) -> Any:
        """Types of values, not of constants."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Held(structref.StructRefProxy):  # type: ignore[misc]
    """Holds a tuple; compiled code finds it in the field `all`."""


structref.define_proxy(Held, HeldType, ["all"])


@njit(cache=True)
def hold(memory):
    """The tuple, held; its arrays stay the very same."""
    return Held(memory)
