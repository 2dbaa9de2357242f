"""Compiled loops without reference counts.

Handing arrays from one compiled function to another counts references to each of them, which took about half of the
time of rollouts and of MFEC. Arrays that a function was called with live as long as the call, so its loops need no
counts. Never do this to an array made in the same function: numba drops it after its last use by name.

`without_refcounts` takes the counts out of a tuple of arrays. Functions compiled by `njit_outer`, `njit_inner` and
`njit_inlined` have none at all, nor has what they call, unless `njit_allocating` compiled it; they compile in half the
time. They make no arrays and return none.

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

from custard.core.numba_cache import use_stamps_of_imports

__all__ = [
    "HeldTuple",
    "hold",
    "njit",
    "njit_allocating",
    "njit_inlined",
    "njit_inner",
    "njit_outer",
    "without_refcounts",
]

use_stamps_of_imports()  # so whatever else is compiled must import this module first

#: For functions that make arrays.
njit_allocating: Any = partial(njit, cache=True, _nrt=True)()
#: For functions that Python calls.
njit_outer: Any = partial(njit, cache=True, no_cfunc_wrapper=True, _nrt=False)()
#: For functions that only compiled code calls: without a way in from Python they compile sooner.
njit_inner: Any = partial(njit, cache=True, no_cfunc_wrapper=True, no_cpython_wrapper=True, _nrt=False)()
#: For functions called in one place, or very small: their statements are put there before anything is compiled. Python
#: may call them too.
njit_inlined: Any = partial(njit, cache=True, no_cfunc_wrapper=True, inline="always", _nrt=False)()


@intrinsic
def _without_refcounts(typing_context: Any, value: Any) -> Any:
    """Return the same (nested) tuple of arrays, uncounted. Whoever calls must keep the arrays alive meanwhile."""

    def codegen(context, builder, signature, args):
        return _uncounted(context, builder, signature.args[0], args[0])

    return value(value), codegen


without_refcounts: Any = _without_refcounts  # called with the value alone: Numba supplies the context


def _uncounted(context, builder, kind, value):
    """Return an LLVM value of a Numba type with the pointers to its counts set to null."""
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
