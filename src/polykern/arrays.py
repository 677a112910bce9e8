"""The one door for arrays: in from any library, back to the caller's; the only copies are here.

Inside, an array is a NumPy array of native byte order and aligned data, of any strides.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from polykern import dtypes

Array = np.ndarray[Any, Any]

_EFFORT: Any = 10_000  # candidate solutions; whether two strided views meet can take for ever


def adopt(argument: str, x: Any) -> Array:
    """The argument as a NumPy array, without a copy of array data."""
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{argument} is a masked array, whose mask would be lost; fill it first")
    if hasattr(x, "__cuda_array_interface__"):
        raise TypeError(f"{argument} lives on a GPU; no backend here takes GPU arrays")
    try:
        return np.from_dlpack(x) if _is_foreign(x) else np.asarray(x)
    except Exception as refusal:  # each library has its own; what DLPack lacks may convert
        try:
            return np.asarray(x)
        except Exception:
            raise TypeError(f"{argument} is no array: {refusal}") from None


def number(argument: str, x: Any) -> float:
    """The argument as a float."""
    if type(x) is float:
        return x
    if not isinstance(x, str):
        try:
            return float(x)
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{argument}={x!r}; it is a number")


def _is_foreign(x: Any) -> bool:
    return hasattr(x, "__dlpack__") and not isinstance(x, (np.ndarray, np.generic))


def copy_reason(x: Array) -> str | None:
    """Why `x` must be copied before a kernel can read it; None if it need not."""
    if not x.dtype.isnative:
        return "byte order"
    if not x.flags.aligned:
        return "unaligned"
    return None


def into(x: Array) -> Array:
    """The array itself, or a native, aligned copy."""
    if x.dtype.isnative and x.flags.aligned:
        return x
    return np.array(x, dtype=x.dtype.newbyteorder("="))


def back(result: Any, like: Any) -> Any:
    """The result as an array of the library of `like`."""
    library = type(like).__module__.partition(".")[0]
    if library == "torch":
        return sys.modules["torch"].from_dlpack(result)
    if library in ("jax", "jaxlib"):
        given = sys.modules["jax"].numpy.asarray(result)
        if given.dtype != result.dtype:
            raise TypeError(
                f"JAX would turn this {result.dtype} result into {given.dtype}; "
                "enable jax_enable_x64, or ask for another out_dtype"
            )
        return given
    return result


def check_out(name: str, out: Any, shape: tuple[int, ...], dtype: str) -> Array:
    """`out` as a NumPy array that can take a result of that shape and dtype."""
    array = adopt(name, out)
    if not (isinstance(out, np.ndarray) or _is_foreign(out)):
        raise TypeError(f"{name} is a {type(out).__name__}; it must be an array")
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; the result has {shape}")
    if dtypes.names[array.dtype] != dtype:
        raise TypeError(f"{name} has dtype {dtypes.names[array.dtype]}; the result has {dtype}")
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only")
    if copy_reason(array):
        raise ValueError(f"{name} must have native byte order and aligned data")
    steps = zip(array.strides, array.shape, strict=True)
    if array.size and any(step == 0 and n > 1 for step, n in steps):
        raise ValueError(f"{name} is a broadcast view: several results would share one place")
    return array


def check_overlap(out: Array, inputs: dict[str, Array | None], in_place: str = "") -> None:
    """A ValueError where `out` shares memory with an input.

    The input named `in_place` may be the very same view: its kernels read each element before
    they write it.
    """
    for name, x in inputs.items():
        if x is None or not np.may_share_memory(out, x):
            continue
        if name == in_place and _same_view(out, x):
            continue
        try:
            overlaps = np.shares_memory(out, x, max_work=_EFFORT)
        except np.exceptions.TooHardError:
            overlaps = True
        if overlaps:
            raise ValueError(f"out overlaps {name}; give an array of its own")


def _same_view(x: Array, y: Array) -> bool:
    return (
        x.dtype == y.dtype
        and x.shape == y.shape
        and x.strides == y.strides
        and x.__array_interface__["data"] == y.__array_interface__["data"]
    )
