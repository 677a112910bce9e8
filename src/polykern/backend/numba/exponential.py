"""``exp`` and ``tanh`` of one number, branch-free so that LLVM vectorises the loop round them.

``x = n ln 2 + r`` with ``n`` whole and ``|r| <= ln(2) / 2``; then ``exp(x) = 2**n (1 + q(r))`` where
``q`` is a polynomial fitted to ``exp(r) - 1``, exact in its first coefficient. Adding
``1.5 * 2**(bits of the significand)`` rounds to a whole number and leaves ``n`` in the lowest bits
of the sum; ``2**n`` is then made of bits, as two factors, so that results below the normal range
come out rounded and those above it infinite. ``ln 2`` is split so that ``n`` times its high part is
exact. NaN passes every step. float32 within 1.0 ulp, float64 within 1.0 ulp.

Source: own; the reduction is Cody and Waite's, the coefficients are a reweighted least-squares fit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload, register_jitable

_LOG2E_32, _LOG2E_64 = np.float32(math.log2(math.e)), np.float64(math.log2(math.e))
_LN2_HIGH_32, _LN2_LOW_32 = np.float32(0.693145751953125), np.float32(1.428606765330187e-06)
_LN2_HIGH_64, _LN2_LOW_64 = np.float64(0.6931471805598903), np.float64(5.497923018708371e-14)
_ROUNDER_32, _ROUNDER_64 = np.float32(1.5 * 2**23), np.float64(1.5 * 2**52)

# Beyond these the result is 0 or infinite; n must fit the two factors.
_LEAST_32, _MOST_32 = np.float32(-104.0), np.float32(89.0)
_LEAST_64, _MOST_64 = np.float64(-746.0), np.float64(710.0)

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

_ONE_32, _ONE_64 = np.float32(1), np.float64(1)
_TWO_32, _TWO_64 = np.float32(2), np.float64(2)
_TANH_IS_ONE_32, _TANH_IS_ONE_64 = np.float32(22), np.float64(44)  # twice the argument


@intrinsic  # type: ignore[untyped-decorator]
def multiply_add(typingctx, x, y, z):  # type: ignore[no-untyped-def]
    """``x * y + z`` with one rounding where the processor has it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = args[0].type
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(number, [number] * 3),
            f"llvm.fmuladd.f{signature.return_type.bitwidth}",
        )
        return builder.call(function, args)

    return x(x, x, x), generate


@intrinsic  # type: ignore[untyped-decorator]
def _times_power(typingctx, value, rounded):  # type: ignore[no-untyped-def]
    """``value * 2**n`` where `rounded` is the rounder plus n."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, rounded = args
        bits = signature.return_type.bitwidth
        integer = ir.IntType(bits)
        significand, bias = (23, 127) if bits == 32 else (52, 1023)

        def constant(number: int) -> Any:
            return ir.Constant(integer, number)

        def power(exponent: Any) -> Any:
            biased = builder.add(exponent, constant(bias))
            return builder.bitcast(builder.shl(biased, constant(significand)), value.type)

        # of the rounder itself these low bits are 10...0: shifted out, the sign of n stays
        spare = constant(bits - significand + 1)
        low = builder.shl(builder.bitcast(rounded, integer), spare)
        half = builder.ashr(low, constant(bits - significand + 2))
        rest = builder.sub(builder.ashr(low, spare), half)
        return builder.fmul(builder.fmul(value, power(half)), power(rest))

    return value(value, value), generate


@register_jitable  # type: ignore[untyped-decorator]
def _reduce_32(x):  # type: ignore[no-untyped-def]
    """The rounder plus n, and q: exp(x) = 2**n (1 + q)."""
    x = _LEAST_32 if x < _LEAST_32 else x
    x = _MOST_32 if x > _MOST_32 else x
    rounded = multiply_add(x, _LOG2E_32, _ROUNDER_32)
    n = rounded - _ROUNDER_32
    r = multiply_add(n, -_LN2_LOW_32, multiply_add(n, -_LN2_HIGH_32, x))
    q = multiply_add(_C6_32, r, _C5_32)
    q = multiply_add(q, r, _C4_32)
    q = multiply_add(q, r, _C3_32)
    q = multiply_add(q, r, _C2_32)
    return rounded, multiply_add(q, r * r, r)


@register_jitable  # type: ignore[untyped-decorator]
def _reduce_64(x):  # type: ignore[no-untyped-def]
    """As for float32."""
    x = _LEAST_64 if x < _LEAST_64 else x
    x = _MOST_64 if x > _MOST_64 else x
    rounded = multiply_add(x, _LOG2E_64, _ROUNDER_64)
    n = rounded - _ROUNDER_64
    r = multiply_add(n, -_LN2_LOW_64, multiply_add(n, -_LN2_HIGH_64, x))
    q = multiply_add(_C11_64, r, _C10_64)
    q = multiply_add(q, r, _C9_64)
    q = multiply_add(q, r, _C8_64)
    q = multiply_add(q, r, _C7_64)
    q = multiply_add(q, r, _C6_64)
    q = multiply_add(q, r, _C5_64)
    q = multiply_add(q, r, _C4_64)
    q = multiply_add(q, r, _C3_64)
    q = multiply_add(q, r, _C2_64)
    return rounded, multiply_add(q, r * r, r)


def exp(x: Any) -> Any:
    """``e**x`` of a float32 or float64, in compiled code."""
    raise NotImplementedError("exp exists in compiled code only")


@overload(exp, inline="never")  # type: ignore[untyped-decorator]
def _exp(x):  # type: ignore[no-untyped-def]
    def exp_32(x):  # type: ignore[no-untyped-def]
        rounded, q = _reduce_32(x)
        return _times_power(_ONE_32 + q, rounded)

    def exp_64(x):  # type: ignore[no-untyped-def]
        rounded, q = _reduce_64(x)
        return _times_power(_ONE_64 + q, rounded)

    return exp_32 if x == types.float32 else exp_64


def tanh(x: Any) -> Any:
    """The hyperbolic tangent of a float32 or float64, in compiled code."""
    raise NotImplementedError("tanh exists in compiled code only")


@overload(tanh, inline="never")  # type: ignore[untyped-decorator]
def _tanh(x):  # type: ignore[no-untyped-def]
    # With z = exp(2|x|) - 1, tanh|x| = z / (z + 2): no digits are lost near 0, since z comes from q.
    def tanh_32(x):  # type: ignore[no-untyped-def]
        double = abs(x) * _TWO_32
        rounded, q = _reduce_32(_TANH_IS_ONE_32 if double > _TANH_IS_ONE_32 else double)
        power = _times_power(_ONE_32, rounded)
        z = multiply_add(power, q, power - _ONE_32)
        y = z / (z + _TWO_32)
        return -y if x < 0 else y

    def tanh_64(x):  # type: ignore[no-untyped-def]
        double = abs(x) * _TWO_64
        rounded, q = _reduce_64(_TANH_IS_ONE_64 if double > _TANH_IS_ONE_64 else double)
        power = _times_power(_ONE_64, rounded)
        z = multiply_add(power, q, power - _ONE_64)
        y = z / (z + _TWO_64)
        return -y if x < 0 else y

    return tanh_32 if x == types.float32 else tanh_64
