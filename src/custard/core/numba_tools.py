"""Compiled loops without reference counts.

Handing arrays from one compiled function to another counts references to each of them, which took about half of the
time of rollouts and of MFEC. Arrays that a function was called with live as long as the call, so its loops need no
counts. Never borrow an array made in the same function: numba drops it after its last use by name.

`borrowed` takes the counts out of a tuple of arrays. Functions made by `outer`, `inner` and `once` have none at all,
nor has what they call, unless it is `counted`; they compile in half the time. They make no arrays and return none.

A compiled function that Python calls takes a tuple apart into its arrays at every call, which for some dozens of arrays
costs more than a step of an environment. `hold` does it once: a `HeldTuple` costs hardly more to pass than one array.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import partial
from typing import Any

from numba import njit
from numba.core import cgutils, types
from numba.experimental import structref
from numba.extending import intrinsic

__all__ = ["HeldTuple", "borrowed", "counted", "hold", "inner", "once", "outer"]

#: Makes arrays.
counted: Any = partial(njit, cache=True, _nrt=True)()
#: Called from Python.
outer: Any = partial(njit, cache=True, no_cfunc_wrapper=True, _nrt=False)()
#: Called by compiled code only: without a way in from Python it compiles sooner.
inner: Any = partial(njit, cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True, _nrt=False)()
#: Called in one place, or very small: its statements are put there before anything is compiled. Python may call it too.
once: Any = partial(njit, cache=True, no_cfunc_wrapper=True, inline="always", _nrt=False)()


@intrinsic
def _borrowed(typing_context: Any, value: Any) -> Any:
    """Return the same (nested) tuple of arrays, uncounted. Whoever calls must keep the arrays alive meanwhile."""

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


@structref.register
class HeldTupleType(types.StructRef):  # type: ignore[misc]
    """The compiler's type of `HeldTuple`."""

    def preprocess_fields(self, fields: Any) -> Any:
        """Return the types of values, not of constants."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class HeldTuple(structref.StructRefProxy):  # type: ignore[misc]
    """Holds a tuple of arrays; compiled code reads it from the field `values`."""


structref.define_proxy(HeldTuple, HeldTupleType, ["values"])


@njit(cache=True)
def hold(values):
    """Return the tuple, held; its arrays stay the very same."""
    return HeldTuple(values)
