"""gemm: the reference against the definition, and every kernel where others went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polykern
from polykern import ops, testing

OP = "gemm"

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


ACTIVATIONS: dict[str | None, Callable[[float], float]] = {
    None: lambda x: x,
    "relu": lambda x: x if x > 0 or math.isnan(x) else 0.0,
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x * logistic(x),
    "sigmoid": logistic,
    "tanh": math.tanh,
}


def total(terms: list[float]) -> float:
    """The sum, rounded once if it is finite."""
    return math.fsum(terms) if all(map(math.isfinite, terms)) else sum(terms)


def definition(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
    activation: str | None = None,
    a_scale: Any = 1.0,
    b_scale: Any = 1.0,
    a_zero_point: Any = 0,
    b_zero_point: Any = 0,
    **_: Any,
) -> Array:
    """The contract, one element of the result after the other."""
    integers = a.dtype.kind in "iu"
    number = int if integers else float
    rows = a[None] if a.ndim == 1 else a.swapaxes(-1, -2) if trans_a else a
    columns = b[:, None] if b.ndim == 1 else b.swapaxes(-1, -2) if trans_b else b
    batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    m, n = rows.shape[-2], columns.shape[-1]
    rows = np.broadcast_to(rows, batch + rows.shape[-2:])
    columns = np.broadcast_to(columns, batch + columns.shape[-2:])
    shape = batch + (m,) * (a.ndim > 1) + (n,) * (b.ndim > 1)
    added = None if c is None or beta == 0 else np.broadcast_to(c, shape).reshape(*batch, m, n)
    result = np.zeros((*batch, m, n))
    of_row = [np.broadcast_to(x, (m,)) for x in (a_scale, a_zero_point)]
    of_column = [np.broadcast_to(x, (n,)) for x in (b_scale, b_zero_point)]
    for place in np.ndindex(*batch):
        for i in range(m):
            left = [number(x) - number(of_row[1][i]) for x in rows[place][i]]
            for j in range(n):
                right = [number(x) - number(of_column[1][j]) for x in columns[place][:, j]]
                terms = [x * y for x, y in zip(left, right, strict=True)]
                product = sum(terms) if integers else total(terms)
                value = product * float(of_row[0][i]) * float(of_column[0][j]) * alpha
                if alpha == 0:
                    value = 0.0
                if added is not None:
                    value += beta * float(added[place][i, j])
                result[place][i, j] = ACTIVATIONS[activation](float(value))
    return result.reshape(shape)


def largest(x: Array) -> float:
    magnitudes = np.abs(x.astype("f8"))
    return float(np.max(magnitudes, where=np.isfinite(magnitudes), initial=0))


@pytest.mark.parametrize("case", testing.cases(OP), ids=str)
def test_the_reference_is_the_definition(case: testing.Case) -> None:
    args, kwargs = case.arguments()
    report = polykern.plan(ops.gemm, *args, **kwargs, backend="numpy")
    if report.problem.flops > 300_000:
        pytest.skip("too large for loops")
    with np.errstate(all="ignore"):
        found = report.problem.reference(report.arrays, report.scalars, "float64")
    expected = definition(*args, **kwargs)
    if report.problem.results[0][1] == "int32":
        expected = (expected + 2.0**31) % 2.0**32 - 2.0**31
    assert found.shape == expected.shape
    scale = largest(expected)
    if args[0].dtype.kind not in "iu":  # sums of integers are exact
        scale += report.problem.K * largest(args[0]) * largest(args[1])
    if case.id.endswith("extremes"):
        scale = 0.0  # one product each: nothing cancels
    # 1 + tanh cancels below zero
    cancelled = 1e-14 if kwargs.get("activation") == "gelu_tanh" else 0.0
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13 * scale + cancelled)


def whole(*shape: int, seed: int = 0, dtype: Any = "f4") -> Array:
    """Small whole numbers: every sum of products of them is exact, so there is one right answer."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def product(a: Array, b: Array) -> Array:
    return np.einsum("...mk,...kn->...mn", a.astype("f8"), b.astype("f8"))


def exactly(found: Array, expected: Array, dtype: Any = "float32") -> None:
    assert found.dtype == dtype
    assert found.shape == expected.shape
    assert np.array_equal(found.astype("f8"), expected.astype("f8"))


def test_bound_is_that_of_the_contract() -> None:
    """``(K + c) u (|A| @ |B|)`` with a small c, and no looser."""
    rng = np.random.default_rng(0)
    for dtype, u in (("f4", 2.0**-24), ("f8", 2.0**-53)):
        for depth in (1, 10, 1000):
            a = rng.standard_normal((3, depth)).astype(dtype)
            b = rng.standard_normal((depth, 4)).astype(dtype)
            report = polykern.plan(ops.gemm, a, b, backend="numpy")
            bound = report.problem.error_bound(report.arrays, report.scalars)
            magnitude = np.abs(a.astype("f8")) @ np.abs(b.astype("f8"))
            assert np.all(bound <= (depth + 12) * u * magnitude)
            assert np.all(bound >= u * magnitude)


def test_sum_over_nothing_is_zero(call: Call) -> None:
    exactly(call(np.zeros((3, 0), "f4"), np.zeros((0, 4), "f4")), np.zeros((3, 4)))


def test_no_rows(call: Call) -> None:
    exactly(call(np.zeros((0, 4), "f4"), whole(4, 3)), np.zeros((0, 3)))


def test_beta_zero_does_not_read_c(call: Call) -> None:
    a, b = whole(5, 6), whole(6, 7, seed=1)
    exactly(call(a, b, np.full((5, 7), np.nan, "f4"), beta=0.0), product(a, b))


def test_alpha_zero_does_not_read_a_and_b(call: Call) -> None:
    a, b, c = np.full((5, 6), np.nan, "f4"), np.full((6, 7), np.inf, "f4"), whole(5, 7)
    exactly(call(a, b, c, alpha=0.0, beta=-1.5), -1.5 * c.astype("f8"))
    exactly(call(a, b, alpha=0.0), np.zeros((5, 7)))


def test_vector_c_runs_along_columns_of_a_square_result(call: Call) -> None:
    a, b, c = whole(6, 6), whole(6, 6, seed=1), whole(6, seed=2)
    exactly(call(a, b, c, beta=2.0), product(a, b) + 2 * c.astype("f8")[None, :])


def test_both_transposed_with_three_sizes(call: Call) -> None:
    a, b = whole(7, 5), whole(3, 7, seed=1)
    exactly(call(a, b, trans_a=True, trans_b=True, alpha=0.5), product(a.T, b.T) / 2)


def test_negative_strides(call: Call) -> None:
    a, b = whole(5, 6)[::-1, ::-1], whole(6, 4, seed=1)[:, ::-1]
    exactly(call(a, b), product(a, b))


def test_steps_and_starts(call: Call) -> None:
    a, b = whole(12, 20)[1::3, 2::3], whole(13, 15, seed=1)[::2, 1::4][:6]
    exactly(call(a, b), product(a, b))


def test_layouts_of_one_shape_in_turn(call: Call) -> None:
    """A kernel made for one layout must not be found for another of the same shape."""
    a, b = whole(9, 11), whole(11, 8, seed=1)
    wide = np.zeros((9, 22), "f4")
    wide[:, ::2] = a
    for left in (a, np.asfortranarray(a), wide[:, ::2], a):
        for right in (b, np.asfortranarray(b), b[:, ::-1][:, ::-1]):
            exactly(call(left, right), product(a, b))


def test_odd_addresses(call: Call) -> None:
    a, b = whole(9, 10), whole(10, 8, seed=1)
    exactly(call(*map(testing.layout.unaligned, (a, b))), product(a, b))


def test_other_byte_order(call: Call) -> None:
    a, b = whole(5, 6), whole(6, 4, seed=1)
    exactly(call(a.astype(">f4"), b.astype(">f4")), product(a, b))


def test_read_only(call: Call) -> None:
    arrays = [whole(5, 6), whole(6, 4, seed=1), whole(5, 4, seed=2)]
    for x in arrays:
        x.flags.writeable = False
    a, b, c = arrays
    exactly(call(a, b, c), product(a, b) + c)


def test_one_array_as_every_operand(call: Call) -> None:
    a = whole(70, 70)
    exactly(call(a, a, a), product(a, a) + a)
    exactly(a, whole(70, 70))


def test_int8_does_not_wrap_at_eight_bits(call: Call) -> None:
    a, b = np.array([[-44, -20], [-126, 6]], "i1"), np.array([[24, -75], [127, -101]], "i1")
    exactly(call(a, b), np.array([[-3596, 5320], [-2262, 8844]]), "int32")


@pytest.mark.parametrize("left", ["i1", "u1"])
@pytest.mark.parametrize("right", ["i1", "u1"])
def test_extremes_of_eight_bits(call: Call, left: str, right: str) -> None:
    """An instruction that adds products of 8 bits in 16 would saturate here."""
    a = np.full((3, 65), np.iinfo(left).min or np.iinfo(left).max, left)
    b = np.full((65, 5), np.iinfo(right).min or np.iinfo(right).max, right)
    exactly(call(a, b), np.full((3, 5), 65 * int(a[0, 0]) * int(b[0, 0])), "int32")


def test_int32_wraps_only_where_int32_overflows(call: Call) -> None:
    a, b = np.full((1, 140_000), -128, "i1"), np.full((140_000, 1), -128, "i1")
    exactly(call(a, b), np.array([[140_000 * 16384 - 2**32]]), "int32")


def test_zero_points_are_subtracted_before_the_product(call: Call) -> None:
    a, b = np.array([[11, 7, 3], [10, 6, 2]], "u1"), np.array([[1, 4], [2, 5], [3, 6]], "u1")
    rows, columns = np.array([12, 11], "u1"), np.array([0, 1], "u1")
    right = (a.astype(int) - rows[:, None].astype(int)) @ (b.astype(int) - columns.astype(int))
    exactly(call(a, b, a_zero_point=rows, b_zero_point=columns), right, "int32")
    right = (a.astype(int) - 12) @ b.astype(int)
    exactly(call(a, b, a_zero_point=12, b_zero_point=0), right, "int32")


def test_scales_of_rows_and_columns_of_a_square(call: Call) -> None:
    a, b = whole(4, 4, dtype="i1"), whole(4, 4, seed=1, dtype="i1")
    rows, columns = np.array([1, 2, 4, 8], "f4"), np.array([1, 0.5, 0.25, 0.125], "f4")
    right = product(a, b) * rows[:, None] * columns
    exactly(call(a, b, a_scale=rows, b_scale=columns), right)


@pytest.mark.parametrize(
    "dtype, terms", [("float16", 4096), ("bfloat16", 1024), ("float8_e4m3fn", 1024)]
)
def test_narrow_sums_do_not_stall(call: Call, dtype: str, terms: int) -> None:
    """In float16 adding 1 has no effect from 2048 on, in bfloat16 from 256."""
    a, b = testing.case.ones(dtype, (3, terms)), testing.case.ones(dtype, (terms, 2))
    promised = "bfloat16" if dtype.startswith("float8") else dtype
    exactly(call(a, b), np.full((3, 2), terms), promised)


def test_wider_out_dtype_is_not_rounded_on_the_way(call: Call) -> None:
    a, b = np.full((2, 2), 300, "f2"), np.full((2, 3), 300, "f2")
    exactly(call(a, b, out_dtype=np.float32), np.full((2, 3), 180_000.0))


def test_float64_keeps_its_accuracy(call: Call) -> None:
    b = np.random.default_rng(0).standard_normal((4, 5))
    exactly(call(np.eye(4) * (1 + 2.0**-40), b), b * (1 + 2.0**-40), "float64")


def test_highest_precision_has_no_tf32_in_it(call: Call) -> None:
    """1 + 2**-20 is 1 in TF32 and in bfloat16."""
    a, b = np.full((33, 40), 1 + 2.0**-20, "f4"), np.eye(40, dtype="f4")
    exactly(call(a, b, precision="highest"), a)
    exactly(call(a, b), a)


@pytest.mark.parametrize(
    "m, n, k",
    [
        *[(1, 1, 1), (15, 17, 16), (17, 33, 31), (63, 65, 64), (64, 64, 1), (65, 1, 65)],
        *[(127, 129, 33), (129, 127, 130), (33, 257, 5), (2, 100, 300), (385, 513, 257)],
    ],
)
def test_sizes_off_the_tiles(call: Call, m: int, n: int, k: int) -> None:
    a, b, c = whole(m, k), whole(k, n, seed=1), whole(m, n, seed=2)
    exactly(call(a, b), product(a, b))
    exactly(call(a, b, c, alpha=-1.0, beta=2.0), 2 * c - product(a, b))


def test_two_million_rows(call: Call) -> None:
    """A grid of blocks has at most 65535 of them along some axes."""
    a, b = whole(2_100_000, 2), whole(2, 1, seed=1)
    exactly(call(a, b), product(a, b))


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name])
def test_activations_keep_nan_in_its_place(call: Call, activation: str) -> None:
    a, b = whole(3, 4), whole(4, 5, seed=1)
    a[1, 2] = np.nan
    found = np.isnan(call(a, b, activation=activation))
    assert np.array_equal(found, np.isin(np.arange(3), 1)[:, None] & np.ones((3, 5), bool))


def test_relu_of_negative_numbers(call: Call) -> None:
    a, b = whole(6, 5), whole(5, 7, seed=1)
    exactly(call(a, b, activation="relu"), np.maximum(product(a, b), 0))


def test_numpy_scalar_alpha_widens_nothing(call: Call) -> None:
    a, b = whole(4, 4), whole(4, 4, seed=1)
    exactly(call(a, b, alpha=np.float64(0.5)), product(a, b) / 2)


def test_batches_broadcast(call: Call) -> None:
    a, b = whole(2, 1, 4, 5), whole(3, 5, 6, seed=1)
    exactly(call(a, b), product(a, b))


@pytest.mark.parametrize("a, b", [((5,), (5,)), ((5,), (2, 5, 3)), ((2, 3, 5), (5,))])
def test_vectors_as_in_matmul(call: Call, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = whole(*a), whole(*b, seed=1)
    exactly(call(left, right), np.matmul(left.astype("f8"), right.astype("f8")))


def test_out_may_be_c(call: Call) -> None:
    a, b, c = whole(70, 33), whole(33, 80, seed=1), whole(70, 80, seed=2)
    right = product(a, b) + 2 * c
    assert call(a, b, c, beta=2.0, out=c) is c
    exactly(c, right)


def test_inner_sizes_that_differ_are_refused(call: Call) -> None:
    with pytest.raises(ValueError, match="do not chain"):
        call(whole(3, 4), whole(5, 6))
