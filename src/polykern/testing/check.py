"""What must hold of the result of a case, whatever computed it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polykern import dispatch, ops
from polykern.testing.case import Case

Array = np.ndarray[Any, Any]
Promise = tuple[tuple[int, ...], str, Array, Array]

_SENTINEL = 0x5A  # fills memory that nobody may write, or that everybody must


def check(case: Case, backend: str) -> None:
    """Run the case on a backend, ``"numba"`` or ``"numba/packed"``, and compare.

    The value is compared with the float64 reference within the error bound of the kernel, NaN and
    infinities by place, integers exactly; further the shape, the dtype and the type of the result.
    Inputs must stay as they were and share no memory with the result. A packed `out` gets the same
    bits, a scattered one is as near, and nothing beside it is written.

    Raises
    ------
    AssertionError
        The first thing that does not hold.
    UnsupportedError
        The backend refuses the case.
    """
    operator = getattr(ops, case.op)
    args, kwargs = case.arguments()
    kwargs = {**kwargs, "backend": backend}
    inputs = list(_arrays((args, kwargs)))
    before = [_memory(x).tobytes() for x in inputs]
    report = dispatch.report(operator, *args, **kwargs)
    results = _tuple(operator(*args, **kwargs))
    _check_inputs(case, inputs, before)  # first, because they make the reference
    promised = _promised(report)
    _check_values(case, promised, results)
    for result in results:
        _require(case, type(result) is np.ndarray, f"the result is a {type(result).__name__}")
        shared = any(np.may_share_memory(result, x) for x in inputs)
        _require(case, not shared, "the result shares memory with an input")
    for where in (_packed, _scattered):
        outs, memory = zip(*[where(result) for result in results], strict=True)
        given = outs if len(outs) > 1 else outs[0]
        returned = operator(*args, **kwargs, out=given)
        _require(case, returned is given, "out is not what is returned")
        if where is _packed and report.plan.kernel.deterministic:
            same = all(map(_same_bits, results, outs))
            _require(case, same, "out has other bits than the result")
        _check_values(case, promised, outs)
        untouched = all(map(_untouched, memory, outs))
        _require(case, untouched, "memory beside out is written")
    _check_inputs(case, inputs, before)


def _check_inputs(case: Case, inputs: list[Array], before: list[bytes]) -> None:
    _require(case, before == [_memory(x).tobytes() for x in inputs], "an input is changed")


def _require(case: Case, holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(f"{case}: {otherwise}")


def _promised(report: dispatch.Report) -> list[Promise]:
    """Of each result: shape, dtype, exact value, and how far off it may be."""
    problem, kernel = report.problem, report.plan.kernel
    with np.errstate(all="ignore"):
        exact = problem.reference(report.arrays, report.scalars, "float64")
        bound = problem.error_bound(
            report.arrays, report.scalars, kernel.multiply, kernel.accumulate
        )
    return [
        (*result, value, error)
        for result, value, error in zip(problem.results, _tuple(exact), _tuple(bound), strict=True)
    ]


def _check_values(case: Case, promised: list[Promise], results: tuple[Any, ...]) -> None:
    _require(case, len(results) == len(promised), f"there are {len(results)} results")
    for result, (shape, dtype, value, error) in zip(results, promised, strict=True):
        _require(case, result.shape == shape, f"the shape is {result.shape}, not {shape}")
        name = result.dtype.name
        _require(case, name == dtype, f"the dtype is {name}, not {dtype}")
        if result.dtype.kind in "iu":
            different = int(np.count_nonzero(result != value))
            _require(case, not different, f"{different} of {result.size} integers are wrong")
        else:
            _check_floats(case, result, value, error)


def _check_floats(case: Case, result: Array, value: Array, error: Array) -> None:
    got = result.astype("float64")
    unbounded = np.isfinite(value) & ~np.isfinite(error)
    _require(case, not unbounded.any(), "the error bound of a finite value is not finite")
    with np.errstate(all="ignore"):
        for kind, places in (("NaN", np.isnan), ("inf", np.isposinf), ("-inf", np.isneginf)):
            # what is within the error bound of an overflow may overflow
            least, most = (
                places((value + shift).astype(result.dtype).astype("float64"))
                for shift in (-error, error)
            )
            here, must, may = places(got), places(value) | (least & most), least | most
            _require(
                case,
                bool(np.all(must <= here) and np.all(here <= (may | must))),
                f"{kind} at {np.count_nonzero(here)} places, not {np.count_nonzero(must)}",
            )
        finite = np.isfinite(got)
        excess = np.where(finite, np.abs(got - np.where(finite, value, 0)), 0)
    wrong = finite & ~(excess <= error)
    if wrong.any():
        place = np.unravel_index(np.argmax(np.where(wrong, excess, -1)), got.shape)
        shown = tuple(int(i) for i in place)
        raise AssertionError(
            f"{case}: {np.count_nonzero(wrong)} of {got.size} values are wrong; at {shown} "
            f"{got[place]:.9g} is off {value[place]:.9g} by {excess[place]:.3g}, "
            f"and {error[place]:.3g} is allowed"
        )


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _arrays(value: Any) -> Iterator[Array]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        yield from _arrays(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _arrays(one)


def _memory(x: Array) -> Array:
    """The array that owns the memory of a view."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def _packed(like: Array) -> tuple[Array, Array]:
    """An array to be written, and the memory in which it lies: here the same."""
    memory = np.full(like.nbytes, _SENTINEL, np.uint8)
    return memory.view(like.dtype).reshape(like.shape), memory


def _scattered(like: Array) -> tuple[Array, Array]:
    """The same, with its axes reversed in memory and gaps between its elements."""
    shape = tuple(2 * n for n in reversed(like.shape)) or (2,)
    memory = np.full(int(np.prod(shape)) * like.itemsize, _SENTINEL, np.uint8)
    wide = memory.view(like.dtype).reshape(shape)
    if not like.ndim:
        return wide[1:].reshape(()), memory
    return wide[(slice(1, None, 2),) * like.ndim].T, memory


def _same_bits(x: Array, y: Array) -> bool:
    """Whether both hold the same; one NaN is as good as another."""
    both_nan, zero = (x != x) & (y != y), np.zeros((), x.dtype)
    return np.where(both_nan, zero, x).tobytes() == np.where(both_nan, zero, y).tobytes()


def _untouched(memory: Array, out: Array) -> bool:
    """Whether the memory beside `out` still holds the sentinel; `out` is overwritten with it."""
    out[...] = np.full(out.itemsize, _SENTINEL, np.uint8).view(out.dtype)[0]
    return bool(np.all(memory == _SENTINEL))
