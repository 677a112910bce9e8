"""Depthwise conv2d of channels that lie together: vectors of channels, nothing copied.

Threads claim lines of the result. For a pixel and a vector of channels the sums stay in registers
over the taps; taps in the padding are left out::

    x[n, h, w, c ... c + lanes] * w[r, s, c ... c + lanes]      both unit-stride

Three lines of x and the weights stay in the caches. A thread owns the sums of its line.
Source: own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from polykern.backend.numba import epilogue, jit, simd, threads, vector
from polykern.backend.numba.conv2d_direct import ALONE_FLOPS
from polykern.backend.numba.conv2d_implicit import empty
from polykern.backend.numba.phases import inside
from polykern.backend.numba.rows import copy, row_from, scratch
from polykern.ops.conv2d import Conv2d
from polykern.registry import Kernel, Launch

Array = np.ndarray[Any, Any]

FEW = 4  # pixels at a time: with a tap, 10 vector registers
LINE_NUMBERS = 16384  # results that a claim of lines has at least


def refuses(problem: Conv2d) -> str | None:
    """Takes one filter and one channel a group, in NHWC, if they fill vectors."""
    filters, channels = problem.filters[:2]
    if filters != problem.groups or channels != 1:
        return f"{filters} filters of {channels} channels in {problem.groups} groups: not depthwise"
    if problem.layout != "NHWC":
        return f"in layout {problem.layout} channels do not lie together"
    lanes = simd.columns(problem.accumulate)
    if filters < lanes:
        return f"{filters} channels are fewer than the {lanes} of a vector"
    return None


def build(problem: Conv2d) -> Launch:
    """Compiled for float32, float64 or int32; narrower numbers are widened, and rounded once."""
    number, factor = problem.accumulate, problem.epilogue
    kernel = jit.compiled(
        _conv2d,
        jit.array(number, 4),
        types.Array(getattr(types, number), 3, "C", readonly=True),
        types.Array(getattr(types, factor), 1, "C", readonly=True),
        jit.array(factor, 4, writable=True),
        types.UniTuple(types.int64, 2),
        types.UniTuple(types.int64, 2),
        types.UniTuple(types.int64, 2),
        *[types.int64] * 3,
    )
    N, K, P, Q = problem.result
    dtype = np.dtype(factor)
    if not (N and K and P and Q):
        return lambda arrays, scalars, out: empty(problem, out)
    lines = min(N * P, max(1, LINE_NUMBERS // (Q * K)))
    (top, _), (left, _) = problem.padding
    parts = 1 if problem.flops < ALONE_FLOPS else min(threads.count(), -(-N * P // lines))
    shape, out_dtype = problem.out_shape, problem.out_dtype
    activation = epilogue.code(problem.activation)

    def launch(arrays: tuple[Any, ...], scalars: tuple[float, ...], out: Any) -> Any:
        result = epilogue.target(out, out_dtype, shape, factor)
        x, w, bias = arrays
        x = x.astype(number, copy=False)
        threads.share(
            kernel,
            parts,
            x if x.strides[3] == x.itemsize else np.ascontiguousarray(x),
            np.ascontiguousarray(w[:, :, :, 0].transpose(1, 2, 0), number),
            np.zeros(K, dtype) if bias is None else np.ascontiguousarray(bias, dtype),
            result,
            problem.stride,
            (top, left),
            problem.dilation,
            lines,
            activation,
            simd.columns(number),
        )
        return epilogue.rounded(result, out_dtype, out)

    return launch


def _conv2d(counter, x, w, bias, out, stride, padding, dilation, lines, activation, lanes):
    N, P, Q, C = out.shape
    sums = scratch(Q * C, x)
    row = row_from(scratch(Q * C, out), (0,), Q * C)
    pixels_together = out.strides[3] == out.itemsize and out.strides[2] == C * out.itemsize
    while True:
        first = threads.claim(counter) * lines
        if first >= N * P:
            break
        for line in range(first, min(first + lines, N * P)):
            n, p = line // P, line % P
            _sum_line(x, w, n, p, stride, padding, dilation, sums, Q, C, lanes)
            for q in range(Q):
                for c in range(C):
                    row[q * C + c] = sums[q * C + c] + bias[c]
            epilogue.activate(row, activation)
            if pixels_together:
                copy(row_from(out, (n, p, 0, 0), row.size), row)
            else:
                for q in range(Q):
                    epilogue.store(row_from(row, (q * C,), C), out, (n, p, q, 0))


@jit.device
def _sum_line(x, w, n, p, stride, padding, dilation, sums, Q, C, lanes):
    """The sums of one line, pixel after pixel."""
    H, W = x.shape[1], x.shape[2]
    R, S = w.shape[0], w.shape[1]
    step_h, step_w = x.strides[1] // x.itemsize, x.strides[2] // x.itemsize
    h = p * stride[0] - padding[0]
    rows = inside(h, dilation[0], R, H)
    start = n * (x.strides[0] // x.itemsize) + h * step_h
    steps = (dilation[0] * step_h, dilation[1] * step_w)
    q = 0
    while q < Q:
        w0 = q * stride[1] - padding[1]
        s0, s1 = inside(w0, dilation[1], S, W)
        corner = start + w0 * step_w
        beyond = w0 + (FEW - 1) * stride[1] + (S - 1) * dilation[1]
        if s1 - s0 == S and q + FEW <= Q and beyond < W:
            _sum_few(x, w, corner, rows, steps, stride[1] * step_w, sums, q * C, C, lanes)
            q += FEW
        else:
            _sum_one(x, w, corner, rows, (s0, s1), steps, sums, q * C, C, lanes)
            q += 1


@jit.device
def _sum_one(x, w, corner, rows, columns, steps, sums, place, C, lanes):
    """The sums of one pixel over a range of taps."""
    for c in range(0, C, lanes):
        channel = min(c, C - lanes)  # the last vector may overlap the one before
        total = vector.spread(sums.dtype.type(0))
        for r in range(rows[0], rows[1]):
            for s in range(columns[0], columns[1]):
                pixel = vector.load(x, corner + r * steps[0] + s * steps[1] + channel)
                tap = vector.load(w, (r * w.shape[1] + s) * C + channel)
                total = vector.multiply_add(pixel, tap, total)
        vector.store(total, sums, place + channel)


@jit.device
def _sum_few(x, w, corner, rows, steps, pitch, sums, place, C, lanes):
    """The sums of FEW neighbours that see all columns of taps; a tap is loaded once for them."""
    for c in range(0, C, lanes):
        channel = min(c, C - lanes)
        zero = sums.dtype.type(0)
        total_0 = total_1 = total_2 = total_3 = vector.spread(zero)
        for r in range(rows[0], rows[1]):
            for s in range(w.shape[1]):
                at = corner + r * steps[0] + s * steps[1] + channel
                tap = vector.load(w, (r * w.shape[1] + s) * C + channel)
                total_0 = vector.multiply_add(vector.load(x, at), tap, total_0)
                total_1 = vector.multiply_add(vector.load(x, at + pitch), tap, total_1)
                total_2 = vector.multiply_add(vector.load(x, at + 2 * pitch), tap, total_2)
                total_3 = vector.multiply_add(vector.load(x, at + 3 * pitch), tap, total_3)
        vector.store(total_0, sums, place + channel)
        vector.store(total_1, sums, place + C + channel)
        vector.store(total_2, sums, place + 2 * C + channel)
        vector.store(total_3, sums, place + 3 * C + channel)


KERNEL = Kernel(op="conv2d", name="depthwise", refuses=refuses, build=build)
