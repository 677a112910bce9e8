"""gemm by packed panels: the three loops round a register tile of Goto and van de Geijn.

Threads claim tiles of C. For a tile, over blocks of K::

    A tile_m x depth -> panels of ROWS rows     } in the L2 cache; one panel of B in L1
    B depth x tile_n -> panels of columns       }
    sums tile_m x tile_n += A B                 in registers for the depth of a block

and after the last block the epilogue takes the sums row by row to C. A thread owns its packed
blocks and its sums; nothing is shared but the counter. Source: own, after Goto and van de Geijn,
Anatomy of High-Performance Matrix Multiplication, 2008.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import types

from polykern.backend.numba import epilogue, jit, pack, simd, threads
from polykern.backend.numba.rows import row_from, scratch
from polykern.backend.numba.simd import ROWS
from polykern.ops.gemm import Gemm
from polykern.registry import Kernel, Launch

Array = np.ndarray[Any, Any]

DEPTH = 256  # K at a time: a panel of B (2 vectors wide) is then 16 or 32 KiB
BLOCK_M = 192  # rows of A at a time, a multiple of ROWS
TILE_M, TILE_N = 768, 512
LEAST_TILE = 64
ALONE_FLOPS = 1_000_000  # below, waking a helper costs more than it brings


def refuses(problem: Gemm) -> str | None:
    return None


def build(problem: Gemm) -> Launch:
    number, factor = problem.accumulate, problem.epilogue
    kernel = jit.compiled(
        _gemm,
        *[jit.array(number, 3)] * 2,
        jit.array(factor, 3),
        jit.array(factor, 3, writable=True),
        *[types.Array(getattr(types, factor), 1, "C", readonly=True)] * 2,
        *[getattr(types, factor)] * 2,
        *[types.boolean] * 2,
        *[types.int64] * 4,
    )
    M, N, K = problem.M, problem.N, problem.K
    activation = epilogue.code(problem.activation)
    has_product = not problem.alpha_zero
    integer = factor == "int32"
    dtype = np.dtype(factor)
    exact_out = problem.out_dtype == factor
    alone = problem.flops < ALONE_FLOPS

    def launch(arrays: tuple[Any, ...], scalars: tuple[float, ...], out: Any) -> Any:
        result = out if out is not None and exact_out else np.empty(problem.out_shape, dtype)
        if result.size:
            parts = 1 if alone else threads.count()
            row_scale, column_scale, row_zero, column_zero = problem.vectors(arrays)
            a, b, c = problem.matrices(arrays)
            a = _number(a, number, None if row_zero is None else row_zero[:, None])
            b = _number(b, number, column_zero)
            has_c = c is not None
            c = problem.matrix(result) if c is None else c.astype(dtype, copy=False)
            alpha, beta = [np.int64(x).astype(dtype) if integer else dtype.type(x) for x in scalars]
            factors = [
                np.ones(length, dtype) if x is None else np.ascontiguousarray(x, dtype)
                for x, length in ((row_scale, M), (column_scale, N))
            ]
            for stack in _stacks(a, b, c, problem.matrix(result)):
                tile_m, tile_n = _tile(stack[0].shape[0], M, N, parts)
                items = stack[0].shape[0] * -(-M // tile_m) * -(-N // tile_n)
                threads.share(
                    kernel,
                    min(parts, items),
                    *stack,
                    *factors,
                    alpha,
                    beta,
                    has_product,
                    has_c,
                    activation,
                    simd.columns(number),
                    tile_m,
                    tile_n,
                )
        return epilogue.rounded(result, problem.out_dtype, out)

    return launch


def _number(x: Array, dtype: str, zero: Array | None) -> Array:
    """The operand in the dtype of the sums, less its zero point; what is repeated stays so."""
    if x.dtype == dtype and zero is None:
        return x
    core = x[tuple([slice(0, 1) if step == 0 else slice(None) for step in x.strides])]
    widened = core.astype(dtype)
    return np.broadcast_to(widened if zero is None else widened - zero, x.shape)


def _tile(batch: int, M: int, N: int, parts: int) -> tuple[int, int]:
    """Even tiles in the two caches' measure, small enough that `parts` threads share the work."""
    rows, columns = -(-M // TILE_M), -(-N // TILE_N)
    while 0 < batch * rows * columns % parts < batch * rows * columns < 4 * parts or batch * rows * columns < parts:
        if max(M // rows, N // columns) < 2 * LEAST_TILE:
            break
        if M // rows > N // columns:
            rows += 1
        else:
            columns += 1
    return -(-M // rows), -(-N // columns)


def _stacks(*matrices: Array) -> Iterator[tuple[Array, ...]]:
    """The same stacks of matrices, three axes each, without a copy."""
    batch = matrices[0].shape[:-2]
    if len(batch) == 0:
        yield tuple([x[None] for x in matrices])
    elif all([_folds(x) for x in matrices]):
        length = math.prod(batch)
        yield tuple([x.reshape(length, *x.shape[-2:]) for x in matrices])
    else:
        for i in range(batch[0]):
            yield from _stacks(*[x[i] for x in matrices])


def _folds(x: Array) -> bool:
    """Whether the axes before the last two are one axis of one stride."""
    steps = [(x.shape[i], x.strides[i]) for i in range(x.ndim - 2) if x.shape[i] != 1]
    return all(
        [outer[1] == inner[0] * inner[1] for outer, inner in zip(steps, steps[1:], strict=False)]
    )


def _gemm(
    counter, a, b, c, out, row_factor, column_factor, alpha, beta, has_product, has_c, activation,
    width, tile_m, tile_n,
):
    batch, M, K = a.shape
    N = b.shape[2]
    tiles_n = (N + tile_n - 1) // tile_n
    tiles = (M + tile_m - 1) // tile_m * tiles_n
    if not has_product:
        K = 0
    depth = min(K, DEPTH)
    pitch = (min(N, tile_n) + width - 1) // width * width
    height = (min(M, tile_m) + ROWS - 1) // ROWS * ROWS
    packed_a = scratch(pack.panel_start(min(height, BLOCK_M) // ROWS, depth, ROWS), a)
    packed_b = scratch(pack.panel_start(pitch // width, depth, width), a)
    sums = scratch(height * pitch, a)
    values = scratch(pitch, out)
    a_transposed = a.transpose(0, 2, 1)
    while True:
        item = threads.claim(counter)
        if item >= batch * tiles:
            break
        t = item // tiles
        first_m = item % tiles // tiles_n * tile_m
        first_n = item % tiles_n * tile_n
        count_m, count_n = min(tile_m, M - first_m), min(tile_n, N - first_n)
        for i in range(height * pitch):
            sums[i] = 0
        for first_k in range(0, K, DEPTH):
            depth = min(DEPTH, K - first_k)
            pack.pack_panels(b, t, first_k, depth, first_n, count_n, packed_b, width)
            for m in range(0, count_m, BLOCK_M):
                rows = min(BLOCK_M, count_m - m)
                pack.pack_panels(a_transposed, t, first_k, depth, first_m + m, rows, packed_a, ROWS)
                pack.multiply_panels(
                    depth, packed_a, rows, packed_b, count_n, width, sums, m * pitch, pitch
                )
        row = row_from(values, (0,), count_n)
        columns = row_from(column_factor, (first_n,), count_n)
        for i in range(count_m):
            total = row_from(sums, (i * pitch,), count_n)
            factor = alpha * row_factor[first_m + i]
            for j in range(count_n):
                row[j] = 0
            if has_product:
                for j in range(count_n):
                    row[j] = factor * columns[j] * total[j]
            if has_c:
                epilogue.add_multiple(row, beta, c, (t, first_m + i, first_n))
            epilogue.activate(row, activation)
            epilogue.store(row, out, (t, first_m + i, first_n))


KERNEL = Kernel(op="gemm", name="packed", refuses=refuses, build=build)
