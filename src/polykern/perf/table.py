"""A comparison for people: who and where, one table, and what its numbers mean; 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from polykern.perf.ceilings import Ceilings
from polykern.perf.compare import FAILED, REFUSED, WRONG, Row
from polykern.perf.session import Session

_WIDTH = 80
_LABEL = 11
_BUSY = 0.5  # of the cores in use by others: what then is measured is the neighbours
_MOST_LINES = 6  # of a reason: a compiler's message can be pages; JSON and CSV have all of it
_PROBLEM = "{:<9} {:<23} {}"


class _Column(NamedTuple):
    """A column of numbers: its heading in two lines, its width, and what a row has in it."""

    top: str
    bottom: str
    width: int
    fill: Callable[[Row], str]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None, digits: int) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f}"


def _flops(row: Row) -> str:
    return "" if row.op == "softmax" else _number(row.gflop_per_s, 1)


def _bytes(row: Row) -> str:
    return _number(row.gbyte_per_s, 1) if row.bound == "memory" or row.op == "softmax" else ""


def _error(row: Row) -> str:
    return "exact" if row.error_share == 0 else _percent(row.error_share, 1)


def _first_call(row: Row) -> str:
    return _number(row.first_call_s, 3) + ("*" if row.compiled else " ")


_COLUMNS = (
    _Column("time", "ms", 9, lambda row: _number(row.time_s and 1e3 * row.time_s, 3)),
    _Column("", "GFLOP/s", 7, _flops),
    _Column("", "GB/s", 5, _bytes),
    _Column("% of", "peak", 5, lambda row: _percent(row.peak_share, 1)),
    _Column("times", "NumPy", 6, lambda row: _number(row.times_numpy, 2)),
    _Column("% of", "bound", 5, _error),
    _Column("first ", "call s ", 8, _first_call),
)


def render(session: Session) -> str:
    """The page that ``polykern compare`` prints.

    Parameters
    ----------
    session : Session

    Returns
    -------
    str
    """
    parts = [*_header(session), "", *table(session.rows), "", *_explanation(session)]
    return "\n".join(parts)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the table: a heading, and for each problem its name and its backends.

    Parameters
    ----------
    rows : sequence of Row
        Those of a problem next to each other.

    Yields
    ------
    str
        Lines of at most 80 columns, unless a name is very long.
    """
    first = max([15, *(len(row.name) for row in rows)]) + 2
    yield _PROBLEM.format("operator", "shape", "dtype").rstrip()
    for top in (True, False):
        heading = (f"{column.top if top else column.bottom:>{column.width}}" for column in _COLUMNS)
        yield " ".join([("" if top else "  backend/kernel").ljust(first), *heading]).rstrip()
    yield "-" * (first + sum(1 + column.width for column in _COLUMNS))
    for (op, shape, dtype), group in groupby(rows, lambda row: (row.op, row.shape, row.dtype)):
        yield _PROBLEM.format(op, shape, dtype)
        for row in group:
            yield from _lines(row, first)


def _lines(row: Row, first: int) -> Iterator[str]:
    name = f"  {row.name}".ljust(first)
    if row.status in (REFUSED, FAILED):
        yield from _wrapped(f"{name} {row.status}: {row.reason}", 4)
        return
    yield " ".join([name, *(f"{column.fill(row):>{column.width}}" for column in _COLUMNS)]).rstrip()
    if row.status == WRONG:
        yield from _wrapped(f"    WRONG: {row.reason}", 6)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=" " * indent, max_lines=_MOST_LINES, placeholder=" ..."
    )


def _labelled(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=label.ljust(_LABEL), subsequent_indent=" " * _LABEL
    )


def _header(session: Session) -> list[str]:
    facts = session.facts
    threads = [f"all {facts['cores']} usable cores"]
    threads += [f"{name}={value}" for name, value in facts["threads"].items()]
    if (facts["load"] or 0) > _BUSY * facts["cores"]:
        threads.append(
            f"but other programs ran (load {facts['load']:.1f} at the start): times and ratios "
            "mislead, most of all those of thread pools that wait for each other, as BLAS does"
        )
    usable = [f"{one.name} {one.version}" for one in session.candidates if one.status.usable]
    missing = [one.name for one in session.candidates if not one.status.usable]
    backends = ", ".join(usable) + (f"; missing: {', '.join(missing)}" if missing else "")
    return [
        f"polykern {facts['polykern']} compare, {facts['date']}, --seed {facts['seed']}",
        *_labelled("machine", f"{facts['cpu']}, {facts['platform']}"),
        *_labelled("threads", ", ".join(threads)),
        *_labelled("python", f"{facts['python']}, NumPy {facts['numpy']} with {facts['blas']}"),
        *_labelled("backends", backends),
        *_labelled("peaks", _peaks(session.peaks)),
        *_labelled("cache", _cache(session.rows)),
    ]


def _peaks(peaks: Ceilings) -> str:
    rates = {dtype: f"{dtype} {rate / 1e9:.0f}" for dtype, rate in peaks.operations.items()}
    integers = f", {rates.pop('int8')} GOP/s" if "int8" in rates else ""
    memory = f"memory {peaks.bandwidth / 1e9:.1f} GB/s"
    return f"{', '.join(rates.values())} GFLOP/s{integers}, {memory}"


def _cache(rows: Sequence[Row]) -> str:
    known = [row.compiled for row in rows if row.compiled is not None]
    if not known:
        return "not used"
    if not any(known):
        return "warm: all compiled code was there"
    return f"cold for {sum(known)} of {len(known)} rows of compiling backends; these have a *"


def _explanation(session: Session) -> list[str]:
    how: dict[str, list[str]] = {}
    for dtype, what in session.peaks.how.items():
        how.setdefault(what, []).append(dtype)
    peaks = "; ".join(f"{' and '.join(names)} by {what}" for what, names in how.items())
    imports = ", ".join(
        f"{one.name} {one.import_s:.1f} s"
        for one in session.candidates
        if one.status.usable and one.import_s > 0.05
    )
    notes = [
        (
            "time",
            "Median of the timed calls, the backends in turn (A B A B) with a pause between them. "
            "From NumPy arrays to NumPy arrays, without out=: each call allocates its result.",
        ),
        (
            "GFLOP/s",
            "1e9 additions and multiplications per second, of integers for int8. GB/s: 1e9 bytes "
            "per second of inputs and result, each counted once; shown where memory limits more.",
        ),
        (
            "% of peak",
            "Of the memory bandwidth where GB/s is shown, else of the compute peak of the dtype; "
            "float16 and bfloat16 are computed in float32. Above 100: the data stayed in caches.",
        ),
        (
            "peaks",
            f"Measured before and after the table, the best counts: {peaks}; memory by a copy of "
            f"128 MiB, bytes read and written, {session.peaks.threads} threads.",
        ),
        ("times NumPy", "How many times as fast as the numpy backend, on the same arrays."),
        (
            "% of bound",
            "The largest error against a float64 reference, of what rounding in this arithmetic "
            "may cost these inputs. Above 100 a row is WRONG; exact is no error at all: integers, "
            "and numpy in float64, which is that reference. Near 100 is usual for float16 and "
            "bfloat16: the one rounding of the result. Of large results a random part is checked.",
        ),
        (
            "first call",
            "The first call with this problem: load or compile (*) its code, and run."
            + (f" Importing came before, once: {imports}." if imports else ""),
        ),
    ]
    lines = [line for label, text in notes for line in _note(label, text)]
    for case, reason in session.left_out:
        lines += _note("left out", f"{case}: {reason}")
    missing = [one for one in session.candidates if not one.status.usable]
    for one in missing:
        cure = f": {one.status.install}" if one.status.install else f": {one.status.why}"
        lines += _note("missing", f"{one.name}{cure}")
    return lines


def _note(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{label:<13}", subsequent_indent=" " * 13)
