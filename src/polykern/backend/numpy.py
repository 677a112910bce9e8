"""The reference backend: each operator's own reference, in the accumulate dtype of the contract."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykern import dtypes
from polykern.registry import Backend, Kernel, Launch, Problem


def build(problem: Problem) -> Launch:
    """A launch of the problem's reference, with the one rounding to the dtype of the result."""
    kinds = [dtypes.numpy_dtype(dtype) for _, dtype in problem.results]

    def rounded(result: Any, kind: np.dtype[Any], out: Any) -> Any:
        if out is None:
            return np.asarray(result, kind, order="C")
        out[...] = result
        return out

    def launch(arrays: tuple[Any, ...], scalars: tuple[float, ...], out: Any) -> Any:
        result = problem.reference(arrays, scalars)
        if len(kinds) == 1:
            return rounded(result, kinds[0], out)
        outs = (None,) * len(kinds) if out is None else out
        return tuple(map(rounded, result, kinds, outs))

    return launch


def refuses(problem: Problem) -> str | None:
    """Nothing: the reference is the contract."""
    return None


BACKEND = Backend(
    name="numpy",
    kernels=tuple(
        Kernel(op, "reference", refuses, build) for op in ("gemm", "conv2d", "softmax", "attention")
    ),
    asarray=np.asarray,
    synchronize=lambda: None,
)
