"""Work sharing among threads: every thread claims the next tile from one counter.

The caller works too, so a call costs no waiting for threads to wake: whoever comes first takes
the next tile, a thread that comes too late finds none. Kernels release the interpreter lock.
Any number of Python threads may call at once, and a forked child starts its own pool.

Numba's own threading layers are not used: one aborts the process on concurrent calls, one dies
after a fork, one needs a library that its wheel does not find.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic


def count() -> int:
    """The number of threads a kernel may use; NUMBA_NUM_THREADS sets it."""
    return int(numba.config.NUMBA_NUM_THREADS)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, count() - 1), thread_name_prefix="polykern-numba")


# The threads of a pool do not exist in a forked child.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def share(kernel: Callable[..., Any], width: int, *args: Any) -> None:
    """Run ``kernel(counter, *args)`` on at most `width` threads, the caller's among them."""
    counter = np.zeros(1, np.int64)
    if width <= 1:
        kernel(counter, *args)
        return
    helpers = [_pool().submit(kernel, counter, *args) for _ in range(min(width, count()) - 1)]
    try:
        kernel(counter, *args)
    finally:
        for helper in helpers:
            if not helper.cancel():
                helper.result()


@intrinsic
def claim(typingctx, counter):
    """The next tile of `counter`, an int64 array of one element; each number is given once."""

    def generate(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        one = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", array.data, one, "monotonic")

    return types.int64(counter), generate
