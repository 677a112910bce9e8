"""Every message of the core, whole: what was given, what is right; a bad call does nothing."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_calls import BAD_INPUT, Bad, K, OnGpu, attention, f, softmax

import polykern
from polykern import arrays, dispatch, dtypes, errors, ops, policy, registry
from polykern.registry import Backend, Kernel

SOURCE = Path(polykern.__file__).parent


READ_ONLY = np.broadcast_to(f(1), (2, 2))

SOFTMAX_OUT = [
    ("out is a list; it must be an array", TypeError, [[0.0] * 2] * 2),
    ("out has shape (2, 3); the result has (2, 2)", ValueError, f(2, 3)),
    ("out has dtype float64; the result has float32", TypeError, np.ones((2, 2))),
    ("out is read-only", ValueError, READ_ONLY),
    (
        "out must have native byte order and aligned data",
        ValueError,
        f(2, 2).astype(np.dtype("f4").newbyteorder()),
    ),
    (
        "out is a broadcast view: several results would share one place",
        ValueError,
        np.lib.stride_tricks.as_strided(f(2), (2, 2), (0, 4)),
    ),
    ("out lives on a GPU; no backend here takes GPU arrays", TypeError, OnGpu()),
]
SHARED = f(2, 2, 5, 8)
ATTENTION_OUT = [
    ("out is ndarray; give a tuple of 2 arrays", TypeError, f(2, 2, 5, 8)),
    ("out is tuple; give a tuple of 2 arrays", TypeError, (f(2, 2, 5, 8),)),
    ("out[0] has shape (2,); the result has (2, 2, 5, 8)", ValueError, (f(2), f(2, 2, 5))),
    (
        "out[1] has dtype float64; the result has float32",
        TypeError,
        (f(2, 2, 5, 8), np.ones((2, 2, 5))),
    ),
    ("out overlaps out[1]; give an array of its own", ValueError, (SHARED, SHARED[..., 0])),
    ("out overlaps k; give an array of its own", ValueError, (K, f(2, 2, 5))),
]
BAD_OUT = [
    *[softmax(text, f(2, 2), out=out, error=error) for text, error, out in SOFTMAX_OUT],
    *[
        attention(text, K + 1, K, K + 2, return_lse=True, out=out, error=error)
        for text, error, out in ATTENTION_OUT
    ],
    softmax("out overlaps x; give an array of its own", SHARED[0, 0], out=SHARED[0, 0, :, ::-1]),
]


def refusing(text: str, *problem: Any) -> Bad:
    """What the registry says of a backend without the kernel that is asked for."""
    backend = Backend(
        "x",
        (
            Kernel("softmax", "warp", lambda problem: "7 columns are odd", lambda problem: None),
            Kernel(
                "softmax", "any", lambda problem: None, lambda problem: None, deterministic=False
            ),
        ),
        np.asarray,
        lambda: None,
    )
    return Bad(backend.find, problem, {}, errors.UnsupportedError, text)


SOFTMAX = polykern.plan(ops.softmax, f(2, 7), backend="numpy").problem
GEMM = polykern.plan(ops.gemm, f(2, 2), f(2, 2), backend="numpy").problem

ELSEWHERE = [
    refusing("x/warp: 7 columns are odd", SOFTMAX, "warp"),
    refusing(
        "x/warp: 7 columns are odd\nx/any: its results may differ from run to run",
        SOFTMAX,
        "",
        True,
    ),
    refusing("x has no softmax kernel 'block'; there are: warp, any", SOFTMAX, "block"),
    refusing("x has no gemm kernel", GEMM),
    Bad(polykern.plan, (max, 1, 2), {}, TypeError, f"{max!r} is no operator of polykern.ops"),
    Bad(
        polykern.use(backend="nunpy").__enter__,
        (),
        {},
        errors.BackendNotFoundError,
        "no backend 'nunpy'; did you mean 'numpy'?",
    ),
    Bad(
        polykern.use(precision="low").__enter__,
        (),
        {},
        ValueError,
        "precision='low'; it is one of highest, high, medium",
    ),
]


def name(bad: Bad) -> str:
    return bad.text[:60]


def raised(bad: Bad) -> None:
    with pytest.raises(bad.error) as caught:
        bad.call(*bad.args, **bad.kwargs)
    assert type(caught.value) is bad.error
    assert str(caught.value) == bad.text
    assert isinstance(caught.value, (TypeError, ValueError, ImportError, NotImplementedError))


@pytest.mark.parametrize("bad", BAD_INPUT, ids=name)
def test_bad_input(bad: Bad) -> None:
    """Refused before anything is written or kept."""
    kept = dispatch.plan.cache_info().currsize
    raised(bad)
    out = np.full((7, 7), 5, "f4")
    raised(bad._replace(kwargs={**bad.kwargs, "out": out}))
    assert np.all(out == 5)
    assert dispatch.plan.cache_info().currsize == kept


@pytest.mark.parametrize("bad", BAD_OUT, ids=name)
def test_bad_out(bad: Bad) -> None:
    """Refused before anything is written; the problem itself is good, so its plan may be kept."""
    written = bad.kwargs["out"] if isinstance(bad.kwargs["out"], tuple) else (bad.kwargs["out"],)
    before = [one.tobytes() for one in written if isinstance(one, np.ndarray)]
    raised(bad._replace(kwargs={**bad.kwargs, "backend": "numpy"}))
    assert before == [one.tobytes() for one in written if isinstance(one, np.ndarray)]


@pytest.mark.parametrize("bad", ELSEWHERE, ids=name)
def test_refusals_and_settings(bad: Bad) -> None:
    raised(bad)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYKERN_BACKEND", "nunpy")
    text = "POLYKERN_BACKEND: no backend 'nunpy'; did you mean 'numpy'?"
    raised(Bad(ops.softmax, (f(2),), {}, errors.BackendNotFoundError, text))


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setitem(sys.modules, "polykern.backend.numba", None)
    dtypes.numpy_dtype.cache_clear()
    registry.load.cache_clear()
    try:
        raised(
            Bad(
                dtypes.numpy_dtype,
                ("bfloat16",),
                {},
                ImportError,
                "bfloat16 needs the package ml_dtypes; try: pip install ml_dtypes",
            )
        )
        raised(
            Bad(
                registry.load,
                ("numba",),
                {},
                errors.BackendUnavailableError,
                "backend 'numba' cannot be imported (ModuleNotFoundError: import of "
                "polykern.backend.numba halted; None in sys.modules); "
                "try: pip install 'polykern[numba]'",
            )
        )
    finally:
        registry.load.cache_clear()


def test_plug_in_that_is_no_backend(plug_in: Callable[..., None]) -> None:
    plug_in("foreign", backend=3)
    text = (
        "backend 'foreign' is not a polykern.registry.Backend but a int; "
        "it comes from plug_in_foreign"
    )
    raised(Bad(registry.load, ("foreign",), {}, errors.BackendUnavailableError, text))


def test_nobody_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "at_home", lambda problem: ())
    text = "no backend takes cpu arrays"
    raised(Bad(ops.softmax, (f(2, 3, 4, 5, 6),), {}, errors.UnsupportedError, text))


def test_jax_without_x64() -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    text = (
        "JAX would turn this float64 result into float32; "
        "enable jax_enable_x64, or ask for another out_dtype"
    )
    like = jax.numpy.ones(1, "float32")
    raised(Bad(arrays.back, (np.ones(1), like), {}, TypeError, text))


# The files whose messages are in this one; those of the programs on top have their own tests.
CORE = [path for path in SOURCE.glob("*.py") if path.name not in ("__main__.py", "doctor.py")]
CORE += (SOURCE / "ops").glob("*.py")


def messages(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Of each exception that is made: its type, and its text as a pattern."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        kind = getattr(builtins, node.func.id, getattr(errors, node.func.id, None))
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            continue
        text = node.args[0]
        if isinstance(text, ast.Constant):
            yield node.func.id, re.escape(text.value)
        elif isinstance(text, ast.JoinedStr):
            parts = (
                re.escape(part.value) if isinstance(part, ast.Constant) else ".*"
                for part in text.values
            )
            yield node.func.id, "".join(parts)


def test_no_message_is_forgotten() -> None:
    """Each text of the source is found whole in this file's own."""
    texts = [bad.text for bad in (*BAD_INPUT, *BAD_OUT, *ELSEWHERE)]
    tests = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    texts += [
        node.value
        for node in ast.walk(tests)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    found = [
        (path.name, kind, pattern)
        for path in CORE
        for kind, pattern in messages(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(found) > 50
    untested = [one for one in found if not any(re.fullmatch(one[2], text, re.S) for text in texts)]
    assert untested == []


def test_a_forgotten_message_is_found() -> None:
    source = "raise ValueError(f'{x} is {y} blue')\nraise KeyError\nraise OSError('no')"
    assert list(messages(ast.parse(source))) == [
        ("ValueError", ".*\\ is\\ .*\\ blue"),
        ("OSError", "no"),
    ]


def test_each_class_is_the_builtin_one_would_catch() -> None:
    assert issubclass(errors.BackendNotFoundError, ValueError)
    assert issubclass(errors.BackendUnavailableError, ImportError)
    assert issubclass(errors.UnsupportedError, NotImplementedError)
