"""A backend of another package: a real distribution in a folder, seen by a fresh interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import polykern

SOURCE = str(Path(polykern.__file__).parents[1])

# All that a third party needs: kernels made from a Problem, and the object that lists them.
RIGHT = """
import numpy as np
from polykern.registry import Backend, Kernel

OPERATORS = ("gemm", "conv2d", "softmax", "attention")


def build(problem):
    kinds = [shape_and_dtype[1] for shape_and_dtype in problem.results]

    def stored(result, dtype, out):
        if out is None:
            out = np.empty(result.shape, np.dtype(dtype))
        out[...] = result
        return out

    def launch(arrays, scalars, out):
        with np.errstate(all="ignore"):
            result = problem.reference(arrays, scalars)
            if len(kinds) == 1:
                return stored(result, kinds[0], out)
            return tuple(map(stored, result, kinds, out or (None, None)))

    return launch


BACKEND = Backend(
    name="abacus",
    kernels=tuple(Kernel(op, "beads", lambda problem: None, build) for op in OPERATORS),
    asarray=np.asarray,
    synchronize=lambda: None,
)
"""

# The same with a usual mistake in each operator.
WRONG = '''
import numpy as np
from polykern.registry import Backend, Kernel

import abacus


def gemm(problem, arrays, scalars):
    """Off by a hundred times the bound."""
    error = 100 * problem.error_bound(arrays, scalars)
    return problem.reference(arrays, scalars) + error.astype("f4")


def conv2d(problem, arrays, scalars):
    """A convolution, not a cross-correlation."""
    x, w, bias = arrays
    rows, columns = (-2, -1) if problem.layout == "NCHW" else (1, 2)
    return problem.reference((x, np.flip(w, (rows, columns)), bias), scalars)


def softmax(problem, arrays, scalars):
    """Without the maximum subtracted."""
    x, where = arrays
    total = np.exp(x.astype(problem.accumulate))
    if where is not None:
        total = np.where(where, total, 0)
    result = total / total.sum(problem.axes, keepdims=True)
    return np.log(result) if problem.log else result


def attention(problem, arrays, scalars):
    """Blind to the mask."""
    q, k, v, _, *lengths = arrays
    return problem._replace(mask=None).reference((q, k, v, None, *lengths), scalars)


def build(problem):
    right = abacus.build(problem)

    def launch(arrays, scalars, out):
        with np.errstate(all="ignore"):
            result = globals()[problem.op](problem, arrays, scalars)
        like = right(arrays, scalars, out)
        for stored, value in zip(*[x if isinstance(x, tuple) else (x,) for x in (like, result)]):
            with np.errstate(all="ignore"):
                stored[...] = value
        return like

    return launch


BACKEND = Backend(
    name="wrong",
    kernels=tuple(Kernel(op, "mistaken", lambda p: None, build) for op in abacus.OPERATORS),
    asarray=np.asarray,
    synchronize=lambda: None,
)
'''

SUITE = """
import polykern.testing

test_it = polykern.testing.conformance({!r})
"""

Distribution = Callable[..., Path]


@pytest.fixture
def distribution(tmp_path: Path) -> Distribution:
    """Writes modules and a dist-info with entry points, as an installer would."""

    def write(name: str, entries: dict[str, str], **modules: str) -> Path:
        folder = tmp_path / "site"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        lines = [f"{entry} = {value}" for entry, value in entries.items()]
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("\n".join(["[polykern.backends]", *lines]))
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
        return folder

    return write


def python(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), SOURCE])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def say(code: str, folder: Path, **environment: str) -> list[str]:
    """What the code prints; it must end well and warn of nothing."""
    code = f"import numpy as np, polykern\nfrom polykern import ops\n{code}"
    result = python("-W", "error", "-c", code, folder=folder, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def outcomes(folder: Path, backend: str) -> dict[str, Counter[str]]:
    """How the kit's tests end for a backend, by operator."""
    suite = folder / "test_suite.py"
    suite.write_text(SUITE.format(backend))
    arguments = ("-m", "pytest", "-q", "-rA", "--tb=line", "-p", "no:cacheprovider", suite.name)
    result = python(*arguments, folder=folder)
    found: dict[str, Counter[str]] = {}
    for outcome, op in re.findall(r"^(PASSED|FAILED|ERROR) \S*\[(\w+):", result.stdout, re.M):
        found.setdefault(op, Counter())[outcome] += 1
    assert found, result.stdout[-2000:] + result.stderr
    return found


def test_plug_in_is_found_and_runs_by_name(distribution: Distribution) -> None:
    folder = distribution("abacus", {"Abacus_1": "abacus:BACKEND"}, abacus=RIGHT)
    code = """
a = np.eye(3, dtype=np.float32)
print(polykern.backends()["abacus-1"])
print(polykern.plan(ops.gemm, a, a, backend="abacus_1/beads").plan.kernel.name)
print(ops.gemm(a, 2 * a, backend="ABACUS-1").sum(), ops.softmax(a, backend="abacus-1").sum())
"""
    assert say(code, folder) == [
        "Status(usable=True, why='', install='')",
        "beads",
        "6.0 3.0",
    ]
    code = "print(polykern.plan(ops.softmax, np.ones(3)).plan.backend)"
    assert say(code, folder, POLYKERN_BACKEND="abacus_1") == ["abacus-1"]


def test_right_plug_in_passes_the_kit(distribution: Distribution) -> None:
    folder = distribution("abacus", {"abacus": "abacus:BACKEND"}, abacus=RIGHT)
    found = outcomes(folder, "abacus")
    assert {op: set(count) for op, count in found.items()} == {
        op: {"PASSED"} for op in ("gemm", "conv2d", "softmax", "attention")
    }
    assert sum(count.total() for count in found.values()) > 1000


def test_wrong_plug_in_fails_the_kit_in_every_operator(distribution: Distribution) -> None:
    entries = {"wrong": "wrong"}  # without an attribute it is BACKEND
    folder = distribution("wrong", entries, abacus=RIGHT, wrong=WRONG)
    found = outcomes(folder, "wrong/mistaken")
    failed = {op: count["FAILED"] for op, count in found.items()}
    assert set(failed) == {"gemm", "conv2d", "softmax", "attention"}
    assert min(failed.values()) >= 10, failed


@pytest.mark.parametrize(
    "module, why",
    [
        (
            "import no_such_library",
            "cannot be imported (ModuleNotFoundError: No module named 'no_such_library')",
        ),
        ("raise RuntimeError('no driver')", "cannot be imported (RuntimeError: no driver)"),
        (
            "OTHER = 1",
            "cannot be imported (AttributeError: module 'broken' has no attribute 'BACKEND')",
        ),
        ("BACKEND = 1", "is not a polykern.registry.Backend but a int"),
    ],
)
def test_broken_plug_in_is_reported_and_skipped(
    distribution: Distribution, module: str, why: str
) -> None:
    folder = distribution("broken", {"broken": "broken"}, broken=module)
    code = """
print(polykern.backends()["broken"].why)
print(polykern.backends()["broken"].usable, polykern.backends()["numpy"].usable)
print(ops.gemm(np.eye(2), np.eye(2)).sum())
try:
    ops.gemm(np.eye(2), np.eye(2), backend="broken")
except ImportError as error:
    print(error)
"""
    told, usable, result, error = say(code, folder)
    assert told == error == f"backend 'broken' {why}; it comes from broken"
    assert (usable, result) == ("False True", "2.0")


def test_plug_in_that_takes_a_name_is_ignored_with_a_warning(distribution: Distribution) -> None:
    folder = distribution("abacus", {"numpy": "abacus:BACKEND"}, abacus=RIGHT)
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = polykern.backends()
print(*[warning.message for warning in caught], sep="|")
print(*found)
print(polykern.plan(ops.gemm, np.eye(2), np.eye(2), backend="numpy").plan.kernel.name)
"""
    warning, names, kernel = say(code, folder)
    assert warning == (
        "backend 'numpy' of abacus:BACKEND ignored: polykern.backend.numpy has that name"
    )
    assert names == " ".join(name for name in polykern.backends() if name != "abacus")
    assert kernel == "reference"


def test_installing_one_changes_no_existing_call(
    distribution: Distribution, tmp_path: Path
) -> None:
    """Neither what runs nor the bits of the result; the plug-in is not even imported."""
    code = """
import sys
rng = np.random.default_rng(0)
x = rng.standard_normal((4, 3, 8, 8)).astype(np.float32)
a = x.reshape(4, 24, 8)
calls = [
    (ops.gemm, a, a[0].T),
    (ops.gemm, (a * 9).astype(np.int8), np.ones((8, 3), np.int8)),
    (ops.conv2d, x, x[:, :, :3, :3]),
    (ops.softmax, a),
    (ops.attention, x, x, x),
]
for operator, *args in calls:
    found = polykern.plan(operator, *args, backend="auto").plan
    print(found.backend, found.kernel.name, polykern.plan(operator, *args).plan.why)
    print(operator(*args).tobytes().hex())
print("abacus" in sys.modules)
"""
    empty = tmp_path / "empty"
    empty.mkdir()
    before = say(code, empty)
    folder = distribution("abacus", {"abacus": "abacus:BACKEND"}, abacus=RIGHT)
    assert say(code, folder) == before
    assert before[-1] == "False"
