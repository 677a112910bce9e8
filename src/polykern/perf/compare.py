"""Every backend on the same problems: time, rate, share of the peak, error, first call.

For each problem: random inputs; the first call of each backend, timed apart; then the backends
in turn, their median; then the check of what they returned against the float64 reference.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from polykern import dtypes, policy, registry
from polykern.errors import UnsupportedError
from polykern.perf import clock
from polykern.perf.cases import Case
from polykern.perf.ceilings import Ceilings

Array = np.ndarray[Any, Any]

OK, WRONG, REFUSED, FAILED = "ok", "wrong", "refused", "failed"


@dataclass(slots=True)
class Row:
    """One backend on one problem; None is what is not known."""

    op: str
    shape: str
    dtype: str
    backend: str
    kernel: str = ""
    status: str = OK
    reason: str = ""  # why it is not ok
    time_s: float | None = None  # median of the timed calls
    calls: int = 0
    gflop_per_s: float | None = None
    gbyte_per_s: float | None = None  # of the least bytes that must be moved
    bound: str | None = None  # "compute" or "memory": which peak is the nearer limit
    peak_share: float | None = None  # of that peak, 1 being all
    times_numpy: float | None = None  # how many times as fast as the numpy backend
    error_share: float | None = None  # the largest error over its bound, 1 being the most allowed
    checked_share: float | None = None  # of the entries of the result
    first_call_s: float | None = None  # load or compile, and run
    compiled: bool | None = None  # by the first call; None if nothing of it is ever cached

    @property
    def name(self) -> str:
        """Backend and kernel, as `backend=` takes them."""
        return f"{self.backend}/{self.kernel}" if self.kernel else self.backend

    @property
    def bad(self) -> bool:
        """Whether something is to be mended: a wrong result, or a crash."""
        return self.status in (WRONG, FAILED)


FIELDS = tuple(field.name for field in fields(Row))


def compare(case: Case, backends: tuple[str, ...], seed: int) -> list[Row]:
    """Run one problem on the backends: time, error and first call; `rate` adds the rest.

    Parameters
    ----------
    case : Case
        The problem.
    backends : tuple of str
        What to compare, each as `backend=` takes it.
    seed : int
        Of the inputs.

    Returns
    -------
    list of Row
        One for each backend, in their order. A backend that refuses or breaks says so in its row.
    """
    rows = [Row(case.op, case.shape, case.dtype, *registry.split(name)) for name in backends]
    try:
        arrays = case.arrays(seed)
    except Exception as error:  # no memory, say
        for row in rows:
            _fail(row, error)
        return rows
    runs = []
    for row in rows:
        time.sleep(clock.PAUSE_S)
        run = _Run(row, case, arrays)
        try:
            run.start()
        except Exception as error:
            _fail(row, error)
        else:
            runs.append(run)
    taken = clock.take_turns([run.call for run in runs])
    for run, seconds in zip(runs, taken, strict=True):
        if isinstance(seconds, Exception):
            _fail(run.row, seconds)
        else:
            run.row.time_s, run.row.calls = statistics.median(seconds), len(seconds)
    _check([run for run in runs if run.row.status == OK], case, arrays, seed)
    return rows


def _fail(row: Row, error: Exception) -> None:
    row.status = REFUSED if isinstance(error, UnsupportedError) else FAILED
    row.reason = str(error) if row.status == REFUSED else f"{type(error).__name__}: {error}"


class _Run:
    """A row on its way: the call, and what it returned at first."""

    def __init__(self, row: Row, case: Case, arrays: tuple[Array, ...]) -> None:
        self.row, self.case, self.arrays = row, case, arrays
        self.result: Any = None
        self.kernel: registry.Kernel
        self._function = partial(case.function, *arrays, **case.options, backend=row.name)
        self._wait = registry.load(row.backend).synchronize

    def call(self) -> Any:
        """The whole call, as a user makes it, until its work is done."""
        result = self._function()
        self._wait()
        return result

    def start(self) -> None:
        """The first call, timed, and what it did to the compile cache."""
        before = self._compiled_code()
        start = time.perf_counter()
        plan = self.case.plan(self.arrays, self.row.name).plan
        self.result = self.call()
        self.row.first_call_s = time.perf_counter() - start
        after = self._compiled_code()
        self.row.compiled = after != before if after else None
        self.kernel, self.row.kernel = plan.kernel, plan.kernel.name

    def _compiled_code(self) -> set[tuple[Path, int]]:
        """The files of the backend's compile cache, each with the time at which it was written."""
        files = (policy.cache_folder() / self.row.backend).rglob("*")
        return {(file, file.stat().st_mtime_ns) for file in files if file.is_file()}

    def results(self) -> Iterator[Array]:
        """What the first call returned, and what one more returns if it is not slow."""
        yield np.asarray(self.result)
        if self.row.time_s is not None and self.row.time_s < clock.BUDGET_S:
            yield np.asarray(self.call())


def _check(runs: list[_Run], case: Case, arrays: tuple[Array, ...], seed: int) -> None:
    """Put what the runs returned against the float64 reference, on a sample of a large result."""
    if not runs:
        return
    try:
        shape, dtype = case.problem().results[0]
        sampled, chosen = case.sample(arrays, seed)
        report = case.plan(sampled)
        exact = report.problem.reference(report.arrays, report.scalars, "float64")
    except Exception as error:  # no memory, say
        for run in runs:
            _fail(run.row, error)
        return

    @cache
    def bound(multiply: str | None, accumulate: str | None) -> Array:
        bounds = report.problem.error_bound(report.arrays, report.scalars, multiply, accumulate)
        return np.asarray(bounds)

    for run in runs:
        row, kernel = run.row, run.kernel
        row.checked_share = len(chosen) / shape[case.result_cut]
        try:
            most = bound(kernel.multiply, kernel.accumulate)
            for result in run.results():
                if (result.shape, dtypes.names[result.dtype]) != (shape, dtype):
                    found = f"{dtypes.names[result.dtype]} {result.shape}"
                    _wrong(row, f"it returns {found}, not {dtype} {shape}")
                    break
                part = np.take(result, chosen, case.result_cut)
                row.error_share = max(row.error_share or 0.0, _error_share(part, exact, most))
                if row.error_share > 1:
                    _wrong(row, f"its error is {row.error_share:.3g} times what is allowed")
        except Exception as error:  # the others go on
            _fail(row, error)


def _wrong(row: Row, reason: str) -> None:
    row.status, row.reason = WRONG, reason


def _error_share(result: Array, exact: Array, bound: Array) -> float:
    """The largest error over its bound; NaN, and any error where none is allowed, are infinite."""
    with np.errstate(all="ignore"):
        error = np.abs(result.astype("float64") - exact)
        share = np.where(error == 0, 0, error / bound)
    return float(np.max(np.where(np.isnan(share), np.inf, share)))


def rate(rows: list[Row], case: Case, ceilings: Ceilings) -> None:
    """Fill in what follows from the times of a problem's rows and the peaks of the machine."""
    problem = case.problem()
    limit = ceilings.limit(case.dtype, problem.flops, problem.nbytes)
    numpy_s = next((row.time_s for row in rows if row.backend == "numpy"), None)
    for row in rows:
        if row.time_s is None:
            continue
        row.gflop_per_s = problem.flops / row.time_s / 1e9
        row.gbyte_per_s = problem.nbytes / row.time_s / 1e9
        if limit is not None:
            row.bound, row.peak_share = limit[0], limit[1] / row.time_s
        if numpy_s is not None:
            row.times_numpy = numpy_s / row.time_s
