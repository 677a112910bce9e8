"""Softmax along any axis: a tile is read once, reduced downwards, and written once.

::

    along a distant axis                       along the unit-stride axis
    line 0   | x[0, c] ... x[0, c + width]     | x[0]      ... x[width - 1]
    line 1   | x[1, c] ...                     | x[width]  ...
             |   each column is a row of       |   one row of the operator, folded;
             v   the operator                  v   its rest is padded with -inf

A tile lies in scratch that the L2 cache holds, maxima and sums, one of each a column, in registers.
Of a longer row, chunks are read one after the other, the sum being rescaled when the maximum grows
(online normaliser, Milakov and Gimelshein 2018), and once more to be written. A dense row that the
cache holds needs no scratch: its exponentials wait in the result for their sum. The caller and its
helpers claim tiles; who claims one owns it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numba import types

from polykern import dtypes
from polykern.backend.numba import jit, threads
from polykern.backend.numba.exponential import exp
from polykern.backend.numba.rows import scratch
from polykern.backend.numba.simd import VECTOR_BYTES
from polykern.backend.numba.vector import (
    READ,
    WRITE,
    highest,
    load,
    load_first,
    prefetch,
    spread,
    store,
    store_first,
    total,
    where_greater,
)
from polykern.ops.softmax import Softmax
from polykern.registry import Kernel, Launch

Array = np.ndarray[Any, Any]

TILE_BYTES = 2 * VECTOR_BYTES
CACHE_LINE = 64
LINE_BYTES = 256  # of a tile: narrower ones touch as many pages of memory for fewer numbers
AHEAD = 12  # lines asked for in advance: the processor foresees no strides beyond a page
TERMS = 32  # added up by themselves before they join the sum, so that long rows lose no digits
CHUNK_BYTES = 1 << 18  # of scratch: half an L2 cache of 512 KB
ALONE_ELEMENTS = 100_000  # below, waking a helper costs more than it saves
CLAIM_ELEMENTS = 1 << 14  # of short rows, claimed at once,
CLAIMS = 8  # if that many claims are left
STRIDED_COST = 3  # reading one number by itself, in reads of one number by vectors
FOLD_COST = 2  # folding a line into one number, in lines of work

_device = numba.njit(error_model="numpy")

_NOWHERE = np.ones((1, 1, 1), np.bool_)


def refuses(problem: Softmax) -> str | None:
    """Takes every softmax."""
    return None


def build(problem: Softmax) -> Launch:
    """Compiled for float32 or float64; narrower numbers are widened, and rounded once."""
    number = np.dtype(problem.accumulate)
    kernel = jit.compiled(
        _softmax,
        jit.array(problem.accumulate, 3),
        jit.array("boolean", 3),
        jit.array(problem.accumulate, 3, writable=True),
        types.boolean,
        types.boolean,
        types.boolean,
    )
    shape, log, has_where = problem.shape, problem.log, problem.has_where
    fold = _Fold(shape, problem.axes)
    width = threads.count() if math.prod(shape) >= ALONE_ELEMENTS else 1
    out_dtype = dtypes.numpy_dtype(problem.out_dtype)

    def launch(arrays: tuple[Any, ...], scalars: tuple[float, ...], out: Any) -> Any:
        x, where = arrays
        if out is None:
            out = np.empty(shape, out_dtype)
        if not out.size:
            return out
        source = fold(x.astype(number, copy=False))
        target = fold.view(out) if out.dtype == number else None
        result = np.empty(fold.shape, number) if target is None else target
        order, folded = _order(source.shape, source.strides, source.itemsize)
        selected = _NOWHERE if where is None else fold(np.broadcast_to(where, shape))
        threads.share(
            kernel,
            width,
            source.transpose(order),
            selected.transpose(order),
            result.transpose(order),
            folded,
            log,
            has_where,
        )
        if target is None:
            fold.unfold(result, out)
        return out

    return launch


class _Fold:
    """Any array of a shape as (outer, n, inner), n being the axes of the softmax together."""

    def __init__(self, shape: Sequence[int], axes: Sequence[int]) -> None:
        others = [axis for axis in range(len(shape)) if axis not in axes]
        first = axes[0] if axes else 0
        neighbours = list(axes) == list(range(first, first + len(axes)))
        before = [axis for axis in others if axis < first or not neighbours]
        after = [axis for axis in others if axis >= first and neighbours]
        self._permutation = None if neighbours else (*before, *axes)
        self.shape = (
            math.prod(shape[axis] for axis in before),
            math.prod(shape[axis] for axis in axes),
            math.prod(shape[axis] for axis in after),
        )

    def __call__(self, array: Array) -> Array:
        """A view, or a copy where the strides do not fold."""
        if self._permutation is not None:
            array = array.transpose(self._permutation)
        return array.reshape(self.shape)

    def view(self, array: Array) -> Array | None:
        """A view, or None where the strides do not fold."""
        folded = self(array)
        return folded if np.may_share_memory(folded, array) else None

    def unfold(self, folded: Array, out: Array) -> None:
        """Copy what has the folded shape to `out`."""
        if self._permutation is not None:
            out = out.transpose(self._permutation)
        out[...] = folded.reshape(out.shape)


@lru_cache(maxsize=4096)
def _order(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[tuple[int, int, int], bool]:
    """The cheapest order of the axes, the lanes along the last one; is it the folded one?"""
    outer, n, inner = shape
    outer_steps, n_steps, inner_steps = [
        1 if stride == itemsize else STRIDED_COST for stride in strides
    ]
    line = LINE_BYTES // itemsize
    rows = (-(-n // line) + FOLD_COST) * line * n_steps / n
    inwards = -(-inner // line) * line * inner_steps / inner
    outwards = -(-outer // line) * line * outer_steps / outer
    if rows <= min(inwards, outwards):
        return (0, 2, 1), True
    return ((0, 1, 2), False) if inwards <= outwards else ((2, 1, 0), False)


# The state, a line of numbers each: the maximum so far; what is subtracted, the same but 0 for
# -inf, whose difference to itself is NaN; the sum so far, whose place is at last taken by its
# inverse or logarithm.
MOST, ORIGIN, TOTAL = range(3)


def _softmax(counter, x, where, out, folded, log, has_where):
    """Tiles of ``x[i, :, k : k + width]``, or if folded, rows ``x[i, j, :]``."""
    width = LINE_BYTES // x.itemsize
    lines = (x.shape[2] + width - 1) // width if folded else x.shape[1]
    per_slab = x.shape[1] if folded else (x.shape[2] + width - 1) // width
    tiles = x.shape[0] * per_slab
    chunk = min(lines, CHUNK_BYTES // LINE_BYTES)
    at_once = max(1, min(CLAIM_ELEMENTS // (lines * width), tiles // CLAIMS))
    direct = folded and not has_where and lines == chunk
    direct = direct and x.strides[2] == x.itemsize and out.strides[2] == out.itemsize
    values = scratch(chunk * width, x)
    state = scratch(3 * width, x)
    while True:
        first = threads.claim(counter) * at_once
        if first >= tiles:
            break
        for tile in range(first, min(first + at_once, tiles)):
            i, rest = tile // per_slab, tile % per_slab
            j, k = (rest, 0) if folded else (0, rest * width)
            if direct:
                at = (i * x.strides[0] + j * x.strides[1]) // x.itemsize
                to = (i * out.strides[0] + j * out.strides[1]) // out.itemsize
                _row(x, at, out, to, x.shape[2], log)
                continue
            for start in range(0, lines, chunk):
                count = min(chunk, lines - start)
                _read(x, where, i, j, k, start, count, folded, has_where, values)
                _add(values, count, folded, log, start == 0, state)
            _finish(folded, log, state)
            for start in range(0, lines, chunk):
                count = min(chunk, lines - start)
                if chunk < lines:
                    _read(x, where, i, j, k, start, count, folded, has_where, values)
                    if not log:
                        _exponentiate(values, count, state)
                _write(out, where, i, j, k, start, count, folded, has_where, log, values, state)


@_device
def _row(x, at, out, to, n, log):
    lanes = TILE_BYTES // x.itemsize
    least, zero = x.dtype.type(-np.inf), x.dtype.type(0)
    whole = n - n % lanes
    rest = n - whole
    most = load_first(x, at + whole, rest, least) if rest else spread(least)
    other = most
    for lane in range(0, whole - lanes, 2 * lanes):
        value = load(x, at + lane)
        most = where_greater(value, most, value, most)
        value = load(x, at + lane + lanes)
        other = where_greater(value, other, value, other)
    if whole:
        value = load(x, at + whole - lanes)
        most = where_greater(value, most, value, most)
    row_most = highest(where_greater(other, most, other, most))
    origin = row_most if row_most > least else zero
    last = spread(zero)
    if rest:
        last = exp(load_first(x, at + whole, rest, least) - origin)
    sums = last
    for first in range(0, whole, TERMS * lanes):
        part = spread(zero)
        for lane in range(first, min(first + TERMS * lanes, whole), lanes):
            exponential = exp(load(x, at + lane) - origin)
            part = part + exponential
            if not log:
                store(exponential, out, to + lane)
        sums = sums + part
    row_sum = total(sums)
    wanted = x.dtype.type(math.log(row_sum)) if log else x.dtype.type(1) / row_sum
    for lane in range(0, whole, lanes):
        value = load(x, at + lane) - origin - wanted if log else load(out, to + lane) * wanted
        store(value, out, to + lane)
    if rest:
        value = load_first(x, at + whole, rest, zero) - origin - wanted if log else last * wanted
        store_first(value, out, to + whole, rest)


@_device
def _read(x, where, i, j, k, start, count, folded, has_where, values):
    """Lines from memory to scratch; what does not take part counts as -inf."""
    lanes, width = TILE_BYTES // x.itemsize, LINE_BYTES // x.itemsize
    nothing = x.dtype.type(-np.inf)
    dense = x.strides[2] == x.itemsize
    for line in range(count):
        column, at = (j, k + (start + line) * width) if folded else (start + line, k)
        length = min(width, x.shape[2] - at)
        if dense:
            place = (i * x.strides[0] + column * x.strides[1]) // x.itemsize + at
            if not folded:
                later = place + AHEAD * (x.strides[1] // x.itemsize)
                for lane in range(0, width, CACHE_LINE // x.itemsize):
                    prefetch(x, later + lane, READ)
            for lane in range(0, width, lanes):
                if lane + lanes <= length:
                    value = load(x, place + lane)
                else:
                    value = load_first(x, place + lane, length - lane, nothing)
                store(value, values, line * width + lane)
        else:
            for lane in range(length):
                values[line * width + lane] = x[i, column, at + lane]
            for lane in range(length, width):
                values[line * width + lane] = nothing
        if has_where:
            for lane in range(length):
                if not where[i, column, at + lane]:
                    values[line * width + lane] = nothing


@_device
def _add(values, count, folded, log, is_first, state):
    """Maximum and sum take in the lines; exponentials take their place, unless for the log."""
    lanes, width = TILE_BYTES // values.itemsize, LINE_BYTES // values.itemsize
    least, zero = values.dtype.type(-np.inf), values.dtype.type(0)
    row_most = spread(least)
    for lane in range(0, width, lanes):
        most = spread(least)
        other = most  # two, or each comparison would wait for the one before
        for line in range(0, count - 1, 2):
            value = load(values, line * width + lane)
            most = where_greater(value, most, value, most)
            value = load(values, (line + 1) * width + lane)
            other = where_greater(value, other, value, other)
        value = load(values, (count - 1) * width + lane)
        most = where_greater(value, most, value, most)
        most = where_greater(other, most, other, most)
        row_most = where_greater(most, row_most, most, row_most)
        store(most, state, ORIGIN * width + lane)
    if folded:
        row_most = spread(highest(row_most))
    for lane in range(0, width, lanes):
        most = row_most if folded else load(state, ORIGIN * width + lane)
        sums = spread(zero)
        if is_first:
            origin = where_greater(most, least, most, zero)
        else:
            before = load(state, MOST * width + lane)
            most = where_greater(before, most, before, most)
            origin = where_greater(most, least, most, zero)
            sums = load(state, TOTAL * width + lane) * exp(before - origin)
        for first in range(0, count, TERMS):
            part = spread(zero)
            for line in range(first, min(first + TERMS, count)):
                place = line * width + lane
                exponential = exp(load(values, place) - origin)
                part = part + exponential
                if not log:
                    store(exponential, values, place)
            sums = sums + part
        store(most, state, MOST * width + lane)
        store(origin, state, ORIGIN * width + lane)
        store(sums, state, TOTAL * width + lane)


@_device
def _exponentiate(values, count, state):
    lanes, width = TILE_BYTES // values.itemsize, LINE_BYTES // values.itemsize
    for lane in range(0, width, lanes):
        origin = load(state, ORIGIN * width + lane)
        for line in range(count):
            place = line * width + lane
            store(exp(load(values, place) - origin), values, place)


@_device
def _finish(folded, log, state):
    lanes, width = TILE_BYTES // state.itemsize, LINE_BYTES // state.itemsize
    one = state.dtype.type(1)
    if folded:
        sums = load(state, TOTAL * width)
        for lane in range(lanes, width, lanes):
            sums = sums + load(state, TOTAL * width + lane)
        row_sum = total(sums)
        wanted = spread(state.dtype.type(math.log(row_sum)) if log else one / row_sum)
        for lane in range(0, width, lanes):
            store(wanted, state, TOTAL * width + lane)
    elif log:
        for lane in range(TOTAL * width, (TOTAL + 1) * width):
            state[lane] = math.log(state[lane])
    else:
        for lane in range(TOTAL * width, (TOTAL + 1) * width, lanes):
            store(one / load(state, lane), state, lane)


@_device
def _write(out, where, i, j, k, start, count, folded, has_where, log, values, state):
    """Lines from scratch to memory; what does not take part gives 0, or -inf in the log."""
    lanes, width = TILE_BYTES // out.itemsize, LINE_BYTES // out.itemsize
    nothing = out.dtype.type(-np.inf if log else 0)
    dense = out.strides[2] == out.itemsize
    for line in range(count):
        column, at = (j, k + (start + line) * width) if folded else (start + line, k)
        length = min(width, out.shape[2] - at)
        place = (i * out.strides[0] + column * out.strides[1]) // out.itemsize + at
        if dense and not folded:
            later = place + AHEAD * (out.strides[1] // out.itemsize)
            for lane in range(0, width, CACHE_LINE // out.itemsize):
                prefetch(out, later + lane, WRITE)
        for lane in range(0, width, lanes):
            value = load(values, line * width + lane)
            wanted = load(state, TOTAL * width + lane)
            value = value - load(state, ORIGIN * width + lane) - wanted if log else value * wanted
            if not dense:
                store(value, values, line * width + lane)
            elif lane + lanes <= length:
                store(value, out, place + lane)
            else:
                store_first(value, out, place + lane, length - lane)
        if not dense:
            for lane in range(length):
                out[i, column, at + lane] = values[line * width + lane]
        if has_where:
            for lane in range(length):
                if not where[i, column, at + lane]:
                    out[i, column, at + lane] = nothing


KERNEL = Kernel(op="softmax", name="rows", refuses=refuses, build=build)
