"""Which keys a query may see: causal, windows, lengths, and the diagonal they are counted from.

Key j is seen by query i iff ``i + offset - left <= j <= i + offset + right``, where None is no
bound, and both are below their lengths. Causal is ``right = 0``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from polykern import arrays as door

Array = np.ndarray[Any, Any]
Bound = int | None

_ALIGNMENTS = ("upper-left", "lower-right")
_FAR = 2**61  # an offset this large, with a bound of twice it, still fits int64


def bounds(window: Any, is_causal: bool) -> tuple[Bound, Bound]:
    """How far a query sees to the left and to the right of its diagonal."""
    if window is None:
        return None, 0 if is_causal else None
    if not (isinstance(window, (tuple, list)) and len(window) == 2 and all(map(_is_bound, window))):
        raise ValueError(f"window={window!r}; it is (left, right), each None or >= 0")
    left, right = (None if bound is None else min(int(bound), 2 * _FAR) for bound in window)
    return left, 0 if is_causal else right


def _is_bound(bound: Any) -> bool:
    return bound is None or (isinstance(bound, (int, np.integer)) and bool(bound >= 0))


def read(
    batch: int,
    sq: int,
    skv: int,
    q_lengths: Any,
    kv_lengths: Any,
    alignment: Any,
    is_causal: bool,
) -> tuple[tuple[Array, Array, Array], Bound]:
    """The lengths and the offset of each batch entry, and the offset if it is one fixed number.

    The alignment is "upper-left" (0), "lower-right" (kv_length - q_length), or offsets; None
    stands for either where they agree, and for "upper-left" without causal.
    """
    if isinstance(alignment, str) and alignment not in _ALIGNMENTS:
        raise ValueError(
            f"causal_alignment={alignment!r}; it is 'upper-left', 'lower-right', or an offset"
        )
    if (
        q_lengths is None
        and kv_lengths is None
        and (alignment is None or type(alignment) in (int, str))
    ):
        fixed = _fixed_offset(sq, skv, alignment, is_causal)
        return (_full(batch, sq), _full(batch, skv), _full(batch, fixed)), fixed
    queries = _lengths("q_lengths", q_lengths, batch, sq)
    keys = _lengths("kv_lengths", kv_lengths, batch, skv)
    if alignment is None and is_causal and (keys != queries).any():
        raise _alignment_needed("these lengths")
    if alignment is not None and not isinstance(alignment, str):
        offsets = _whole_numbers("causal_alignment", alignment, batch)
        if batch:
            _check_offset(offsets.min(), offsets.max())
        return (queries, keys, offsets), None
    if alignment == "lower-right":
        return (queries, keys, keys - queries), None
    return (queries, keys, _full(batch, 0)), 0


def _fixed_offset(sq: int, skv: int, alignment: int | str | None, is_causal: bool) -> int:
    if isinstance(alignment, int):
        _check_offset(alignment, alignment)
        return alignment
    if alignment is None and is_causal and sq != skv:
        raise _alignment_needed(f"Sq={sq} and Skv={skv}")
    return skv - sq if alignment == "lower-right" else 0


def _check_offset(least: int, most: int) -> None:
    if not -_FAR <= least <= most <= _FAR:
        raise ValueError(f"causal_alignment holds {least} to {most}; it is from -2**61 to 2**61")


def _alignment_needed(because: str) -> ValueError:
    return ValueError(
        f"causal_alignment is needed: with {because}, 'upper-left' (offset 0) and 'lower-right' "
        "(offset kv_length - q_length) differ"
    )


@lru_cache(maxsize=256)
def _full(batch: int, value: int) -> Array:
    """One number for each batch entry; read-only, because it is shared."""
    array = np.full(batch, value, np.int64)
    array.flags.writeable = False
    return array


def _lengths(name: str, given: Any, batch: int, most: int) -> Array:
    if given is None:
        return _full(batch, most)
    array = _whole_numbers(name, given, batch)
    if array.size and not (array.min() >= 0 and array.max() <= most):
        raise ValueError(f"{name} holds {array.min()} to {array.max()}; it is from 0 to {most}")
    return array


def _whole_numbers(name: str, x: Any, batch: int) -> Array:
    array = door.adopt(name, x)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}; it holds whole numbers")
    if array.shape not in ((), (batch,)):
        raise ValueError(f"{name}.shape={array.shape}; it is ({batch},), one for each batch entry")
    return np.broadcast_to(array.astype(np.int64), (batch,))


def seen(sq: int, skv: int, left: Bound, right: Bound, offset: int) -> Array:
    """The keys that each query sees, by the bounds alone: bool, (sq, skv)."""
    distance = np.arange(skv) - (np.arange(sq)[:, None] + offset)
    found = np.ones((sq, skv), bool)
    if left is not None:
        found &= distance >= -left
    if right is not None:
        found &= distance <= right
    return found


def pairs(sq: int, skv: int, left: Bound, right: Bound, offset: Bound) -> int:
    """How many queries and keys meet; all of them where the offsets are known only as data."""
    if offset is None:
        return sq * skv
    diagonal = np.arange(sq) + offset
    first = 0 * diagonal if left is None else diagonal - left
    end = skv if right is None else diagonal + right + 1
    return int(np.maximum(np.minimum(end, skv) - np.maximum(first, 0), 0).sum())
