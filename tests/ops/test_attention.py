"""attention: the reference against the definition, and every kernel where others went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import polykern
from polykern import ops, testing

OP = "attention"

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]


def dot(x: Array, y: Array) -> float:
    terms = [float(left) * float(right) for left, right in zip(x, y, strict=True)]
    return math.fsum(terms) if all(map(math.isfinite, terms)) else sum(terms)


def definition(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    is_causal: bool = False,
    causal_alignment: Any = None,
    window: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    q_lengths: Any = None,
    kv_lengths: Any = None,
    layout: str = "BHSD",
    **_: Any,
) -> tuple[Array, Array]:
    """The contract, one query after the other: the keys it sees, their scores, their mean."""
    given = q.shape
    q, k, v = (x[None] if x.ndim == 3 else x for x in (q, k, v))
    if layout == "BSHD":
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    (batch, heads, queries, d), keys = q.shape, k.shape[2]
    factor = scale if scale is not None else 1 / math.sqrt(d) if d else 0.0
    left, right = window or (None, None)
    if is_causal:
        right = 0
    if mask is not None:
        mask = np.broadcast_to(mask, (batch, heads, queries, keys))
    result = np.zeros((batch, heads, queries, v.shape[3]))
    lse = np.full((batch, heads, queries), -math.inf)
    for b, h in product(range(batch), range(heads)):
        g = h * k.shape[1] // heads
        of_query = queries if q_lengths is None else int(q_lengths[b])
        of_key = keys if kv_lengths is None else int(kv_lengths[b])
        if isinstance(causal_alignment, (str, type(None))):
            offset = of_key - of_query if causal_alignment == "lower-right" else 0
        else:
            offset = int(np.broadcast_to(causal_alignment, (batch,))[b])
        for i in range(of_query):
            scores = {}
            for j in range(of_key):
                if left is not None and j < i + offset - left:
                    continue
                if right is not None and j > i + offset + right:
                    continue
                added = 0.0
                if mask is not None:
                    entry = mask[b, h, i, j]
                    if entry == (False if mask.dtype == bool else -math.inf):
                        continue
                    added = 0.0 if mask.dtype == bool else float(entry)
                score = dot(q[b, h, i], k[b, g, j]) * float(factor)
                if softcap:
                    score = float(softcap) * math.tanh(score / float(softcap))
                scores[j] = score + added
            if scores:
                result[b, h, i], lse[b, h, i] = weighted_mean(scores, v[b, g].astype("f8"))
    if layout == "BSHD":
        result = result.transpose(0, 2, 1, 3)
    if len(given) == 3:
        return result[0], lse[0]
    return result, lse


def weighted_mean(scores: dict[int, float], v: Array) -> tuple[Array | float, float]:
    most = max(scores.values())
    if any(math.isnan(score) for score in scores.values()) or most == math.inf:
        return math.nan, math.nan
    weights = {j: math.exp(score - most) for j, score in scores.items()}
    total = math.fsum(weights.values())
    with np.errstate(invalid="ignore"):
        mean = sum(np.float64(weight / total) * v[j] for j, weight in weights.items())
    return mean, most + math.log(total)


@pytest.mark.parametrize("case", testing.cases(OP), ids=str)
def test_the_reference_is_the_definition(case: testing.Case) -> None:
    args, kwargs = case.arguments()
    kwargs["return_lse"] = True
    report = polykern.plan(ops.attention, *args, **kwargs, backend="numpy")
    if report.problem.flops > 2_000_000:
        pytest.skip("too large for loops")
    with np.errstate(all="ignore"):
        found = report.problem.reference(report.arrays, report.scalars, "float64")
    for one, expected in zip(found, definition(*args, **kwargs), strict=True):
        assert one.shape == expected.shape
        np.testing.assert_allclose(one, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype, u", [("f4", 2.0**-24), ("f8", 2.0**-53)])
def test_bound_is_of_the_size_of_a_roundoff(dtype: str, u: float) -> None:
    q, k, v = operands((1, 2, 9, 8), (1, 2, 11, 8), dtype=dtype)
    report = polykern.plan(ops.attention, q, k, v, return_lse=True, backend="numpy")
    value, lse = report.problem.error_bound(report.arrays, report.scalars)
    assert np.all(value <= 100 * u * np.abs(v).max())
    assert np.all(lse <= 150 * u)
    assert np.all(value >= u * np.abs(definition(q, k, v)[0]))
    assert np.all(lse >= u)


def normal(*shape: int, seed: int = 0, dtype: Any = "f4", scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def operands(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...] | None = None, dtype: Any = "f4"
) -> tuple[Array, Array, Array]:
    shapes = (q, k, v or k)
    q, k, v = (normal(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes))
    return q, k, v


def near(found: Array, expected: Array, dtype: Any = "float32") -> None:
    """Within a small part of the largest value, and NaN and infinities at their places."""
    assert found.dtype == dtype
    assert found.shape == expected.shape
    roundoff = float(np.finfo(found.dtype).eps)
    scale = np.max(np.abs(expected), where=np.isfinite(expected), initial=0)
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=0, atol=50 * roundoff * scale)


def test_equal_scores_give_the_mean(call: Call) -> None:
    q, k, v = operands((2, 3, 5, 8), (2, 3, 7, 8))
    expected = np.broadcast_to(v.astype("f8").mean(2, keepdims=True), q.shape)
    near(call(q, k, v, scale=0), expected)
    near(call(0 * q, k, v), expected)


def test_one_key_gives_its_value(call: Call) -> None:
    q, k, v = operands((2, 3, 5, 8), (2, 3, 1, 8))
    found, lse = call(q, k, v, return_lse=True)
    assert np.array_equal(found, np.broadcast_to(v, q.shape))
    near(lse, (q.astype("f8") * k).sum(-1) / math.sqrt(8))


def test_scores_of_a_far_greater_key_select_it(call: Call) -> None:
    keys = np.eye(6, dtype="f4")[None, None] * 100
    v = normal(1, 1, 6, 4)
    chosen = [3, 0, 5, 5]
    near(call(keys[:, :, chosen], keys, v), v[:, :, chosen].astype("f8"))


def test_query_that_the_mask_lets_see_no_key_gives_zeros(call: Call) -> None:
    q, k, v = operands((1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 4))
    mask = np.ones((5, 6), bool)
    mask[1] = mask[3, 2:] = False
    found, lse = call(q, k, v, mask=mask, return_lse=True)
    near(found, definition(q, k, v, mask=mask)[0])
    assert not found[:, :, 1].any()
    assert np.all(lse[:, :, 1] == -np.inf)
    added = np.where(mask, 0, -np.inf).astype("f4")
    near(call(q, k, v, mask=added), definition(q, k, v, mask=mask)[0])


@pytest.mark.parametrize("queries, keys", [(3, 7), (7, 3), (1, 9), (33, 70)])
def test_two_alignments(call: Call, queries: int, keys: int) -> None:
    """Upper left sees key j <= i; lower right lets the last query see the last key."""
    q, k, v = operands((1, 2, queries, 8), (1, 2, keys, 8))
    for name, offset in (("upper-left", 0), ("lower-right", keys - queries)):
        mask = np.arange(keys) <= np.arange(queries)[:, None] + offset
        found = call(q, k, v, is_causal=True, causal_alignment=name)
        near(found, definition(q, k, v, mask=mask)[0])
        near(call(q, k, v, is_causal=True, causal_alignment=offset), found.astype("f8"))


def test_true_keeps_a_key(call: Call) -> None:
    q, k, v = operands((1, 1, 3, 4), (1, 1, 4, 4))
    mask = np.zeros((3, 4), bool)
    mask[[0, 1, 2], [2, 0, 3]] = True
    assert np.array_equal(call(q, k, v, mask=mask), v[:, :, [2, 0, 3]])


def test_float_mask_of_zeros_and_ones_is_added(call: Call) -> None:
    q, k, v = operands((1, 2, 3, 4), (1, 2, 5, 4))
    mask = np.random.default_rng(3).integers(0, 2, (3, 5)).astype("f4")
    scores = np.einsum("bhid,bhjd->bhij", q.astype("f8"), k) / 2 + mask
    weights = np.exp(scores)
    near(call(q, k, v, mask=mask), weights @ v / weights.sum(-1, keepdims=True))


@pytest.mark.parametrize("heads, shared", [(6, 2), (5, 1), (4, 4)])
def test_query_heads_share_key_heads_in_runs(call: Call, heads: int, shared: int) -> None:
    q, k, v = operands((2, heads, 4, 8), (2, shared, 5, 8))
    mask = np.random.default_rng(2).random((2, heads, 4, 5)) < 0.7
    repeated = [np.repeat(x, heads // shared, 1) for x in (k, v)]
    near(call(q, k, v, mask=mask), definition(q, *repeated, mask=mask)[0])


def test_heads_that_do_not_divide_are_refused(call: Call) -> None:
    with pytest.raises(ValueError, match="no multiple"):
        call(*operands((1, 3, 4, 8), (1, 2, 5, 8)))


def test_softcap_comes_before_the_mask(call: Call) -> None:
    """A -inf that is capped would let the key in."""
    q, k, v = operands((1, 2, 4, 8), (1, 2, 6, 8))
    mask = np.zeros((4, 6), "f4")
    mask[:, 4:] = -np.inf
    v[:, :, 4:] = 1000
    few = [x[:, :, :4] for x in (k, v)]
    near(call(q, k, v, mask=mask, softcap=1.0), definition(q, *few, softcap=1.0)[0])


def test_left_window_counts_the_keys_before_the_own(call: Call) -> None:
    q, k, v = operands((1, 1, 9, 4), (1, 1, 9, 4))
    distance = np.arange(9)[:, None] - np.arange(9)
    mask = (distance >= 0) & (distance <= 2)
    near(call(q, k, v, is_causal=True, window=(2, None)), definition(q, k, v, mask=mask)[0])


def test_window_on_both_sides(call: Call) -> None:
    q, k, v = operands((1, 1, 4, 4), (1, 1, 6, 4))
    distance = np.arange(6) - np.arange(4)[:, None]
    mask = (distance >= -2) & (distance <= 1)
    near(call(q, k, v, window=(2, 1)), definition(q, k, v, mask=mask)[0])


@pytest.mark.parametrize("size", [1, 3, 7, 40, 80, 100, 130, 256])
def test_any_head_size(call: Call, size: int) -> None:
    """The default scale is that of the real size, and padding adds nothing."""
    q, k, v = operands((1, 2, 5, size), (1, 2, 6, size))
    near(call(q, k, v), definition(q, k, v)[0])


def test_values_of_another_size(call: Call) -> None:
    q, k, v = operands((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 20))
    near(call(q, k, v), definition(q, k, v)[0])


def test_no_keys_give_zeros(call: Call) -> None:
    q, k, v = operands((2, 2, 3, 8), (2, 2, 0, 8), (2, 2, 0, 5))
    found, lse = call(q, k, v, return_lse=True)
    near(found, np.zeros((2, 2, 3, 5)))
    assert np.all(lse == -np.inf)


def test_no_queries(call: Call) -> None:
    q, k, v = operands((2, 4, 0, 8), (2, 2, 5, 8), (2, 2, 5, 6))
    found = call(q, k, v, is_causal=True, causal_alignment="lower-right")
    near(found, np.zeros((2, 4, 0, 6)))


def test_sequence_before_heads_in_memory(call: Call) -> None:
    bshd = operands((2, 5, 3, 8), (2, 7, 3, 8))
    bhsd = tuple(x.transpose(0, 2, 1, 3) for x in bshd)
    expected = definition(*bhsd)[0]
    near(call(*bhsd), expected)
    near(call(*bshd, layout="BSHD"), expected.transpose(0, 2, 1, 3))


def test_float16_scores_beyond_the_range_of_float16(call: Call) -> None:
    q, k = np.full((1, 1, 2, 128), 256, "f2"), np.full((1, 1, 4, 128), 128, "f2")
    k[:, :, 0] = 256
    v = normal(1, 1, 4, 16, dtype="f2")
    assert np.array_equal(call(q, k, v), np.broadcast_to(v[:, :, :1], (1, 1, 2, 16)))


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 1, 1, 5), (1, 3, 4, 5), (2, 3, 4, 5)])
def test_masks_are_broadcast_from_the_right(call: Call, shape: tuple[int, ...]) -> None:
    q, k, v = operands((2, 3, 4, 8), (2, 3, 5, 8))
    mask = np.random.default_rng(9).random(shape) < 0.6
    near(call(q, k, v, mask=mask), definition(q, k, v, mask=mask)[0])


def test_causal_and_mask_hold_together(call: Call) -> None:
    q, k, v = operands((1, 2, 5, 8), (1, 2, 5, 8))
    mask = np.random.default_rng(4).random((5, 5)) < 0.6
    both = mask & np.tri(5, dtype=bool)
    near(call(q, k, v, mask=mask, is_causal=True), definition(q, k, v, mask=both)[0])


@pytest.mark.parametrize(
    "queries, keys", [(1, 1), (1, 77), (5, 63), (64, 64), (65, 65), (127, 130), (33, 257)]
)
def test_lengths_off_the_tiles(call: Call, queries: int, keys: int) -> None:
    q, k, v = operands((1, 1, queries, 16), (1, 1, keys, 16))
    near(call(q, k, v), definition(q, k, v)[0])


def test_keys_and_values_of_different_lengths_are_refused(call: Call) -> None:
    with pytest.raises(ValueError, match="k and v differ"):
        call(*operands((1, 1, 3, 8), (1, 1, 5, 8), (1, 1, 6, 8)))


def test_float64_keeps_its_accuracy(call: Call) -> None:
    q, k, v = operands((1, 2, 5, 8), (1, 2, 70, 8), dtype="f8")
    found, lse = call(q, k, v, return_lse=True)
    for one, expected in zip((found, lse), definition(q, k, v), strict=True):
        near(one, expected, "float64")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_unseen_keys_influence_nothing(call: Call, bad: float) -> None:
    """0 times NaN is NaN, so what is not seen must not be multiplied."""
    q, k, v = operands((1, 2, 70, 16), (1, 2, 150, 16))
    few = [x[:, :, :99] for x in (k, v)]
    expected = definition(q, *few)[0]
    k[:, :, 99:] = v[:, :, 99:] = bad
    hide = np.arange(150) >= 99
    near(call(q, k, v, mask=~hide), expected)
    near(call(q, k, v, mask=np.where(hide, -np.inf, 0).astype("f4")), expected)
    near(call(q, k, v, kv_lengths=np.array([99])), expected)
    near(call(q, k, v, kv_lengths=[99]), expected)


def test_queries_past_their_length_give_zeros(call: Call) -> None:
    q, k, v = operands((2, 2, 5, 8), (2, 2, 6, 8))
    expected = definition(q, k, v)[0]
    q[0, :, 3:] = np.nan
    expected[0, :, 3:] = expected[1] = 0
    near(call(q, k, v, q_lengths=np.array([3, 0])), expected)


def test_a_cache_in_use(call: Call) -> None:
    """New queries after a past that is as long as each batch entry has it, and room to grow."""
    q, k, v = operands((2, 2, 3, 8), (2, 2, 20, 8))
    past = np.array([4, 11])
    found = call(q, k, v, is_causal=True, causal_alignment=past, kv_lengths=past + 3)
    for b in (0, 1):
        mask = np.arange(20) <= np.arange(3)[:, None] + past[b]
        one = slice(b, b + 1)
        near(found[one], definition(q[one], k[one], v[one], mask=mask)[0])


def test_log_sum_exp_merges_two_halves(call: Call) -> None:
    """What it is for: attention over parts of the keys, put together."""
    q, k, v = operands((1, 2, 9, 16), (1, 2, 130, 16))
    parts = [call(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(50), slice(50, 130))]
    weights = np.stack([np.exp(lse.astype("f8")) for _, lse in parts])
    values = np.stack([value.astype("f8") for value, _ in parts])
    merged = (weights[..., None] * values).sum(0) / weights.sum(0)[..., None]
    near(call(q, k, v), merged)


def test_out_is_a_tuple_with_the_log_sum_exp(call: Call) -> None:
    q, k, v = operands((1, 2, 5, 8), (1, 2, 6, 8))
    out = np.empty((1, 2, 5, 8), "f4"), np.empty((1, 2, 5), "f4")
    assert call(q, k, v, return_lse=True, out=out) is out
    for one, expected in zip(out, call(q, k, v, return_lse=True), strict=True):
        assert np.array_equal(one, expected)
