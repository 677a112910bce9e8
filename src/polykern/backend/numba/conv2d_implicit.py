"""conv2d as a matrix product, filters times pixels, whose right matrix is never stored whole.

Threads claim tiles of filters x pixels. For a tile, over blocks of the terms (c, r, s)::

    x, the pixels that the taps see -> padded phase images      one tile of some channels
    phase images -> panels of columns pixels                    a tap is an offset: plain copies
    filters -> panels of ROWS filters
    sums filters x pixels += panels * panels                    as in gemm

Pixels are counted through lines of the result and on through all images, so small images fill
tiles as well. A thread owns all of this; nothing is shared but the counter. Source: own; the idea
is cuDNN's implicit gemm (Chetlur et al. 2014), the phases serve vectors instead of warps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from polykern import dtypes
from polykern.backend.numba import epilogue, jit, pack, phases, simd, threads, vector
from polykern.backend.numba.pack import GROUP, STEP
from polykern.backend.numba.rows import row_from, scratch
from polykern.backend.numba.simd import ROWS
from polykern.ops.conv2d import Conv2d
from polykern.registry import Kernel, Launch

Array = np.ndarray[Any, Any]

DEPTH = 384  # terms at a time, as in gemm
TILE_FILTERS, TILE_PIXELS = 384, 512
COPY = 1 << 20  # numbers in the phase images of a tile, at most, if a line of pixels allows it
ALONE_FLOPS = 8_000_000  # below, waking a helper costs what it saves


def refuses(problem: Conv2d) -> str | None:
    """Takes every convolution."""
    return None


def build(problem: Conv2d) -> Launch:
    """Compiled for float32, float64 or int32; narrower numbers are widened, and rounded once."""
    number, factor = problem.accumulate, problem.epilogue
    kernel = jit.compiled(
        _conv2d,
        jit.array(number, 4),
        jit.array(number, 3),
        types.Array(getattr(types, factor), 1, "C", readonly=True),
        jit.array(factor, 4, writable=True),
        phases.PHASES,
        *[types.int64] * 3,
    )
    N, K, P, Q = problem.result
    groups, dtype = problem.groups, np.dtype(factor)
    if not (N and K and P and Q):
        return lambda arrays, scalars, out: empty(problem, out)
    parts = 1 if problem.flops < ALONE_FLOPS else threads.count()
    tile_filters = even(K // groups, TILE_FILTERS)
    width = even(Q, TILE_PIXELS)
    others = groups * -(-K // groups // tile_filters) * -(-Q // width)
    lines = even(N * P, max(1, TILE_PIXELS // width), -(-4 * parts // others) if parts > 1 else 1)
    layout = phases.plan(problem, lines, width)
    channels = min(problem.filters[1], DEPTH // layout.taps.size + 2)
    while layout.lines > 1 and layout.images * channels * layout.plane > COPY:
        layout = phases.plan(problem, -(-layout.lines // 2), width)
    items = others * -(-N * P // layout.lines)
    shape, out_dtype = problem.out_shape, problem.out_dtype
    activation = epilogue.code(problem.activation)

    def launch(arrays: tuple[Any, ...], scalars: tuple[float, ...], out: Any) -> Any:
        result = epilogue.target(out, out_dtype, shape, factor)
        x, w, bias = problem.channels_first(arrays)
        w = w.astype(number, copy=False).reshape(groups, K // groups, problem.terms)
        threads.share(
            kernel,
            min(parts, items),
            x.astype(number, copy=False),
            w.transpose(0, 2, 1),
            np.zeros(K, dtype) if bias is None else np.ascontiguousarray(bias, dtype),
            problem.channels_first_view(result),
            layout,
            activation,
            simd.columns(number),
            tile_filters,
        )
        return epilogue.rounded(result, out_dtype, out)

    return launch


def empty(problem: Conv2d, out: Array | None) -> Array:
    """The result of a problem that has no pixels."""
    if out is not None:
        return out
    return np.empty(problem.out_shape, dtypes.numpy_dtype(problem.out_dtype))


def even(length: int, largest: int, parts: int = 1) -> int:
    """The size of even tiles, at most `largest`, at least `parts` of them if there are so many."""
    return -(-length // max(-(-length // largest), min(parts, length)))


def _conv2d(counter, x, w, bias, out, layout, activation, width, tile_filters):
    groups, terms, filters = w.shape
    N, P, Q = out.shape[0], out.shape[2], out.shape[3]
    window = layout.taps.size
    tiles_k = (filters + tile_filters - 1) // tile_filters
    tiles_l = (N * P + layout.lines - 1) // layout.lines
    tiles_q = (Q + layout.width - 1) // layout.width
    blocks = max(1, (terms + DEPTH - 1) // DEPTH)
    most = (terms + blocks - 1) // blocks
    most_channels = min(terms // window, (most + window - 2) // window + 1)
    pixels = layout.lines * layout.width
    pitch = (pixels + width - 1) // width * width
    height = (min(filters, tile_filters) + ROWS - 1) // ROWS * ROWS
    # Copies of whole vectors read and write up to a vector past the end.
    copied = scratch(layout.images * most_channels * layout.plane + width, x)
    packed_x = scratch(pack.panel_start(pitch // width, most, width) + width, x)
    packed_w = scratch(pack.panel_start(height // ROWS, most, ROWS), x)
    sums = scratch(height * pitch, x)
    values = scratch(GROUP * pitch, out)
    runs = np.empty((2, width), np.int64)
    while True:
        item = threads.claim(counter)
        if item >= tiles_l * tiles_q * groups * tiles_k:
            break
        first_filter = item % tiles_k * tile_filters
        group = item // tiles_k % groups
        first_q = item // (tiles_k * groups) % tiles_q * layout.width
        first_line = item // (tiles_k * groups * tiles_q) * layout.lines
        count = min(tile_filters, filters - first_filter)
        lines = min(layout.lines, N * P - first_line)
        pixels = lines * layout.width
        for i in range(height * pitch):
            sums[i] = 0
        for block in range(blocks):
            first = block * most
            depth = min(most, terms - first)
            channel = first // window
            channels = (first + depth - 1) // window + 1 - channel
            phases.copy_phases(
                x,
                first_line,
                lines,
                P,
                first_q,
                group * (terms // window) + channel,
                channels,
                layout,
                copied,
            )
            _pack_pixels(
                copied,
                first_line % P,
                P,
                pixels,
                first - channel * window,
                depth,
                channels,
                layout,
                packed_x,
                width,
                runs,
            )
            pack.pack_panels(w, group, first, depth, first_filter, count, packed_w, ROWS)
            pack.multiply_panels(depth, packed_w, count, packed_x, pixels, width, sums, 0, pitch)
        for k in range(0, count, GROUP):
            several = min(GROUP, count - k)
            filter_ = group * filters + first_filter + k
            for i in range(several):
                row = row_from(values, (i * pitch,), pixels)
                total = row_from(sums, ((k + i) * pitch,), pixels)
                offset = bias[filter_ + i]
                for j in range(pixels):
                    row[j] = total[j] + offset
                epilogue.activate(row, activation)
            _store(values, pitch, several, filter_, first_line, lines, first_q, layout.width, out)


@jit.device
def _pack_pixels(copied, first_p, P, pixels, first, depth, channels, layout, packed, width, runs):
    """Panels of the terms from tap `first` of the first copied channel on."""
    distance = layout.plane
    for panel in range((pixels + width - 1) // width):
        # A panel is a few runs of pixels that are neighbours in the copy.
        count, lane = 0, 0
        while lane < width and panel * width + lane < pixels:
            line, q = divmod(panel * width + lane, layout.width)
            image, p = divmod(first_p + line, P)
            i = line if image == 0 else p
            place = (image * channels * distance) + i * layout.row + q
            if count == 0 or place - lane != runs[0, count - 1] - runs[1, count - 1]:
                runs[0, count], runs[1, count] = place, lane
                count += 1
            lane += layout.width - q
        target = pack.panel_start(panel, depth, width)
        tap, source = first, 0
        for _ in range(depth):
            # Whole vectors: what one writes past its run, the next run or term overwrites.
            for run in range(count):
                values = vector.load(copied, source + layout.taps[tap] + runs[0, run])
                vector.store(values, packed, target + runs[1, run])
            target += width
            tap += 1
            if tap == layout.taps.size:
                tap, source = 0, source + distance


@jit.device
def _store(values, pitch, several, first_filter, first_line, lines, first_q, width, out):
    """Rows of `values`, one a filter, to the result; eight at once where filters lie together."""
    P, Q = out.shape[2], out.shape[3]
    count = min(width, Q - first_q)
    together = out.strides[1] == out.itemsize and several == GROUP
    stepped = count // STEP * STEP if together else 0
    step = out.strides[3] // out.itemsize
    for line in range(lines):
        n, p = divmod(first_line + line, P)
        for q in range(0, stepped, STEP):
            target = row_from(out, (n, first_filter, p, first_q + q), several)
            pack.transpose(values, line * width + q, pitch, target, 0, step, GROUP)
        for i in range(several):
            row = row_from(values, (i * pitch + line * width + stepped,), count - stepped)
            epilogue.store(row, out, (n, first_filter + i, p, first_q + stepped))


KERNEL = Kernel(op="conv2d", name="implicit", refuses=refuses, build=build)
