"""Backends that are wrong on purpose, known to the registry for the length of a test."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from polykern import dispatch, registry

Add = Callable[..., None]


@pytest.fixture
def add_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """``add_backend(name, spoil)``: the numpy backend, whose results `spoil` turns into others."""
    numpy = registry.load("numpy")
    known = dict(registry.paths())

    def add(name: str, spoil: Callable[[Any], Any], refuses: str | None = None) -> None:
        def build(problem: Any) -> registry.Launch:
            launch = numpy.kernels[0].build(problem)
            return lambda arrays, scalars, out: spoil(launch(arrays, scalars, out))

        kernels = tuple(
            registry.Kernel(kernel.op, "spoilt", lambda problem: refuses, build)
            for kernel in numpy.kernels
        )
        module: Any = types.ModuleType(f"polykern_test_{name}")
        module.BACKEND = registry.Backend(name, kernels, np.asarray, lambda: None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        known[name] = module.__name__

    monkeypatch.setattr(registry, "paths", lambda: known)
    _forget()
    yield add
    _forget()


def _forget() -> None:
    registry.load.cache_clear()
    dispatch.plan.cache_clear()
