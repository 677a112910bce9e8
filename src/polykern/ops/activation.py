"""The functions that gemm and conv2d can apply to their sums before the one rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NAMES = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")

# The largest slope of each: how much it can enlarge the error of its argument.
_SLOPE = {
    "relu": 1.0,
    "gelu": 1.13,
    "gelu_tanh": 1.13,
    "silu": 1.1,
    "sigmoid": 0.25,
    "tanh": 1.0,
}

_erfc = np.frompyfunc(math.erfc, 1, 1)


def check(activation: str | None) -> None:
    """A ValueError that lists the names."""
    if activation is not None and activation not in NAMES:
        raise ValueError(f"activation={activation!r}; it is None or one of {', '.join(NAMES)}")


def reference(name: str | None, x: Array) -> Array:
    """The activation of x, in the dtype of x. NaN stays NaN."""
    if name is None:
        return x
    return np.asarray(_apply(name, x))


def _apply(name: str, x: Array) -> Any:
    one, half = x.dtype.type(1), x.dtype.type(0.5)
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        tail = _erfc(-x * x.dtype.type(math.sqrt(0.5))).astype(x.dtype)
        return half * x * tail
    if name == "gelu_tanh":
        inner = x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x * x * x)
        return half * x * (one + np.tanh(inner))
    if name == "tanh":
        return np.tanh(x)
    logistic = one / (one + np.exp(-x))
    return x * logistic if name == "silu" else logistic


def error_bound(name: str | None, x: Array, error: Array, roundoff: float) -> Array:
    """The error of the activation at x, whose own error is at most `error`."""
    if name is None:
        return error
    # evaluating it costs some roundings of a value no larger than |x| or, for sigmoid and tanh, 1
    size = np.minimum(np.abs(x), 1) if name == "tanh" else np.abs(x)
    size = np.ones_like(x) if name == "sigmoid" else size
    bound = _SLOPE[name] * error + 16 * roundoff * size
    return np.where(np.isfinite(x), bound, 0)  # an infinite argument is exact
