"""Compilation: one explicit signature for each combination of dtypes, cached on disk.

Array types are declared with any layout and read-only, so C, Fortran, strided and read-only
inputs share one compilation, and a new shape never compiles. Numba's disk cache does not see
edits to the files whose intrinsics and functions a kernel pulls in, so the cache folder carries
a hash of every source of this package.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

import numba
from numba import types

from polykern import policy

COUNTER = types.Array(types.int64, 1, "C")  # the first argument of every kernel: see threads.claim

_lock = RLock()  # numba.config is global

# A child forked while another thread compiles would wait for ever for its lock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


# Decorators of functions that kernels call. One gives a function of its own, which nothing but a
# kernel can call; the other puts short code where it is called, which compiles sooner.
device = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
inlined = numba.njit(error_model="numpy", inline="always")


def array(dtype: str, ndim: int, *, writable: bool = False) -> types.Array:
    """The type of an array of any strides; inputs are read-only."""
    return types.Array(getattr(types, dtype), ndim, "A", readonly=not writable)


@cache
def compiled(function: Callable[..., Any], *signature: types.Type) -> Callable[..., Any]:
    """The function compiled for ``(counter, *signature)``; it never compiles again."""
    with _lock, _cache_folder() as found:
        compile_for = numba.njit(
            types.void(COUNTER, *signature), nogil=True, cache=found, error_model="numpy"
        )
        kernel: Callable[..., Any] = compile_for(function)
    return kernel


@contextmanager
def _cache_folder() -> Iterator[bool]:
    """Point Numba at our cache folder; False where none can be written: a cache is a luxury."""
    folder = _sources_folder()
    before = numba.config.CACHE_DIR
    if folder is not None:
        numba.config.CACHE_DIR = str(folder)
    try:
        yield folder is not None
    finally:
        numba.config.CACHE_DIR = before


@cache
def _sources_folder() -> Path | None:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = policy.cache_folder() / "numba" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return None
    return folder
