"""Softmax along any axis: tiles of LANES columns are read once, reduced downwards, written once.

::

    along a distant axis                       along the unit-stride axis
    line 0   | x[0, c] ... x[0, c + LANES]     | x[0]      ... x[LANES - 1]
    line 1   | x[1, c] ...                     | x[LANES]  ...
             |   each column is a row of       |   one row of the operator, folded;
             v   the operator                  v   its rest is padded with -inf

A tile lies in scratch that the L2 cache holds; most and total, one number a column, in L1. Of a
longer row, chunks are read one after the other, the total being rescaled when the maximum grows
(online normaliser, Milakov and Gimelshein 2018), and once more to be written. LANES sums a row,
so that a long row loses no digits. The caller and its helpers claim tiles; who claims one owns it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba import types

from polykern import dtypes
from polykern.backends.numba import jit, threads
from polykern.backends.numba.exponential import exp
from polykern.backends.numba.rows import row_from, scratch
from polykern.ops.softmax import Softmax
from polykern.registry import Kernel, Launch

Array = np.ndarray[Any, Any]

LANES = 64  # four vectors of AVX-512, eight of AVX2: the sums hide the latency of their additions
CHUNK_BYTES = 1 << 18  # of scratch: half an L2 cache of 512 KB
ALONE_ELEMENTS = 100_000  # below, waking a helper costs more than it saves
CLAIM_ELEMENTS = 1 << 14  # of short rows, claimed at once,
CLAIMS = 8  # if that many claims are left
STRIDED_COST = 3  # reading one element by itself, in reads of one element by vectors
FOLD_LINES = 2  # folding a line into one number costs about as much as so many lines

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
        order, folded = _order(source)
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


def _order(folded: Array) -> tuple[tuple[int, int, int], bool]:
    """The cheapest order of the axes, the last one being that of the lanes; is it the folded one?"""
    outer, n, inner = folded.shape
    outer_steps, n_steps, inner_steps = [
        1 if stride == folded.itemsize else STRIDED_COST for stride in folded.strides
    ]
    rows = (-(-n // LANES) + FOLD_LINES) * n_steps / n
    inwards = -(-inner // LANES) * inner_steps / inner
    outwards = -(-outer // LANES) * outer_steps / outer
    if rows <= min(inwards, outwards):
        return (0, 2, 1), True
    return ((0, 1, 2), False) if inwards <= outwards else ((2, 1, 0), False)


def _softmax(counter, x, where, out, folded, log, has_where):  # type: ignore[no-untyped-def]
    """Tiles of ``x[i, :, k : k + LANES]``, or if folded, rows ``x[i, j, :]``."""
    n = x.shape[2] if folded else x.shape[1]
    lines = (n + LANES - 1) // LANES if folded else n
    per_slab = x.shape[1] if folded else (x.shape[2] + LANES - 1) // LANES
    tiles = x.shape[0] * per_slab
    chunk = min(lines, CHUNK_BYTES // x.itemsize // LANES)
    at_once = max(1, min(CLAIM_ELEMENTS // (lines * LANES), tiles // CLAIMS))
    values = scratch(chunk * LANES, x)[: chunk * LANES].reshape(chunk, LANES)
    state = scratch(4 * LANES, x)
    flags = np.empty(LANES, np.bool_)
    while True:
        first = threads.claim(counter) * at_once
        if first >= tiles:
            break
        for tile in range(first, min(first + at_once, tiles)):
            i, rest = tile // per_slab, tile % per_slab
            j, k = (rest, 0) if folded else (0, rest * LANES)
            _start(state)
            for start in range(0, lines, chunk):
                count = min(chunk, lines - start)
                _read(x, where, i, j, k, start, count, folded, has_where, values, flags)
                _grow(values, count, folded, state)
                _add(values, count, log, state)
            _finish(folded, log, state)
            for start in range(0, lines, chunk):
                count = min(chunk, lines - start)
                if chunk < lines:
                    _read(x, where, i, j, k, start, count, folded, has_where, values, flags)
                    if not log:
                        _exponentiate(values, count, state)
                _scale(values, count, log, state)
                _write(out, where, i, j, k, start, count, folded, has_where, log, values, flags)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _read(x, where, i, j, k, start, count, folded, has_where, values, flags):  # type: ignore[no-untyped-def]
    """Lines from memory to scratch; what does not take part counts as -inf."""
    nothing = x.dtype.type(-np.inf)
    for line in range(count):
        column, at = (j, k + (start + line) * LANES) if folded else (start + line, k)
        length = min(LANES, x.shape[2] - at)
        _load(x, i, column, at, length, values[line])
        for lane in range(length, LANES):
            values[line, lane] = nothing
        if has_where:
            _load(where, i, column, at, length, flags)
            for lane in range(length):
                values[line, lane] = values[line, lane] if flags[lane] else nothing


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _write(out, where, i, j, k, start, count, folded, has_where, log, values, flags):  # type: ignore[no-untyped-def]
    """Lines from scratch to memory; what does not take part gives 0, or -inf in the log."""
    nothing = out.dtype.type(-np.inf if log else 0)
    for line in range(count):
        column, at = (j, k + (start + line) * LANES) if folded else (start + line, k)
        length = min(LANES, out.shape[2] - at)
        if has_where:
            _load(where, i, column, at, length, flags)
            for lane in range(length):
                values[line, lane] = values[line, lane] if flags[lane] else nothing
        if out.strides[2] != out.itemsize:
            for lane in range(length):
                out[i, column, at + lane] = values[line, lane]
        else:
            _copy(values[line], row_from(out, (i, column, at), length), length)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _load(source, i, j, k, length, target):  # type: ignore[no-untyped-def]
    if source.strides[2] != source.itemsize:
        for lane in range(length):
            target[lane] = source[i, j, k + lane]
    else:
        _copy(row_from(source, (i, j, k), length), target, length)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _copy(source, target, length):  # type: ignore[no-untyped-def]
    if length == LANES:  # a known length becomes a few vector moves
        for lane in range(LANES):
            target[lane] = source[lane]
    else:
        for lane in range(length):
            target[lane] = source[lane]


# The state: for each lane the maximum so far, the same as what is subtracted (0 for -inf, whose
# difference is NaN), the sum so far, and a line of scratch.
MOST, ORIGIN, TOTAL, SPARE = 0, LANES, 2 * LANES, 3 * LANES


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _start(state):  # type: ignore[no-untyped-def]
    for lane in range(LANES):
        state[MOST + lane] = -np.inf
        state[TOTAL + lane] = 0


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _grow(values, count, folded, state):  # type: ignore[no-untyped-def]
    """The maximum takes in the lines, and the sum so far is brought to it."""
    most = state[MOST : MOST + LANES]
    origin = state[ORIGIN : ORIGIN + LANES]
    total = state[TOTAL : TOTAL + LANES]
    before = state[SPARE : SPARE + LANES]
    for lane in range(LANES):
        before[lane] = most[lane]
    for line in range(count):
        for lane in range(LANES):
            value = values[line, lane]
            most[lane] = value if value > most[lane] else most[lane]
    if folded:
        half = LANES // 2
        while half:
            for lane in range(half):
                other = most[lane + half]
                most[lane] = other if other > most[lane] else most[lane]
            half //= 2
        for lane in range(LANES):
            most[lane] = most[0]
    for lane in range(LANES):
        origin[lane] = most[lane] if most[lane] > -np.inf else 0
        total[lane] *= exp(before[lane] - origin[lane])


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _add(values, count, log, state):  # type: ignore[no-untyped-def]
    """The sum takes in the lines; their exponentials take their place unless the log wants them."""
    origin = state[ORIGIN : ORIGIN + LANES]
    total = state[TOTAL : TOTAL + LANES]
    if log:
        for line in range(count):
            for lane in range(LANES):
                total[lane] += exp(values[line, lane] - origin[lane])
    else:
        for line in range(count):
            for lane in range(LANES):
                exponential = exp(values[line, lane] - origin[lane])
                values[line, lane] = exponential
                total[lane] += exponential


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _exponentiate(values, count, state):  # type: ignore[no-untyped-def]
    origin = state[ORIGIN : ORIGIN + LANES]
    for line in range(count):
        for lane in range(LANES):
            values[line, lane] = exp(values[line, lane] - origin[lane])


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _finish(folded, log, state):  # type: ignore[no-untyped-def]
    """The sum becomes what `_scale` wants: its inverse, or its logarithm."""
    total = state[TOTAL : TOTAL + LANES]
    known = LANES
    if folded:
        known = 1
        half = LANES // 2
        while half:
            for lane in range(half):
                total[lane] += total[lane + half]
            half //= 2
    one = total.dtype.type(1)
    for lane in range(known):
        total[lane] = math.log(total[lane]) if log else one / total[lane]
    for lane in range(known, LANES):
        total[lane] = total[0]


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _scale(values, count, log, state):  # type: ignore[no-untyped-def]
    origin = state[ORIGIN : ORIGIN + LANES]
    total = state[TOTAL : TOTAL + LANES]
    if log:
        for line in range(count):
            for lane in range(LANES):
                values[line, lane] = (values[line, lane] - origin[lane]) - total[lane]
    else:
        for line in range(count):
            for lane in range(LANES):
                values[line, lane] *= total[lane]


KERNEL = Kernel(op="softmax", name="rows", refuses=refuses, build=build)
