"""What this machine can do at most: multiply-adds for each dtype, and bytes moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from polykern import doctor, dtypes

_LEAST_S = 0.15  # of measuring, for each number; the best run of several counts
_RUNS = 5
_STEPS = 100_000  # of a loop of registers; a few milliseconds
_BLAS_ROWS = 1024
_COPY_BYTES = 2**27  # beyond the caches of all but the largest processors

# The dtype whose multiply-adds compute a dtype: CPUs widen the short floats.
_COMPUTED_AS = {"float64": "float64", "int8": "int8", "uint8": "int8"}


class Ceilings(NamedTuple):
    """Measured peaks of this machine, all threads together."""

    operations: dict[str, float]  # float32, float64, int8 where known -> additions and products / s
    how: dict[str, str]  # the same keys -> what was measured
    bandwidth: float  # bytes read and written / s
    threads: int

    def of(self, dtype: str) -> float | None:
        """The peak for a dtype in operations per second; None if it is not known."""
        return self.operations.get(_COMPUTED_AS.get(dtype, "float32"))

    def limit(self, dtype: str, flops: int, nbytes: int) -> tuple[str, float] | None:
        """What bounds a problem, "compute" or "memory", and the least seconds it then takes.

        Parameters
        ----------
        dtype : str
            Of the inputs.
        flops, nbytes : int
            Additions and products, and the bytes that must be moved.

        Returns
        -------
        tuple of str and float, or None if the peak of the dtype is not known and may matter
        """
        peak = self.of(dtype)
        memory = nbytes / self.bandwidth
        if peak is None:
            return None
        compute = flops / peak
        return ("compute", compute) if compute >= memory else ("memory", memory)


def measure() -> Ceilings:
    """Measure the peaks; about a second.

    With Numba, a compute peak is that of a loop of multiply-adds in registers. Without it, the
    float peaks are those of NumPy's matrix product, which are lower limits, and that of int8 is
    not known. The bandwidth is that of a copy between arrays beyond the caches.
    """
    threads = doctor.cores()
    operations, how = {}, {}
    with ThreadPoolExecutor(threads) as pool:
        for dtype in ("float32", "float64", "int8"):
            found = _registers(dtype, pool, threads) or _product(dtype)
            if found is not None:
                operations[dtype], how[dtype] = found
        bandwidth = _copy(pool, threads)
    return Ceilings(operations, how, bandwidth, threads)


def better(first: Ceilings, second: Ceilings) -> Ceilings:
    """The higher of each peak: other work on the machine can only lower a measurement."""
    operations = {
        dtype: max(rate, second.operations.get(dtype, 0))
        for dtype, rate in first.operations.items()
    }
    bandwidth = max(first.bandwidth, second.bandwidth)
    return first._replace(operations=operations, bandwidth=bandwidth)


def _best(run: Callable[[], object]) -> float:
    """The least seconds of several runs, after one that does not count."""
    run()
    taken: list[float] = []
    while len(taken) < _RUNS or sum(taken) < _LEAST_S:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _registers(dtype: str, pool: ThreadPoolExecutor, threads: int) -> tuple[float, str] | None:
    try:
        from polykern.perf import registers  # Numba may be missing
    except Exception:  # or broken, in any way
        return None
    loop = registers.loop(dtype)
    seconds = _best(lambda: _all(pool, loop.run, [_STEPS] * threads))
    rate = threads * _STEPS * loop.operations / seconds
    return rate, f"{loop.instruction}s in registers, {threads} threads"


def _all(pool: ThreadPoolExecutor, function: Callable[..., Any], *columns: Sequence[Any]) -> None:
    for _ in pool.map(function, *columns):
        pass


def _product(dtype: str) -> tuple[float, str] | None:
    if dtype not in dtypes.FLOATS:
        return None
    x = np.ones((_BLAS_ROWS, _BLAS_ROWS), dtype)
    rate = 2 * _BLAS_ROWS**3 / _best(lambda: x @ x)
    return rate, f"NumPy's product of {_BLAS_ROWS}x{_BLAS_ROWS} matrices (a lower limit)"


def _copy(pool: ThreadPoolExecutor, threads: int) -> float:
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.zeros_like(source)
    parts = [np.array_split(array, threads) for array in (target, source)]
    return 2 * _COPY_BYTES / _best(lambda: _all(pool, np.copyto, *parts))
