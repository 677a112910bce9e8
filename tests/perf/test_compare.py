from typing import Any

import numpy as np
import pytest

from polykern.perf import cases, clock
from polykern.perf.ceilings import Ceilings
from polykern.perf.compare import Row, compare, rate

TINY = {
    "gemm": "8x9x10,gelu",
    "conv2d": "2x3x8x9,4x3x3,2",
    "softmax": "5x7",
    "attention": "1x2x5x4,causal",
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "BUDGET_S", 0.0)
    monkeypatch.setattr(clock, "PAUSE_S", 0.0)


def spoilt(result: Any) -> Any:
    result.flat[0] += 1
    return result


@pytest.mark.parametrize("op, shape", TINY.items())
def test_a_right_backend_is_ok_and_a_wrong_one_is_found(
    add_backend: Any, op: str, shape: str
) -> None:
    add_backend("spoilt", spoilt)
    right, wrong = compare(cases.parse(op, shape), ("numpy", "spoilt"), 0)
    assert (right.name, right.status, right.reason) == ("numpy/reference", "ok", "")
    assert right.error_share is not None
    assert right.error_share <= 1
    assert right.checked_share == 1
    assert right.calls >= 1
    assert not right.bad
    assert (wrong.name, wrong.status) == ("spoilt/spoilt", "wrong")
    assert wrong.error_share is not None
    assert wrong.reason == f"its error is {wrong.error_share:.3g} times what is allowed"
    assert wrong.bad


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (lambda x: np.full_like(x, np.nan), "its error is inf times what is allowed"),
        (lambda x: x[1:], "it returns float32 (7, 9), not float32 (8, 9)"),
        (lambda x: x.astype("float64"), "it returns float64 (8, 9), not float32 (8, 9)"),
    ],
)
def test_nan_shape_and_dtype_are_checked(add_backend: Any, spoil: Any, reason: str) -> None:
    add_backend("spoilt", spoil)
    (row,) = compare(cases.parse("gemm", "8x9x10"), ("spoilt",), 0)
    assert (row.status, row.reason) == ("wrong", reason)


def test_integers_must_be_exact(add_backend: Any) -> None:
    add_backend("spoilt", spoilt)
    right, wrong = compare(cases.parse("gemm", "8x9x10", "int8"), ("numpy", "spoilt"), 0)
    assert (right.status, right.error_share) == ("ok", 0)
    assert (wrong.status, wrong.error_share) == ("wrong", np.inf)


def test_a_later_wrong_result_is_found(add_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "BUDGET_S", 1.0)
    calls = 0

    def once_right(result: Any) -> Any:
        nonlocal calls
        calls += 1
        return result if calls == 1 else spoilt(result)

    add_backend("spoilt", once_right)
    (row,) = compare(cases.parse("gemm", "8x9x10"), ("spoilt",), 0)
    assert row.status == "wrong"


def test_a_refusal_and_a_crash_are_told_and_the_others_go_on(add_backend: Any) -> None:
    def crash(result: Any) -> Any:
        raise RuntimeError("bus error")

    add_backend("broken", crash)
    add_backend("picky", spoilt, refuses="M = 8 is even")
    rows = compare(cases.parse("gemm", "8x9x10"), ("broken", "picky", "numpy"), 0)
    assert [(row.status, row.reason) for row in rows] == [
        ("failed", "RuntimeError: bus error"),
        ("refused", "picky/spoilt: M = 8 is even"),
        ("ok", ""),
    ]
    assert [row.bad for row in rows] == [True, False, False]


def test_a_crash_after_the_first_call_is_told(add_backend: Any) -> None:
    calls = 0

    def crash(result: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RuntimeError("bus error")
        return result

    add_backend("broken", crash)
    (row,) = compare(cases.parse("gemm", "8x9x10"), ("broken",), 0)
    assert (row.status, row.reason, row.time_s) == ("failed", "RuntimeError: bus error", None)


def test_inputs_that_do_not_fit_into_memory_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases.parse("softmax", f"{2**24}x{2**24}")
    (row,) = compare(case, ("numpy",), 0)
    assert row.status == "failed"
    assert row.reason.startswith(("MemoryError: ", "_ArrayMemoryError: "))


def test_kernels_of_one_backend_may_be_compared() -> None:
    rows = compare(cases.parse("softmax", "5x7"), ("numpy/reference", "numpy/other"), 0)
    assert [row.status for row in rows] == ["ok", "refused"]
    assert rows[1].reason == "numpy has no softmax kernel 'other'; there are: reference"


def test_rates_follow_from_times_and_peaks() -> None:
    case = cases.parse("gemm", "10x10x10")
    slow = Row("gemm", "10x10x10", "float32", "numpy", time_s=4e-6)
    fast = Row("gemm", "10x10x10", "float32", "other", time_s=1e-6)
    refused = Row("gemm", "10x10x10", "float32", "third", status="refused")
    rate([slow, fast, refused], case, Ceilings({"float32": 4e9}, {}, 10e9, 1))
    assert fast.gflop_per_s == pytest.approx(2)
    assert fast.gbyte_per_s == pytest.approx(1.2)
    assert (fast.bound, fast.peak_share) == ("compute", pytest.approx(0.5))
    assert (slow.times_numpy, fast.times_numpy) == (1, 4)
    assert refused.gflop_per_s is refused.times_numpy is None
    rate([fast], case, Ceilings({"float32": 4e9}, {}, 0.4e9, 1))
    assert (fast.bound, fast.peak_share) == ("memory", pytest.approx(3.0))
