"""General matrix multiply: the call, its value, its reference."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from polykern import arrays as door
from polykern import dispatch, dtypes
from polykern.ops import activation as activations

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
    activation: str | None = None,
    a_scale: Any = None,
    b_scale: Any = None,
    a_zero_point: Any = None,
    b_zero_point: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """General matrix multiply: ``activation(alpha * op(A) @ op(B) + beta * C)``.

    Letters: ``M`` rows and ``N`` columns of the result, ``K`` the summed axis, ``...`` batch axes
    that broadcast.

    Parameters
    ----------
    a : array, (..., M, K); (..., K, M) if `trans_a`; (K,)
        Its library and device are those of the result. A 1-D `a` or `b` counts as a row or a
        column, and its axis is missing in the result, as in ``numpy.matmul``.
    b : array, (..., K, N); (..., N, K) if `trans_b`; (K,)
    c : array, broadcastable to the result, optional
        ``(N,)`` is a bias. Not read if ``beta == 0``, so it may hold NaN then.
    alpha, beta : float, default 1.0
        Dimensionless. With ``alpha == 0`` or ``K == 0`` the product counts as zeros, and `a` and
        `b` are not read. Whole numbers where the result is int32.
    trans_a, trans_b : bool
        Swap the last two axes.
    activation : {None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"}
        Applied to the sums before they are rounded to `out_dtype`. "gelu" is the one with erf.
    a_scale : array, () or (M,), optional
        The factor of each row of A; makes the result of integers a float.
    b_scale : array, () or (N,), optional
        The factor of each column of B, likewise.
    a_zero_point : integer or array, () or (M,), optional
        Subtracted from the integers of each row of A.
    b_zero_point : integer or array, () or (N,), optional
        Subtracted from the integers of each column of B.
    out_dtype : dtype, optional
        Default: the promoted type of `a`, `b` and `c`; bfloat16 for float8; int32 for int8 and
        uint8, float32 if they have scales.
    precision : {"highest", "high", "medium"}, optional
        "highest", the default, keeps float32 accuracy for float32. "high" allows TF32 or three
        bfloat16 products, "medium" bfloat16 products.
    out : array of the result's shape and dtype, optional
        Written and returned. It may be `c` itself and must not overlap any other input.
    backend : str, optional
        ``"numba"``, ``"numba/packed"``; default: the best where the arrays live.

    Returns
    -------
    array, (..., M, N), of `out_dtype`

    Raises
    ------
    TypeError
        A dtype that gemm does not take; the message lists those it takes.
    ValueError
        K differs, batch axes do not broadcast, or `out` does not fit.
    UnsupportedError
        No kernel of the backend takes this call; the message lists each reason.

    Notes
    -----
    Cost: ``2 M N K`` FLOP for each matrix of the batch; at least the operands and the result are
    moved. float16, bfloat16 and float8 are summed in float32, 8-bit integers exactly in int32.
    Error: elementwise ``|error| <= g(K) |alpha| |A| @ |B|`` and some roundings of the result,
    with ``g(K) = min(K, 8 sqrt(K)) u``, u the unit roundoff of the type of the sums.

    References
    ----------
    Level 3 BLAS, xGEMM; ONNX Gemm, MatMulInteger. Higham, Accuracy and Stability of Numerical
    Algorithms, chapter 3.
    """
    like = a
    a, b = door.adopt("a", a), door.adopt("b", b)
    alpha, beta = door.number("alpha", alpha), door.number("beta", beta)
    if c is not None:
        c = _weak(c, a, b) if type(c) in (int, float) else door.adopt("c", c)
    vectors: tuple[Any, ...] = (a_scale, b_scale, a_zero_point, b_zero_point)
    if any([x is not None for x in vectors]):  # noqa: C419  (a list is faster than a generator)
        vectors = _adopt_vectors(a, b, *vectors)
    problem = Gemm(
        a.shape,
        b.shape,
        None if c is None else c.shape,
        dtypes.names[a.dtype],
        dtypes.names[b.dtype],
        None if c is None else dtypes.names[c.dtype],
        bool(trans_a),
        bool(trans_b),
        alpha == 0,
        beta == 0,
        activation,
        tuple([None if x is None else x.shape for x in vectors]),
        None if out_dtype is None else dtypes.named(out_dtype),
        dispatch.precision(precision),
    )
    if problem.a_dtype in dtypes.INT8 and problem.out_dtype == "int32":
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not (value.is_integer() and abs(value) < 2**31):
                raise ValueError(
                    f"{name}={value} with an int32 result; "
                    "give a whole number that int32 holds, or out_dtype='float32'"
                )
    inputs = dict(zip(_INPUTS, (a, b, c, *vectors), strict=True))
    return dispatch.run(problem, inputs, (alpha, beta), out=out, like=like, backend=backend)


def _weak(c: float, a: Array, b: Array) -> Array:
    """A Python scalar in the type of the operands, which it does not widen."""
    kinds = (dtypes.names[a.dtype], dtypes.names[b.dtype])
    if all(kind in _FLOATS for kind in kinds):
        return np.asarray(c, dtypes.numpy_dtype(dtypes.promote(*kinds)))
    fits = type(c) is int and abs(c) < 2**31
    return np.asarray(c, np.int32 if fits else np.float32)


_VECTORS = ("a_scale", "b_scale", "a_zero_point", "b_zero_point")
_INPUTS = ("a", "b", "c", *_VECTORS)


def _adopt_vectors(a: Array, b: Array, *vectors: Any) -> tuple[Array | None, ...]:
    """The scales and zero points as arrays, the zero points as int32."""
    adopted: list[Array | None] = []
    for name, x, operand in zip(_VECTORS, vectors, (a, b, a, b), strict=True):
        if x is None:
            adopted.append(None)
            continue
        vector = door.adopt(name, float(x) if type(x) is int and name.endswith("scale") else x)
        if name.endswith("scale"):
            dtypes.check(name, dtypes.names[vector.dtype], dtypes.FLOATS, "gemm")
        else:
            _check_zero_point(name, vector, operand.dtype)
            vector = vector.astype(np.int32)
        adopted.append(vector)
    return tuple(adopted)


def _check_zero_point(name: str, x: Array, dtype: np.dtype[Any]) -> None:
    operand = name[0]
    if dtypes.names[dtype] not in dtypes.INT8:
        raise TypeError(f"{name} goes with integers; {operand} has dtype {dtypes.names[dtype]}")
    if x.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {x.dtype}; a zero point is an integer")
    limits = np.iinfo(dtype)
    if x.size and not (limits.min <= x.min() and x.max() <= limits.max):
        raise ValueError(
            f"{name} is outside {limits.min} to {limits.max}, the range of {operand}'s {dtype}"
        )


class Gemm(NamedTuple):
    """A gemm before its numbers."""

    a_shape: Shape
    b_shape: Shape
    c_shape: Shape | None
    a_dtype: str
    b_dtype: str
    c_dtype: str | None
    trans_a: bool
    trans_b: bool
    alpha_zero: bool  # the product counts as zeros
    beta_zero: bool  # c is not read
    activation: str | None
    vector_shapes: tuple[Shape | None, ...]  # a_scale, b_scale, a_zero_point, b_zero_point
    asked_dtype: str | None
    precision: str
    home: str = "cpu"
    in_place: str = "c"  # the input that `out` may be
    op: str = "gemm"

    @property
    def M(self) -> int:
        return 1 if len(self.a_shape) == 1 else self.a_shape[-1 if self.trans_a else -2]

    @property
    def K(self) -> int:
        return self.a_shape[-2 if self.trans_a and len(self.a_shape) > 1 else -1]

    @property
    def N(self) -> int:
        return 1 if len(self.b_shape) == 1 else self.b_shape[-2 if self.trans_b else -1]

    @property
    def batch(self) -> Shape:
        return np.broadcast_shapes(self.a_shape[:-2], self.b_shape[:-2])

    @property
    def out_shape(self) -> Shape:
        rows = () if len(self.a_shape) == 1 else (self.M,)
        columns = () if len(self.b_shape) == 1 else (self.N,)
        return self.batch + rows + columns

    @property
    def scaled(self) -> bool:
        return self.vector_shapes[:2] != (None, None)

    @property
    def out_dtype(self) -> str:
        if self.asked_dtype is not None:
            return self.asked_dtype
        if self.a_dtype in dtypes.INT8:
            return "float32" if self.scaled else "int32"
        operands = (self.a_dtype, self.b_dtype, self.c_dtype or self.a_dtype)
        return dtypes.promote(*operands)

    @property
    def results(self) -> tuple[tuple[Shape, str], ...]:
        return ((self.out_shape, self.out_dtype),)

    @property
    def accumulate(self) -> str:
        """The dtype of the sums over K."""
        if self.a_dtype in dtypes.INT8:
            return "int32"
        return dtypes.accumulator(self.a_dtype, self.b_dtype, self.c_dtype or self.a_dtype)

    @property
    def epilogue(self) -> str:
        """The dtype in which scales, alpha, beta, C and the activation are applied."""
        if self.accumulate != "int32":
            return self.accumulate
        return {"int32": "int32", "float64": "float64"}.get(self.out_dtype, "float32")

    @property
    def flops(self) -> int:
        return 2 * int(np.prod(self.batch, dtype=object)) * self.M * self.N * self.K

    @property
    def nbytes(self) -> int:
        arrays = [(self.a_shape, self.a_dtype), (self.b_shape, self.b_dtype), *self.results]
        if self.c_shape is not None and self.c_dtype is not None and not self.beta_zero:
            arrays.append((self.c_shape, self.c_dtype))
        return dtypes.nbytes(arrays)

    def __str__(self) -> str:
        batch = "".join(f"{length}x" for length in self.batch)
        kind = self.a_dtype if self.a_dtype == self.b_dtype else f"{self.a_dtype}*{self.b_dtype}"
        return f"{batch}{self.M}x{self.N}x{self.K} {kind} -> {self.out_dtype}"

    def check(self) -> None:
        """Raise what the contract says of bad arguments."""
        integers = self.a_dtype in dtypes.INT8
        dtypes.check("a", self.a_dtype, _OPERANDS, "gemm")
        dtypes.check("b", self.b_dtype, dtypes.INT8 if integers else _FLOATS, "gemm with this a")
        results = ("int32", *dtypes.FLOATS) if integers else dtypes.FLOATS
        dtypes.check("the result (out_dtype)", self.out_dtype, results, "gemm of these types")
        if integers and self.scaled and self.out_dtype == "int32":
            raise TypeError("out_dtype=int32 with scales; scaled integers give a float")
        if self.c_dtype is not None:
            fitting = ("int32", *dtypes.INT8) if self.epilogue == "int32" else dtypes.FLOATS
            dtypes.check("c", self.c_dtype, fitting, f"gemm with a {self.out_dtype} result")
        activations.check(self.activation)
        if self.epilogue == "int32" and self.activation not in (None, "relu"):
            raise ValueError(
                f"activation={self.activation!r} with an int32 result; give out_dtype='float32'"
            )
        self._check_shapes()

    def _check_shapes(self) -> None:
        for name, shape in (("a", self.a_shape), ("b", self.b_shape)):
            if not shape:
                raise ValueError(f"{name}.shape=(); gemm takes arrays of one axis or more")
        b_rows = self.b_shape[-1 if self.trans_b or len(self.b_shape) == 1 else -2]
        if b_rows != self.K:
            flags = ", trans_a=True" * self.trans_a + ", trans_b=True" * self.trans_b
            raise ValueError(
                f"a.shape={self.a_shape} and b.shape={self.b_shape}{flags} do not chain: "
                f"K is {self.K} in a and {b_rows} in b"
            )
        try:
            self.batch  # noqa: B018
        except ValueError:
            raise ValueError(
                f"a.shape={self.a_shape} and b.shape={self.b_shape}: "
                "the axes before the last two do not broadcast"
            ) from None
        if self.c_shape is not None and not dtypes.broadcasts(self.c_shape, self.out_shape):
            raise ValueError(
                f"c.shape={self.c_shape} does not broadcast to the result's {self.out_shape}"
            )
        lengths = (self.M, self.N, self.M, self.N)
        for name, given, length in zip(_VECTORS, self.vector_shapes, lengths, strict=True):
            if given not in (None, (), (1,), (length,)):
                rows = "rows of a" if name.startswith("a") else "columns of b"
                raise ValueError(
                    f"{name}.shape={given}; it is (), or ({length},), one for each of the {rows}"
                )

    def matrices(self, arrays: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """Views (*batch, M, K) of a, (*batch, K, N) of b, (*batch, M, N) of c or None."""
        a, b, c = arrays[:3]
        if a.ndim == 1:
            a = a[None, :]
        elif self.trans_a:
            a = a.swapaxes(-1, -2)
        if b.ndim == 1:
            b = b[:, None]
        elif self.trans_b:
            b = b.swapaxes(-1, -2)
        batch = self.batch
        if a.shape[:-2] != batch:
            a = np.broadcast_to(a, batch + a.shape[-2:])
        if b.shape[:-2] != batch:
            b = np.broadcast_to(b, batch + b.shape[-2:])
        if c is None or self.beta_zero:
            return a, b, None
        return a, b, self.matrix(np.broadcast_to(c, self.out_shape))

    def matrix(self, result: Any) -> Any:
        """The view (*batch, M, N) of an array of the result's shape."""
        if len(self.b_shape) == 1:
            result = result[..., None]
        if len(self.a_shape) == 1:
            result = result[..., None, :]
        return result

    def vectors(self, arrays: tuple[Any, ...]) -> list[Any]:
        """a_scale (M,), b_scale (N,), a_zero_point (M,), b_zero_point (N,); None where absent."""
        lengths = (self.M, self.N, self.M, self.N)
        return [
            None if x is None else np.broadcast_to(x, (length,))
            for x, length in zip(arrays[3:], lengths, strict=True)
        ]

    def reference(
        self, arrays: tuple[Any, ...], scalars: tuple[float, ...], accumulate: str | None = None
    ) -> Array:
        """The contract in NumPy, unrounded: in the dtype of the epilogue, or in `accumulate`."""
        alpha, beta = scalars
        sums, c = self._sums(arrays, accumulate or self.accumulate)
        dtype = accumulate or self.epilogue
        if self.epilogue == "int32":
            dtype = "int32"  # exact, and wraps as int32 does
        row_scale, column_scale = self.vectors(arrays)[:2]
        result = sums.astype(dtype, copy=False)
        if row_scale is not None:
            result = result * row_scale.astype(dtype)[:, None]
        if column_scale is not None:
            result = result * column_scale.astype(dtype)
        kind = np.dtype(dtype).type
        if alpha != 1 and not self.alpha_zero:
            result = result * kind(alpha)
        if c is not None:
            result = result + (c.astype(dtype) if beta == 1 else kind(beta) * c.astype(dtype))
        result = activations.reference(self.activation, result)
        return result.reshape(self.out_shape)

    def _sums(self, arrays: tuple[Any, ...], accumulate: str) -> tuple[Array, Array | None]:
        a, b, c = self.matrices(arrays)
        if self.accumulate == "int32":
            accumulate = "int32"
        if self.alpha_zero:
            return np.zeros((*self.batch, self.M, self.N), accumulate), c
        a, b = a.astype(accumulate, copy=False), b.astype(accumulate, copy=False)
        row_zero, column_zero = self.vectors(arrays)[2:]
        if row_zero is not None:
            a = a - row_zero[:, None]
        if column_zero is not None:
            b = b - column_zero
        return np.matmul(a, b), c

    def error_bound(
        self,
        arrays: tuple[Any, ...],
        scalars: tuple[float, ...],
        multiply: str | None = None,
        accumulate: str | None = None,
    ) -> Array:
        """The largest error, elementwise, of a kernel of that arithmetic; float64."""
        if self.epilogue == "int32":
            return np.zeros(self.out_shape)
        alpha, beta = (abs(scalar) for scalar in scalars)
        factor, sums, c = self._magnitudes(arrays)
        growth = 2 * dtypes.roundoff(multiply or self.accumulate)
        growth += dtypes.growth(self.K, accumulate or self.accumulate)
        u = dtypes.roundoff(self.epilogue)
        terms = alpha * sums + (0 if c is None else beta * c)
        error = alpha * growth * sums + 8 * u * terms
        error = error + alpha * factor * self.K * dtypes.underflow(self.accumulate)
        exact = self.matrix(self._linear(arrays, scalars))
        error = activations.error_bound(self.activation, exact, error, u)
        result = activations.reference(self.activation, exact)
        error = error + dtypes.roundoff(self.out_dtype) * np.abs(result)
        error = error + dtypes.underflow(self.out_dtype) + 8 * dtypes.underflow(self.epilogue)
        return error.reshape(self.out_shape)

    def _linear(self, arrays: tuple[Any, ...], scalars: tuple[float, ...]) -> Array:
        """The exact argument of the activation."""
        return self._replace(activation=None).reference(arrays, scalars, "float64")

    def _magnitudes(self, arrays: tuple[Any, ...]) -> tuple[Any, Array, Array | None]:
        """The scales' product, ``|A| @ |B|`` with the scales in it, and ``|C|``."""
        a, b, c = self.matrices(arrays)
        c = None if c is None else np.abs(c.astype("float64"))
        row_scale, column_scale, row_zero, column_zero = self.vectors(arrays)
        factor: Any = 1.0
        if row_scale is not None:
            factor = factor * np.abs(row_scale.astype("float64"))[:, None]
        if column_scale is not None:
            factor = factor * np.abs(column_scale.astype("float64"))
        if self.alpha_zero:
            return factor, np.zeros((*self.batch, self.M, self.N)), c
        a, b = a.astype("float64"), b.astype("float64")
        if row_zero is not None:
            a = a - row_zero[:, None]
        if column_zero is not None:
            b = b - column_zero
        return factor, factor * (np.abs(a) @ np.abs(b)), c


_FLOATS = dtypes.FLOATS + dtypes.FLOAT8
_OPERANDS = _FLOATS + dtypes.INT8
