import sys

import pytest

from polykern import perf
from polykern.perf import ceilings
from polykern.perf.ceilings import Ceilings

PEAKS = Ceilings({"float32": 100e9, "float64": 50e9}, {"float32": "x", "float64": "x"}, 10e9, 2)


def test_short_floats_have_the_peak_of_float32() -> None:
    assert PEAKS.of("float16") == PEAKS.of("bfloat16") == PEAKS.of("float32") == 100e9
    assert PEAKS.of("float64") == 50e9
    assert PEAKS.of("int8") is PEAKS.of("uint8") is None


def test_the_limit_is_the_slower_of_computing_and_moving() -> None:
    assert PEAKS.limit("float32", 200, 10) == ("compute", 2e-9)
    assert PEAKS.limit("float32", 10, 20) == ("memory", 2e-9)
    assert PEAKS.limit("int8", 10, 20) is None


def test_the_better_of_two_measurements() -> None:
    other = PEAKS._replace(operations={"float32": 90e9, "float64": 60e9}, bandwidth=11e9)
    found = ceilings.better(PEAKS, other)
    assert found.operations == {"float32": 100e9, "float64": 60e9}
    assert found.bandwidth == 11e9


def test_measured_peaks_are_rates() -> None:
    found = ceilings.measure()
    assert found.operations["float32"] > 1e8
    assert found.bandwidth > 1e7
    assert found.how.keys() == found.operations.keys()


def test_without_numba_the_float_peaks_are_lower_limits_from_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(perf, "registers", raising=False)
    monkeypatch.setitem(sys.modules, "polykern.perf.registers", None)
    found = ceilings.measure()
    assert set(found.operations) == {"float32", "float64"}
    assert found.how["float32"] == "NumPy's product of 1024x1024 matrices (a lower limit)"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_a_loop_of_registers_runs(dtype: str) -> None:
    pytest.importorskip("numba")
    from polykern.perf import registers

    loop = registers.loop(dtype)
    assert loop.operations > 0
    assert loop.run(0) != loop.run(1)  # the steps are not optimised away
