"""Attention, one pass over blocks of keys, on transposed scores.

::

    item: some queries of one head          O^T (Dv x queries) += V^T P^T, kept in the L2 cache
      key block (KEYS): K, V packed once    panels of ROWS keys, of ROWS value columns
        query panel (one register tile)     S^T = K Q^T, keys x columns: L1 cache
          softmax downwards in registers    maximum and sum of each query are lanes of a vector
          P^T takes the place of S^T        and is the packed operand of V^T P^T as it stands

Blocks and parts of blocks that no query of a panel sees are not computed; scores are hidden only
where a panel meets an edge or a mask. A hidden score is -inf, so its weight is 0; because 0 times
NaN is NaN, a block of V with a NaN or an infinity takes a plain loop over the keys seen.
The caller and its helpers claim items, those with the most keys first.

Source: FlashAttention-2 (Dao 2023) for the order of work; the transposed form is our own.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba import types

from polykern.backend.numba import jit, threads
from polykern.backend.numba.epilogue import rounded
from polykern.backend.numba.exponential import exp, tanh
from polykern.backend.numba.hiding import (
    KEYS,
    NO_MASK,
    TILE_BYTES,
    add_mask,
    bounds_of,
    gather_mask,
    hide,
    operands_of,
)
from polykern.backend.numba.pack import GROUP, STEP, pack_panels, panel_start, transpose
from polykern.backend.numba.rows import copy, row_from, scratch
from polykern.backend.numba.simd import ROWS, columns, tile_product
from polykern.backend.numba.vector import (
    highest,
    load,
    load_first,
    multiply_add,
    spread,
    store,
    total,
    where_greater,
)
from polykern.ops.attention import Attention
from polykern.registry import Kernel, Launch

Array = np.ndarray[Any, Any]

QUERY_BYTES = 1 << 19  # of Q and O in an item: K and V are packed once for them; half an L2 cache
FEW_QUERIES = 64  # fewer leave panels empty, unless heads that share keys share panels too
SPARE_ITEMS = 4  # for each thread, so that none waits long for the last
ALONE_FLOPS = 2_000_000  # below, waking a helper costs more than it saves

_device = numba.njit(error_model="numpy")


def refuses(problem: Attention) -> str | None:
    """Takes every attention."""
    return None


def build(problem: Attention) -> Launch:
    """Compiled for float32 or float64; narrower numbers are widened, and rounded once."""
    number = problem.accumulate
    dtype = np.dtype(number)
    kernel = jit.compiled(
        _attention,
        *[jit.array(number, 4)] * 3,
        jit.array("boolean", 4),
        jit.array(number, 4),
        *[jit.array("int64", 1)] * 3,
        jit.array(number, 4, writable=True),
        jit.array(number, 3, writable=True),
        *[getattr(types, number)] * 2,
        *[types.int64] * 5,
    )
    inputs = operands_of(problem)
    width = threads.count() if problem.flops >= ALONE_FLOPS else 1
    group, tile = _tile(problem, width)
    heads = (problem.B, problem.Hq, problem.Sq)

    def launch(arrays: tuple[Any, ...], scalars: tuple[float, ...], out: Any) -> Any:
        given, given_lse = out if problem.return_lse and out is not None else (out, None)
        in_place = given is not None and given.dtype == dtype
        result = given if in_place else np.empty(problem.out_shape, dtype)
        lse = np.empty(heads, dtype)
        q, k, *others = inputs(arrays)
        if lse.size:
            threads.share(
                kernel,
                width,
                q.swapaxes(2, 3),
                k.swapaxes(2, 3),
                *others,
                problem.heads_first(result),
                lse,
                *[dtype.type(scalar) for scalar in scalars],
                *bounds_of(problem),
                group,
                tile,
            )
        result = rounded(result, problem.out_dtype, given)
        if not problem.return_lse:
            return result
        lse = lse.reshape(problem.results[1][0])
        return result, rounded(lse, problem.lse_dtype, given_lse)

    return launch


def _tile(problem: Attention, width: int) -> tuple[int, int]:
    """How many query heads share an item, and how many rows it has, as `_attention` has them."""
    lanes = columns(problem.accumulate)
    shared = problem.Hkv > 0 and 0 < problem.Sq < FEW_QUERIES
    group = max(1, problem.Hq // problem.Hkv) if shared else 1
    rows = max(1, problem.Sq * group)
    heads = problem.B * problem.Hq // group
    row_bytes = TILE_BYTES // lanes * (problem.D + problem.Dv + 1)
    panels = max(1, min(QUERY_BYTES // row_bytes // lanes, -(-rows // lanes)))
    while panels > 1 and width > 1 and heads * -(-rows // (panels * lanes)) < SPARE_ITEMS * width:
        panels = -(-panels // 2)
    parts = -(-rows // (panels * lanes))
    return group, -(-rows // (parts * lanes)) * lanes


def _attention(
    counter,
    q,
    k,
    v,
    flags,
    bias,
    q_lengths,
    kv_lengths,
    offsets,
    out,
    lse,
    scale,
    softcap,
    left,
    right,
    mask_code,
    group,
    tile,
):
    """Items of `tile` rows; row r of `group` heads: query ``r // group`` of head ``r % group``.

    q and k have the axes (B, H, D, S).
    """
    batch, q_heads, depth, queries = q.shape
    depth_v = v.shape[3]
    lanes = TILE_BYTES // q.itemsize
    heads, sharing = q_heads // group, q_heads // k.shape[1]
    tiles = (queries * group + tile - 1) // tile
    nothing = depth - depth  # no literal, which would compile the packing once more
    narrow = ROWS + nothing
    q_pitch = panel_start(1, depth, lanes)
    o_pitch = (depth_v + ROWS + GROUP) * lanes  # panels and groups overhang
    packed_q = scratch(tile // lanes * q_pitch, q)
    packed_k = scratch(panel_start(KEYS // ROWS, depth, ROWS), q)
    packed_v = scratch(panel_start((depth_v + ROWS - 1) // ROWS, KEYS, ROWS), q)
    scores = scratch(KEYS * lanes, q)
    masked = scratch(2 * KEYS * lanes, q)
    sums = scratch(tile // lanes * o_pitch + STEP, q)
    state = scratch(tile // lanes * STATE * lanes, q)
    bounds = scratch(2 * lanes, q)
    results = scratch((lanes + STEP) * (depth_v + GROUP), q)
    while True:
        item = threads.claim(counter)
        if item >= batch * heads * tiles:
            break
        first = (tiles - 1 - item // (batch * heads)) * tile  # where causal, the longest first
        b, head = item % (batch * heads) // heads, item % heads * group
        count = min(tile, queries * group - first)
        live = max(0, min(count, q_lengths[b] * group - first))
        panels = (live + lanes - 1) // lanes
        _pack_queries(q, b, head, first, live, group, scale, packed_q)
        _start(sums, (count + lanes - 1) // lanes * o_pitch, state, (count + lanes - 1) // lanes)
        diagonal = offsets[b]
        begin = max(0, first // group + diagonal - left)
        end = min(kv_lengths[b], (first + live - 1) // group + diagonal + right + 1)
        for key in range(begin, end if live else begin, KEYS):
            size = min(KEYS, end - key)
            shared = head // sharing
            pack_panels(k[b], shared, nothing, depth, key, size, packed_k, narrow)
            pack_panels(v[b], shared, key, size, nothing, depth_v, packed_v, narrow)
            finite = _is_finite(packed_v, size, depth_v)
            for panel in range(panels):
                row = first + panel * lanes
                place = (b, head, row, group)
                used = min(lanes, live - panel * lanes)
                i, last_i = row // group, (row + used - 1) // group
                low = max(0, i + diagonal - left - key) // ROWS * ROWS
                span = min(size, last_i + diagonal + right + 1 - key) - low
                if span <= 0:
                    continue
                if mask_code != NO_MASK and not gather_mask(
                    flags, bias, mask_code, place, used, key + low, span, masked
                ):
                    continue
                _score(packed_q, panel * q_pitch, packed_k, depth, low, span, scores)
                if softcap > 0:
                    _cap(scores, span, softcap)
                # the keys of the span that query i sees, counted from its first
                nearest, farthest = diagonal - left - key - low, diagonal + right - key - low
                if last_i + nearest > 0 or i + farthest < span - 1:
                    hide(scores, span, place, nearest, farthest, bounds)
                if mask_code != NO_MASK:
                    add_mask(scores, span, masked)
                start = panel * o_pitch
                _take_in(scores, span, state, panel, sums, start, depth_v)
                for part in range((depth_v + ROWS - 1) // ROWS if finite else 0):
                    v_start = panel_start(part, size, ROWS) + low * ROWS
                    o_start = start + part * ROWS * lanes
                    tile_product(span, packed_v, v_start, scores, 0, sums, o_start, lanes)
                for lane in range(0 if finite else used):
                    i = (row + lane) // group
                    seen = (max(0, i + nearest), min(span, i + farthest + 1))
                    mask = masked if mask_code != NO_MASK else masked[:0]
                    _add_seen(packed_v, size, low, seen, mask, scores, lane, sums, start, depth_v)
        for panel in range((count + lanes - 1) // lanes):
            _finish(sums, panel * o_pitch, state, panel, depth_v, results)
            place = (b, head, first + panel * lanes, group)
            left_over = count - panel * lanes, live - panel * lanes
            _write(out, lse, place, left_over, state, panel, results)


@_device
def _pack_queries(q, b, head, first, count, group, scale, packed):
    """Panels of rows, times the scale."""
    lanes = TILE_BYTES // q.itemsize
    depth = q.shape[2]
    nothing = depth - depth
    pitch = panel_start(1, depth, lanes)
    panels = (count + lanes - 1) // lanes
    if group == 1:
        pack_panels(q[b], head, nothing, depth, first, count, packed, lanes)
    else:
        for x in range(panels * lanes):
            place = x // lanes * pitch + x % lanes
            i, h = (first + x) // group, head + (first + x) % group
            for d in range(depth):
                packed[place + d * lanes] = q[b, h, d, i] if x < count else 0
    for place in range(0, panels * pitch, lanes):
        store(load(packed, place) * scale, packed, place)


# The state of a panel: for each query the maximum and the sum so far.
STATE = 2
MOST, SUM = range(STATE)


@_device
def _start(sums, size, state, panels):
    lanes = TILE_BYTES // sums.itemsize
    zero, least = sums.dtype.type(0), sums.dtype.type(-np.inf)
    for place in range(0, size, lanes):
        store(zero, sums, place)
    for panel in range(panels):
        store(least, state, (panel * STATE + MOST) * lanes)
        store(zero, state, (panel * STATE + SUM) * lanes)


@_device
def _is_finite(packed, depth, count):
    """Whether the panels hold no NaN and no infinity."""
    lanes = TILE_BYTES // packed.itemsize
    zero = packed.dtype.type(0)
    zeros = spread(zero)
    for panel in range((count + ROWS - 1) // ROWS):
        start = panel_start(panel, depth, ROWS)
        whole = depth * ROWS // lanes * lanes
        for place in range(start, start + whole, lanes):
            zeros = multiply_add(load(packed, place), zero, zeros)
        rest = load_first(packed, start + whole, depth * ROWS - whole, zero)
        zeros = multiply_add(rest, zero, zeros)
    return total(zeros) == 0


@_device
def _score(packed_q, q_start, packed_k, depth, low, span, scores):
    """S^T of a panel of queries and the keys from `low` on; it may overhang by less than ROWS."""
    lanes = TILE_BYTES // scores.itemsize
    zero = scores.dtype.type(0)
    for j in range(0, span, ROWS):
        for r in range(ROWS):
            store(zero, scores, (j + r) * lanes)
        k_start = panel_start((low + j) // ROWS, depth, ROWS)
        tile_product(depth, packed_k, k_start, packed_q, q_start, scores, j * lanes, lanes)


@_device
def _cap(scores, span, softcap):
    lanes = TILE_BYTES // scores.itemsize
    for place in range(0, span * lanes, lanes):
        store(tanh(load(scores, place) / softcap) * softcap, scores, place)


@_device
def _take_in(scores, span, state, panel, sums, start, depth_v):
    """The state takes in the scores, weights take their place, and O is brought to the maximum."""
    lanes = TILE_BYTES // scores.itemsize
    zero, one, least = scores.dtype.type(0), scores.dtype.type(1), scores.dtype.type(-np.inf)
    at_most, at_sum = (panel * STATE + MOST) * lanes, (panel * STATE + SUM) * lanes
    before = load(state, at_most)
    most, other = before, before  # two, or each comparison would wait for the one before
    for j in range(0, span - 1, 2):
        score = load(scores, j * lanes)
        most = where_greater(score, most, score, most)
        score = load(scores, (j + 1) * lanes)
        other = where_greater(score, other, score, other)
    score = load(scores, (span - 1) * lanes)
    most = where_greater(score, most, score, most)
    most = where_greater(other, most, other, most)
    origin = where_greater(most, least, most, zero)
    weights = spread(zero)
    for j in range(span):
        weight = exp(load(scores, j * lanes) - origin)
        store(weight, scores, j * lanes)
        weights = weights + weight
    factor = exp(before - origin)
    store(most, state, at_most)
    store(multiply_add(load(state, at_sum), factor, weights), state, at_sum)
    if highest(where_greater(most, before, one, zero)) > 0:
        for place in range(start, start + depth_v * lanes, lanes):
            store(load(sums, place) * factor, sums, place)


@_device
def _add_seen(packed_v, size, low, seen, mask, weights, lane, sums, start, depth_v):
    """What `tile_product` adds for one query, from the keys alone that it sees."""
    lanes = TILE_BYTES // sums.itemsize
    for j in range(seen[0], seen[1]):
        if mask.size and mask[(KEYS + j) * lanes + lane] == -np.inf:
            continue
        for d in range(depth_v):
            place = panel_start(d // ROWS, size, ROWS) + (low + j) * ROWS + d % ROWS
            sums[start + d * lanes + lane] += weights[j * lanes + lane] * packed_v[place]


@_device
def _finish(sums, start, state, panel, depth_v, results):
    """O^T over the sums of weights, turned to rows of results; 0 where nothing was seen."""
    lanes = TILE_BYTES // sums.itemsize
    zero, one = sums.dtype.type(0), sums.dtype.type(1)
    weights = load(state, (panel * STATE + SUM) * lanes)
    inverse = one / weights
    for place in range(start, start + depth_v * lanes, lanes):
        # a sum of NaN stays NaN
        value = where_greater(weights, zero, load(sums, place) * inverse, weights)
        store(value, sums, place)
    pitch = (depth_v + GROUP - 1) // GROUP * GROUP
    for d in range(0, depth_v, GROUP):
        for lane in range(0, lanes, STEP):
            transpose(
                sums, start + d * lanes + lane, lanes, results, lane * pitch + d, pitch, GROUP
            )


@_device
def _write(out, lse, place, left_over, state, panel, results):
    """Rows of results to memory; those past q_length are 0."""
    lanes = TILE_BYTES // out.itemsize
    depth_v = out.shape[3]
    pitch = (depth_v + GROUP - 1) // GROUP * GROUP
    b, head, row, group = place
    count, live = left_over
    for lane in range(min(lanes, count)):
        i, h = (row + lane) // group, head + (row + lane) % group
        if lane >= live:
            lse[b, h, i] = -np.inf
            for d in range(depth_v):
                out[b, h, i, d] = 0
            continue
        most = state[(panel * STATE + MOST) * lanes + lane]
        lse[b, h, i] = most + math.log(state[(panel * STATE + SUM) * lanes + lane])
        if out.strides[3] == out.itemsize:
            copy(row_from(out, (b, h, i, 0), depth_v), row_from(results, (lane * pitch,), depth_v))
        else:
            for d in range(depth_v):
                out[b, h, i, d] = results[lane * pitch + d]


KERNEL = Kernel(op="attention", name="flash", refuses=refuses, build=build)
