"""``exp`` and ``tanh`` of a number or a vector, without branches: loops over them vectorise.

``x = n ln 2 + r`` with n whole and ``|r| <= ln(2) / 2``; then ``exp(x) = 2**n (1 + q(r))`` with a
polynomial q fitted to ``exp(r) - 1``, whose first coefficient is exactly 1. Adding
``1.5 * 2**(bits of the significand)`` rounds to a whole number and leaves n in the lowest bits of
the sum, from where a shift makes ``2**n``. ``ln 2`` is split: n times its high part is exact.
NaN passes every step. Within 1.1 ulp; subnormal results become 0. Where n would be 128 (1024), a
factor of sqrt(2) below infinity, it stays one less, and r is larger than the fit: 2e-5 (2e-11).

Source: own; the reduction is Cody and Waite's, the coefficients are a reweighted least-squares fit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, register_jitable

from polykern.backend.numba.vector import Vector, multiply_add, where_greater

_LOG2E_32, _LOG2E_64 = np.float32(math.log2(math.e)), np.float64(math.log2(math.e))
_LN2_HIGH_32, _LN2_LOW_32 = np.float32(0.693145751953125), np.float32(1.428606765330187e-06)
_LN2_HIGH_64, _LN2_LOW_64 = np.float64(0.6931471805598903), np.float64(5.497923018708371e-14)
_ROUNDER_32, _ROUNDER_64 = np.float32(1.5 * 2**23), np.float64(1.5 * 2**52)

# The largest n whose power is finite, and the smallest result that is a normal number.
_MOST_32, _MOST_64 = _ROUNDER_32 + np.float32(127), _ROUNDER_64 + np.float64(1023)
_LEAST_32, _LEAST_64 = np.float32(-126 * math.log(2)), np.float64(-1022 * math.log(2))

_C2_32 = np.float32(0.4999999403953552)
_C3_32 = np.float32(0.1666652262210846)
_C4_32 = np.float32(0.04166818782687187)
_C5_32 = np.float32(0.008368519134819508)
_C6_32 = np.float32(0.0013826403301209211)

_C2_64 = np.float64(0.5000000000000011)
_C3_64 = np.float64(0.16666666666666402)
_C4_64 = np.float64(0.04166666666652893)
_C5_64 = np.float64(0.00833333333349847)
_C6_64 = np.float64(0.0013888888943966345)
_C7_64 = np.float64(0.0001984126949949631)
_C8_64 = np.float64(2.4801492736949826e-05)
_C9_64 = np.float64(2.7557591750911447e-06)
_C10_64 = np.float64(2.763038189041867e-07)
_C11_64 = np.float64(2.4998629882716055e-08)

_ZERO_32, _ZERO_64 = np.float32(0), np.float64(0)
_ONE_32, _ONE_64 = np.float32(1), np.float64(1)
_TWO_32, _TWO_64 = np.float32(2), np.float64(2)
_TANH_IS_ONE_32, _TANH_IS_ONE_64 = np.float32(22), np.float64(44)  # twice the argument


@intrinsic
def _power(typingctx, rounded):
    """``2**n`` from the rounder plus n."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (rounded,) = args
        kind = signature.return_type
        bits = (kind.dtype if isinstance(kind, Vector) else kind).bitwidth
        significand, bias = (23, 127) if bits == 32 else (52, 1023)
        integer: Any = ir.IntType(bits)
        lanes = 1
        if isinstance(kind, Vector):
            lanes, integer = kind.lanes, ir.VectorType(integer, kind.lanes)

        def constant(number: int) -> Any:
            return ir.Constant(integer, number if lanes == 1 else [number] * lanes)

        exponent = builder.shl(builder.bitcast(rounded, integer), constant(significand))
        power = builder.add(exponent, constant(bias << significand))
        return builder.bitcast(power, rounded.type)

    return rounded(rounded), generate


@register_jitable
def _reduce_32(x):
    """``2**n`` and q."""
    rounded = multiply_add(x, _LOG2E_32, _ROUNDER_32)
    rounded = where_greater(rounded, _MOST_32, _MOST_32, rounded)
    n = rounded - _ROUNDER_32
    r = multiply_add(n, -_LN2_LOW_32, multiply_add(n, -_LN2_HIGH_32, x))
    q = multiply_add(r, _C6_32, _C5_32)
    q = multiply_add(q, r, _C4_32)
    q = multiply_add(q, r, _C3_32)
    q = multiply_add(q, r, _C2_32)
    return _power(rounded), multiply_add(q, r * r, r)


@register_jitable
def _reduce_64(x):
    """As for float32."""
    rounded = multiply_add(x, _LOG2E_64, _ROUNDER_64)
    rounded = where_greater(rounded, _MOST_64, _MOST_64, rounded)
    n = rounded - _ROUNDER_64
    r = multiply_add(n, -_LN2_LOW_64, multiply_add(n, -_LN2_HIGH_64, x))
    q = multiply_add(r, _C11_64, _C10_64)
    q = multiply_add(q, r, _C9_64)
    q = multiply_add(q, r, _C8_64)
    q = multiply_add(q, r, _C7_64)
    q = multiply_add(q, r, _C6_64)
    q = multiply_add(q, r, _C5_64)
    q = multiply_add(q, r, _C4_64)
    q = multiply_add(q, r, _C3_64)
    q = multiply_add(q, r, _C2_64)
    return _power(rounded), multiply_add(q, r * r, r)


def _is_32(kind: types.Type) -> bool:
    return bool((kind.dtype if isinstance(kind, Vector) else kind) == types.float32)


def exp(x: Any) -> Any:
    """``e**x`` of float32 or float64, in compiled code."""
    raise NotImplementedError("exp exists in compiled code only")


@overload(exp)
def _exp(x):
    def exp_32(x):
        power, q = _reduce_32(x)
        return where_greater(_LEAST_32, x, _ZERO_32, (q + _ONE_32) * power)

    def exp_64(x):
        power, q = _reduce_64(x)
        return where_greater(_LEAST_64, x, _ZERO_64, (q + _ONE_64) * power)

    return exp_32 if _is_32(x) else exp_64


def tanh(x: Any) -> Any:
    """The hyperbolic tangent of float32 or float64, in compiled code."""
    raise NotImplementedError("tanh exists in compiled code only")


@overload(tanh)
def _tanh(x):
    # With z = exp(2|x|) - 1, tanh|x| = z / (z + 2). Near 0 it keeps its digits: z comes from q.
    def tanh_32(x):
        double = where_greater(x, _ZERO_32, x, _ZERO_32 - x) * _TWO_32
        double = where_greater(double, _TANH_IS_ONE_32, _TANH_IS_ONE_32, double)
        power, q = _reduce_32(double)
        z = multiply_add(power, q, power - _ONE_32)
        y = z / (z + _TWO_32)
        return where_greater(_ZERO_32, x, _ZERO_32 - y, y)

    def tanh_64(x):
        double = where_greater(x, _ZERO_64, x, _ZERO_64 - x) * _TWO_64
        double = where_greater(double, _TANH_IS_ONE_64, _TANH_IS_ONE_64, double)
        power, q = _reduce_64(double)
        z = multiply_add(power, q, power - _ONE_64)
        y = z / (z + _TWO_64)
        return where_greater(_ZERO_64, x, _ZERO_64 - y, y)

    return tanh_32 if _is_32(x) else tanh_64
