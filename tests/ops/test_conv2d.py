"""conv2d: the reference against the definition, and every kernel where others went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polykern
from polykern import ops, testing

OP = "conv2d"

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]

SCALAR: dict[str | None, Callable[[float], float]] = {
    None: lambda x: x,
    "relu": lambda x: x if math.isnan(x) else max(x, 0.0),
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "sigmoid": lambda x: (1 + math.tanh(x / 2)) / 2,
    "tanh": math.tanh,
}


def amounts(padding: Any, sizes: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The pixels before and after each axis, of (length, window, stride)."""
    if padding == "valid":
        return [(0, 0), (0, 0)]
    if padding in ("same", "same_lower"):
        found = []
        for length, window, stride in sizes:
            missing = 0  # the least padding with which ceil(length / stride) windows fit
            while (length + missing - window) // stride + 1 < math.ceil(length / stride):
                missing += 1
            halves = (missing // 2, missing - missing // 2)
            found.append(halves if padding == "same" else halves[::-1])
        return found
    pair = [padding, padding] if isinstance(padding, int) else list(padding)
    return [(side, side) if isinstance(side, int) else tuple(side) for side in pair]


def definition(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: str | None = None,
    **_: Any,
) -> Array:
    """The contract, pixel by pixel of the result: a window of the padded image times the filter."""
    x, w = x.astype("f8"), w.astype("f8")
    if layout == "NHWC":
        x, w = x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2)
    steps, gaps = ([int(v) for v in np.broadcast_to(pair, 2)] for pair in (stride, dilation))
    windows = [gap * (taps - 1) + 1 for gap, taps in zip(gaps, w.shape[2:], strict=True)]
    sides = amounts(padding, list(zip(x.shape[2:], windows, steps, strict=True)))
    lengths = [n + sum(side) for n, side in zip(x.shape[2:], sides, strict=True)]
    image = np.zeros((*x.shape[:2], *lengths))
    (top, _), (left, _) = sides
    image[:, :, top : top + x.shape[2], left : left + x.shape[3]] = x
    p, q = (
        (n - window) // step + 1 for n, window, step in zip(lengths, windows, steps, strict=True)
    )
    filters, channels = w.shape[:2]
    result = np.zeros((x.shape[0], filters, max(p, 0), max(q, 0)))
    for k in range(filters):
        first = k // (filters // int(groups)) * channels
        for i in range(p):
            for j in range(q):
                rows = slice(i * steps[0], i * steps[0] + windows[0], gaps[0])
                columns = slice(j * steps[1], j * steps[1] + windows[1], gaps[1])
                seen = image[:, first : first + channels, rows, columns]
                result[:, k, i, j] = (seen * w[k]).sum((1, 2, 3))
        if bias is not None:
            result[:, k] += float(bias[k])
    if activation:
        result = np.vectorize(SCALAR[activation], otypes=["f8"])(result)
    return result.transpose(0, 2, 3, 1) if layout == "NHWC" else result


@pytest.mark.parametrize("case", testing.cases(OP), ids=str)
def test_the_reference_is_the_definition(case: testing.Case) -> None:
    args, kwargs = case.arguments()
    report = polykern.plan(ops.conv2d, *args, **kwargs, backend="numpy")
    with np.errstate(all="ignore"):
        found = report.problem.reference(report.arrays, report.scalars, "float64")
        expected = definition(*args, **kwargs)
    assert found.shape == expected.shape
    scale = np.max(np.abs(expected), where=np.isfinite(expected), initial=1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13 * scale)


def test_bound_is_that_of_the_contract() -> None:
    """``(K + c) u (|x| * |w|)`` with a small c, and no looser."""
    rng = np.random.default_rng(0)
    for dtype, u in (("f4", 2.0**-24), ("f8", 2.0**-53)):
        for channels in (1, 100):
            x = rng.standard_normal((2, channels, 4, 5)).astype(dtype)
            w = rng.standard_normal((3, channels, 2, 2)).astype(dtype)
            report = polykern.plan(ops.conv2d, x, w, backend="numpy")
            bound = report.problem.error_bound(report.arrays, report.scalars)
            magnitude = definition(np.abs(x), np.abs(w))
            assert np.all(bound <= (4 * channels + 12) * u * magnitude)
            assert np.all(bound >= u * magnitude)


def whole(*shape: int, seed: int = 0, dtype: Any = "f4") -> Array:
    """Small whole numbers: every sum of products of them is exact, so there is one right answer."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def exactly(found: Array, expected: Array, dtype: Any = "float32") -> None:
    assert found.dtype == dtype
    assert found.shape == expected.shape
    assert np.array_equal(found.astype("f8"), expected)


def test_filter_is_not_flipped(call: Call) -> None:
    x = np.zeros((1, 1, 5, 5), "f4")
    x[0, 0, 2, 2] = 1
    w = np.arange(1, 10, dtype="f4").reshape(1, 1, 3, 3)
    exactly(call(x, w), w[:, :, ::-1, ::-1])


def test_box_filter_counts_the_pixels_it_sees(call: Call) -> None:
    found = call(np.ones((1, 2, 4, 5), "f4"), np.ones((1, 2, 3, 3), "f4"), padding=1)
    rows, columns = np.array([2, 3, 3, 2]), np.array([2, 3, 3, 3, 2])
    exactly(found[0, 0], 2 * np.outer(rows, columns))


def test_same_puts_the_odd_pixel_at_the_end(call: Call) -> None:
    x, w = whole(2, 2, 6, 8), whole(3, 2, 3, 3, seed=1)
    padded = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)))
    exactly(call(x, w, stride=2, padding="same"), definition(padded, w, stride=2))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (1, 0)))
    exactly(call(x, w, stride=2, padding="same_lower"), definition(padded, w, stride=2))


def test_four_sides_of_padding(call: Call) -> None:
    x, w = whole(1, 2, 5, 6), whole(2, 2, 3, 2, seed=1)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (2, 3)))
    exactly(call(x, w, padding=((1, 0), (2, 3))), definition(padded, w))


def test_filter_larger_than_the_padded_image_is_refused(call: Call) -> None:
    with pytest.raises(ValueError, match="larger than the padded image"):
        call(whole(1, 2, 3, 3), whole(4, 2, 6, 6), padding=1)


def test_groups_with_more_filters_than_channels(call: Call) -> None:
    x, w, bias = whole(2, 4, 5, 5), whole(6, 2, 3, 3, seed=1), whole(6, seed=2)
    first = definition(x[:, :2], w[:3], bias[:3], padding=1)
    second = definition(x[:, 2:], w[3:], bias[3:], padding=1)
    exactly(call(x, w, bias, groups=2, padding=1), np.concatenate([first, second], 1))


def test_depthwise_with_a_multiplier(call: Call) -> None:
    x, w = whole(2, 3, 6, 5), whole(6, 1, 3, 3, seed=1)
    alone = [definition(x[:, k // 2 : k // 2 + 1], w[k : k + 1]) for k in range(6)]
    exactly(call(x, w, groups=3), np.concatenate(alone, 1))


def test_stride_with_dilation(call: Call) -> None:
    x, w = whole(1, 3, 8, 8), whole(4, 3, 3, 3, seed=1)
    found = call(x, w, stride=2, dilation=2)
    assert found.shape == (1, 4, 2, 2)
    exactly(found, definition(x, w, stride=2, dilation=2))


def test_no_images(call: Call) -> None:
    found = call(np.zeros((0, 3, 5, 5), "f4"), whole(4, 3, 3, 3), whole(4))
    exactly(found, np.zeros((0, 4, 3, 3)))


def test_single_pixel_filter_with_stride(call: Call) -> None:
    x, w = whole(2, 5, 7, 6), whole(3, 5, 1, 1, seed=1)
    every_second = x[:, :, ::2, ::2].astype("f8")
    exactly(call(x, w, stride=2), np.einsum("nchw,kc->nkhw", every_second, w[:, :, 0, 0]))


def test_channels_last(call: Call) -> None:
    x, w, bias = whole(2, 3, 6, 5), whole(4, 3, 2, 3, seed=1), whole(4, seed=2)
    last = [np.ascontiguousarray(one.transpose(0, 2, 3, 1)) for one in (x, w)]
    expected = definition(x, w, bias, stride=(1, 2), padding=(1, 0)).transpose(0, 2, 3, 1)
    exactly(call(*last, bias, stride=(1, 2), padding=(1, 0), layout="NHWC"), expected)


def test_stride_zero_is_refused(call: Call) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        call(whole(1, 1, 5, 5), whole(1, 1, 3, 3), stride=0)


def test_narrow_sums_do_not_stall(call: Call) -> None:
    """In float16 adding 1 has no effect from 2048 on."""
    found = call(np.ones((1, 512, 3, 3), "f2"), np.ones((2, 512, 3, 3), "f2"))
    exactly(found, np.full((1, 2, 1, 1), 4608.0), "float16")


def test_pixels_after_the_last_stride_are_unused(call: Call) -> None:
    x, w = whole(1, 2, 9, 8), whole(2, 2, 3, 3, seed=1)
    expected = definition(x, w, stride=3, padding=((1, 0), (0, 0)))
    x[:, :, :, 6:] = 4
    exactly(call(x, w, stride=3, padding=((1, 0), (0, 0))), expected)


def test_views(call: Call) -> None:
    x, w = whole(2, 6, 9, 7)[:, ::2, ::-1, 1:], whole(4, 3, 3, 6, seed=1)[:, :, :, ::-2]
    exactly(call(x, w), definition(x.copy(), w.copy()))


def test_padded_image_is_just_one_window(call: Call) -> None:
    x, w = whole(2, 2, 3, 3), whole(3, 2, 3, 3, seed=1)
    corners = np.einsum("nc,kc->nk", x[:, :, 1, 1].astype("f8"), w[:, :, 1, 1])
    exactly(call(x, w, dilation=2, padding=1)[:, :, 0, 0], corners)


def test_stride_beyond_the_filter(call: Call) -> None:
    x, w = whole(1, 2, 11, 12), whole(2, 2, 2, 3, seed=1)
    exactly(call(x, w, stride=(5, 4)), definition(x, w, stride=(5, 4)))


def test_filters_for_other_channels_are_refused(call: Call) -> None:
    with pytest.raises(ValueError, match="x has 4 channels"):
        call(whole(1, 4, 5, 5), whole(2, 3, 3, 3))


@pytest.mark.parametrize("dtype", ["i1", "u1"])
def test_eight_bits_sum_in_int32(call: Call, dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.full((1, 20, 3, 3), limits.max, dtype)
    w = np.full((1, 20, 3, 3), limits.min or limits.max, dtype)
    expected = 180 * int(limits.max) * int(limits.min or limits.max)
    exactly(call(x, w), np.full((1, 1, 1, 1), expected), "int32")


def test_nan_reaches_only_the_windows_that_see_it(call: Call) -> None:
    """A transform of a whole tile would spread it."""
    x, w = whole(1, 3, 12, 12), np.ones((2, 3, 3, 3), "f4")
    x[0, 1, 5, 6] = np.nan
    found = np.isnan(call(x, w, padding=1))
    expected = np.zeros((1, 2, 12, 12), bool)
    expected[:, :, 4:7, 5:8] = True
    assert np.array_equal(found, expected)


def test_float64_keeps_its_accuracy(call: Call) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 5))
    w = np.zeros((2, 2, 3, 3))
    w[0, 0, 1, 1] = w[1, 1, 1, 1] = 1 + 2.0**-40
    exactly(call(x, w, padding=1), x * (1 + 2.0**-40), "float64")


def test_highest_precision_has_no_tf32_in_it(call: Call) -> None:
    """1 + 2**-20 is 1 in TF32 and in bfloat16."""
    x, w = np.full((1, 16, 6, 6), 1 + 2.0**-20, "f4"), np.eye(16, dtype="f4")[:, :, None, None]
    exactly(call(x, w), x)
