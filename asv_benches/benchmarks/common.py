"""What the benchmarks of the operators share."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import polykern
from polykern import dtypes, registry
from polykern.errors import BackendUnavailableError

BACKENDS = ["numpy", "numba"]


def load(name: str) -> registry.Backend:
    """The backend; where it cannot be used, the error by which asv skips a benchmark."""
    try:
        return registry.load(name)
    except BackendUnavailableError as missing:
        raise NotImplementedError(str(missing)) from missing


class Bench:
    """An operator on a backend, from its second call on.

    A subclass gives `params`, whose first is the backend, and `call`, which turns the others into
    an operator and its arguments.
    """

    def call(self, *params: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        raise NotImplementedError

    def setup(self, name: str, *params: Any) -> None:
        """Load the backend, make the data, call once; what cannot run here is skipped."""
        self.backend = load(name)
        self.operator, self.args, self.options = self.call(*params)
        self.options["backend"] = name
        self.problem = polykern.plan(self.operator, *self.args, **self.options).problem
        self.run()

    def run(self) -> None:
        self.operator(*self.args, **self.options)
        self.backend.synchronize()

    def best_time(self, least_total: float = 0.2) -> float:
        """The shortest of several runs, in seconds."""
        best, until = float("inf"), time.perf_counter() + least_total
        while time.perf_counter() < until:
            start = time.perf_counter()
            self.run()
            best = min(best, time.perf_counter() - start)
        return best


def normal(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Normal numbers, or uniform integers, of that dtype."""
    random = np.random.default_rng(seed)
    if dtype in dtypes.INT8:
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    try:
        kind = dtypes.numpy_dtype(dtype)
    except ImportError as missing:  # ml_dtypes is optional
        raise NotImplementedError(str(missing)) from missing
    return random.standard_normal(shape, "float32").astype(kind)
