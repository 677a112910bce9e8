"""What attention kernels share: operands, and hiding keys that queries do not see.

Hiding works on a transposed panel of scores: keys x queries.

A hidden score is -inf whatever it was, NaN included. ``place`` says which queries a panel holds:
(b, first head, first row, group), and row r is query ``r // group`` of head ``first + r % group``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from polykern.backend.numba.pack import GROUP, STEP, transpose
from polykern.backend.numba.rows import copy, row_from
from polykern.backend.numba.simd import VECTOR_BYTES
from polykern.backend.numba.vector import highest, load, spread, store, where_greater
from polykern.ops.attention import Attention

Array = np.ndarray[Any, Any]

TILE_BYTES = 2 * VECTOR_BYTES  # the columns of a register tile: the queries of a panel
KEYS = 96  # in a block: a panel of scores, 12 KB at most, stays in the L1 cache; whole panels of K

NO_MASK, BOOL_MASK, FLOAT_MASK = range(3)
MASK_CODES = {None: NO_MASK, "bool": BOOL_MASK, "float": FLOAT_MASK}
FAR = 2**62  # no bound: beyond every key of every query

_device = numba.njit(error_model="numpy")


def operands_of(problem: Attention) -> Callable[[tuple[Any, ...]], tuple[Array, ...]]:
    """What makes, of the arrays of a call, q, k, v, bool mask, float mask, lengths and offsets."""
    dtype = np.dtype(problem.accumulate)
    no_flags, no_bias = np.ones((1, 1, 1, 1), np.bool_), np.zeros((1, 1, 1, 1), dtype)

    def prepare(arrays: tuple[Any, ...]) -> tuple[Array, ...]:
        widened = [
            x if x is None or x.dtype == np.bool_ else x.astype(dtype, copy=False)
            for x in arrays[:4]
        ]
        q, k, v, mask, *data = problem.operands((*widened, *arrays[4:]))
        flags = mask if problem.mask_kind == "bool" else no_flags
        bias = mask if problem.mask_kind == "float" else no_bias
        return q, k, v, flags, bias, *data

    return prepare


def bounds_of(problem: Attention) -> tuple[int, int, int]:
    """How far a query sees to the left and to the right, and the code of the mask."""
    left = FAR if problem.left is None else problem.left
    right = FAR if problem.right is None else problem.right
    return left, right, MASK_CODES[problem.mask_kind]


@_device
def hide(scores, span, place, nearest, farthest, bounds):
    """Hide the keys outside ``i + nearest ... i + farthest``, counted in the panel, of query i."""
    lanes = TILE_BYTES // scores.itemsize
    least = scores.dtype.type(-np.inf)
    _, _, row, group = place
    i, nth = row // group, row % group
    for lane in range(lanes):
        bounds[lane] = max(0, min(KEYS, i + nearest))
        bounds[lanes + lane] = max(-1, min(KEYS, i + farthest))
        nth += 1
        if nth == group:
            i, nth = i + 1, 0
    first, last = load(bounds, 0), load(bounds, lanes)
    for j in range(span):
        number = scores.dtype.type(j)
        score = where_greater(first, number, least, load(scores, j * lanes))
        store(where_greater(number, last, least, score), scores, j * lanes)


@_device
def gather_mask(flags, bias, code, place, used, key, span, masked):
    """The mask of a panel as numbers to add; False if it hides every key.

    It lies behind the first ``KEYS * lanes`` numbers of `masked`.
    """
    lanes = TILE_BYTES // masked.itemsize
    zero, one, least = masked.dtype.type(0), masked.dtype.type(1), masked.dtype.type(-np.inf)
    for lane in range(lanes):
        target = row_from(masked, (lane * KEYS,), span)
        if lane < used:
            _mask_row(flags, bias, code, place, lane, key, target)
        else:
            for j in range(span):
                target[j] = least
    for lane in range(0, lanes, GROUP):
        for j in range(0, span, STEP):
            turned = (KEYS + j) * lanes + lane
            transpose(masked, lane * KEYS + j, KEYS, masked, turned, lanes, GROUP)
    lowest = np.finfo(masked.dtype).min
    seen = spread(zero)
    for j in range(KEYS, KEYS + span):
        seen = where_greater(lowest, load(masked, j * lanes), seen, one)
    return highest(seen) > 0


@_device
def _mask_row(flags, bias, code, place, lane, key, target):
    """The mask of one query, as it lies in memory."""
    zero, least = target.dtype.type(0), target.dtype.type(-np.inf)
    b, head, row, group = place
    i, h = (row + lane) // group, head + (row + lane) % group
    if code == BOOL_MASK and flags.strides[3] == flags.itemsize:
        row_flags = row_from(flags, (b, h, i, key), target.size)
        for j in range(target.size):
            target[j] = zero if row_flags[j] else least
    elif code == BOOL_MASK:
        for j in range(target.size):
            target[j] = zero if flags[b, h, i, key + j] else least
    elif bias.strides[3] == bias.itemsize:
        copy(target, row_from(bias, (b, h, i, key), target.size))
    else:
        for j in range(target.size):
            target[j] = bias[b, h, i, key + j]


@_device
def add_mask(scores, span, masked):
    """Add a gathered mask; where it is -inf the score is, even one of NaN or infinity."""
    lanes = TILE_BYTES // scores.itemsize
    least, lowest = scores.dtype.type(-np.inf), np.finfo(scores.dtype).min
    for j in range(span):
        added = load(masked, (KEYS + j) * lanes)
        score = load(scores, j * lanes) + added
        store(where_greater(lowest, added, least, score), scores, j * lanes)
