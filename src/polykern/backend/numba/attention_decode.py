"""Attention of a few queries over many keys, as a model writes word by word: K and V read once.

::

    item: one key head of one batch entry, a part of the keys
      block of KEYS keys: scores (rows x KEYS) = q . k, each a vector sum folded once
        maximum, exponentials, sums: vectors along the keys
        O (rows x Dv) += weight * v, four keys at a time

The rows are the queries of all heads that share the key head. Where heads are fewer than threads,
the keys are split, and the parts are weighed together at the end (flash decoding, Dao 2023).
Memory sets the pace: no packing, every element of K and V goes through the registers once a row.
The result of a block that is not finite is worked out again from the keys alone that are seen,
because a weight of 0 times NaN is NaN.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from polykern.backend.numba import jit, threads
from polykern.backend.numba.epilogue import rounded
from polykern.backend.numba.exponential import exp, tanh
from polykern.backend.numba.hiding import (
    BOOL_MASK,
    FLOAT_MASK,
    TILE_BYTES,
    bounds_of,
    operands_of,
)
from polykern.backend.numba.rows import scratch
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

ROWS = 12  # more are faster by register tiles, even with the packing of K and V
KEYS = 128  # in a block: whole vectors
LEAST_PART = 512  # keys: the parts of fewer would cost more to join than they save
ALONE_BYTES = 1 << 18  # of K and V: below, waking a helper costs more than it saves

_device = numba.njit(error_model="numpy")


def refuses(problem: Attention) -> str | None:
    """Takes few queries to each key head."""
    rows = _rows(problem)
    if rows > ROWS:
        return f"{rows} queries share a key head; it takes at most {ROWS}"
    return None


def _rows(problem: Attention) -> int:
    return problem.Sq * problem.Hq // max(1, problem.Hkv)


def build(problem: Attention) -> Launch:
    """Compiled for float32 or float64; narrower numbers are widened, and rounded once."""
    number = problem.accumulate
    dtype = np.dtype(number)
    kernel = jit.compiled(
        _attend,
        *[jit.array(number, 4)] * 3,
        jit.array("boolean", 4),
        jit.array(number, 4),
        *[jit.array("int64", 1)] * 3,
        jit.array(number, 5, writable=True),
        jit.array(number, 5, writable=True),
        *[getattr(types, number)] * 2,
        *[types.int64] * 3,
    )
    inputs = operands_of(problem)
    B, Hq, Hkv, Sq = problem.B, problem.Hq, problem.Hkv, problem.Sq
    bytes_read = B * Hkv * problem.Skv * (problem.D + problem.Dv) * dtype.itemsize
    width = threads.count() if bytes_read >= ALONE_BYTES else 1
    parts = 1
    if 0 < B * Hkv < 2 * width:
        parts = max(1, min(-(-2 * width // (B * Hkv)), problem.Skv // LEAST_PART))

    def launch(arrays: tuple[Any, ...], scalars: tuple[float, ...], out: Any) -> Any:
        given, given_lse = out if problem.return_lse and out is not None else (out, None)
        q, k, v, *others = inputs(arrays)
        sums = np.zeros((parts, B, Hq, Sq, problem.Dv), dtype)
        state = np.zeros((2, parts, B, Hq, Sq), dtype)
        state[0] = -np.inf
        if state.size:
            threads.share(
                kernel,
                width,
                q,
                _dense(k),
                _dense(v),
                *others,
                sums,
                state,
                *[dtype.type(scalar) for scalar in scalars],
                *bounds_of(problem),
            )
        result, lse = _joined(sums, *state)
        if problem.layout == "BSHD":
            result = result.swapaxes(1, 2)
        result = rounded(result.reshape(problem.out_shape), problem.out_dtype, given)
        if not problem.return_lse:
            return result
        lse = lse.reshape(problem.results[1][0])
        return result, rounded(lse, problem.lse_dtype, given_lse)

    return launch


def _dense(x: Array) -> Array:
    """The array, or a copy, with a last axis of unit stride."""
    return x if x.strides[-1] == x.itemsize or not x.size else np.ascontiguousarray(x)


def _joined(sums: Array, most: Array, weights: Array) -> tuple[Array, Array]:
    """The result and the log-sum-exp, from the parts along the first axis."""
    with np.errstate(all="ignore"):
        peak = most[0]
        if len(most) > 1:
            peak = np.max(most, axis=0)
            factor = np.exp(most - np.where(peak == -np.inf, 0, peak))
            sums, weights = sums * factor[..., None], weights * factor
            sums, weights = np.sum(sums, 0, keepdims=True), np.sum(weights, 0, keepdims=True)
        weight = weights[0][..., None]
        result = np.where(weight == 0, weight, sums[0] / weight)
        return result, peak + np.log(weights[0])


def _attend(
    counter,
    q,
    k,
    v,
    flags,
    bias,
    q_lengths,
    kv_lengths,
    offsets,
    sums,
    state,
    scale,
    softcap,
    left,
    right,
    mask_code,
):
    """Row r is query ``r // sharing`` of head ``r % sharing``, of those that share a key head."""
    parts, batch, q_heads, queries, depth_v = sums.shape
    heads, depth = k.shape[1], k.shape[3]
    sharing = q_heads // heads
    rows = queries * sharing
    lanes = TILE_BYTES // q.itemsize
    zero, least = q.dtype.type(0), q.dtype.type(-np.inf)
    q_pitch = (depth + lanes - 1) // lanes * lanes
    o_pitch = (depth_v + lanes - 1) // lanes * lanes
    scaled = scratch(rows * q_pitch, q)
    scores = scratch(rows * KEYS, q)
    o, kept = scratch(rows * o_pitch, q), scratch(rows * o_pitch, q)
    most, weights = np.empty(rows, q.dtype), np.empty(rows, q.dtype)
    while True:
        item = threads.claim(counter)
        if item >= parts * batch * heads:
            break
        part, b, head = item // (batch * heads), item // heads % batch, item % heads
        for r in range(rows):
            most[r], weights[r] = least, zero
            i, h = r // sharing, head * sharing + r % sharing
            for d in range(depth):
                scaled[r * q_pitch + d] = q[b, h, i, d] * scale
            for d in range(depth, q_pitch):
                scaled[r * q_pitch + d] = zero
        for at in range(0, rows * o_pitch, lanes):
            store(zero, o, at)
        live = min(rows, q_lengths[b] * sharing)
        diagonal = offsets[b]
        begin = max(0, diagonal - left)
        end = min(kv_lengths[b], queries + diagonal + right) if live else begin
        blocks = (max(0, end - begin) + KEYS - 1) // KEYS
        for block in range(blocks * part // parts, blocks * (part + 1) // parts):
            key = begin + block * KEYS
            size = min(KEYS, end - key)
            _score(scaled, k, (b, head, key), size, live, scores)
            for r in range(live):
                i, h = r // sharing, head * sharing + r % sharing
                nearest = max(0, min(KEYS, i + diagonal - left - key))
                end_seen = max(0, min(size, i + diagonal + right + 1 - key))
                place, seen = (b, h, i, key), (nearest, end_seen)
                if softcap > 0:
                    _cap(scores, r * KEYS, softcap)
                _hide(scores, r * KEYS, flags, bias, mask_code, place, seen)
                _weigh(scores, r, most, weights, o, o_pitch)
            for at in range(0, live * o_pitch, lanes):
                store(load(o, at), kept, at)
            if _add(v, (b, head, key), size, scores, live, o, o_pitch):
                continue
            for r in range(live):
                for at in range(r * o_pitch, (r + 1) * o_pitch, lanes):
                    store(load(kept, at), o, at)
                i, h = r // sharing, head * sharing + r % sharing
                for j in range(
                    max(0, i + diagonal - left - key), min(size, i + diagonal + right + 1 - key)
                ):
                    if mask_code == BOOL_MASK and not flags[b, h, i, key + j]:
                        continue
                    if mask_code == FLOAT_MASK and bias[b, h, i, key + j] == -np.inf:
                        continue
                    for d in range(depth_v):
                        o[r * o_pitch + d] += scores[r * KEYS + j] * v[b, head, key + j, d]
        for r in range(rows):
            i, h = r // sharing, head * sharing + r % sharing
            state[0, part, b, h, i], state[1, part, b, h, i] = most[r], weights[r]
            for d in range(depth_v):
                sums[part, b, h, i, d] = o[r * o_pitch + d]


@_device
def _score(scaled, k, place, size, rows, scores):
    """Scores of a block, row by row, each the fold of one vector."""
    lanes = TILE_BYTES // k.itemsize
    zero = k.dtype.type(0)
    b, head, key = place
    depth = k.shape[3]
    whole = depth // lanes * lanes
    pitch = (depth + lanes - 1) // lanes * lanes
    start = (b * k.strides[0] + head * k.strides[1] + key * k.strides[2]) // k.itemsize
    for j in range(size):
        at = start + j * (k.strides[2] // k.itemsize)
        for r in range(rows):
            products = spread(zero)
            for d in range(0, whole, lanes):
                products = multiply_add(load(k, at + d), load(scaled, r * pitch + d), products)
            if whole < depth:
                rest = load_first(k, at + whole, depth - whole, zero)
                products = multiply_add(rest, load(scaled, r * pitch + whole), products)
            scores[r * KEYS + j] = total(products)


@_device
def _cap(scores, start, softcap):
    for at in range(start, start + KEYS, TILE_BYTES // scores.itemsize):
        store(tanh(load(scores, at) / softcap) * softcap, scores, at)


@_device
def _hide(scores, start, flags, bias, mask_code, place, seen):
    """Add the mask to the scores of one row; those of keys that it does not see become -inf."""
    least = scores.dtype.type(-np.inf)
    b, h, i, key = place
    for j in range(min(seen[0], KEYS)):
        scores[start + j] = least
    for j in range(seen[1], KEYS):
        scores[start + j] = least
    for j in range(seen[0], seen[1] if mask_code == BOOL_MASK else seen[0]):
        if not flags[b, h, i, key + j]:
            scores[start + j] = least
    for j in range(seen[0], seen[1] if mask_code == FLOAT_MASK else seen[0]):
        added = bias[b, h, i, key + j]
        scores[start + j] = least if added == least else scores[start + j] + added


@_device
def _weigh(scores, r, most, weights, o, o_pitch):
    """Weights take the place of the scores of a row, and o is brought to the new maximum."""
    lanes = TILE_BYTES // scores.itemsize
    zero, least = scores.dtype.type(0), scores.dtype.type(-np.inf)
    largest = spread(most[r])
    for at in range(r * KEYS, (r + 1) * KEYS, lanes):
        score = load(scores, at)
        largest = where_greater(score, largest, score, largest)
    now = highest(largest)
    origin = now if now > least else zero
    added = spread(zero)
    for at in range(r * KEYS, (r + 1) * KEYS, lanes):
        weight = exp(load(scores, at) - origin)
        added = added + weight
        store(weight, scores, at)
    if now > most[r]:
        factor = exp(most[r] - origin)
        weights[r] *= factor
        for at in range(r * o_pitch, (r + 1) * o_pitch, lanes):
            store(load(o, at) * factor, o, at)
    most[r] = now
    weights[r] += total(added)


@_device
def _add(v, place, size, weights, rows, o, o_pitch):
    """``o += weights @ v``, four keys at a time; whether all is finite."""
    lanes = TILE_BYTES // v.itemsize
    zero = v.dtype.type(0)
    b, head, key = place
    depth = v.shape[3]
    step = v.strides[2] // v.itemsize
    start = (b * v.strides[0] + head * v.strides[1] + key * v.strides[2]) // v.itemsize
    fours = size // 4 * 4
    for j in range(0, fours, 4):
        for r in range(rows):
            at, w = start + j * step, r * KEYS + j
            for d in range(0, depth, lanes):
                value = load(o, r * o_pitch + d)
                for nth in range(4):
                    value = multiply_add(
                        _value(v, at + nth * step + d, depth - d), weights[w + nth], value
                    )
                store(value, o, r * o_pitch + d)
    for j in range(fours, size):
        for r in range(rows):
            for d in range(0, depth, lanes):
                value = load(o, r * o_pitch + d)
                value = multiply_add(
                    _value(v, start + j * step + d, depth - d), weights[r * KEYS + j], value
                )
                store(value, o, r * o_pitch + d)
    zeros = spread(zero)
    for at in range(0, rows * o_pitch, lanes):
        zeros = multiply_add(load(o, at), zero, zeros)
    return total(zeros) == 0


@_device
def _value(v, at, count):
    """The vector there, or what is left of its row."""
    if count >= TILE_BYTES // v.itemsize:
        return load(v, at)
    return load_first(v, at, count, v.dtype.type(0))


KERNEL = Kernel(op="attention", name="decode", refuses=refuses, build=build)
