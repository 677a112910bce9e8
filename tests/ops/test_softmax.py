"""softmax: the reference against the definition, and every kernel where others went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polykern
from polykern import ops, testing

OP = "softmax"

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]


def definition(
    x: Array, axis: Any = -1, *, log: bool = False, where: Array | None = None, **_: Any
) -> Array:
    """The contract, one row after the other; each a list of plain floats."""
    axes = range(x.ndim) if axis is None else np.atleast_1d(np.array(axis, int)) % max(x.ndim, 1)
    selected = np.ones(x.shape, bool) if where is None else np.broadcast_to(where, x.shape)
    lengths = [1 if i in axes else n for i, n in enumerate(x.shape)]
    result = np.full(x.shape, -math.inf if log else 0.0)
    for place in np.ndindex(*lengths):
        row = (*(slice(None) if i in axes else at for i, at in enumerate(place)), ...)
        taking_part = [float(value) for value in x[row][selected[row]]]
        if not taking_part:
            continue
        target = result[row]
        target[selected[row]] = of_row(taking_part, log)
        result[row] = target
    return result


def of_row(row: list[float], log: bool) -> list[float]:
    if any(math.isnan(value) or value == math.inf for value in row) or max(row) == -math.inf:
        return [math.nan] * len(row)
    most = max(row)
    logarithm = math.log(math.fsum(math.exp(value - most) for value in row))
    exponents = [(value - most) - logarithm for value in row]
    return exponents if log else [math.exp(value) for value in exponents]


@pytest.mark.parametrize("case", testing.cases(OP), ids=str)
def test_the_reference_is_the_definition(case: testing.Case) -> None:
    args, kwargs = case.arguments()
    report = polykern.plan(ops.softmax, *args, **kwargs, backend="numpy")
    found = report.problem.reference(report.arrays, report.scalars, "float64")
    expected = definition(*args, **kwargs)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14 if kwargs.get("log") else 0)


@pytest.mark.parametrize("dtype, u", [("f4", 2.0**-24), ("f8", 2.0**-53)])
def test_bound_is_of_the_size_of_a_roundoff(dtype: str, u: float) -> None:
    """The exponent's roundings, those of the sum, and a few more, relative to the value."""
    x = normal(5, 50, dtype=dtype)
    distance = x.max(1, keepdims=True) - x.astype("f8")
    exact = definition(x)
    for log, size in ((False, exact), (True, np.ones_like(exact))):
        report = polykern.plan(ops.softmax, x, log=log, backend="numpy")
        bound = report.problem.error_bound(report.arrays, ())
        roundings = 2 * distance + 10 + 50 + 20 + 2 * np.abs(definition(x, log=log))
        assert np.all(bound <= roundings * u * size + 2 * np.finfo(dtype).tiny)
        assert np.all(bound >= u * np.abs(definition(x, log=log)))


def normal(*shape: int, seed: int = 0, dtype: Any = "f4", scale: float = 3.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def near(found: Array, expected: Array, dtype: Any = "float32") -> None:
    """Within a few roundings, and NaN and infinities at their places."""
    assert found.dtype == dtype
    assert found.shape == expected.shape
    roundoff = float(np.finfo(found.dtype).eps)
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=60 * roundoff, atol=1e-37)


def test_closed_forms(call: Call) -> None:
    near(call(np.zeros((2, 5), "f4")), np.full((2, 5), 0.2))
    near(call(np.log(np.array([[1, 2, 5]], "f4"))), np.array([[1, 2, 5]]) / 8)
    near(call(np.zeros((2, 5), "f4"), log=True), np.full((2, 5), -math.log(5)))
    shifted = call(np.array([[100, 101, 103]], "f4"))
    near(shifted, definition(np.array([[0, 1, 3]])))


def test_rows_sum_to_one(call: Call) -> None:
    for axis in (0, 1, 2, (0, 2), None):
        total = call(normal(5, 6, 7), axis).astype("f8").sum(axis)
        np.testing.assert_allclose(total, 1, rtol=1e-6)


def test_row_of_minus_infinity_is_nan_and_no_other(call: Call) -> None:
    x = normal(4, 9)
    x[2] = -np.inf
    near(call(x), definition(x))
    assert np.array_equal(np.isnan(call(x)).all(1), [False, False, True, False])


def test_minus_infinity_among_others_gives_zero(call: Call) -> None:
    x = normal(5, 40)
    x[:, 3] = x[1, :39] = -np.inf
    found = call(x)
    near(found, definition(x))
    assert not found[:, 3].any()
    assert found[1, 39] == 1


def test_nan_stays_in_its_row(call: Call) -> None:
    for axis in (0, 1):
        x = normal(70, 80)
        x[3, 5] = np.nan
        found = np.isnan(call(x, axis))
        expected = np.zeros((70, 80), bool)
        expected[3 if axis else slice(None), slice(None) if axis else 5] = True
        assert np.array_equal(found, expected)


def test_large_entries_do_not_overflow(call: Call) -> None:
    rows = [[90, 2, -2], [1e4, 1e4 - 1, 0], [1e30, -1e30, 0], [-1e4, -1e4, -1e4 - 1]]
    x = np.array(rows, "f4")
    near(call(x), definition(x))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_narrow_row_sums_to_one(call: Call, dtype: str) -> None:
    """A float16 sum of ones stalls at 2048."""
    found = call(testing.case.ones(dtype, (2, 4096)))
    assert found.dtype.name == dtype
    assert np.all(found.astype("f8") == 1 / 4096)


def test_no_rows(call: Call) -> None:
    for shape in ((0, 3), (3, 0)):
        found = call(np.zeros(shape, "f4"))
        assert found.shape == shape
        assert found.dtype == "float32"


def test_axis_out_of_range_is_refused(call: Call) -> None:
    for axis in (2, -3, (0, 5)):
        with pytest.raises(ValueError, match="out of range"):
            call(normal(2, 3), axis)


def test_middle_axis(call: Call) -> None:
    x = normal(2, 5, 3, 4)
    near(call(x, 1), definition(x, 1))
    near(call(x, -3), definition(x, 1))


def test_transposed_view(call: Call) -> None:
    x = normal(3, 4).T
    near(call(x, 1), definition(x.copy(), 1))


def test_log_stays_finite_where_the_softmax_underflows(call: Call) -> None:
    x = np.array([[0, -200, -1000], [30, -30, 0]], "f4")
    found = call(x, log=True)
    near(found[:, 1:], definition(x, log=True)[:, 1:])
    assert found[0, 1] == -200


@pytest.mark.parametrize("length", [1, 2, 3, 31, 33, 63, 64, 65, 127, 129, 1023, 1025, 4097])
def test_lengths_off_the_vectors(call: Call, length: int) -> None:
    x = normal(3, length, seed=length)
    near(call(x), definition(x))
    near(call(np.ascontiguousarray(x.T), 0), definition(x).T)


def test_more_rows_than_a_grid_axis_has_blocks(call: Call) -> None:
    x = normal(70_001, 3)
    exponentials = np.exp(x.astype("f8"))
    near(call(x), exponentials / exponentials.sum(1, keepdims=True))


def test_float64_keeps_its_accuracy(call: Call) -> None:
    x = normal(4, 50, dtype="f8")
    near(call(x), definition(x), "float64")


def test_scalar(call: Call) -> None:
    for axis in (-1, None):
        near(call(np.array(3, "f4"), axis), np.array(1.0))


def test_where_hides_nan_and_the_largest(call: Call) -> None:
    x = np.array([[np.nan, 1, 2], [1e30, 1, 2], [1, np.inf, 2], [1, 2, 3]], "f4")
    where = np.array([[0, 1, 1], [0, 1, 1], [1, 0, 1], [0, 0, 0]], bool)
    low, high = 1 / (1 + math.e), math.e / (1 + math.e)
    expected = np.array([[0, low, high], [0, low, high], [low, 0, high], [0, 0, 0]])
    near(call(x, where=where), expected)
    with np.errstate(divide="ignore"):
        near(call(x, where=where, log=True), np.log(expected))


def test_where_of_a_single_row_is_broadcast(call: Call) -> None:
    x, where = normal(4, 6), np.array([1, 0, 1, 1, 0, 1], bool)
    near(call(x, where=where), definition(x, where=where))


def test_out_may_be_x(call: Call) -> None:
    x = normal(70, 130)
    expected = call(x)
    assert call(x, out=x) is x
    assert np.array_equal(x, expected)
