"""The road of a call: settings, the plan of a problem, the launch, and the report of it.

A plan is made once for each (problem, choice) and kept; a problem is checked when its plan is
made, so a call that was seen before costs a look-up. Failures are not kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from polykern import arrays as door
from polykern import policy, registry
from polykern.errors import BackendUnavailableError, UnsupportedError

PRECISIONS = ("highest", "high", "medium")


class Settings(NamedTuple):
    """What `use` holds for the calls inside it."""

    backend: str | None = None
    precision: str = "highest"
    deterministic: bool = False
    trace: Callable[[Report], object] | None = None
    only_plan: bool = False  # return the report, launch nothing


class Plan(NamedTuple):
    """What runs a problem."""

    backend: str
    kernel: registry.Kernel
    launch: registry.Launch
    why: str


class Report(NamedTuple):
    """What would run for a call, where, why, and which copies it takes."""

    problem: registry.Problem
    plan: Plan
    copies: tuple[tuple[str, int, str], ...]  # argument, bytes, reason
    arrays: tuple[Any, ...]  # as the launch would get them
    scalars: tuple[float, ...]

    def __str__(self) -> str:
        problem = self.problem
        shown = f"{self.plan.backend}/{self.plan.kernel.name}"
        lines = [
            f"{problem.op} {problem}",
            f"  runs     {shown} on arrays in {problem.home} memory: {self.plan.why}",
            f"  work     {problem.flops:,} FLOP, at least {problem.nbytes:,} bytes moved, "
            f"{problem.flops / max(1, problem.nbytes):.1f} FLOP per byte",
        ]
        lines += [
            f"  refused  {self.plan.backend}/{kernel.name}: {reason}"
            for kernel, reason in registry.load(self.plan.backend).candidates(problem)
            if reason is not None
        ]
        lines += [f"  copies   {name}: {size:,} bytes ({why})" for name, size, why in self.copies]
        if not self.copies:
            lines.append("  copies   none")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


_DEFAULTS = Settings()
_settings: ContextVar[Settings] = ContextVar("polykern", default=_DEFAULTS)


@contextmanager
def use(
    *,
    backend: str | None = None,
    precision: str | None = None,
    deterministic: bool | None = None,
    trace: Callable[[Report], object] | bool | None = None,
) -> Iterator[None]:
    """Set defaults for the calls of this thread or task inside a ``with``; also a decorator.

    Parameters
    ----------
    backend : str, optional
        As the argument `backend` of every operator, which goes before it.
    precision : {"highest", "high", "medium"}, optional
        As the argument `precision`.
    deterministic : bool, optional
        Refuse kernels whose results may differ from run to run.
    trace : callable or bool, optional
        Called with the `Report` of each call before it runs; True prints it to stderr.

    Raises
    ------
    BackendNotFoundError
        No backend has that name.
    ValueError
        An unknown precision.
    """
    now = _settings.get()
    if backend is not None:
        registry.check(backend)
    if precision is not None:
        _check_precision(precision)
    if isinstance(trace, bool):
        trace = _print_to_stderr if trace else None
    elif trace is None:
        trace = now.trace
    token = _settings.set(
        now._replace(
            backend=backend if backend is not None else now.backend,
            precision=precision or now.precision,
            deterministic=now.deterministic if deterministic is None else deterministic,
            trace=trace,
        )
    )
    try:
        yield
    finally:
        _settings.reset(token)


def _print_to_stderr(report: Report) -> None:
    print(report, file=sys.stderr)


def precision(asked: str | None) -> str:
    """The precision of a call that asks for this one, or for none."""
    return _settings.get().precision if asked is None else _check_precision(asked)


def _check_precision(asked: str) -> str:
    if asked not in PRECISIONS:
        raise ValueError(f"precision={asked!r}; it is one of {', '.join(PRECISIONS)}")
    return asked


def report(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """The report of ``function(*args, **kwargs)``, an operator's call, without running it."""
    token = _settings.set(_settings.get()._replace(only_plan=True))
    try:
        found = function(*args, **kwargs)
    finally:
        _settings.reset(token)
    if not isinstance(found, Report):
        raise TypeError(f"{function!r} is no operator of polykern.ops")
    return found


def run(
    problem: registry.Problem,
    inputs: dict[str, Any],
    scalars: tuple[float, ...],
    *,
    out: Any,
    like: Any,
    backend: str | None,
) -> Any:
    """Plan the problem, or find its plan, and launch it.

    `inputs` are adopted arrays by argument name, in the operator's order; `out` is an array, a
    tuple of as many as the operator has results, or None; `like` is the caller's first array.
    """
    settings = _settings.get()
    choice = backend if backend is not None else settings.backend or policy.environment_backend()
    try:
        found = plan(problem, choice, settings.deterministic)
    except TypeError:  # an argument that cannot be hashed is told by its name
        problem.check()
        raise
    into = None if out is None else _check_out(problem, out, inputs)
    arrays = tuple([x if x is None else door.into(x) for x in inputs.values()])
    if settings.only_plan:
        return Report(problem, found, _copies(inputs), arrays, scalars)
    if settings.trace:
        settings.trace(Report(problem, found, _copies(inputs), arrays, scalars))
    with np.errstate(all="ignore"):  # an overflow is an infinity on every backend, not a warning
        result = found.launch(arrays, scalars, into)
    if out is not None:
        return out
    if type(like) is np.ndarray:
        return result
    if isinstance(result, tuple):
        return tuple(door.back(x, like) for x in result)
    return door.back(result, like)


def _check_out(problem: registry.Problem, out: Any, inputs: dict[str, Any]) -> Any:
    """`out` as NumPy arrays, in the form in which it came, or the error that says what is wrong."""
    results = problem.results
    if len(results) == 1:
        views = [door.check_out("out", out, *results[0])]
    else:
        if not (isinstance(out, tuple) and len(out) == len(results)):
            raise TypeError(f"out is {type(out).__name__}; give a tuple of {len(results)} arrays")
        views = [
            door.check_out(f"out[{i}]", one, *result)
            for i, (one, result) in enumerate(zip(out, results, strict=True))
        ]
        door.check_overlap(views[0], {"out[1]": views[1]})
    for view in views:
        door.check_overlap(view, inputs, problem.in_place)
    return views[0] if len(results) == 1 else tuple(views)


def _copies(inputs: dict[str, Any]) -> tuple[tuple[str, int, str], ...]:
    found = []
    for name, x in inputs.items():
        reason = None if x is None else door.copy_reason(x)
        if reason is not None:
            found.append((name, x.nbytes, reason))
    return tuple(found)


@lru_cache(maxsize=4096, typed=True)  # typed: equal tuples of two operators would share a plan
def plan(problem: registry.Problem, choice: str | None, deterministic: bool) -> Plan:
    """The checked problem's plan; `choice` names a backend or ``backend/variant``, or is None."""
    problem.check()
    name, variant = (registry.AUTO, "") if choice is None else registry.split(choice)
    if name != registry.AUTO:
        kernel = registry.load(name).find(problem, variant, deterministic)
        return Plan(name, kernel, kernel.build(problem), f"{choice!r} was asked for")
    reasons = []
    for name in policy.at_home(problem):
        try:
            kernel = registry.load(name).find(problem, "", deterministic)
        except (BackendUnavailableError, UnsupportedError) as error:
            reasons.append(str(error))
            continue
        why = f"the best for {problem.op} of those usable where the arrays are"
        return Plan(name, kernel, kernel.build(problem), why)
    raise UnsupportedError("\n".join(reasons) or f"no backend takes {problem.home} arrays")
