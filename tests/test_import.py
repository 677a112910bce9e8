"""What ``import polykern`` costs: NumPy and nothing heavier."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

HEAVY = ("numba", "llvmlite", "jax", "jaxlib", "cupy", "ml_dtypes", "scipy", "torch", "pytest")
REPORT = """
import json, sys, time
start = time.perf_counter()
{}
seconds = time.perf_counter() - start
print(json.dumps([seconds, [name for name in {!r} if sys.modules.get(name)]]))
"""
FEW_CALLS = """
import numpy as np, polykern
a = np.ones((3, 3), np.float32)
polykern.ops.gemm(a, a)
polykern.ops.softmax(a, backend="numpy")
polykern.plan(polykern.ops.gemm, a, a)
"""


def loaded(code: str) -> tuple[float, list[str]]:
    """Seconds and heavy packages that the code takes in a fresh interpreter."""
    command = [sys.executable, "-c", REPORT.format(code, HEAVY)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    seconds, found = json.loads(result.stdout)
    return seconds, found


def test_import_loads_nothing_heavy(record_property: Callable[[str, object], None]) -> None:
    numpy, _ = loaded("import numpy")
    seconds, found = loaded("import polykern")
    print(f"import polykern: {seconds * 1e3:.0f} ms, of which NumPy {numpy * 1e3:.0f} ms")
    record_property("import_ms", round(seconds * 1e3))
    assert found == []


@pytest.mark.parametrize("module", ["polykern.testing", "polykern.ops"])
def test_import_of_a_part_loads_nothing_heavy(module: str) -> None:
    assert loaded(f"import {module}")[1] == []


def test_calls_on_numpy_load_no_other_backend() -> None:
    assert loaded(FEW_CALLS)[1] == []


def test_something_heavy_is_found() -> None:
    pytest.importorskip("ml_dtypes")
    assert loaded("import polykern, ml_dtypes")[1] == ["ml_dtypes"]
