"""Softmax and log-softmax: the call, its value, its reference."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import numpy as np

from polykern import arrays as door
from polykern import dispatch, dtypes

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def softmax(
    x: Any,
    axis: int | tuple[int, ...] | None = -1,
    *,
    log: bool = False,
    where: Any = None,
    out_dtype: Any = None,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """Softmax along axes: ``exp(x) / sum(exp(x))``, or its logarithm.

    Parameters
    ----------
    x : array, any shape
        Its library and device are those of the result.
    axis : int, tuple of int, or None, default -1
        The axes that sum to 1; None is all of them.
    log : bool
        The logarithm of the softmax, exact also where the softmax underflows.
    where : bool array, broadcastable to x, optional
        Entries that take part. The others give 0 (-inf in the log) and influence nothing, even if
        they are NaN; a row in which none takes part gives that everywhere.
    out_dtype : dtype, optional
        Default: the type of `x`.
    out : array of the result's shape and dtype, optional
        Written and returned. It may be `x` itself and must not overlap it otherwise.
    backend : str, optional
        ``"numba"``, ``"numba/rows"``; default: the best where the arrays live.

    Returns
    -------
    array, the shape of x, of `out_dtype`
        A NaN or an infinity makes its own row NaN (a -inf among finite entries gives 0).

    Raises
    ------
    TypeError
        A dtype that softmax does not take; the message lists those it takes.
    ValueError
        An axis that is out of range or given twice.
    UnsupportedError
        No kernel of the backend takes this call; the message lists each reason.

    Notes
    -----
    Cost: one read and one write of memory at best. float16 and bfloat16 are summed in float32.
    Error: relative, ``(|x - max| + mean of |x - max| + g(n) + some) u``, with n the row's length
    and ``g(n) = min(n, 8 sqrt(n))``; in the log, the same as an absolute error.

    References
    ----------
    ONNX Softmax (13) and LogSoftmax.
    """
    like = x
    x = door.adopt("x", x)
    if where is not None:
        where = door.adopt("where", where)
    problem = Softmax(
        x.shape,
        dtypes.names[x.dtype],
        _normal_axes(axis, x.ndim),
        bool(log),
        None if where is None else (where.shape, dtypes.names[where.dtype]),
        None if out_dtype is None else dtypes.named(out_dtype),
    )
    inputs = {"x": x, "where": where}
    return dispatch.run(problem, inputs, (), out=out, like=like, backend=backend)


def _normal_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes counted from the front, ascending."""
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    try:
        found = [operator.index(one) for one in axes]
    except TypeError:
        raise TypeError(f"axis={axis!r}; it is an int, a tuple of ints, or None") from None
    for one in found:
        if not -ndim <= one < ndim and not (ndim == 0 and one in (0, -1)):
            raise ValueError(f"axis={one} is out of range; x has {ndim} axes")
    normal = sorted(one % ndim for one in found) if ndim else []
    if len(set(normal)) != len(normal):
        raise ValueError(f"axis={axis!r} names an axis twice")
    return tuple(normal)


class Softmax(NamedTuple):
    """A softmax before its numbers."""

    shape: Shape
    dtype: str
    axes: tuple[int, ...]
    log: bool
    where: tuple[Shape, str] | None
    asked_dtype: str | None
    home: str = "cpu"
    in_place: str = "x"  # `out` may be x itself
    op: str = "softmax"

    @property
    def has_where(self) -> bool:
        return self.where is not None

    @property
    def length(self) -> int:
        """The number of entries that sum to 1."""
        return math.prod(self.shape[axis] for axis in self.axes)

    @property
    def out_dtype(self) -> str:
        return self.asked_dtype or self.dtype

    @property
    def results(self) -> tuple[tuple[Shape, str], ...]:
        return ((self.shape, self.out_dtype),)

    @property
    def accumulate(self) -> str:
        """The dtype of the exponentials and their sums."""
        return dtypes.accumulator(self.dtype)

    @property
    def flops(self) -> int:
        return 5 * math.prod(self.shape)  # compare, subtract, exponential, add, multiply

    @property
    def nbytes(self) -> int:
        arrays = [(self.shape, self.dtype), *self.results]
        return dtypes.nbytes(arrays if self.where is None else [*arrays, self.where])

    def __str__(self) -> str:
        kind = "log-softmax" if self.log else "softmax"
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"{shape} {kind} along {self.axes} {self.dtype} -> {self.out_dtype}"

    def check(self) -> None:
        """Raise what the contract says of bad arguments."""
        dtypes.check("x", self.dtype, dtypes.FLOATS, "softmax")
        dtypes.check("the result (out_dtype)", self.out_dtype, dtypes.FLOATS, "softmax")
        if self.where is not None:
            dtypes.check("where", self.where[1], ("bool",), "softmax")
            if not dtypes.broadcasts(self.where[0], self.shape):
                raise ValueError(
                    f"where.shape={self.where[0]} does not broadcast to x.shape={self.shape}"
                )

    def reference(
        self,
        arrays: tuple[Any, ...],
        scalars: tuple[float, ...] = (),
        accumulate: str | None = None,
    ) -> Array:
        """The contract in NumPy, unrounded: in `accumulate`, by default the problem's."""
        x, where = arrays
        x = x.astype(accumulate or self.accumulate, copy=False)
        if where is not None:
            x = np.where(where, x, -np.inf)
        with np.errstate(all="ignore"):
            exponents, exponentials, total = self._parts(x)
            result = exponents - np.log(total) if self.log else exponentials / total
        if where is not None:
            result = np.where(where, result, -np.inf if self.log else 0).astype(x.dtype)
        return np.asarray(result)

    def _parts(self, x: Array) -> tuple[Array, Array, Array]:
        """``x - max``, its exponentials, and their sums."""
        largest = np.max(x, axis=self.axes, keepdims=True, initial=-np.inf)
        exponents = x - largest
        exponentials = np.exp(exponents)
        return exponents, exponentials, np.sum(exponentials, axis=self.axes, keepdims=True)

    def error_bound(
        self,
        arrays: tuple[Any, ...],
        scalars: tuple[float, ...] = (),
        multiply: str | None = None,
        accumulate: str | None = None,
    ) -> Array:
        """The largest error, elementwise, of a kernel of that arithmetic; float64."""
        accumulate = accumulate or self.accumulate
        u = dtypes.roundoff(accumulate)
        exact = self.reference(arrays, (), "float64")
        x, where = arrays
        x = x.astype("float64")
        if where is not None:
            x = np.where(where, x, -np.inf)
        with np.errstate(all="ignore"):
            exponents, exponentials, total = self._parts(x)
            distance = np.where(np.isfinite(exponents), np.abs(exponents), 0)
            spread = np.sum(exponentials / total * distance, axis=self.axes, keepdims=True)
            # rounding x - max, the exponential, the sum, the division
            relative = (distance + spread + 16) * u + dtypes.growth(self.length, accumulate)
            size = np.abs(exact)
            error = relative + u * size if self.log else size * np.expm1(relative)
            error = error + dtypes.roundoff(self.out_dtype) * size
            exactly = (exact == -np.inf) if self.log else (exact == 0)  # and not NaN
            error = np.where(exactly, 0, error)
        # exponentials below the normal range may be flushed to zero
        least = dtypes.underflow(self.out_dtype) + dtypes.least_normal(accumulate)
        return np.asarray(error + least)
