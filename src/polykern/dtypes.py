"""Number types by name: promotion, accumulation, roundoff.

Names are NumPy's and ml_dtypes': ``"bfloat16"``, ``"float8_e4m3fn"``. ``"tfloat32"`` exists only as
the type of a kernel's products. ml_dtypes is imported only when one of its types is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
INT8 = ("int8", "uint8")
FLOATS = ("float64", "float32", "float16", "bfloat16")

# (significand bits with the hidden one, least exponent of a normal number)
_FORMAT = {
    "float64": (53, -1022),
    "float32": (24, -126),
    "tfloat32": (11, -126),
    "float16": (11, -14),
    "bfloat16": (8, -126),
    "float8_e4m3fn": (4, -6),
    "float8_e5m2": (3, -14),
}
_SIZE = {"float64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}
_EXTENSION = ("bfloat16", *FLOAT8)


class _Names(dict[Any, str]):
    """dtype object -> name, each looked up once: NumPy computes a dtype's name afresh."""

    def __missing__(self, dtype: Any) -> str:
        name = str(np.dtype(dtype).name)
        self[dtype] = name
        return name


names = _Names()


def named(dtype: Any) -> str:
    """The name of what a user gives as a dtype: a name, a NumPy dtype, a scalar type."""
    if isinstance(dtype, str) and dtype in _EXTENSION:
        return dtype
    try:
        return names[dtype]
    except TypeError:
        raise TypeError(
            f"{dtype!r} is not a dtype; give a name such as 'float32' or a NumPy dtype"
        ) from None


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name; ml_dtypes brings those NumPy lacks."""
    if name not in _EXTENSION:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(
            f"{name} needs the package ml_dtypes; try: pip install ml_dtypes"
        ) from None
    extension: type[Any] = getattr(ml_dtypes, name)
    return np.dtype(extension)


def size(name: str) -> int:
    """Bytes of one number."""
    return _SIZE.get(name, 1)


def nbytes(arrays: Iterable[tuple[tuple[int, ...], str]]) -> int:
    """Bytes of arrays of these shapes and dtypes."""
    return sum(math.prod(shape) * size(dtype) for shape, dtype in arrays)


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether NumPy's rules broadcast the one shape to the other."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def check(argument: str, dtype: str, allowed: tuple[str, ...], op: str) -> None:
    """A TypeError that names the types that work."""
    if dtype not in allowed:
        raise TypeError(f"{argument} has dtype {dtype}; {op} takes {', '.join(allowed)}")


def promote(*dtypes: str) -> str:
    """The one float type that holds them all; float8 counts as bfloat16."""
    found = {"bfloat16" if dtype in FLOAT8 else dtype for dtype in dtypes}
    if found == {"float16", "bfloat16"}:
        return "float32"  # neither holds the other
    return next(dtype for dtype in FLOATS if dtype in found)


def accumulator(*dtypes: str) -> str:
    """The type in which products of these types are summed."""
    if "float64" in dtypes:
        return "float64"
    return "int32" if all(dtype in INT8 for dtype in dtypes) else "float32"


def roundoff(name: str) -> float:
    """Unit roundoff: the largest relative error of rounding to nearest; 0 for integers."""
    return math.ldexp(1, -_FORMAT[name][0]) if name in _FORMAT else 0.0


def underflow(name: str) -> float:
    """The largest absolute error of rounding a number below the normal range; 0 for integers."""
    if name not in _FORMAT:
        return 0.0
    bits, exponent = _FORMAT[name]
    return math.ldexp(1, exponent - bits)


def least_normal(name: str) -> float:
    """The smallest positive number held with full precision."""
    return math.ldexp(1, _FORMAT[name][1])


# Rounding errors are as good as independent, so a sum of n terms grows like sqrt(n) and not like
# n; that each partial sum stays below 8 sqrt(n) fails with a probability under 1e-13 (Higham and
# Mary, A new approach to probabilistic rounding error analysis, 2019).
_SIGMAS = 8.0


def growth(terms: int, accumulate: str) -> float:
    """The relative error, against the sum of magnitudes, of adding up that many rounded terms."""
    return min(terms, _SIGMAS * math.sqrt(terms)) * roundoff(accumulate)
