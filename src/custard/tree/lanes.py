"""Vector instructions for compiled loops: what a plain loop leaves undone, written in LLVM's own vectors.

Every machine runs them: LLVM cuts a vector of LANES entries into as many registers as there are.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["LANES", "TESTS_PER_PASS", "lowest_bit", "narrow", "prefetch", "transpose"]

LANES = 16  # rows compared by one step of a loop
TESTS_PER_PASS = 4  # comparisons made in one pass over the rows

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def narrow(typingctx, columns, place, threshold, mask, bits, first, rows):
    """Make bits[k] &= mask[j] unless columns[place[j] + k] <= threshold[j], for all k < rows.

    That is for the TESTS_PER_PASS j from `first` on. The rows are rounded up to full LANES.
    """

    def generate(context, builder, signature, args):
        columns, place, threshold, mask, bits = (
            _data_pointer(context, builder, t, a) for t, a in zip(signature.args[:5], args[:5], strict=True)
        )
        values, sets = (ir.VectorType(context.get_data_type(signature.args[i].dtype), LANES) for i in (0, 3))
        tests = []
        for i in range(TESTS_PER_PASS):
            j = builder.add(args[5], _INT64(i))
            t, m = (builder.load(builder.gep(a, [j])) for a in (threshold, mask))
            tests.append(
                (builder.load(builder.gep(place, [j])), _broadcast(builder, values, t), _broadcast(builder, sets, m))
            )
        with cgutils.for_range_slice(builder, _INT64(0), args[6], _INT64(LANES)) as (k, _):
            at = _vector_pointer(builder, bits, k, sets)
            left = builder.load(at, align=1)
            for start, t, m in tests:
                value = builder.load(_vector_pointer(builder, columns, builder.add(start, k), values), align=1)
                low = builder.sext(builder.fcmp_ordered("<=", value, t), sets)  # NaN is not low
                left = builder.and_(left, builder.or_(low, m))
            builder.store(left, at, align=1)
        return context.get_dummy_value()

    return types.void(columns, place, threshold, mask, bits, first, rows), generate


@intrinsic
def transpose(typingctx, x, start, row, columns, to, column):
    """Copy columns[to + column * j + i] = x[start + row * i + j] for all i, j < 4; float32 may become float64."""

    def generate(context, builder, signature, args):
        source, target = (_data_pointer(context, builder, signature.args[i], args[i]) for i in (0, 3))
        read, written = (ir.VectorType(context.get_data_type(signature.args[i].dtype), 4) for i in (0, 3))

        def mix(a, b, *order):
            return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT32, 4), order))

        rows = []
        for i in range(4):
            at = builder.add(args[1], builder.mul(args[2], _INT64(i)))
            rows.append(builder.load(_vector_pointer(builder, source, at, read), align=1))
        even, odd = ([mix(rows[i], rows[i + 1], s, s + 4, s + 2, s + 6) for i in (0, 2)] for s in (0, 1))
        for j, (pair, half) in enumerate(((even, 0), (odd, 0), (even, 2), (odd, 2))):
            at = builder.add(args[4], builder.mul(args[5], _INT64(j)))
            four = mix(*pair, half, half + 1, half + 4, half + 5)
            four = four if read == written else builder.fpext(four, written)
            builder.store(four, _vector_pointer(builder, target, at, written), align=1)
        return context.get_dummy_value()

    return types.void(x, start, row, columns, to, column), generate


@intrinsic
def prefetch(typingctx, x, at):
    """Ask for x[at] to be brought near; `at` may lie outside."""

    def generate(context, builder, signature, args):
        where = builder.gep(_data_pointer(context, builder, signature.args[0], args[0]), [args[1]])
        where = builder.bitcast(where, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [where.type, _INT32, _INT32, _INT32])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", (where.type,), kind)
        builder.call(fetch, [where, _INT32(0), _INT32(3), _INT32(1)])  # to read, often, data
        return context.get_dummy_value()

    return types.void(x, at), generate


@intrinsic
def lowest_bit(typingctx, bits):
    """Return the number of the lowest bit that is set; there must be one."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return bits(bits), generate


def _data_pointer(context, builder, kind, array):
    """Return the pointer to an array's entries."""
    return context.make_array(kind)(context, builder, array).data


def _vector_pointer(builder, data, at, kind):
    """Return the pointer to entry `at`, as one to a vector."""
    return builder.bitcast(builder.gep(data, [at]), kind.as_pointer())


def _broadcast(builder, kind, value):
    """Return a vector all of whose entries are `value`."""
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, value, _INT32(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(_INT32, kind.count), [0] * kind.count))
