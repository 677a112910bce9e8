"""The same values in other places of memory, as a view, a file or another library brings them.

What lies between the values of a view is NaN, or the largest integer: a kernel that reads the
memory instead of the view shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _rubbish(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        return np.ones(shape, dtype)
    return np.full(shape, np.iinfo(dtype).max if dtype.kind in "iu" else np.nan, dtype)


def fortran(x: Array) -> Array:
    """The first axis is the one of unit stride."""
    return np.array(x, order="F")


def transposed(x: Array) -> Array:
    """The last two axes are swapped in memory."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if x.ndim > 1 else x


def reversed_axes(x: Array) -> Array:
    """Every stride is negative."""
    backwards = (slice(None, None, -1),) * x.ndim
    return np.ascontiguousarray(x[backwards])[backwards]


def stepped(x: Array) -> Array:
    """Every second element along each axis of a larger array, from the second on."""
    wide = _rubbish(tuple(2 * n + 1 for n in x.shape), x.dtype)
    view = wide[tuple(slice(1, 2 * n, 2) for n in x.shape)]
    view[...] = x
    return view


def padded_rows(x: Array) -> Array:
    """Unit stride along the last axis, and rows three elements apart."""
    wide = _rubbish((*x.shape[:-1], x.shape[-1] + 3), x.dtype)
    view = wide[..., 1:-2]
    view[...] = x
    return view


def unaligned(x: Array) -> Array:
    """At an address that is no multiple of the size of a number."""
    memory = np.zeros(x.nbytes + 1, np.uint8)[1:]
    view: Array = memory[: x.nbytes].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def field(x: Array) -> Array:
    """A field of packed records: the strides are no multiple of the size of a number."""
    records = np.zeros(x.shape, [("tag", np.int8), ("value", x.dtype)])
    records["value"] = x
    return records["value"]


def swapped_bytes(x: Array) -> Array:
    """In the byte order of other machines."""
    return x.astype(x.dtype.newbyteorder())


def read_only(x: Array) -> Array:
    """Not to be written."""
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "fortran": fortran,
    "transposed": transposed,
    "reversed": reversed_axes,
    "stepped": stepped,
    "padded-rows": padded_rows,
    "unaligned": unaligned,
    "field": field,
    "swapped-bytes": swapped_bytes,
    "read-only": read_only,
}
