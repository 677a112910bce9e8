"""What the gemm kernels are given: stacks of three axes, numbers of one dtype, nothing absent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from polykern.ops.gemm import Gemm

Array = np.ndarray[Any, Any]


class Operands(NamedTuple):
    """A gemm's arguments as its kernels read them."""

    stacks: Iterator[tuple[Array, ...]]  # a, b, c, result: (batch, M, K), (batch, K, N), ...
    row_factor: Array  # (M,), ones where there is no scale
    column_factor: Array  # (N,)
    alpha: Any  # of the dtype of the epilogue, like the factors
    beta: Any
    has_c: bool  # if not, the c of the stacks is the result, not to be read


def operands(
    problem: Gemm, arrays: tuple[Any, ...], scalars: tuple[float, ...], result: Array
) -> Operands:
    """The arguments for a result in the dtype of the epilogue."""
    number, dtype = problem.accumulate, result.dtype
    row_scale, column_scale, row_zero, column_zero = problem.vectors(arrays)
    a, b, c = problem.matrices(arrays)
    view = problem.matrix(result)
    return Operands(
        _stacks(
            _numbers(a, number, None if row_zero is None else row_zero[:, None]),
            _numbers(b, number, column_zero),
            view if c is None else _numbers(c, problem.epilogue),
            view,
        ),
        _factors(row_scale, problem.M, dtype),
        _factors(column_scale, problem.N, dtype),
        _scalar(scalars[0], dtype),
        _scalar(scalars[1], dtype),
        c is not None,
    )


def _scalar(x: float, dtype: np.dtype[Any]) -> Any:
    """alpha or beta; of integers what int32 arithmetic sees of it."""
    return np.array(int(x) if dtype.kind == "i" else x).astype(dtype)[()]


def _factors(scale: Array | None, length: int, dtype: np.dtype[Any]) -> Array:
    return np.ones(length, dtype) if scale is None else np.ascontiguousarray(scale, dtype)


def _numbers(x: Array, dtype: str, zero: Array | None = None) -> Array:
    """The operand in that dtype, less its zero point; what is repeated stays so."""
    if x.dtype == dtype and zero is None:
        return x
    core = x[tuple([slice(0, 1) if step == 0 else slice(None) for step in x.strides])]
    widened = core.astype(dtype)
    return np.broadcast_to(widened if zero is None else widened - zero, x.shape)


def _stacks(*matrices: Array) -> Iterator[tuple[Array, ...]]:
    """The same stacks of matrices, three axes each, without a copy."""
    batch = matrices[0].shape[:-2]
    if len(batch) == 0:
        yield tuple([x[None] for x in matrices])
    elif all(_folds(x) for x in matrices):
        length = math.prod(batch)
        yield tuple([x.reshape(length, *x.shape[-2:]) for x in matrices])
    else:
        for i in range(batch[0]):
            yield from _stacks(*[x[i] for x in matrices])


def _folds(x: Array) -> bool:
    """Whether the axes before the last two are one axis of one stride."""
    axes = [(x.shape[i], x.strides[i]) for i in range(x.ndim - 2) if x.shape[i] != 1]
    return all(step == length * least for (_, step), (length, least) in pairwise(axes))
