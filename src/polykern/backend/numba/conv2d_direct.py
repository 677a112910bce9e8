"""conv2d with few filters a group, depthwise above all: sums over shifted copies, in registers.

Threads claim tiles of pixels of one image and group. For a tile, over blocks of channels::

    x, the pixels that the taps see -> padded phase images      in the L1 cache
    for each filter and vector of pixels                        lines run on into each other,
        sum += tap * (phase images, shifted by the tap)         what lies between them is dropped

A thread owns its copies and sums. Source: own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from polykern.backend.numba import epilogue, jit, phases, simd, threads, vector
from polykern.backend.numba.conv2d_implicit import empty, even
from polykern.backend.numba.rows import row_from, scratch
from polykern.ops.conv2d import Conv2d
from polykern.registry import Kernel, Launch

Array = np.ndarray[Any, Any]

MOST_FILTERS = 3  # a register tile of a matrix product has 6
TILE_PIXELS = 4096  # their sums and one phase image: an L1 cache
ALONE_FLOPS = 1_000_000  # below, waking a helper costs what it saves
COPY = 16384  # numbers that a copy of several channels should have at most


def refuses(problem: Conv2d) -> str | None:
    """Takes few filters a group."""
    filters = problem.filters[0] // problem.groups
    if filters > MOST_FILTERS:
        return f"{filters} filters a group; from {MOST_FILTERS + 1} on a matrix product is faster"
    return None


def build(problem: Conv2d) -> Launch:
    """Compiled for float32, float64 or int32; narrower numbers are widened, and rounded once."""
    number, factor = problem.accumulate, problem.epilogue
    kernel = jit.compiled(
        _conv2d,
        jit.array(number, 4),
        types.Array(getattr(types, number), 2, "C", readonly=True),
        types.Array(getattr(types, factor), 1, "C", readonly=True),
        jit.array(factor, 4, writable=True),
        phases.PHASES,
        *[types.int64] * 3,
    )
    N, K, P, Q = problem.result
    groups, dtype = problem.groups, np.dtype(factor)
    if not (N and K and P and Q):
        return lambda arrays, scalars, out: empty(problem, out)
    width = even(Q, TILE_PIXELS)
    lines = even(P, max(1, TILE_PIXELS // width))
    items = N * groups * -(-P // lines) * -(-Q // width)
    parts = 1 if problem.flops < ALONE_FLOPS else min(items, threads.count())
    layout = phases.plan(problem, lines, width)
    shape, out_dtype = problem.out_shape, problem.out_dtype
    activation = epilogue.code(problem.activation)

    def launch(arrays: tuple[Any, ...], scalars: tuple[float, ...], out: Any) -> Any:
        result = epilogue.target(out, out_dtype, shape, factor)
        x, w, bias = problem.channels_first(arrays)
        threads.share(
            kernel,
            parts,
            x.astype(number, copy=False),
            np.ascontiguousarray(w, number).reshape(K, problem.terms),
            np.zeros(K, dtype) if bias is None else np.ascontiguousarray(bias, dtype),
            problem.channels_first_view(result),
            layout,
            groups,
            activation,
            simd.columns(number),
        )
        return epilogue.rounded(result, out_dtype, out)

    return launch


def _conv2d(counter, x, w, bias, out, layout, groups, activation, width):
    N, C, P, Q = out.shape[0], x.shape[1] // groups, out.shape[2], out.shape[3]
    filters = w.shape[0] // groups
    tiles_p = (P + layout.lines - 1) // layout.lines
    tiles_q = (Q + layout.width - 1) // layout.width
    distance = layout.plane
    block = max(1, min(C, COPY // distance))  # channels
    pixels = (layout.lines - 1) * layout.row + layout.width
    pitch = (pixels + width - 1) // width * width
    copied = scratch(layout.images * block * distance + width, x)  # vectors read past the end
    sums = scratch(filters * pitch, x)
    values = scratch(pitch, out)
    while True:
        item = threads.claim(counter)
        if item >= N * groups * tiles_p * tiles_q:
            break
        first_q = item % tiles_q * layout.width
        first_p = item // tiles_q % tiles_p * layout.lines
        group = item // (tiles_q * tiles_p) % groups
        n = item // (tiles_q * tiles_p * groups)
        lines = min(layout.lines, P - first_p)
        count = min(layout.width, Q - first_q)
        for i in range(sums.size):
            sums[i] = 0
        for c in range(0, C, block):
            channels = min(block, C - c)
            phases.copy_phases(
                x,
                n * P + first_p,
                lines,
                P,
                first_q,
                group * C + c,
                channels,
                layout,
                copied,
            )
            for i in range(filters):
                row = row_from(
                    w, (group * filters + i, c * layout.taps.size), channels * layout.taps.size
                )
                _add_taps(row, copied, distance, layout, sums, i * pitch, pitch, width)
        for i in range(filters):
            k = group * filters + i
            total = row_from(sums, (i * pitch,), pitch)
            row = row_from(values, (0,), pitch)
            offset = bias[k]
            for j in range(pitch):
                row[j] = total[j] + offset
            epilogue.activate(row, activation)
            for line in range(lines):
                row = row_from(values, (line * layout.row,), count)
                epilogue.store(row, out, (n, k, first_p + line, first_q))


@jit.device
def _add_taps(row, copied, distance, layout, sums, first, pixels, width):
    """Add the taps of one filter, channel after channel in `row`, to its sums."""
    for j in range(0, pixels, width):
        total = vector.load(sums, first + j)
        for c in range(row.size // layout.taps.size):
            for tap in range(layout.taps.size):
                pixels_seen = vector.load(copied, c * distance + layout.taps[tap] + j)
                total = vector.multiply_add(row[c * layout.taps.size + tap], pixels_seen, total)
        vector.store(total, sums, first + j)


KERNEL = Kernel(op="conv2d", name="direct", refuses=refuses, build=build)
