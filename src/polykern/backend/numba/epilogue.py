"""What happens to a row of sums before it leaves: linear terms, the activation, any strides.

A row is contiguous scratch of the epilogue's dtype; it meets lines of arrays of any strides.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from polykern import dtypes
from polykern.backend.numba import jit
from polykern.backend.numba.exponential import exp, tanh
from polykern.backend.numba.rows import copy, line_from, row_from
from polykern.backend.numba.vector import multiply_add
from polykern.ops import activation

Array = np.ndarray[Any, Any]

_NONE, _RELU, _GELU, _GELU_TANH, _SILU, _SIGMOID, _TANH = range(7)
_CODES = {
    None: _NONE,
    "relu": _RELU,
    "gelu": _GELU,
    "gelu_tanh": _GELU_TANH,
    "silu": _SILU,
    "sigmoid": _SIGMOID,
    "tanh": _TANH,
}
assert set(_CODES) == {None, *activation.NAMES}


def code(name: str | None) -> int:
    """The number by which kernels know an activation."""
    return _CODES[name]


def target(out: Array | None, dtype: str, shape: tuple[int, ...], factor: str) -> Array:
    """The array that a kernel fills: `out` if it has the epilogue's dtype, else a new one."""
    return out if out is not None and dtype == factor else np.empty(shape, factor)


def rounded(result: Array, dtype: str, out: Array | None) -> Array:
    """The result in its dtype, in `out` if there is one; the one rounding."""
    if out is result:
        return out
    if out is None:
        return result.astype(dtypes.numpy_dtype(dtype), copy=False)
    out[...] = result
    return out


@jit.device
def linear(row, total, has_product, factor, columns, has_c, beta, c, place):
    """``row = factor * columns * total + beta * c[place ...]``, either term only if it is there."""
    if has_product:
        for i in range(row.size):
            row[i] = factor * columns[i] * total[i]
    else:
        for i in range(row.size):
            row[i] = 0
    if has_c and c.strides[c.ndim - 1] == c.itemsize:
        values = row_from(c, place, row.size)
        for i in range(row.size):
            row[i] += beta * values[i]
    elif has_c:
        line = line_from(c, place, row.size)
        for i in range(row.size):
            row[i] += beta * line[i]


@jit.device
def store(row, array, index):
    """``array[index ...] = row`` along the last axis."""
    if array.strides[array.ndim - 1] == array.itemsize:
        copy(row_from(array, index, row.size), row)
    else:
        line = line_from(array, index, row.size)
        for i in range(row.size):
            line[i] = row[i]


def activate(row: Any, code: int) -> None:
    """Apply the activation of that code in place, in compiled code; integers know relu only."""
    raise NotImplementedError("activate exists in compiled code only")


@overload(activate)
def _activate(row, code):
    def activate_integers(row, code):
        if code == _RELU:
            _relu(row)

    def activate_floats(row, code):
        one, half = row.dtype.type(1), row.dtype.type(0.5)
        if code == _RELU:
            _relu(row)
        elif code == _GELU:
            for i in range(row.size):
                row[i] *= normal_distribution(row[i])
        elif code == _GELU_TANH:
            slope, cubic = row.dtype.type(math.sqrt(2 / math.pi)), row.dtype.type(0.044715)
            for i in range(row.size):
                x = row[i]
                row[i] = half * x * (one + tanh(slope * (x + cubic * x * x * x)))
        elif code == _SILU:
            for i in range(row.size):
                row[i] *= one / (one + exp(-row[i]))
        elif code == _SIGMOID:
            for i in range(row.size):
                row[i] = one / (one + exp(-row[i]))
        elif code == _TANH:
            for i in range(row.size):
                row[i] = tanh(row[i])

    return activate_integers if isinstance(row.dtype, types.Integer) else activate_floats


@jit.device
def _relu(row):
    for i in range(row.size):
        row[i] = 0 if row[i] < 0 else row[i]  # NaN stays


def normal_distribution(x: Any) -> Any:
    """``(1 + erf(x / sqrt(2))) / 2`` of a float32 or float64, in compiled code."""
    raise NotImplementedError("normal_distribution exists in compiled code only")


# -log of the distribution at -u as a polynomial in u, highest power first: own minimax fit of the
# distribution on 0 <= u <= 6, within 4e-8. Beyond, the leading term only has to grow; at u = 12
# the distribution has long been 0 in float32.
_TAIL = tuple(
    np.float32(c)
    for c in (
        1.831890017456317e-08,
        -5.560432327911258e-07,
        7.213448952825274e-06,
        -5.087912722956389e-05,
        0.00018687904230318964,
        1.4206764717528131e-05,
        -0.0048327031545341015,
        0.03636160492897034,
        0.31830352544784546,
        0.7978851199150085,
        0.6931471824645996,
    )
)
_TAIL_END = np.float32(12)
_ONE = np.float32(1)
_HALF, _SQRT_HALF = 0.5, math.sqrt(0.5)


@overload(normal_distribution)
def _normal_distribution(x):
    def normal_32(x):
        u = abs(x)
        u = _TAIL_END if u > _TAIL_END else u
        power = _TAIL[0]
        for coefficient in _TAIL[1:]:
            power = multiply_add(power, u, coefficient)
        tail = exp(-power)
        return _ONE - tail if x > 0 else tail

    def normal_64(x):
        return _HALF * math.erfc(-x * _SQRT_HALF)

    return normal_32 if x == types.float32 else normal_64
