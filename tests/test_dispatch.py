"""The road of a call: who chooses the backend, what is kept, what is told before it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import polykern
from polykern import dispatch, ops, policy, registry
from polykern.backend import numpy as reference
from polykern.registry import Backend, Kernel

SQUARE = np.random.default_rng(0).standard_normal((5, 5)).astype("f4")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("POLYKERN_BACKEND", raising=False)
    dispatch.plan.cache_clear()
    yield
    dispatch.plan.cache_clear()


@pytest.fixture
def two(plug_in: Callable[..., None]) -> None:
    """Two backends that can do everything."""
    operators = ("gemm", "conv2d", "softmax", "attention")
    for name in ("one", "two"):
        kernels = [Kernel(op, "all", lambda problem: None, reference.build) for op in operators]
        plug_in(name, *kernels)


def chosen(**kwargs: Any) -> str:
    return polykern.plan(ops.softmax, SQUARE, **kwargs).plan.backend


@pytest.mark.usefixtures("two")
def test_argument_goes_before_use_before_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYKERN_BACKEND", "one")
    assert chosen() == "one"
    with polykern.use(backend="two"):
        assert chosen() == "two"
        assert chosen(backend="numpy") == "numpy"
        with polykern.use(backend="numpy/reference"):
            assert chosen() == "numpy"
        with polykern.use(precision="high"):
            assert chosen() == "two"
        assert chosen() == "two"
    assert chosen() == "one"
    assert chosen(backend="auto") in ("numpy", "numba")


@pytest.mark.usefixtures("two")
def test_use_is_undone_by_an_error_and_works_as_a_decorator() -> None:
    with pytest.raises(ZeroDivisionError), polykern.use(backend="one"):
        raise ZeroDivisionError
    assert chosen() != "one"
    assert polykern.use(backend="two")(chosen)() == "two"
    assert chosen() != "two"


@pytest.mark.usefixtures("two")
def test_use_belongs_to_a_thread_and_to_a_task() -> None:
    seen = []
    with polykern.use(backend="one"):
        thread = threading.Thread(target=lambda: seen.append(chosen()))
        thread.start()
        thread.join()
    assert seen != ["one"]

    async def task(name: str) -> str:
        with polykern.use(backend=name):
            await asyncio.sleep(0)
            return chosen()

    async def both() -> list[str]:
        return await asyncio.gather(task("one"), task("two"))

    assert asyncio.run(both()) == ["one", "two"]


def test_an_equal_problem_finds_its_plan() -> None:
    first = polykern.plan(ops.softmax, SQUARE, backend="numpy").plan
    again = polykern.plan(ops.softmax, 2 * SQUARE, backend="numpy").plan
    assert first is again
    assert dispatch.plan.cache_info()[:2] == (1, 1)


def test_scalars_make_no_new_plan() -> None:
    """Or each new number would be planned afresh, in a server for ever."""
    for alpha in np.linspace(0.5, 2, 20):
        ops.gemm(SQUARE, SQUARE, SQUARE, alpha=alpha, beta=alpha, backend="numpy")
        ops.attention(*[SQUARE[None]] * 3, scale=alpha, softcap=alpha, backend="numpy")
    assert dispatch.plan.cache_info().currsize == 2
    ops.gemm(SQUARE, SQUARE, SQUARE, beta=0, backend="numpy")
    assert dispatch.plan.cache_info().currsize == 3


def test_lengths_and_offsets_make_no_new_plan() -> None:
    """A cache that grows is the same problem at every step."""
    q, k = np.ones((1, 1, 2, 4), "f4"), np.ones((1, 1, 9, 4), "f4")
    for past in range(6):
        ops.attention(
            q,
            k,
            k,
            kv_lengths=np.array([past + 2]),
            is_causal=True,
            causal_alignment=np.array([past]),
            backend="numpy",
        )
    assert dispatch.plan.cache_info().currsize == 1


def test_equal_tuples_of_two_operators_are_two_plans() -> None:
    """Named tuples of equal fields are equal; the cache must see their types."""
    gemm = polykern.plan(ops.gemm, SQUARE, SQUARE, backend="numpy")
    other = type("Other", (type(gemm.problem),), {"check": lambda self: None})(*gemm.problem)
    assert other == gemm.problem
    assert hash(other) == hash(gemm.problem)
    dispatch.plan(other, "numpy", False)
    assert dispatch.plan.cache_info()[1:] == (2, 4096, 2)


def test_a_plan_that_failed_is_not_kept() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="do not chain"):
            ops.gemm(SQUARE, SQUARE[:3], backend="numpy")
    assert dispatch.plan.cache_info().currsize == 0


def test_report_launches_nothing(plug_in: Callable[..., None]) -> None:
    def build(problem: Any) -> Any:
        def launch(*_: Any) -> Any:
            raise AssertionError("launched")

        return launch

    plug_in("one", Kernel("softmax", "never", lambda problem: None, build))
    out = SQUARE.copy()
    report = polykern.plan(ops.softmax, SQUARE, out=out, backend="one")
    assert report.plan.kernel.name == "never"
    assert np.array_equal(out, SQUARE)


def test_report_says_what_runs_why_and_what_is_copied(plug_in: Callable[..., None]) -> None:
    kernels = [Kernel("gemm", "fast", lambda p: "K = 5 is odd", reference.build)]
    kernels += [Kernel("gemm", "plain", lambda p: None, reference.build)]
    plug_in("one", *kernels)
    a = SQUARE.astype(">f4")
    report = polykern.plan(ops.gemm, a, SQUARE, alpha=3, backend="one")
    assert str(report) == repr(report)
    assert str(report).splitlines() == [
        "gemm 5x5x5 float32 -> float32",
        "  runs     one/plain on arrays in cpu memory: 'one' was asked for",
        "  work     250 FLOP, at least 300 bytes moved, 0.8 FLOP per byte",
        "  refused  one/fast: K = 5 is odd",
        "  copies   a: 100 bytes (byte order)",
    ]
    assert report.copies == (("a", 100, "byte order"),)
    assert report.scalars == (3.0, 1.0)
    assert report.arrays[0].dtype.isnative
    assert report.arrays[1] is SQUARE
    assert str(polykern.plan(ops.softmax, SQUARE, backend="numpy")).endswith("copies   none")


def test_reports_of_the_other_operators() -> None:
    x, w = np.ones((1, 4, 6, 6), "f4"), np.ones((2, 2, 3, 3), "f4")
    heads = [
        str(polykern.plan(operator, *args, **kwargs, backend="numpy")).splitlines()[0]
        for operator, args, kwargs in (
            (ops.gemm, (np.ones((2, 3, 4), "i1"), np.ones((4, 5), "u1")), {}),
            (ops.conv2d, (x, w), {"groups": 2, "stride": 2}),
            (ops.softmax, (x, (1, 2)), {"log": True, "out_dtype": "f8"}),
            (ops.softmax, (np.array(1.0),), {}),
            (ops.attention, (x, x[:, :2], x[:, :2, :, :3]), {"window": (3, None)}),
            (ops.attention, (x, x, x), {"is_causal": True, "mask": x[0, 0] > 0}),
        )
    ]
    assert heads == [
        "gemm 2x3x5x4 int8*uint8 -> int32",
        "conv2d 1x4x6x6 with 2 filters 3x3, stride 2x2, 2 groups, NCHW float32 -> float32",
        "softmax 1x4x6x6 log-softmax along (1, 2) float32 -> float64",
        "softmax scalar softmax along () float64 -> float64",
        "attention 1 batch x 4/2 heads, 6 queries x 6 keys, head size 6/3, window (3, None), "
        "BHSD float32 -> float32",
        "attention 1 batch x 4 heads, 6 queries x 6 keys, head size 6, window (None, 0), "
        "bool mask, BHSD float32 -> float32",
    ]


def test_trace_gets_each_report_before_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[dispatch.Report] = []
    with polykern.use(trace=seen.append, backend="numpy"):
        ops.softmax(SQUARE)
        with polykern.use(trace=False):
            ops.softmax(SQUARE)
        ops.gemm(SQUARE, SQUARE)
    ops.softmax(SQUARE, backend="numpy")
    assert [report.problem.op for report in seen] == ["softmax", "gemm"]
    assert capsys.readouterr().err == ""
    with polykern.use(trace=True, backend="numpy"):
        ops.softmax(SQUARE)
    assert capsys.readouterr().err == f"{seen[0]}\n"


def test_deterministic_refuses_kernels_that_vary(plug_in: Callable[..., None]) -> None:
    kernels = [
        Kernel("softmax", "quick", lambda p: None, reference.build, deterministic=False),
        Kernel("softmax", "steady", lambda p: None, reference.build),
    ]
    plug_in("one", *kernels)
    assert polykern.plan(ops.softmax, SQUARE, backend="one").plan.kernel.name == "quick"
    with polykern.use(deterministic=True):
        assert polykern.plan(ops.softmax, SQUARE, backend="one").plan.kernel.name == "steady"
        with polykern.use(deterministic=False):
            assert polykern.plan(ops.softmax, SQUARE, backend="one").plan.kernel.name == "quick"


def test_precision_of_a_call_goes_before_that_of_use() -> None:
    with polykern.use(precision="medium"):
        assert polykern.plan(ops.gemm, SQUARE, SQUARE).problem.precision == "medium"
        high = polykern.plan(ops.gemm, SQUARE, SQUARE, precision="high")
        assert high.problem.precision == "high"
    assert polykern.plan(ops.gemm, SQUARE, SQUARE).problem.precision == "highest"


def test_home_passes_over_backends_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is not installed, one has no kernel; the next one runs, and if none can, all is told."""
    empty = Backend("empty", (), np.asarray, lambda: None)
    load = registry.load

    def pretend(name: str) -> Backend:
        if name == "missing":
            raise polykern.errors.BackendUnavailableError("missing is not installed")
        return empty if name == "empty" else load(name)

    monkeypatch.setattr(registry, "load", pretend)
    monkeypatch.setattr(policy, "at_home", lambda problem: ("missing", "empty", "numpy"))
    report = polykern.plan(ops.softmax, SQUARE)
    assert report.plan.backend == "numpy"
    assert report.plan.why == "the best for softmax of those usable where the arrays are"
    monkeypatch.setattr(policy, "at_home", lambda problem: ("missing", "empty"))
    with pytest.raises(NotImplementedError) as caught:
        ops.softmax(SQUARE[:2])
    assert str(caught.value) == "missing is not installed\nempty has no softmax kernel"


def test_work_is_counted() -> None:
    x = np.ones((1, 2, 6, 6), "f4")
    for report, flops, nbytes in (
        (polykern.plan(ops.gemm, np.ones((2, 3, 4)), np.ones((4, 5))), 240, 8 * (24 + 20 + 30)),
        (polykern.plan(ops.gemm, SQUARE, SQUARE, SQUARE), 250, 400),
        (polykern.plan(ops.gemm, SQUARE, SQUARE, SQUARE, beta=0), 250, 300),
        (polykern.plan(ops.conv2d, x, x[:, :, :3, :3]), 2 * 16 * 18, 4 * (72 + 18 + 16)),
        (polykern.plan(ops.softmax, SQUARE, where=SQUARE > 0), 125, 225),
        (polykern.plan(ops.attention, x, x, x), 2 * 2 * 36 * 12, 4 * 4 * 72),
        (polykern.plan(ops.attention, x, x, x, is_causal=True), 2 * 2 * 21 * 12, 4 * 4 * 72),
        (polykern.plan(ops.attention, x, x, x, window=(1, 0)), 2 * 2 * 11 * 12, 4 * 4 * 72),
    ):
        assert (report.problem.flops, report.problem.nbytes) == (flops, nbytes)
