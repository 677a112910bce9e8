"""All cases put to all kernels of a backend, as a pytest function."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache

from polykern import dispatch, ops, registry
from polykern.errors import BackendUnavailableError, UnsupportedError
from polykern.testing import attention, conv2d, gemm, softmax
from polykern.testing.case import Case
from polykern.testing.check import check

_CASES = {module.OP: module.CASES for module in (gemm, conv2d, softmax, attention)}


def cases(op: str | None = None) -> tuple[Case, ...]:
    """The cases of one operator, or of all."""
    return tuple(case for name, found in _CASES.items() if op in (None, name) for case in found)


def kernels(backend: str) -> dict[str, registry.Kernel]:
    """The kernels of ``"numba"``, or those named ``"numba/packed"``, by operator and full name."""
    name, variant = registry.split(backend)
    found = {
        f"{kernel.op}:{name}/{kernel.name}": kernel
        for kernel in registry.load(name).kernels
        if variant in ("", kernel.name)
    }
    if not found:
        raise UnsupportedError(f"{name} has no kernel {variant}".rstrip())
    return found


def reached(kernel: registry.Kernel) -> bool:
    """Whether the kernel takes a case of its operator."""
    return any(kernel.refuses(problem) is None for problem in _problems(kernel.op))


@cache
def _problems(op: str) -> tuple[registry.Problem, ...]:
    """The problems of the cases whose dtypes are installed."""
    found = []
    for case in cases(op):
        with suppress(ImportError):
            found.append(_problem(case))
    return tuple(found)


def _problem(case: Case) -> registry.Problem:
    """What the case asks for; an ImportError where its dtypes are not installed."""
    args, kwargs = case.arguments()
    return dispatch.report(getattr(ops, case.op), *args, **kwargs, backend="numpy").problem


def conformance(backend: str) -> Callable[..., None]:
    """A pytest function that puts every case to the kernels of a backend.

    Parameters
    ----------
    backend : str
        ``"mybackend"`` for all of its kernels, ``"mybackend/variant"`` for those of one name.

    Returns
    -------
    callable
        To be assigned to a name that pytest collects. It has one test for each kernel and case,
        skipped with the reason where the kernel refuses, and one for each kernel that fails if it
        refuses all. Where the backend cannot be used the whole is one skipped test with the reason.
    """
    import pytest  # not needed to import the kit

    try:
        found = kernels(backend)
    except BackendUnavailableError as error:

        @pytest.mark.skip(reason=str(error))
        def unusable() -> None: ...

        return unusable
    name = registry.split(backend)[0]
    tests = []
    for label, kernel in found.items():
        tests.append(pytest.param(kernel, None, id=f"{label}-reached"))
        tests += [pytest.param(kernel, case, id=f"{label}-{case.id}") for case in cases(kernel.op)]

    @pytest.mark.parametrize("kernel, case", tests)
    def test(kernel: registry.Kernel, case: Case | None) -> None:
        if case is None:
            if not reached(kernel):
                raise AssertionError(f"{name}/{kernel.name} takes none of the {kernel.op} cases")
            return
        try:
            _problem(case)
        except ImportError as missing:
            pytest.skip(str(missing))
        try:
            check(case, f"{name}/{kernel.name}")
        except UnsupportedError as refusal:
            pytest.skip(str(refusal))

    return test
