"""The environment, the cache folder, and which backend comes first where nobody chose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polykern
from polykern import ops, policy
from polykern.errors import BackendNotFoundError


@pytest.mark.parametrize("value", [None, ""])
def test_no_backend_in_the_environment(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("POLYKERN_BACKEND", raising=False)
    if value is not None:
        monkeypatch.setenv("POLYKERN_BACKEND", value)
    assert policy.environment_backend() is None


def test_backend_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYKERN_BACKEND", "numpy/reference")
    assert policy.environment_backend() == "numpy/reference"
    monkeypatch.setenv("POLYKERN_BACKEND", "nunpy")
    with pytest.raises(BackendNotFoundError) as caught:
        policy.environment_backend()
    assert str(caught.value) == "POLYKERN_BACKEND: no backend 'nunpy'; did you mean 'numpy'?"


@pytest.mark.parametrize(
    "platform, environment, folder",
    [
        ("linux", {}, "HOME/.cache/polykern"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/polykern"),
        ("linux", {"XDG_CACHE_HOME": ""}, "HOME/.cache/polykern"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "HOME/Library/Caches/polykern"),
        ("win32", {}, "HOME/AppData/Local/polykern"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/polykern"),
        ("linux", {"POLYKERN_CACHE_DIR": "/mine", "XDG_CACHE_HOME": "/xdg"}, "/mine"),
    ],
)
def test_cache_folder(
    monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], folder: str
) -> None:
    for name in ("POLYKERN_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert policy.cache_folder() == Path(folder.replace("HOME", "/home/somebody"))


@pytest.mark.parametrize(
    "operator, dtype, options, first",
    [
        ("gemm", "f4", {}, "numpy"),
        ("gemm", "f8", {}, "numpy"),
        ("gemm", "f4", {"activation": "gelu"}, "numba"),
        ("gemm", "i1", {}, "numba"),
        ("conv2d", "f4", {}, "numba"),
        ("softmax", "f4", {}, "numba"),
        ("attention", "f4", {}, "numba"),
    ],
)
def test_order_of_backends(operator: str, dtype: str, options: dict[str, str], first: str) -> None:
    """BLAS goes before a compiled kernel, and that before a chain of NumPy calls."""
    x: Any = np.ones((1, 1, 3, 3), dtype)
    args = {"softmax": (x,), "attention": (x, x, x)}.get(operator, (x, x))
    problem = polykern.plan(getattr(ops, operator), *args, **options, backend="numpy").problem
    order = policy.at_home(problem)
    assert order[0] == first
    assert set(order) == {"numpy", "numba"}


A_FEW_CALLS = """
import sys
import numpy as np
from polykern import ops, policy

x = np.ones((4, 4), np.float32)
assert np.all(ops.gemm(x, x, backend=sys.argv[1]) == 4)
assert np.all(ops.softmax(x, backend=sys.argv[1]) == 0.25)
print("fine", policy.cache_folder())
"""


@pytest.mark.parametrize("backend", [name for name, it in polykern.backends().items() if it.usable])
def test_works_where_no_cache_can_be_written(backend: str, tmp_path: Path) -> None:
    """A cache is a luxury: without it, code is compiled again."""
    occupied = tmp_path / "file"
    occupied.write_text("not a folder")
    nowhere = str(occupied / "below")
    folders = ("POLYKERN_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "NUMBA_CACHE_DIR")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", A_FEW_CALLS, backend],
        env={**os.environ, **dict.fromkeys(folders, nowhere)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"fine {nowhere}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
