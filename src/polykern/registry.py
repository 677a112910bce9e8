"""The backends and their kernels, found by name and imported on first use.

A backend is an object ``BACKEND = Backend(...)`` in a module. A package of a third party names
its own under the entry-point group ``polykern.backends``; nothing is imported to list them.
"""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from polykern.errors import BackendNotFoundError, BackendUnavailableError, UnsupportedError

GROUP = "polykern.backends"
AUTO = "auto"  # not a backend: the best of all usable ones

_BUILTIN = {
    "numpy": "polykern.backend.numpy",
    "numba": "polykern.backend.numba",
}


class Problem(Hashable, Protocol):
    """All that is known of a call before its numbers: shapes, dtypes, flags, where they live."""

    @property
    def op(self) -> str: ...
    @property
    def home(self) -> str: ...
    @property
    def in_place(self) -> str: ...  # the input that `out` may be, or ""
    @property
    def results(self) -> tuple[tuple[tuple[int, ...], str], ...]: ...  # shape and dtype of each
    @property
    def accumulate(self) -> str: ...  # dtype of the sums
    @property
    def flops(self) -> int: ...
    @property
    def nbytes(self) -> int: ...  # the least that must be moved
    def check(self) -> None: ...
    def reference(
        self, arrays: tuple[Any, ...], scalars: tuple[float, ...], accumulate: str | None = None
    ) -> Any: ...
    def error_bound(
        self,
        arrays: tuple[Any, ...],
        scalars: tuple[float, ...],
        multiply: str | None = None,
        accumulate: str | None = None,
    ) -> Any: ...


Launch = Callable[[tuple[Any, ...], tuple[float, ...], Any], Any]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One implementation of one operator."""

    op: str
    name: str
    refuses: Callable[[Any], str | None]  # the reason it cannot; None if it can
    build: Callable[[Any], Launch]  # compiles, and returns launch(arrays, scalars, out)
    multiply: str | None = None  # dtype of the products if not the problem's accumulate type
    accumulate: str | None = None  # dtype of the sums, likewise: both set the error bound
    deterministic: bool = True  # the same bits on every run


@dataclass(frozen=True, slots=True)
class Backend:
    """Kernels that share one array type, one device, and one way to wait."""

    name: str
    kernels: tuple[Kernel, ...]  # best first
    asarray: Callable[[Any], Any]  # any array, to this backend's array
    synchronize: Callable[[], None]  # returns when all work handed over is done

    def candidates(self, problem: Problem, variant: str = "") -> list[tuple[Kernel, str | None]]:
        """The kernels of the operator, best first, each with its reason to refuse."""
        return [
            (kernel, kernel.refuses(problem))
            for kernel in self.kernels
            if kernel.op == problem.op and variant in ("", kernel.name)
        ]

    def find(self, problem: Problem, variant: str = "", deterministic: bool = False) -> Kernel:
        """The first kernel that takes the problem; with `variant`, the one of that name."""
        refusals = []
        for kernel, reason in self.candidates(problem, variant):
            varies = deterministic and not kernel.deterministic
            if reason is None and not varies:
                return kernel
            reason = reason or "its results may differ from run to run"
            refusals.append(f"{self.name}/{kernel.name}: {reason}")
        names = ", ".join(kernel.name for kernel in self.kernels if kernel.op == problem.op)
        missing = f"{self.name} has no {problem.op} kernel"
        if variant and names:
            missing += f" {variant!r}; there are: {names}"
        raise UnsupportedError("\n".join(refusals) or missing)


def canonical(name: str) -> str:
    """``numba_cuda`` and ``Numba-CUDA`` are ``numba-cuda``."""
    return name.lower().replace("_", "-")


def split(choice: str) -> tuple[str, str]:
    """``"numba/packed"`` -> canonical backend and variant, the variant empty where none is."""
    if not isinstance(choice, str):
        raise TypeError(f"backend={choice!r}; it is a name such as 'numba' or 'numba/packed'")
    name, _, variant = choice.partition("/")
    return canonical(name), variant


@cache
def paths() -> dict[str, str]:
    """Where each backend lives, built-in first, as ``module`` or ``module:attribute``."""
    from importlib.metadata import entry_points  # a fifth of the time of `import polykern`

    found = dict(_BUILTIN)
    for entry in entry_points(group=GROUP):
        name = canonical(entry.name)
        if name in found:
            warnings.warn(
                f"backend {name!r} of {entry.value} ignored: {found[name]} has that name",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            found[name] = entry.value
    return found


def check(choice: str) -> None:
    """A BackendNotFoundError with the nearest name where no backend has that one."""
    name, _ = split(choice)
    if name not in paths() and name != AUTO:
        near = difflib.get_close_matches(name, paths(), 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(paths())}"
        raise BackendNotFoundError(f"no backend {name!r}; {hint}")


@cache
def load(name: str) -> Backend:
    """The backend of that canonical name, imported on first use."""
    check(name)
    path = paths()[name]
    module, _, attribute = path.partition(":")
    try:
        backend = getattr(importlib.import_module(module), attribute or "BACKEND")
    except Exception as error:  # a library that is there but broken may raise anything
        cure = f"try: {install(name)}" if name in _BUILTIN else f"it comes from {path}"
        raise BackendUnavailableError(
            f"backend {name!r} cannot be imported ({type(error).__name__}: {error}); {cure}"
        ) from error
    if not isinstance(backend, Backend):
        raise BackendUnavailableError(
            f"backend {name!r} is not a polykern.registry.Backend but a "
            f"{type(backend).__name__}; it comes from {path}"
        )
    return backend


def install(name: str) -> str:
    """The command that installs what a built-in backend needs."""
    return f"pip install 'polykern[{name}]'"
