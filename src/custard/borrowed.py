"""Tuples of arrays for compiled loops, without reference counts.

Handing arrays from one compiled function to another counts references to each of them, which took about half of the
time of rollouts and of MFEC. Arrays that a function was called with live as long as the call, so its loops need no
counts.
Never borrow an array made in the same function: numba drops it after its last use by name.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["borrowed"]


@intrinsic
def _borrowed(typing_context: Any, value: Any) -> Any:
    """The same (nested) tuple of arrays, uncounted. Whoever calls must keep the arrays alive meanwhile."""

    def codegen(context, builder, signature, args):
        return _uncounted(context, builder, signature.args[0], args[0])

    return value(value), codegen


borrowed: Any = _borrowed  # called with the value alone: Numba supplies the context


def _uncounted(context, builder, kind, value):
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        array.parent = cgutils.get_null_value(array.parent.type)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        parts = [_uncounted(context, builder, k, builder.extract_value(value, i)) for i, k in enumerate(kind)]  # type: ignore[arg-type, var-annotated]
        return context.make_tuple(builder, kind, parts)
    return value
