"""Each test of an operator runs on every kernel of it, pinned by name, as the registry has them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from polykern import dispatch, ops, registry
from polykern.errors import BackendUnavailableError, UnsupportedError

settings.register_profile("quick", max_examples=40, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

BACKENDS = tuple(name for name, path in registry.paths().items() if path.startswith("polykern."))


def pins(op: str) -> list[Any]:
    """``"backend/kernel"`` for each kernel of the operator; a backend that is not usable skips."""
    found = []
    for name in BACKENDS:
        try:
            backend = registry.load(name)
        except BackendUnavailableError as error:
            found.append(pytest.param(name, marks=pytest.mark.skip(reason=str(error)), id=name))
            continue
        found += [f"{name}/{kernel.name}" for kernel in backend.kernels if kernel.op == op]
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pin" in metafunc.fixturenames:
        op = getattr(metafunc.module, "OP", metafunc.function.__name__.removeprefix("test_"))
        metafunc.parametrize("pin", pins(op))


@pytest.fixture
def call(request: pytest.FixtureRequest, pin: str) -> Callable[..., Any]:
    """The operator of the test's module on one kernel; what the kernel refuses is skipped."""
    operator = getattr(ops, request.module.OP)

    def pinned(*args: Any, **kwargs: Any) -> Any:
        try:
            return operator(*args, **{"backend": pin, **kwargs})
        except UnsupportedError as refusal:
            pytest.skip(str(refusal))

    return pinned


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Adds a backend of these kernels, as a plug-in would, until the test ends."""

    def add(name: str, *kernels: registry.Kernel, backend: Any = None) -> None:
        module = ModuleType(f"plug_in_{name}")
        module.BACKEND = backend or registry.Backend(name, kernels, np.asarray, lambda: None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        known = {**registry.paths(), name: module.__name__}
        monkeypatch.setattr(registry, "paths", lambda: known)

    yield add
    registry.load.cache_clear()
    dispatch.plan.cache_clear()
