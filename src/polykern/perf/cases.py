"""The problems to compare, written as short texts: which arrays they take, and a sample of each.

The text of a shape is what `polykern compare --shape` takes and what its table shows.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from polykern import dispatch, dtypes, ops, registry

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

# What checking a result may cost: it takes a random part of a larger one.
_CHECKED_FLOPS = 4e9
_CHECKED_ENTRIES = 2**20


class Case(NamedTuple):
    """One call to compare: an operator, its arrays by their shapes, its options.

    The result falls into independent parts (rows, images, heads): `cut` is the axis along which
    each input is cut for that, None for an input that every part needs; `result_cut` that of the
    result.
    """

    op: str
    shape: str
    dtype: str
    inputs: tuple[Shape, ...]
    options: dict[str, Any]
    cut: tuple[int | None, ...]
    result_cut: int

    @property
    def function(self) -> Callable[..., Any]:
        """The operator."""
        return getattr(ops, self.op)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return f"{self.op} {self.shape} {self.dtype}"

    def plan(self, arrays: tuple[Any, ...], backend: str = "numpy") -> dispatch.Report:
        """What would run for these arrays."""
        return dispatch.report(self.function, *arrays, **self.options, backend=backend)

    def problem(self) -> registry.Problem:
        """The problem, without numbers; raises what the operator says of a bad one."""
        one = np.zeros((), dtypes.numpy_dtype(self.dtype))
        return self.plan(tuple(np.broadcast_to(one, shape) for shape in self.inputs)).problem

    def arrays(self, seed: int) -> tuple[Array, ...]:
        """Random inputs, the same for the same seed whatever else is compared."""
        rng = np.random.default_rng([seed, zlib.crc32(str(self).encode())])
        return tuple(_random(rng, shape, self.dtype) for shape in self.inputs)

    def sample(self, arrays: tuple[Array, ...], seed: int) -> tuple[tuple[Array, ...], Array]:
        """Inputs for a part of the result small enough to check, and the indices of that part."""
        problem = self.problem()
        shape = problem.results[0][0]
        parts = shape[self.result_cut]
        entries = int(np.prod(shape))
        share = min(1.0, _CHECKED_FLOPS / problem.flops, _CHECKED_ENTRIES / entries)
        count = max(1, int(share * parts))
        chosen = np.sort(np.random.default_rng(seed).choice(parts, count, replace=False))
        sampled = [
            x if axis is None else np.take(x, chosen, axis)
            for x, axis in zip(arrays, self.cut, strict=True)
        ]
        return tuple(sampled), chosen


def _random(rng: np.random.Generator, shape: Shape, dtype: str) -> Array:
    kind = dtypes.numpy_dtype(dtype)
    if dtype in dtypes.INT8:
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
    if dtype == "float64":
        return rng.standard_normal(shape)
    return rng.standard_normal(shape, np.float32).astype(kind, copy=False)


def _gemm(m: int, n: int, k: int, activation: str | None) -> dict[str, Any]:
    inputs: tuple[Shape, ...] = ((m, k), (k, n))
    if activation is None:
        return {"inputs": inputs, "options": {}, "cut": (0, None), "result_cut": 0}
    return {
        "inputs": (*inputs, (n,)),
        "options": {"activation": activation},
        "cut": (0, None, None),
        "result_cut": 0,
    }


def _conv2d(
    n: int, c: int, h: int, w: int, k: int, r: int, s: int, stride: int | None, groups: int | None
) -> dict[str, Any]:
    groups = groups or 1
    options: dict[str, Any] = {"padding": (r // 2, s // 2)}
    if stride not in (None, 1):
        options["stride"] = stride
    if groups > 1:
        options["groups"] = groups
    inputs = ((n, c, h, w), (k, max(1, c // groups), r, s))
    return {"inputs": inputs, "options": options, "cut": (0, None), "result_cut": 0}


def _softmax(rows: int, columns: int, axis: int | None) -> dict[str, Any]:
    axis = 1 if axis is None else axis
    options = {"axis": axis}
    return {
        "inputs": ((rows, columns),),
        "options": options,
        "cut": (1 - axis,),
        "result_cut": 1 - axis,
    }


def _attention(
    b: int, h: int, sq: int, skv: int | None, d: int, causal: str | None
) -> dict[str, Any]:
    keys = (b, h, skv or sq, d)
    options = {"is_causal": True, "causal_alignment": "lower-right"} if causal else {}
    return {
        "inputs": ((b, h, sq, d), keys, keys),
        "options": options,
        "cut": (1, 1, 1),
        "result_cut": 1,
    }


class Form(NamedTuple):
    """How the shapes of an operator are written."""

    text: str
    example: str
    pattern: str  # N stands for a whole number from 1
    build: Callable[..., dict[str, Any]]


FORMS = {
    "gemm": Form("MxNxK[,activation]", "1024x1024x1024,gelu", r"NxNxN(?:,([a-z_]+))?", _gemm),
    "conv2d": Form(
        "NxCxHxW,KxRxS[,stride[,groups]]",
        "8x64x56x56,64x3x3",
        r"NxNxNxN,NxNxN(?:,N(?:,N)?)?",
        _conv2d,
    ),
    "softmax": Form("RxC[,axis]", "4096x4096", r"NxN(?:,([01]))?", _softmax),
    "attention": Form(
        "BxHxS[/Skv]xD[,causal]", "1x8x1024x64", r"NxNxN(?:/N)?xN(?:,(causal))?", _attention
    ),
}
OPERATORS = tuple(FORMS)


def parse(op: str, shape: str, dtype: str = "float32") -> Case:
    """The case that a text describes.

    Parameters
    ----------
    op : {"gemm", "conv2d", "softmax", "attention"}
    shape : str
        gemm: ``MxNxK``, and ``,activation`` for a bias and an activation. conv2d:
        ``NxCxHxW,KxRxS``, then ``,stride`` and ``,groups``; the padding keeps the size. softmax:
        ``RxC``, and ``,0`` for the other axis. attention: ``BxHxSxD``, S being ``Sq/Skv`` where
        the lengths differ, and ``,causal``.
    dtype : str
        Of all inputs.

    Returns
    -------
    Case

    Raises
    ------
    ValueError
        The text has not that form; the message shows it.
    """
    form = FORMS[op]
    found = re.fullmatch(form.pattern.replace("N", r"([1-9][0-9]*)"), shape.lower())
    if found is None:
        raise ValueError(
            f"--shape {shape} is no shape of {op}; it is {form.text}, such as {form.example}"
        )
    values = [int(text) if text and text.isdigit() else text for text in found.groups()]
    return Case(op, shape.lower(), dtype, **form.build(*values))


# Large and small, the shapes of vision and language models, the types that differ in speed.
_CHOSEN = (
    ("gemm", "1024x1024x1024", "float32"),
    ("gemm", "1024x1024x1024,gelu", "float32"),
    ("gemm", "16x4096x4096", "float32"),
    ("gemm", "512x512x512", "float64"),
    ("gemm", "512x512x512", "bfloat16"),
    ("gemm", "512x512x512", "int8"),
    ("conv2d", "8x64x56x56,64x3x3", "float32"),
    ("conv2d", "1x3x224x224,64x7x7,2", "float32"),
    ("conv2d", "8x96x56x56,96x3x3,1,96", "float32"),
    ("softmax", "4096x4096", "float32"),
    ("softmax", "4096x4096,0", "float32"),
    ("softmax", "512x1024", "float16"),
    ("attention", "1x8x1024x64", "float32"),
    ("attention", "1x8x1024x64,causal", "float32"),
    ("attention", "1x8x1/8192x64", "bfloat16"),
)


def chosen(operators: tuple[str, ...] = OPERATORS, dtype: str | None = None) -> list[Case]:
    """The default cases of these operators; with `dtype`, each shape once in that type."""
    asked = [(op, shape, dtype or own) for op, shape, own in _CHOSEN if op in operators]
    return [parse(*case) for case in dict.fromkeys(asked)]
