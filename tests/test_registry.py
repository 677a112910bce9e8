"""Backends and kernels by name: canonical names, imports on first use, order, refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

import polykern
from polykern import ops, registry
from polykern.backend import numpy as reference
from polykern.errors import BackendNotFoundError, UnsupportedError
from polykern.registry import Backend, Kernel

SQUARE = np.eye(3, dtype="f4")


def kernel(name: str, reason: str | None = None, **traits: bool) -> Kernel:
    return Kernel("softmax", name, lambda problem: reason, reference.build, **traits)


@pytest.mark.parametrize("name", ["numba-cuda", "numba_cuda", "Numba-CUDA", "NUMBA_CUDA"])
def test_one_name_however_it_is_spelt(name: str) -> None:
    assert registry.canonical(name) == "numba-cuda"
    assert registry.split(f"{name}/wgmma") == ("numba-cuda", "wgmma")
    assert registry.split(name) == ("numba-cuda", "")


def test_backends_that_ship() -> None:
    assert list(registry.paths())[:2] == ["numpy", "numba"]
    assert registry.load("numpy").name == "numpy"
    assert registry.load("numpy") is registry.load("numpy")


def test_listing_imports_nothing() -> None:
    code = """
import sys
from polykern import registry
registry.paths()
print(*filter(sys.modules.get, ["numba"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "\n"


def test_status_of_each_backend() -> None:
    found = polykern.backends()
    assert list(found) == list(registry.paths())
    assert found["numpy"] == (True, "", "")
    for status in found.values():
        assert status.usable == (status.why == "")


def test_unusable_backend_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polykern.backend.numba", None)
    registry.load.cache_clear()
    try:
        found = polykern.backends()["numba"]
    finally:
        registry.load.cache_clear()
    assert not found.usable
    assert found.install == "pip install 'polykern[numba]'"
    assert found.why.endswith("; try: pip install 'polykern[numba]'")


def test_first_kernel_that_takes_the_problem_wins() -> None:
    problem = polykern.plan(ops.softmax, SQUARE, backend="numpy").problem
    kernels = (kernel("no", "it is Sunday"), kernel("yes"), kernel("later"))
    backend = Backend("x", kernels, np.asarray, lambda: None)
    assert backend.find(problem).name == "yes"
    assert backend.find(problem, "later").name == "later"
    assert backend.candidates(problem) == [
        (kernels[0], "it is Sunday"),
        (kernels[1], None),
        (kernels[2], None),
    ]
    with pytest.raises(UnsupportedError, match="x/no: it is Sunday"):
        backend.find(problem, "no")


def test_deterministic_passes_over_kernels_that_vary() -> None:
    problem = polykern.plan(ops.softmax, SQUARE, backend="numpy").problem
    kernels = (kernel("quick", deterministic=False), kernel("steady"))
    backend = Backend("x", kernels, np.asarray, lambda: None)
    assert backend.find(problem).name == "quick"
    assert backend.find(problem, deterministic=True).name == "steady"
    with pytest.raises(UnsupportedError, match="x/quick: its results may differ from run to run"):
        backend.find(problem, "quick", deterministic=True)


def test_kernels_of_other_operators_are_not_found() -> None:
    problem = polykern.plan(ops.gemm, SQUARE, SQUARE, backend="numpy").problem
    backend = Backend("x", (kernel("rows"),), np.asarray, lambda: None)
    assert backend.candidates(problem) == []
    with pytest.raises(UnsupportedError, match="x has no gemm kernel"):
        backend.find(problem)


def test_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(BackendNotFoundError, match="did you mean 'numba'"):
        ops.gemm(SQUARE, SQUARE, backend="nunba")
    with pytest.raises(ValueError, match="there are: numpy, numba"):
        ops.gemm(SQUARE, SQUARE, backend="no-such-backend")


def test_failure_to_load_is_not_kept(
    plug_in: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An install in a running session heals."""
    plug_in("foreign", kernel("rows"))
    module = sys.modules["plug_in_foreign"]
    monkeypatch.setitem(sys.modules, "plug_in_foreign", None)
    for _ in range(2):
        with pytest.raises(ImportError, match="backend 'foreign' cannot be imported"):
            ops.softmax(SQUARE, backend="foreign")
    monkeypatch.setitem(sys.modules, "plug_in_foreign", module)
    assert ops.softmax(SQUARE, backend="foreign").shape == (3, 3)
