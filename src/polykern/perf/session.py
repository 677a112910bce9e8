"""A whole comparison: the machine, its peaks, and the rows of every problem."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import platform
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

import polykern
from polykern import doctor, registry
from polykern.perf import ceilings
from polykern.perf.cases import Case
from polykern.perf.compare import FIELDS, Row, compare, rate
from polykern.perf.progress import Progress

# What makes thread pools smaller than the machine; worth telling next to a time.
_THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class Candidate(NamedTuple):
    """A backend that was looked for: its status, its version, and how long its import took."""

    name: str
    status: doctor.Status
    version: str
    import_s: float


class Session(NamedTuple):
    """What a comparison found."""

    facts: dict[str, Any]
    candidates: tuple[Candidate, ...]
    peaks: ceilings.Ceilings
    rows: list[Row]
    left_out: tuple[tuple[str, str], ...]  # a problem that was not run, and why


def candidates() -> tuple[Candidate, ...]:
    """Every backend, imported if it can be."""
    found = []
    for name in registry.paths():
        start = time.perf_counter()
        status = doctor.status(name)
        seconds = time.perf_counter() - start
        found.append(Candidate(name, status, doctor.version(name), seconds))
    return tuple(found)


def runnable(cases: Sequence[Case]) -> tuple[list[Case], list[tuple[str, str]]]:
    """The cases that their operators take, and the others, each with the reason."""
    taken, left_out = [], []
    for case in cases:
        try:
            case.problem()
        except (TypeError, ValueError, ImportError) as error:
            left_out.append((str(case), str(error)))
        else:
            taken.append(case)
    return taken, left_out


def run(
    cases: Sequence[Case],
    backends: tuple[str, ...],
    seed: int,
    progress: Progress,
    *,
    found: tuple[Candidate, ...] = (),
    left_out: Sequence[tuple[str, str]] = (),
) -> Session:
    """Measure the peaks before and after the cases, and the cases on the backends.

    Parameters
    ----------
    cases : sequence of Case
        As `runnable` returns them.
    backends : tuple of str
        What to compare, each as ``backend=`` takes it.
    seed : int
        Of the inputs.
    progress : Progress
        Told of each part: there are two more than cases.
    found, left_out
        What `candidates` and `runnable` returned, for the report.

    Returns
    -------
    Session
    """
    facts = _facts(seed)
    progress.begin("peaks of the machine")
    peaks = ceilings.measure()
    grouped = []
    for case in cases:
        progress.begin(str(case))
        grouped.append((case, compare(case, backends, seed)))
    progress.begin("peaks again")
    peaks = ceilings.better(peaks, ceilings.measure())
    progress.end()
    rows = []
    for case, group in grouped:
        rate(group, case, peaks)
        rows += group
    return Session(facts, found, peaks, rows, tuple(left_out))


def _facts(seed: int) -> dict[str, Any]:
    return {
        "polykern": polykern.__version__,
        "date": datetime.now().astimezone().isoformat(" ", "minutes"),
        "seed": seed,
        "cpu": doctor.cpu_model(),
        "cores": doctor.cores(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": doctor.blas(),
        "threads": {name: os.environ[name] for name in _THREAD_SETTINGS if name in os.environ},
    }


def to_json(session: Session) -> str:
    """The session as JSON: what is not known, and an infinite share, is null."""
    backends = {
        one.name: {**one.status._asdict(), "version": one.version, "import_s": one.import_s}
        for one in session.candidates
    }
    content = {
        **session.facts,
        "backends": backends,
        "peaks": session.peaks._asdict(),
        "left_out": [{"case": case, "reason": reason} for case, reason in session.left_out],
        "rows": [_finite(dataclasses.asdict(row)) for row in session.rows],
    }
    return json.dumps(content, indent=2, allow_nan=False)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value == float("inf") else value for name, value in values.items()}


def to_csv(session: Session) -> str:
    """The rows as CSV with a heading; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in session.rows)
    return text.getvalue()
