"""Many threads, forked children, repeated runs: the same right bits, and nothing compiled twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import polykern
from polykern import ops, testing

SECONDS = os.environ.get("POLYKERN_STRESS_SECONDS", "3")
USABLE = [name for name, it in polykern.backends().items() if it.usable]

Array = np.ndarray[Any, Any]

# One call of each operator that the backend has, large enough to be shared among threads.
CALLS = """
import os, signal, sys, threading, time
import numpy as np
import polykern
from polykern import ops, registry

backend = sys.argv[1]
operators = sorted({kernel.op for kernel in registry.load(backend).kernels})


class Call:
    def __init__(self, op, seed, planned_on=backend):
        rng = np.random.default_rng(seed)
        normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)
        n = 64 + seed
        self.operator = getattr(ops, op)
        self.args = {
            "gemm": lambda: (normal(200, n), normal(n, 210)),
            "conv2d": lambda: (normal(2, 16, n // 2, 30), normal(16, 16, 3, 3)),
            "softmax": lambda: (normal(4 * n, 500),),
            "attention": lambda: (normal(1, 4, n, 32), normal(1, 2, n, 32), normal(1, 2, n, 32)),
        }[op]()
        report = polykern.plan(self.operator, *self.args, backend=planned_on)
        kernel = report.plan.kernel
        self.exact = report.problem.reference(report.arrays, report.scalars, "float64")
        self.bound = report.problem.error_bound(
            report.arrays, report.scalars, kernel.multiply, kernel.accumulate
        )
        self.bits = None

    def is_right(self):
        result = self.operator(*self.args, backend=backend)
        bits, self.bits = self.bits, result.tobytes()
        return np.all(np.abs(result - self.exact) <= self.bound) and bits in (None, self.bits)
"""

STRESS = """
seconds = float(sys.argv[2])
start = threading.Barrier(16)
made, wrong = [], []


def work(seed):
    calls = [Call(op, seed) for op in operators]
    start.wait()
    end = time.monotonic() + seconds
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        wrong.extend((seed, call.operator.__name__) for call in calls if not call.is_right())
        rounds += 1
    made.append(rounds * len(calls))


threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(made), sum(made), wrong)
"""

FORK = """
calls = [Call(op, 3) for op in operators]
assert all([call.is_right() for call in calls])
busy = sys.argv[2] == "busy"
stop = False


def keep_calling(own):
    while not stop:
        assert all([call.is_right() for call in own])


others = [[Call(op, seed) for op in operators] for seed in range(3 * busy)]
threads = [threading.Thread(target=keep_calling, args=(own,)) for own in others]
for thread in threads:
    thread.start()
ends = []
for _ in range(8):
    time.sleep(0.05 * busy)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        right = all([call.is_right() for call in calls])
        names = [thread.name for thread in threading.enumerate()]
        helped = backend != "numba" or any("numba" in name for name in names)
        os._exit(0 if right and helped else 1)
    ends.append(os.waitpid(child, 0)[1])
stop = True
for thread in threads:
    thread.join()
assert all([call.is_right() for call in calls])
print(ends)
"""


def python(code: str, *arguments: str, seconds: float = 240) -> str:
    """What the code prints, in an interpreter of its own: an abort there fails one test here.

    OpenBLAS has one thread: its own pool does not survive a fork while it works.
    """
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stderr[-3000:]}"
    return result.stdout


@pytest.mark.parametrize("backend", USABLE)
def test_sixteen_threads_at_once(backend: str) -> None:
    """A work-queue layer of Numba aborts the process here."""
    out = python(CALLS + STRESS, backend, SECONDS, seconds=240 + 3 * float(SECONDS))
    threads, made, wrong = out.split(maxsplit=2)
    print(f"{made} calls")
    assert (threads, wrong) == ("16", "[]\n")
    assert int(made) >= 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here")
@pytest.mark.parametrize("parent", ["idle", "busy"])
@pytest.mark.parametrize("backend", USABLE)
def test_forked_child_computes(backend: str, parent: str) -> None:
    """With threads of its own: those of the parent's pool do not exist in it."""
    assert python(CALLS + FORK, backend, parent) == f"{[0] * 8}\n"


RACE = """
from concurrent.futures import ThreadPoolExecutor
calls = [Call(op, seed, "numpy") for op in operators for seed in range(2)]
barrier = threading.Barrier(len(calls))


def first(call):
    barrier.wait()
    return call.is_right()


with ThreadPoolExecutor(len(calls)) as pool:
    print(all(pool.map(first, calls)))
"""


@pytest.mark.parametrize("backend", USABLE)
def test_first_calls_may_come_together(backend: str) -> None:
    assert python(CALLS + RACE, backend) == "True\n"


@pytest.mark.parametrize("op", ["gemm", "conv2d", "softmax", "attention"])
@pytest.mark.parametrize("backend", USABLE)
def test_two_runs_give_the_same_bits(backend: str, op: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 16, 70, 80)).astype("f4")
    args = {"conv2d": (x, x[:, :, :3, :3]), "gemm": (x, x[0, 0].T), "softmax": (x,)}
    q, k = x[:, :4], x[:, 4:8]
    given = args.get(op, (q, k, k))
    try:
        with polykern.use(backend=backend, deterministic=True):
            found = {getattr(ops, op)(*given).tobytes() for _ in range(10)}
    except polykern.errors.UnsupportedError as refusal:
        pytest.skip(str(refusal))
    assert len(found) == 1


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that Numba compiles, or loads from its disk cache, from now on."""
    dispatcher = pytest.importorskip("numba.core.dispatcher", reason="Numba is not installed")
    compile_one = dispatcher.Dispatcher.compile
    found: list[str] = []

    def counted(self: Any, signature: Any) -> Any:
        found.append(self.py_func.__name__)
        return compile_one(self, signature)

    monkeypatch.setattr(dispatcher.Dispatcher, "compile", counted)
    return found


def shapes(op: str, dtype: str) -> Iterator[tuple[Array, ...]]:
    """Arguments of one kind: ever new shapes and layouts, small and large."""
    rng = np.random.default_rng(0)

    def some(*shape: int) -> Array:
        layout = rng.choice([np.asarray, np.asfortranarray, testing.layout.reversed_axes])
        return layout((rng.standard_normal(shape) * 9).astype(dtype))

    for n in (5, 1, 2, 17, 64, 100, 257):
        for m in (3, 1, 40):
            if op == "gemm":
                yield some(n, m), some(m, n + 1)
                yield some(2, n, m), some(m, 3)
            elif op == "conv2d":
                yield some(2, m, 3 + n // 4, 9), some(n % 7 + 1, m, 3, 2)
            elif op == "softmax":
                yield (some(n, m),)
                yield (some(m, n, 3),)
            else:
                yield some(1, 2, n, 8), some(1, 2, m, 8), some(1, 2, m, 8)
                yield some(2, 4, m, n), some(2, 2, 5, n), some(2, 2, 5, 16)


@pytest.mark.parametrize(
    "op, dtype",
    [
        *[("gemm", "f4"), ("gemm", "f8"), ("gemm", "i1"), ("conv2d", "f4"), ("conv2d", "i1")],
        *[("softmax", "f4"), ("softmax", "f8"), ("attention", "f4"), ("attention", "f8")],
    ],
)
def test_a_new_shape_never_compiles(compilations: list[str], op: str, dtype: str) -> None:
    """A length that changes at every call of a server must cost nothing."""
    names = {kernel.name for kernel in testing.kernels("numba").values() if kernel.op == op}
    if not names:
        pytest.skip(f"numba has no {op} kernel")
    for name in sorted(names):
        calls = iter(shapes(op, dtype))
        made = 0
        for args in calls:
            try:
                getattr(ops, op)(*args, backend=f"numba/{name}")
            except polykern.errors.UnsupportedError:
                continue
            if made == 0:
                compilations.clear()
            made += 1
        assert compilations == [], f"numba/{name}"


def test_a_compilation_is_counted(compilations: list[str]) -> None:
    numba = pytest.importorskip("numba")

    def twice(x: Any) -> Any:
        return 2 * x

    lazy: Callable[..., Any] = numba.njit(twice)
    assert (lazy(1), lazy(2), lazy(1.5)) == (2, 4, 3)
    assert compilations == ["twice", "twice"]
