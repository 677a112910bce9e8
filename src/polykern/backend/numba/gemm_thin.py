"""gemm of a few rows (or columns): B is read once, straight from where it lies.

Packing B would cost more than multiplying it. Threads claim columns of C; the sums of a tile stay
in a cache, and B is met in whichever direction its memory runs::

    N unit-stride:  sums[i, columns] += a[i, k ... k + 4] B[k ... k + 4, columns]
    K unit-stride:  sums[i, n] = a[i, :] . B[:, n], lane by lane, the lanes added up at the end

A few columns instead of rows are the transposed problem. Source: own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from polykern.backend.numba import epilogue, jit, simd, threads, vector
from polykern.backend.numba.gemm_operands import operands
from polykern.backend.numba.rows import row_from, scratch
from polykern.ops.gemm import Gemm
from polykern.registry import Kernel, Launch

Array = np.ndarray[Any, Any]

MOST_ROWS = 4  # a register tile of packed panels has 6
TILE_N = 4096  # long pieces of rows of B stream faster from memory
LEAST_TILE = 256
ALONE_NUMBERS = 100_000  # of B; below, waking a helper costs more than it brings


def refuses(problem: Gemm) -> str | None:
    """Takes floats with few rows or few columns."""
    few = min(problem.M, problem.N)
    if few > MOST_ROWS:
        return f"M = {problem.M} and N = {problem.N} are both more than {MOST_ROWS}"
    if problem.accumulate == "int32":
        return "sums in int32; its vectors add up floats only"
    return None


def build(problem: Gemm) -> Launch:
    """Compiled for float32 or float64; narrower numbers are widened, and rounded once."""
    number = problem.accumulate
    kernel = jit.compiled(
        _gemm,
        *[jit.array(number, 3)] * 3,
        jit.array(number, 3, writable=True),
        *[types.Array(getattr(types, number), 1, "C", readonly=True)] * 2,
        *[getattr(types, number)] * 2,
        *[types.boolean] * 2,
        *[types.int64] * 3,
    )
    lanes = simd.columns(number)
    few_columns = problem.N < problem.M
    length = max(problem.M, problem.N)
    parts = 1 if problem.K * length < ALONE_NUMBERS else threads.count()
    tiles = max(1, -(-length // TILE_N), min(parts, length // LEAST_TILE))
    tile_n = -(-length // (tiles * lanes)) * lanes
    shape, out_dtype = problem.out_shape, problem.out_dtype
    activation = epilogue.code(problem.activation)

    def launch(arrays: tuple[Any, ...], scalars: tuple[float, ...], out: Any) -> Any:
        result = epilogue.target(out, out_dtype, shape, number)
        given = operands(problem, arrays, scalars, result)
        factors = (given.row_factor, given.column_factor)
        for stack in given.stacks if result.size else ():
            a, b, c, view = stack
            if few_columns:
                b, a, c, view = [x.swapaxes(1, 2) for x in stack]
            if b.itemsize not in b.strides[1:]:
                b = np.ascontiguousarray(b)
            threads.share(
                kernel,
                min(parts, len(a) * -(-length // tile_n)),
                a,
                b,
                c,
                view,
                *(factors[::-1] if few_columns else factors),
                given.alpha,
                given.beta,
                not problem.alpha_zero,
                given.has_c,
                activation,
                lanes,
                tile_n,
            )
        return epilogue.rounded(result, out_dtype, out)

    return launch


def _gemm(
    counter,
    a,
    b,
    c,
    out,
    row_factor,
    column_factor,
    alpha,
    beta,
    has_product,
    has_c,
    activation,
    lanes,
    tile_n,
):
    batch, M, K = a.shape
    N = b.shape[2]
    tiles = (N + tile_n - 1) // tile_n
    rows = scratch(M * K, a)
    sums = scratch(M * tile_n, a)
    values = scratch(tile_n, a)
    held = -1  # the batch entry whose rows of A are in `rows`
    while True:
        item = threads.claim(counter)
        if item >= batch * tiles:
            break
        t, first = item // tiles, item % tiles * tile_n
        count = min(tile_n, N - first)
        if has_product:
            if t != held:
                held = t
                for i in range(M):
                    for k in range(K):
                        rows[i * K + k] = a[t, i, k]
            if b.strides[2] == b.itemsize:
                _along_rows(rows, b, t, first, count, sums, M, tile_n, lanes)
            else:
                _along_columns(rows, b, t, first, count, sums, M, tile_n, lanes)
        row = row_from(values, (0,), count)
        columns = row_from(column_factor, (first,), count)
        for i in range(M):
            total = row_from(sums, (i * tile_n,), count)
            factor = alpha * row_factor[i]
            place = (t, i, first)
            epilogue.linear(row, total, has_product, factor, columns, has_c, beta, c, place)
            epilogue.activate(row, activation)
            epilogue.store(row, out, place)


@jit.device
def _along_rows(rows, b, t, first, count, sums, M, pitch, lanes):
    """Four rows of B at a time, so that the sums are loaded and stored a quarter as often."""
    K = b.shape[1]
    whole = count // lanes * lanes
    for i in range(M * pitch):
        sums[i] = 0
    for k in range(0, K // 4 * 4, 4):
        b0 = row_from(b, (t, k, first), count)
        b1 = row_from(b, (t, k + 1, first), count)
        b2 = row_from(b, (t, k + 2, first), count)
        b3 = row_from(b, (t, k + 3, first), count)
        for i in range(M):
            at = i * K + k
            a0, a1, a2, a3 = rows[at], rows[at + 1], rows[at + 2], rows[at + 3]
            for j in range(0, whole, lanes):
                total = vector.load(sums, i * pitch + j)
                total = vector.multiply_add(a0, vector.load(b0, j), total)
                total = vector.multiply_add(a1, vector.load(b1, j), total)
                total = vector.multiply_add(a2, vector.load(b2, j), total)
                total = vector.multiply_add(a3, vector.load(b3, j), total)
                vector.store(total, sums, i * pitch + j)
            for j in range(whole, count):
                total = sums[i * pitch + j] + a0 * b0[j] + a1 * b1[j]
                sums[i * pitch + j] = total + a2 * b2[j] + a3 * b3[j]
    for k in range(K // 4 * 4, K):
        b0 = row_from(b, (t, k, first), count)
        for i in range(M):
            a0 = rows[i * K + k]
            for j in range(count):
                sums[i * pitch + j] += a0 * b0[j]


@jit.device
def _along_columns(rows, b, t, first, count, sums, M, pitch, lanes):
    """A column of B at a time, which is a row of memory."""
    K = b.shape[1]
    whole = K // lanes * lanes
    for j in range(count):
        column = row_from(b, (t, 0, first + j), K)
        for i in range(M):
            total = vector.spread(rows.dtype.type(0))
            for k in range(0, whole, lanes):
                total = vector.multiply_add(
                    vector.load(rows, i * K + k), vector.load(column, k), total
                )
            rest = vector.total(total)
            for k in range(whole, K):
                rest += rows[i * K + k] * column[k]
            sums[i * pitch + j] = rest


KERNEL = Kernel(op="gemm", name="thin", refuses=refuses, build=build)
