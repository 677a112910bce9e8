"""Chains of multiply-adds that never leave the registers: the most that a core can compute.

Each step of a chain is one vector instruction whose input is the step before. The chains are
independent, and as many as hide the latency: 12 where there are 16 vector registers, else 24.
For int8 the instruction is the widest that the processor has: a dot product of four bytes, or
of two 16-bit numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_FEATURES = llvm.get_host_cpu_features()
_VECTOR_BYTES = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx2") else 16
_CHAINS = 12 if _VECTOR_BYTES == 32 else 24  # AVX2: 12 sums and two operands fit 16 registers

# feature -> (the instruction in LLVM's words, bytes of its vectors), best first
_DOT = {
    "avx512vnni": ("llvm.x86.avx512.vpdpbusd.512", 64),
    "avxvnni": ("llvm.x86.avx512.vpdpbusd.256", 32),
    "dotprod": ("llvm.aarch64.neon.sdot.v4i32.v16i8", 16),
}


class Loop(NamedTuple):
    """A compiled loop of multiply-adds."""

    run: Callable[[int], Any]  # takes the number of steps; releases the interpreter lock
    operations: int  # in one step: a multiplication and an addition are two
    instruction: str


@intrinsic
def _float_chains(typingctx, steps, like):  # type: ignore[no-untyped-def]
    """The sum of chains ``x = x / 2 + 1`` of the float type of `like`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = context.get_value_type(signature.return_type)
        vector = ir.VectorType(number, _VECTOR_BYTES * 8 // signature.return_type.bitwidth)
        operands = [_constant(vector, 0.5), _constant(vector, 1.0)]
        name = f"llvm.fmuladd.v{vector.count}f{signature.return_type.bitwidth}"

        def step(x: Any) -> Any:
            return builder.call(_function(builder, name, vector, [vector] * 3), [x, *operands])

        return _chains(builder, args[0], vector, step)

    return like(steps, like), generate


@intrinsic
def _byte_chains(typingctx, steps):  # type: ignore[no-untyped-def]
    """The sum of chains of int32 sums of products of bytes, modulo 2**32."""
    found = _dot_instruction()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        size = _VECTOR_BYTES if found is None else found[1]
        vector = ir.VectorType(ir.IntType(32), size // 4)

        def dot(x: Any) -> Any:
            assert found is not None
            narrow = ir.VectorType(ir.IntType(8), size)
            function = _function(builder, found[0], vector, [vector, narrow, narrow])
            factor = builder.bitcast(_constant(vector, 0x01020304), narrow)
            return builder.call(function, [x, builder.bitcast(x, narrow), factor])

        def pairs(x: Any) -> Any:
            """x plus sums of two products of 16-bit numbers, which LLVM makes one instruction."""
            narrow = ir.VectorType(ir.IntType(16), size // 2)
            wide = ir.VectorType(ir.IntType(32), size // 2)
            factor = builder.sext(_constant(narrow, 3), wide)
            products = builder.mul(builder.sext(builder.bitcast(x, narrow), wide), factor)
            for odd in (0, 1):
                lanes = [2 * lane + odd for lane in range(vector.count)]
                picked = ir.Constant(vector, [ir.Constant(ir.IntType(32), lane) for lane in lanes])
                half = builder.shuffle_vector(products, ir.Constant(wide, ir.Undefined), picked)
                x = builder.add(x, half)
            return x

        return _chains(builder, args[0], vector, pairs if found is None else dot)

    return types.int32(steps), generate


def _dot_instruction() -> tuple[str, int] | None:
    return next((dot for feature, dot in _DOT.items() if _FEATURES.get(feature)), None)


def _constant(vector: Any, value: Any) -> Any:
    return ir.Constant(vector, [ir.Constant(vector.element, value)] * vector.count)


def _function(builder: Any, name: str, result: Any, operands: list[Any]) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, operands), name)


def _chains(builder: Any, steps: Any, vector: Any, step: Callable[[Any], Any]) -> Any:
    """A loop over independent chains; one number that depends on all of them."""
    index = ir.IntType(64)
    entry = builder.block
    head = builder.append_basic_block("head")
    body = builder.append_basic_block("body")
    done = builder.append_basic_block("done")
    builder.branch(head)

    builder.position_at_end(head)
    count = builder.phi(index)
    count.add_incoming(ir.Constant(index, 0), entry)
    chains = [builder.phi(vector) for _ in range(_CHAINS)]
    for number, chain in enumerate(chains):  # equal chains would be merged
        chain.add_incoming(_constant(vector, number + 1), entry)
    builder.cbranch(builder.icmp_signed("<", count, steps), body, done)

    builder.position_at_end(body)
    for chain in chains:
        chain.add_incoming(step(chain), body)
    count.add_incoming(builder.add(count, ir.Constant(index, 1)), body)
    builder.branch(head)

    builder.position_at_end(done)
    add = builder.add if isinstance(vector.element, ir.IntType) else builder.fadd
    total = chains[0]
    for chain in chains[1:]:
        total = add(total, chain)
    return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))


def loop(dtype: str) -> Loop:
    """The loop of multiply-adds of float32, float64 or int8, compiled now.

    Parameters
    ----------
    dtype : {"float32", "float64", "int8"}

    Returns
    -------
    Loop
    """
    if dtype == "int8":
        found = _dot_instruction()

        def run(steps):  # type: ignore[no-untyped-def]
            return _byte_chains(steps)

        size, bytes_each = (_VECTOR_BYTES, 2) if found is None else (found[1], 1)
        operations = 2 * _CHAINS * size // bytes_each
        name = "16-bit pair" if found is None else "four-byte dot product"
    else:
        zero = np.dtype(dtype).type(0)

        def run(steps):  # type: ignore[no-untyped-def]
            return _float_chains(steps, zero)

        operations = 2 * _CHAINS * _VECTOR_BYTES // (4 if dtype == "float32" else 8)
        name = f"{8 * _VECTOR_BYTES}-bit multiply-add"
    compile_for = numba.njit([(types.int64,)], nogil=True)
    return Loop(compile_for(run), operations, name)
