"""Number types by name, against NumPy's and ml_dtypes' own tables."""

from __future__ import annotations

import math
import sys
from itertools import product

import numpy as np
import pytest

from polykern import dtypes

EVERY = (*dtypes.FLOATS, *dtypes.FLOAT8)


def finfo(name: str) -> np.finfo:
    if name in ("float64", "float32", "float16"):
        return np.finfo(name)
    return pytest.importorskip("ml_dtypes").finfo(name)


@pytest.mark.parametrize("name", EVERY)
def test_formats(name: str) -> None:
    limits = finfo(name)
    assert dtypes.roundoff(name) == float(limits.eps) / 2
    assert dtypes.least_normal(name) == float(limits.smallest_normal)
    assert dtypes.underflow(name) == float(limits.smallest_subnormal) / 2
    assert dtypes.size(name) == dtypes.numpy_dtype(name).itemsize


@pytest.mark.parametrize("name", EVERY)
def test_roundoff_is_that_of_the_rounding(name: str) -> None:
    kind = dtypes.numpy_dtype(name).type
    u = dtypes.roundoff(name)
    assert float(kind(1 + u * 1.01)) == 1 + 2 * u
    assert float(kind(1 + u * 0.99)) == 1


def test_integers_round_nothing() -> None:
    for name in (*dtypes.INT8, "int32"):
        assert dtypes.roundoff(name) == dtypes.underflow(name) == 0
        assert dtypes.size(name) == dtypes.numpy_dtype(name).itemsize


def test_tf32_has_the_range_of_float32_and_ten_bits() -> None:
    assert dtypes.roundoff("tfloat32") == 2.0**-11
    assert dtypes.least_normal("tfloat32") == float(np.finfo("f4").smallest_normal)


@pytest.mark.parametrize("pair", [*product(dtypes.FLOATS, repeat=2)])
def test_promotion_is_the_least_type_that_holds_both(pair: tuple[str, str]) -> None:
    promoted = dtypes.promote(*pair)
    assert promoted == dtypes.promote(*reversed(pair))
    wide = {"float64": 3, "float32": 2, "float16": 1, "bfloat16": 1}
    if pair[0] == pair[1]:
        assert promoted == pair[0]
    elif wide[pair[0]] == wide[pair[1]]:
        assert promoted == "float32"
    else:
        assert promoted == max(pair, key=wide.__getitem__)


@pytest.mark.parametrize("pair", [*product(("float64", "float32", "float16"), repeat=2)])
def test_promotion_agrees_with_numpy(pair: tuple[str, str]) -> None:
    assert dtypes.promote(*pair) == np.promote_types(*pair).name


def test_float8_counts_as_bfloat16() -> None:
    assert dtypes.promote("float8_e4m3fn", "float8_e5m2") == "bfloat16"
    assert dtypes.promote("float8_e4m3fn", "float16") == "float32"
    assert dtypes.promote("float8_e4m3fn", "float64") == "float64"


def test_accumulators() -> None:
    assert dtypes.accumulator("float64", "float16") == "float64"
    assert dtypes.accumulator("int8", "uint8") == "int32"
    for name in ("float32", "float16", "bfloat16", "float8_e5m2"):
        assert dtypes.accumulator(name, name) == "float32"


def test_names_of_what_users_give() -> None:
    for given in ("float32", np.float32, np.dtype("f4"), "f4", "<f4", np.dtype(">f4"), float):
        assert dtypes.named(given) == ("float64" if given is float else "float32")
    assert dtypes.named("bfloat16") == "bfloat16"
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert dtypes.named(ml_dtypes.bfloat16) == "bfloat16"
    assert dtypes.named(np.dtype(ml_dtypes.float8_e4m3fn)) == "float8_e4m3fn"


def test_names_need_no_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naming a type is free; only making it needs the package."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtypes.numpy_dtype.cache_clear()
    assert dtypes.named("bfloat16") == "bfloat16"
    with pytest.raises(ImportError, match="pip install ml_dtypes"):
        dtypes.numpy_dtype("bfloat16")
    monkeypatch.undo()
    assert dtypes.numpy_dtype("float32") == np.float32


def test_bytes_of_arrays() -> None:
    assert dtypes.nbytes([((2, 3), "float64"), ((), "float16"), ((0, 9), "int8")]) == 50


@pytest.mark.parametrize(
    "shape, to, fits",
    [
        ((), (2, 3), True),
        ((3,), (2, 3), True),
        ((2, 1), (2, 3), True),
        ((2,), (2, 3), False),
        ((4, 2, 3), (2, 3), False),
        ((1, 2, 3), (2, 3), False),
        ((2, 3), (2, 1), False),
        ((0,), (1,), False),
    ],
)
def test_broadcasting(shape: tuple[int, ...], to: tuple[int, ...], fits: bool) -> None:
    assert dtypes.broadcasts(shape, to) is fits


def test_growth_is_linear_and_then_a_root() -> None:
    u = 2.0**-24
    assert dtypes.growth(0, "float32") == 0
    assert dtypes.growth(1, "float32") == u
    assert dtypes.growth(50, "float32") == 50 * u
    assert dtypes.growth(10_000, "float32") == 8 * math.sqrt(10_000) * u
