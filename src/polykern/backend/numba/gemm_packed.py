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

from typing import Any

from numba import types

from polykern.backend.numba import epilogue, jit, pack, simd, threads
from polykern.backend.numba.gemm_operands import operands
from polykern.backend.numba.rows import row_from, scratch
from polykern.backend.numba.simd import ROWS
from polykern.ops.gemm import Gemm
from polykern.registry import Kernel, Launch

DEPTH = 384  # K at a time: longer saves loads and stores of sums, and overflows caches
BLOCK_M = 192  # rows of A at a time: 288 KB of float32 in the L2 cache
TILE_M = 1536  # a block of B is packed once for so many rows
TILE_PANELS = 32  # of B in a tile
LEAST_TILE = 128  # of a tile's sides: smaller ones pack more than they multiply
ALONE_FLOPS = 8_000_000  # below, waking a helper costs what it saves


def refuses(problem: Gemm) -> str | None:
    """Takes every gemm."""
    return None


def build(problem: Gemm) -> Launch:
    """Compiled for the dtypes of sums and epilogue; narrower numbers are widened."""
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
    M, N = problem.M, problem.N
    columns = simd.columns(number)
    parts = 1 if problem.flops < ALONE_FLOPS else threads.count()
    shape, out_dtype = problem.out_shape, problem.out_dtype
    activation = epilogue.code(problem.activation)

    def launch(arrays: tuple[Any, ...], scalars: tuple[float, ...], out: Any) -> Any:
        result = epilogue.target(out, out_dtype, shape, factor)
        given = operands(problem, arrays, scalars, result)
        for a, *others in given.stacks if result.size else ():
            tile_m, tile_n = _tile(len(a), M, N, TILE_PANELS * columns, parts)
            threads.share(
                kernel,
                min(parts, len(a) * -(-M // tile_m) * -(-N // tile_n)),
                a.swapaxes(1, 2),
                *others,
                given.row_factor,
                given.column_factor,
                given.alpha,
                given.beta,
                not problem.alpha_zero,
                given.has_c,
                activation,
                columns,
                tile_m,
                tile_n,
            )
        return epilogue.rounded(result, out_dtype, out)

    return launch


def _tile(batch: int, M: int, N: int, most_n: int, parts: int) -> tuple[int, int]:
    """Even tiles, some for each of `parts` threads if they need not be small for that."""
    rows, columns = -(-M // TILE_M), -(-N // most_n)
    while parts > 1 and batch * rows * columns < 4 * parts:
        if max(M // rows, N // columns) < 2 * LEAST_TILE:
            break
        if M // rows > N // columns:
            rows += 1
        else:
            columns += 1
    return -(-M // rows), -(-N // columns)


def _gemm(
    counter,
    a_transposed,
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
    width,
    tile_m,
    tile_n,
):
    batch, K, M = a_transposed.shape
    N = b.shape[2]
    tiles_n = (N + tile_n - 1) // tile_n
    tiles = (M + tile_m - 1) // tile_m * tiles_n
    if not has_product:
        K = 0
    blocks = max(1, (K + DEPTH - 1) // DEPTH)
    most = (K + blocks - 1) // blocks
    pitch = (min(N, tile_n) + width - 1) // width * width
    height = (min(M, tile_m) + ROWS - 1) // ROWS * ROWS
    packed_a = scratch(pack.panel_start(min(height, BLOCK_M) // ROWS, most, ROWS), b)
    packed_b = scratch(pack.panel_start(pitch // width, most, width), b)
    sums = scratch(height * pitch, b)
    values = scratch(pitch, out)
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
        for block in range(blocks):
            first_k = block * most
            depth = min(most, K - first_k)
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
            place = (t, first_m + i, first_n)
            epilogue.linear(row, total, has_product, factor, columns, has_c, beta, c, place)
            epilogue.activate(row, activation)
            epilogue.store(row, out, place)


KERNEL = Kernel(op="gemm", name="packed", refuses=refuses, build=build)
