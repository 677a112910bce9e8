"""The cases of softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from polykern import dtypes
from polykern.testing.case import Arguments, Array, Build, Case, Shape, by, numbers
from polykern.testing.layout import LAYOUTS

OP = "softmax"

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_LENGTHS = (1, 2, 3, 31, 33, 63, 64, 65, 127, 129, 1023, 1025, 4097)  # round vectors and tiles


def _call(
    shape: Shape,
    axis: Any = -1,
    *,
    dtype: str = "float32",
    where: Shape | None = None,
    layout: Callable[[Array], Array] = np.asarray,
    scale: float = 3.0,
    **kwargs: Any,
) -> Build:
    """A call with an array of that shape, and a `where` of the other."""

    def build(rng: np.random.Generator) -> Arguments:
        x = numbers(rng, "float64", shape) * scale
        selected = {} if where is None else {"where": layout(numbers(rng, "bool", where))}
        x = x.astype(dtypes.numpy_dtype(dtype))
        return (layout(x),), {"axis": axis, **kwargs, **selected}

    return build


def _types() -> Iterator[Case]:
    for dtype, log in product(_FLOATS, (False, True)):
        name = f"{'log-' if log else ''}{dtype}"
        yield Case(OP, name, _call((7, 50), dtype=dtype, log=log))
        yield Case(OP, f"{name}-where", _call((7, 50), dtype=dtype, log=log, where=(7, 50)))
    for dtype, out in (
        ("float64", "float32"),
        ("float32", "float64"),
        ("float16", "float32"),
        ("float32", "bfloat16"),
        ("bfloat16", "float16"),
    ):
        for log in (False, True):
            name = f"{'log-' if log else ''}{dtype}-to-{out}"
            yield Case(OP, name, _call((7, 50), dtype=dtype, out_dtype=out, log=log))


def _shapes() -> Iterator[Case]:
    axes: tuple[Any, ...] = (
        0,
        1,
        2,
        3,
        -1,
        -2,
        (0, 1),
        (2, 1),
        (3, 0),
        (0, -1, 1),
        (0, 1, 2, 3),
        (),
        None,
    )
    for axis, log in product(axes, (False, True)):
        name = f"axis-{axis}".replace(" ", "")
        yield Case(OP, f"log-{name}" if log else name, _call((3, 5, 4, 6), axis, log=log))
    selections: tuple[Shape, ...] = ((3, 5, 70), (70,), (5, 1), (3, 1, 1), ())
    for axis, where in product((0, 1, (0, 2), None), selections):
        name = f"where-{by(where)}-axis-{axis}".replace(" ", "")
        yield Case(OP, name, _call((3, 5, 70), axis, where=where))
    for n in _LENGTHS:
        yield Case(OP, f"length-{n}", _call((3, n)))
        yield Case(OP, f"log-length-{n}", _call((2, n), log=True))
        yield Case(OP, f"first-axis-{n}", _call((n, 3), 0))
    for n in (63, 65, 130):
        yield Case(OP, f"inner-{n}", _call((2, 9, n), 1))
        yield Case(OP, f"where-inner-{n}", _call((2, 9, n), 1, where=(2, 9, n), log=True))
    empties: tuple[tuple[Shape, Any], ...] = (
        ((0, 3), -1),
        ((3, 0), -1),
        ((0,), 0),
        ((2, 0, 3), 1),
        ((2, 0, 3), -1),
        ((2, 0, 3), None),
        ((2, 0, 3), (0, 2)),
    )
    for shape, axis in empties:
        name = f"empty-{by(shape)}-axis-{axis}".replace(" ", "")
        yield Case(OP, name, _call(shape, axis))
    scalar_axes: tuple[Any, ...] = (-1, 0, None, ())
    for axis in scalar_axes:
        yield Case(OP, f"scalar-axis-{axis}", _call((), axis))
    yield Case(OP, "many-rows", _call((70_001, 3)))
    yield Case(OP, "many-columns", _call((3, 70_001), 0))
    yield Case(OP, "long-row", _call((2, 100_003)))
    yield Case(OP, "log-long-row-float16", _call((1, 100_003), dtype="float16", log=True))
    yield Case(OP, "eight-axes", _call((2, 1, 2, 3, 1, 2, 2, 3), (2, 5, 7)))


def _memory() -> Iterator[Case]:
    for name, layout in LAYOUTS.items():
        for axis in (0, 1, (0, 2)):
            title = f"{name}-axis-{axis}".replace(" ", "")
            yield Case(OP, title, _call((3, 9, 13), axis, layout=layout))
        yield Case(OP, f"{name}-float64", _call((9, 13), dtype="float64", layout=layout, log=True))
        yield Case(OP, f"{name}-float16", _call((9, 13), 0, dtype="float16", layout=layout))
        yield Case(OP, f"{name}-where", _call((9, 130), where=(9, 130), layout=layout))

    def repeated(axis: int) -> Build:
        return lambda rng: (
            (np.broadcast_to(numbers(rng, "float32", (6, 1, 5)), (6, 4, 5)),),
            {"axis": axis, "where": np.broadcast_to(numbers(rng, "bool", (5,)), (6, 4, 5))},
        )

    for axis in (0, 1, 2):
        yield Case(OP, f"stride-0-axis-{axis}", repeated(axis))


def _rows(log: bool, *rows: tuple[float, ...], dtype: str = "float32") -> Build:
    return lambda rng: ((np.array(rows, dtype),), {"log": log})


def _special() -> Iterator[Case]:
    nan, inf = np.nan, np.inf
    for log in (False, True):
        prefix = "log-" if log else ""
        rows: dict[str, tuple[tuple[float, ...], ...]] = {
            "nan-own-row": ((1, nan, 2), (1, 2, 3), (nan, nan, nan)),
            "minus-inf-row": ((1, 2, 3), (-inf, -inf, -inf), (3, 2, 1)),
            "minus-inf-entries": ((-inf, 2, 3), (-inf, -inf, 0), (5, -inf, 5)),
            "plus-inf": ((inf, 2, 3), (1, 2, 3), (inf, inf, -inf), (-inf, inf, -inf)),
            "large": ((90, 2, -2), (1e4, 1e4 - 1, 0), (1e30, -1e30, 0), (-1e4, -1e4, -1e4 - 1)),
            "far-below": ((0, -200, -1000), (30, -30, 0), (-3e38, 3e38, 0), (0, -87.5, -103.5)),
            "nan-and-infinities": ((nan, inf, 0), (nan, -inf, 0), (0, 0, 0)),
        }
        for name, values in rows.items():
            yield Case(OP, prefix + name, _rows(log, *values))
            yield Case(OP, f"{prefix}{name}-float64", _rows(log, *values, dtype="float64"))
        for axis in (0, 1):
            yield Case(OP, f"{prefix}spoiled-axis-{axis}", _spoiled(axis, log))
            yield Case(OP, f"{prefix}where-hides-axis-{axis}", _hidden(axis, log))
            yield Case(OP, f"{prefix}where-none-axis-{axis}", _nothing_selected(axis, log))
    for dtype in ("float16", "bfloat16"):
        yield Case(OP, f"equal-{dtype}", _call((2, 4096), dtype=dtype, scale=0.0))
    yield Case(OP, "float16-largest", lambda rng: ((np.full((2, 9), 65504, "f2"),), {}))
    yield Case(OP, "log-float16-overflows", _rows(True, (65504, -65504, 0), dtype="float16"))


def _spoiled(axis: int, log: bool) -> Build:
    """NaN and infinities in some of many rows."""

    def build(rng: np.random.Generator) -> Arguments:
        x = numbers(rng, "float32", (70, 75))
        x[3, 5], x[9, 70], x[40, 2], x[65, 65] = np.nan, np.inf, -np.inf, np.nan
        x[12 if axis else slice(None), slice(None) if axis else 12] = -np.inf
        return (x,), {"axis": axis, "log": log}

    return build


def _hidden(axis: int, log: bool) -> Build:
    """What is not selected is NaN, infinite, or the largest of its row."""

    def build(rng: np.random.Generator) -> Arguments:
        x, where = numbers(rng, "float32", (70, 75)), numbers(rng, "bool", (70, 75))
        bad = np.array([np.nan, np.inf, -np.inf, 1e30], "f4")[rng.integers(0, 4, x.shape)]
        return (np.where(where, x, bad),), {"axis": axis, "log": log, "where": where}

    return build


def _nothing_selected(axis: int, log: bool) -> Build:
    """Some rows have no entry that takes part."""

    def build(rng: np.random.Generator) -> Arguments:
        x, where = numbers(rng, "float32", (70, 75)), numbers(rng, "bool", (70, 75))
        where[:: 3 if axis else 1, :: 1 if axis else 3] = False
        x[0, 0] = np.nan
        return (x,), {"axis": axis, "log": log, "where": where}

    return build


CASES = (*_types(), *_shapes(), *_memory(), *_special())
