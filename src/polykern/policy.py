"""What the environment and the place of the arrays say about the choice of a backend.

POLYKERN_BACKEND    the backend of every call that names none, ``"numba"`` or ``"numba/packed"``
POLYKERN_CACHE_DIR  the one folder for compiled code; default: the user's cache folder
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from polykern import registry
from polykern.errors import BackendNotFoundError


def environment_backend() -> str | None:
    """The value of POLYKERN_BACKEND, None if unset or empty."""
    name = os.environ.get("POLYKERN_BACKEND")
    if not name:
        return None
    try:
        registry.check(name)
    except BackendNotFoundError as error:
        raise BackendNotFoundError(f"POLYKERN_BACKEND: {error}") from None
    return name


def cache_folder() -> Path:
    """The folder for what survives the process."""
    if chosen := os.environ.get("POLYKERN_CACHE_DIR"):
        return Path(chosen)
    if sys.platform == "darwin":
        base = "~/Library/Caches"
    elif sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "polykern"


_BLAS = ("float32", "float64")


def at_home(problem: Any) -> tuple[str, ...]:
    """The backends for arrays that live where the problem's do, best first by measurement.

    NumPy's plain float products are BLAS and need no compilation; everything else of NumPy's is
    a chain of passes over memory, or a loop over integers.
    """
    if problem.op == "gemm" and problem.accumulate in _BLAS and problem.activation is None:
        return ("numpy", "numba")
    return ("numba", "numpy")
