"""The conformance kit put to every kernel that ships, and to wrong ones that it must find."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polykern.backend
from polykern import dispatch, dtypes, ops, registry, testing
from polykern.backend import numpy as reference
from polykern.errors import BackendUnavailableError, UnsupportedError
from polykern.registry import Kernel

Array = np.ndarray[Any, Any]

SHIPPED = tuple(name for name, path in registry.paths().items() if path.startswith("polykern."))

for _name in SHIPPED:  # one test function for each backend: test_numpy, test_numba, ...
    globals()[f"test_{_name.replace('-', '_')}"] = testing.conformance(_name)


def shipped_kernels() -> dict[str, Kernel]:
    found = {}
    for name in SHIPPED:
        try:
            found |= {f"{name} {label}": one for label, one in testing.kernels(name).items()}
        except BackendUnavailableError:
            continue
    return found


def test_no_kernel_is_missed() -> None:
    """Each KERNEL of a backend's folder is in its BACKEND."""
    defined = []
    for name in SHIPPED:
        try:
            registry.load(name)
        except BackendUnavailableError:
            continue
        package = importlib.import_module(registry.paths()[name])
        paths = getattr(package, "__path__", [])
        for found in pkgutil.iter_modules(paths, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            defined += [one for one in vars(module).values() if isinstance(one, Kernel)]
    registered = list(shipped_kernels().values())
    assert [one for one in defined if one not in registered] == []


def test_each_folder_of_a_backend_is_registered() -> None:
    found = {
        f"polykern.backend.{one.name}" for one in pkgutil.iter_modules(polykern.backend.__path__)
    }
    assert found == {registry.paths()[name] for name in SHIPPED}


def test_a_name_pins_one_kernel() -> None:
    for name in SHIPPED:
        try:
            backend = registry.load(name)
        except BackendUnavailableError:
            continue
        names = Counter((one.op, one.name) for one in backend.kernels)
        assert max(names.values()) == 1
        assert backend.name == name


@pytest.mark.parametrize("kernel", shipped_kernels())
def test_refusals_are_reasons(kernel: str) -> None:
    """None, or a sentence; for each case."""
    one = shipped_kernels()[kernel]
    for case in testing.cases(one.op):
        args, kwargs = case.arguments()
        problem = polykern.plan(getattr(ops, one.op), *args, **kwargs, backend="numpy").problem
        reason = one.refuses(problem)
        assert reason is None or (isinstance(reason, str) and reason)


def test_ids_are_unique() -> None:
    assert [name for name, count in Counter(map(str, testing.cases())).items() if count > 1] == []


def test_cases_are_the_same_each_time() -> None:
    for case in testing.cases("softmax")[:20]:
        (first,), (second,) = case.arguments()[0], case.arguments()[0]
        assert first is not second
        assert first.tobytes() == second.tobytes()


def test_cases_cover_the_dtypes_of_the_contract() -> None:
    seen: dict[str, set[str]] = {}
    for case in testing.cases():
        args, kwargs = case.arguments()
        problem = polykern.plan(getattr(ops, case.op), *args, **kwargs, backend="numpy").problem
        seen.setdefault(case.op, set()).update(dtypes.names[x.dtype] for x in args)
        seen[case.op].update(dtype for _, dtype in problem.results)
    floats = set(dtypes.FLOATS)
    assert seen["gemm"] >= {*floats, *dtypes.FLOAT8, *dtypes.INT8, "int32"}
    assert seen["conv2d"] >= {*floats, *dtypes.INT8, "int32"}
    assert seen["softmax"] == seen["attention"] == floats


def right(problem: Any, arrays: Any, scalars: Any) -> Any:
    return reference.build(problem)(arrays, scalars, None)


def wrong(op: str, change: Callable[..., Any], **traits: Any) -> Kernel:
    """The reference, but what it returns went through ``change(result, problem, arrays, out)``."""

    def build(problem: Any) -> Any:
        def launch(arrays: Any, scalars: Any, out: Any) -> Any:
            return change(right(problem, arrays, scalars), problem, arrays, out)

        return launch

    return Kernel(op, "wrong", lambda problem: None, build, **traits)


def store(result: Any, out: Any) -> Any:
    if out is None:
        return result
    out[...] = result
    return out


def off_by_little(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    """One element is off by twice the bound."""
    error = problem.error_bound(arrays, (1.0, 1.0)[: len(arrays) // 3])
    result[-1, -1] += 2.5 * error[-1, -1]
    return store(result, out)


def nan_appears(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    result[0, 0] = np.nan
    return store(result, out)


def infinity_appears(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    result[0, 1] = np.inf
    return store(result, out)


def wider(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    return store(result.astype("f8"), out)


def flat(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    return store(result, out) if out is not None else result.reshape(-1)


def two(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    return (result, result)


def listed(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    return result.view(np.recarray)


def scribbled(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    arrays[0][0, 0] += 1
    return store(result, out)


def out_ignored(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    return result


def out_differs(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    return store(result, out) if out is None else store(np.nextafter(result, 2), out)


def beside_out(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    if out is not None and out.strides[-1] != out.itemsize:
        everything = out
        while everything.base is not None:
            everything = everything.base
        everything[...] = 0
    return store(result, out)


def integer_wrong(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
    result[1, 1] += 1
    return store(result, out)


SQUARE = np.random.default_rng(0).standard_normal((5, 5)).astype("f4")
WHOLE = np.arange(-12, 13, dtype="i1").reshape(5, 5)

FOUND = {
    nan_appears: "NaN at 1 places, not 0",
    infinity_appears: "inf at 1 places, not 0",
    wider: "the dtype is float64, not float32",
    flat: "the shape is (25,), not (5, 5)",
    two: "there are 2 results",
    listed: "the result is a recarray",
    scribbled: "an input is changed",
    out_ignored: "out has other bits than the result",
    out_differs: "out has other bits than the result",
    beside_out: "memory beside out is written",
}


@pytest.mark.parametrize("change", FOUND)
def test_wrong_kernel_is_found(change: Callable[..., Any], plug_in: Callable[..., None]) -> None:
    plug_in("foreign", wrong("softmax", change))
    case = testing.Case("softmax", "square", lambda rng: ((SQUARE.copy(),), {}))
    with pytest.raises(AssertionError) as caught:
        testing.check(case, "foreign")
    assert str(caught.value) == f"softmax-square: {FOUND[change]}"


def test_result_that_is_an_input_is_found(plug_in: Callable[..., None]) -> None:
    """Even where it holds the right numbers."""
    plug_in("foreign", wrong("softmax", lambda result, problem, arrays, out: arrays[0]))
    case = testing.Case("softmax", "column", lambda rng: ((np.ones((5, 1), "f4"),), {}))
    with pytest.raises(AssertionError) as caught:
        testing.check(case, "foreign")
    assert str(caught.value) == "softmax-column: the result shares memory with an input"


@pytest.mark.parametrize("op", ["softmax", "gemm"])
def test_small_error_is_found(op: str, plug_in: Callable[..., None]) -> None:
    plug_in("foreign", wrong(op, off_by_little))
    case = testing.Case(op, "square", lambda rng: ((SQUARE.copy(),) * (1 + (op == "gemm")), {}))
    with pytest.raises(
        AssertionError, match=rf"{op}-square: 1 of 25 values are wrong; at \(4, 4\)"
    ):
        testing.check(case, "foreign")


def test_wrong_integer_is_found(plug_in: Callable[..., None]) -> None:
    plug_in("foreign", wrong("gemm", integer_wrong))
    case = testing.Case("gemm", "whole", lambda rng: ((WHOLE, WHOLE), {}))
    with pytest.raises(AssertionError) as caught:
        testing.check(case, "foreign")
    assert str(caught.value) == "gemm-whole: 1 of 25 integers are wrong"


def test_declared_arithmetic_sets_the_bound(plug_in: Callable[..., None]) -> None:
    """A kernel that declares bfloat16 products may be as far off as they are, and no other."""

    def rounded(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
        exact = [x.astype(dtypes.numpy_dtype("bfloat16")).astype("f4") for x in arrays[:2]]
        return store(exact[0] @ exact[1], out)

    case = testing.Case("gemm", "square", lambda rng: ((SQUARE, SQUARE), {}))
    plug_in("frank", wrong("gemm", rounded, multiply="bfloat16"))
    testing.check(case, "frank")
    plug_in("silent", wrong("gemm", rounded))
    with pytest.raises(AssertionError, match="values are wrong"):
        testing.check(case, "silent")


def test_bits_may_differ_where_a_kernel_says_so(plug_in: Callable[..., None]) -> None:
    case = testing.Case("softmax", "square", lambda rng: ((SQUARE.copy(),), {}))
    plug_in("frank", wrong("softmax", out_differs, deterministic=False))
    testing.check(case, "frank")


def test_overflow_of_a_narrow_result_is_no_error(plug_in: Callable[..., None]) -> None:
    """Beyond the largest float16 the result is inf, and the largest float16 is wrong."""

    def clipped(result: Array, problem: Any, arrays: Any, out: Any) -> Any:
        return store(np.clip(result, -65504, 65504), out)

    case = testing.Case("gemm", "large", lambda rng: ((np.full((2, 2), 300, "f2"),) * 2, {}))
    testing.check(case, "numpy")
    plug_in("foreign", wrong("gemm", clipped))
    with pytest.raises(AssertionError) as caught:
        testing.check(case, "foreign")
    assert str(caught.value) == "gemm-large: inf at 0 places, not 4"


def test_a_bound_that_allows_everything_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = type(dispatch.report(ops.softmax, SQUARE, backend="numpy").problem)
    monkeypatch.setattr(problem, "error_bound", lambda *_: np.full((5, 5), np.inf))
    case = testing.Case("softmax", "square", lambda rng: ((SQUARE,), {}))
    with pytest.raises(AssertionError) as caught:
        testing.check(case, "numpy")
    assert str(caught.value) == "softmax-square: the error bound of a finite value is not finite"


def run_all(test: Callable[..., None]) -> Counter[str]:
    """What pytest would make of the parametrized function."""
    (mark,) = (mark for mark in test.pytestmark if mark.name == "parametrize")
    outcomes: Counter[str] = Counter()
    for parameters in mark.args[1]:
        try:
            test(*parameters.values)
            outcomes["passed"] += 1
        except pytest.skip.Exception:
            outcomes["skipped"] += 1
        except AssertionError:
            outcomes["failed"] += 1
    return outcomes


def test_kernel_that_takes_nothing_fails(plug_in: Callable[..., None]) -> None:
    idle = Kernel("softmax", "idle", lambda problem: "it is Sunday", reference.build)
    plug_in("foreign", idle)
    expected = {"failed": 1, "skipped": len(testing.cases("softmax"))}
    assert run_all(testing.conformance("foreign")) == expected
    assert not testing.reached(idle)


def test_kernel_may_refuse_what_it_likes(plug_in: Callable[..., None]) -> None:
    small = Kernel(
        "softmax", "small", lambda p: None if p.shape == (3, 31) else "not 3x31", reference.build
    )
    plug_in("foreign", small)
    cases = len(testing.cases("softmax"))
    assert run_all(testing.conformance("foreign/small")) == {"passed": 2, "skipped": cases - 1}


def test_unknown_kernel_is_no_empty_test() -> None:
    with pytest.raises(UnsupportedError, match="numpy has no kernel fast"):
        testing.conformance("numpy/fast")


def test_unusable_backend_is_one_skipped_test(plug_in: Callable[..., None]) -> None:
    plug_in("foreign", backend="nothing")
    test = testing.conformance("foreign")
    assert [mark.name for mark in test.pytestmark] == ["skip"]
    assert "foreign" in test.pytestmark[0].kwargs["reason"]
