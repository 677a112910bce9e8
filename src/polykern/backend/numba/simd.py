"""The register tile: the one piece of every matrix kernel that needs vector instructions.

``tile_product`` multiplies two packed panels and adds the product to a tile of sums::

    sums[r, c] += a[k, r] * b[k, c]     r < ROWS, c < columns(dtype), k < depth

Panels are contiguous: ``a`` holds ROWS values for each k, ``b`` holds `columns` values for each
k. The sums stay in registers for the whole loop over k: ROWS x 2 vectors, plus two of b and one
of a. Types: float32, float64 (fused multiply-add), int32 (wraps).
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _vector_bytes() -> int:
    features = llvm.get_host_cpu_features()
    return 64 if features.get("avx512f") else 32 if features.get("avx2") else 16


VECTOR_BYTES = _vector_bytes()
# 6 x 2 sums + 2 of b + 1 of a fill the 16 vector registers of AVX2; AVX-512 has 32.
ROWS = 8 if VECTOR_BYTES == 64 else 6
_SIZE = {"float32": 4, "float64": 8, "int32": 4}


def columns(dtype: str) -> int:
    """The width of a register tile: two vectors."""
    return 2 * VECTOR_BYTES // _SIZE[dtype]


@intrinsic
def tile_product(typingctx, depth, a, a_start, b, b_start, sums, sums_start, sums_stride):
    """``sums += a.T @ b`` for one register tile.

    `a`, `b` and `sums` are contiguous arrays of one dtype; the `start`s and the row stride of
    `sums` are counted in elements from their first element.
    """
    number = sums.dtype
    signature = types.void(
        types.int64, a, types.int64, b, types.int64, sums, types.int64, types.int64
    )
    lanes = VECTOR_BYTES * 8 // number.bitwidth

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        depth, _, a_start, _, b_start, _, sums_start, sums_stride = args
        scalar = context.get_value_type(number)
        vector = ir.VectorType(scalar, lanes)

        def pointer(position: int, start: Any) -> Any:
            array = context.make_array(signature.args[position])(context, builder, args[position])
            return builder.gep(array.data, [start])

        def at(base: Any, offset: Any) -> Any:
            return builder.bitcast(builder.gep(base, [offset]), vector.as_pointer())

        def index(value: int) -> Any:
            return ir.Constant(ir.IntType(64), value)

        a_tile, b_tile = pointer(1, a_start), pointer(3, b_start)
        rows = [pointer(5, sums_start)]
        for _ in range(ROWS - 1):
            rows.append(builder.gep(rows[-1], [sums_stride]))
        places = [(row, index(half * lanes)) for row in rows for half in (0, 1)]
        entry = builder.block
        initial = [builder.load(at(*place), align=scalar_bytes) for place in places]

        head = builder.append_basic_block("k.head")
        body = builder.append_basic_block("k.body")
        done = builder.append_basic_block("k.done")
        builder.branch(head)

        builder.position_at_end(head)
        k = builder.phi(ir.IntType(64))
        k.add_incoming(index(0), entry)
        sums_now = [builder.phi(vector) for _ in initial]
        for phi, value in zip(sums_now, initial, strict=True):
            phi.add_incoming(value, entry)
        builder.cbranch(builder.icmp_signed("<", k, depth), body, done)

        builder.position_at_end(body)
        a_k = builder.gep(a_tile, [builder.mul(k, index(ROWS))])
        b_k = builder.gep(b_tile, [builder.mul(k, index(2 * lanes))])
        b_halves = [
            builder.load(at(b_k, index(half * lanes)), align=scalar_bytes) for half in (0, 1)
        ]
        following = []
        for row in range(ROWS):
            value = builder.load(builder.gep(a_k, [index(row)]))
            spread = _broadcast(builder, value, vector)
            for half in (0, 1):
                total = sums_now[2 * row + half]
                following.append(_multiply_add(builder, spread, b_halves[half], total))
        for phi, value in zip(sums_now, following, strict=True):
            phi.add_incoming(value, body)
        k.add_incoming(builder.add(k, index(1)), body)
        builder.branch(head)

        builder.position_at_end(done)
        for place, value in zip(places, sums_now, strict=True):
            builder.store(value, at(*place), align=scalar_bytes)
        return context.get_dummy_value()

    scalar_bytes = number.bitwidth // 8
    return signature, generate


def _broadcast(builder: Any, value: Any, vector: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(first, undefined, zeros)


def _multiply_add(builder: Any, x: Any, y: Any, total: Any) -> Any:
    if isinstance(total.type.element, ir.IntType):
        return builder.add(builder.mul(x, y), total)
    multiply_add = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(total.type, [total.type] * 3),
        f"llvm.fmuladd.v{total.type.count}f{32 if total.type.element == ir.FloatType() else 64}",
    )
    return builder.call(multiply_add, [x, y, total])
