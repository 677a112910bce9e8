"""One call of an operator whose result the contract fixes, and the numbers it is made of."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polykern import dtypes

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Build = Callable[[np.random.Generator], Arguments]


@dataclass(frozen=True, slots=True)
class Case:
    """A call of the operator `op` with the arguments that `build` makes."""

    op: str
    id: str
    build: Build

    def __str__(self) -> str:
        return f"{self.op}-{self.id}"

    def arguments(self) -> Arguments:
        """Positional and keyword arguments: new arrays, the same numbers each time."""
        return self.build(np.random.default_rng(zlib.crc32(str(self).encode())))


def numbers(rng: np.random.Generator, dtype: str, shape: Shape) -> Array:
    """Normally distributed floats, integers of the whole range, or bools."""
    if dtype == "bool":
        return rng.random(shape) < 0.6
    if dtype in dtypes.INT8 or dtype == "int32":
        limits = np.iinfo(dtype if dtype != "int32" else "int16")
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtypes.numpy_dtype(dtype))


def ones(dtype: str, shape: Shape) -> Array:
    """Ones of that dtype, whose sums show where an accumulator stalls."""
    return np.ones(shape, dtypes.numpy_dtype(dtype))


def by(*shapes: Shape) -> str:
    """Shapes as part of an id: ``3x4-by-4x5``."""
    return "-by-".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
