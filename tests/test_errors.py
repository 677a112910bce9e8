"""Every message of the core, whole: what was given, what is right; a bad call does nothing."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import polykern
from polykern import arrays, dispatch, dtypes, errors, ops, policy, registry
from polykern.registry import Backend, Kernel

SOURCE = Path(polykern.__file__).parent

FLOATS = "float64, float32, float16, bfloat16"


class OnGpu:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


class Bad(NamedTuple):
    """A call, the exception it must raise, and the whole text of it."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    error: type[Exception]
    text: str


def f(*shape: int, dtype: str = "f4") -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype)


def i(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, "i1")


def gemm(text: str, *args: Any, error: type[Exception] = ValueError, **kwargs: Any) -> Bad:
    return Bad(ops.gemm, args, kwargs, error, text)


def conv2d(text: str, *args: Any, error: type[Exception] = ValueError, **kwargs: Any) -> Bad:
    return Bad(ops.conv2d, args, kwargs, error, text)


def softmax(text: str, *args: Any, error: type[Exception] = ValueError, **kwargs: Any) -> Bad:
    return Bad(ops.softmax, args, kwargs, error, text)


def attention(text: str, *args: Any, error: type[Exception] = ValueError, **kwargs: Any) -> Bad:
    return Bad(ops.attention, args, kwargs, error, text)


Q, K = f(2, 4, 3, 8), f(2, 2, 5, 8)
X, W = f(1, 4, 5, 6), f(2, 4, 3, 3)
READ_ONLY = np.broadcast_to(f(1), (2, 2))
SHOWN = "q.shape=(2, 4, 3, 8), k.shape=(2, 2, 5, 8), v.shape="

BAD_INPUT = [
    # arrays
    gemm(
        "a is a masked array, whose mask would be lost; fill it first",
        np.ma.masked_array(f(2, 2)),
        f(2, 2),
        error=TypeError,
    ),
    gemm("b lives on a GPU; no backend here takes GPU arrays", f(2, 2), OnGpu(), error=TypeError),
    softmax(
        "x is no array: setting an array element with a sequence. The requested array has an "
        "inhomogeneous shape after 1 dimensions. The detected shape was (2,) + inhomogeneous part.",
        [[1.0], [1.0, 2.0]],
        error=TypeError,
    ),
    # dtypes
    *[
        gemm(
            f"a has dtype {name}; gemm takes {FLOATS}, float8_e4m3fn, float8_e5m2, int8, uint8",
            np.ones((2, 2), kind),
            f(2, 2),
            error=TypeError,
        )
        for kind, name in (
            ("c8", "complex64"),
            ("i8", "int64"),
            ("u2", "uint16"),
            ("?", "bool"),
            ("O", "object"),
            ("U1", "str32"),
            ("S1", "bytes8"),
            ("M8[s]", "datetime64[s]"),
            ("m8[s]", "timedelta64[s]"),
        )
    ],
    gemm(
        "b has dtype float32; gemm with this a takes int8, uint8", i(2, 2), f(2, 2), error=TypeError
    ),
    gemm(
        f"b has dtype int8; gemm with this a takes {FLOATS}, float8_e4m3fn, float8_e5m2",
        f(2, 2),
        i(2, 2),
        error=TypeError,
    ),
    gemm(
        f"c has dtype int32; gemm with a float32 result takes {FLOATS}",
        f(2, 2),
        f(2, 2),
        np.ones(2, "i4"),
        error=TypeError,
    ),
    gemm(
        "c has dtype float32; gemm with a int32 result takes int32, int8, uint8",
        i(2, 2),
        i(2, 2),
        f(2),
        error=TypeError,
    ),
    gemm(
        f"the result (out_dtype) has dtype int8; gemm of these types takes int32, {FLOATS}",
        i(2, 2),
        i(2, 2),
        out_dtype="int8",
        error=TypeError,
    ),
    gemm(
        f"the result (out_dtype) has dtype float8_e4m3fn; gemm of these types takes {FLOATS}",
        f(2, 2),
        f(2, 2),
        out_dtype="float8_e4m3fn",
        error=TypeError,
    ),
    gemm(
        "out_dtype=int32 with scales; scaled integers give a float",
        i(2, 2),
        i(2, 2),
        a_scale=0.5,
        out_dtype="int32",
        error=TypeError,
    ),
    gemm(
        f"b_scale has dtype int8; gemm takes {FLOATS}",
        i(2, 2),
        i(2, 2),
        b_scale=i(2),
        error=TypeError,
    ),
    *[
        softmax(
            f"{given!r} is not a dtype; give a name such as 'float32' or a NumPy dtype",
            f(2),
            out_dtype=given,
            error=TypeError,
        )
        for given in ("half a float", 7)
    ],
    conv2d(
        f"x has dtype int64; conv2d takes {FLOATS}, int8, uint8",
        np.ones((1, 1, 3, 3), int),
        W,
        error=TypeError,
    ),
    conv2d(
        "w has dtype float32; conv2d with this x takes int8, uint8",
        i(1, 4, 5, 6),
        W,
        error=TypeError,
    ),
    conv2d(
        f"bias has dtype int64; conv2d with a float32 result takes {FLOATS}",
        X,
        W,
        np.ones(2, int),
        error=TypeError,
    ),
    conv2d(
        f"the result (out_dtype) has dtype int32; conv2d of these types takes {FLOATS}",
        X,
        W,
        out_dtype="int32",
        error=TypeError,
    ),
    softmax(f"x has dtype int8; softmax takes {FLOATS}", i(3), error=TypeError),
    softmax(
        f"the result (out_dtype) has dtype complex64; softmax takes {FLOATS}",
        f(3),
        out_dtype="complex64",
        error=TypeError,
    ),
    softmax("where has dtype float32; softmax takes bool", f(3), where=f(3), error=TypeError),
    attention(f"k has dtype int8; attention takes {FLOATS}", Q, K.astype("i1"), K, error=TypeError),
    attention(
        f"mask has dtype int64; attention takes bool, {FLOATS}",
        Q,
        K,
        K,
        mask=np.ones(5, int),
        error=TypeError,
    ),
    # gemm
    gemm("a.shape=(); gemm takes arrays of one axis or more", f(), f(2)),
    gemm(
        "a.shape=(2, 3) and b.shape=(2, 3) do not chain: K is 3 in a and 2 in b", f(2, 3), f(2, 3)
    ),
    gemm(
        "a.shape=(2, 3) and b.shape=(4, 5), trans_a=True, trans_b=True do not chain: "
        "K is 2 in a and 5 in b",
        f(2, 3),
        f(4, 5),
        trans_a=True,
        trans_b=True,
    ),
    gemm("a.shape=(3,) and b.shape=(2,) do not chain: K is 3 in a and 2 in b", f(3), f(2)),
    gemm(
        "a.shape=(2, 3, 4) and b.shape=(5, 4, 3): the axes before the last two do not broadcast",
        f(2, 3, 4),
        f(5, 4, 3),
    ),
    gemm("c.shape=(3,) does not broadcast to the result's (2, 2)", f(2, 2), f(2, 2), f(3)),
    gemm(
        "c.shape=(4, 2, 2) does not broadcast to the result's (2, 2)", f(2, 2), f(2, 2), f(4, 2, 2)
    ),
    gemm(
        "a_scale.shape=(2,); it is (), or (3,), one for each of the rows of a",
        f(3, 4),
        f(4, 2),
        a_scale=f(2),
    ),
    gemm(
        "b_zero_point.shape=(2, 1); it is (), or (2,), one for each of the columns of b",
        i(3, 4),
        i(4, 2),
        b_zero_point=i(2, 1),
    ),
    gemm(
        "a_zero_point goes with integers; a has dtype float32",
        f(2, 2),
        f(2, 2),
        a_zero_point=1,
        error=TypeError,
    ),
    gemm(
        "b_zero_point has dtype float64; a zero point is an integer",
        i(2, 2),
        i(2, 2),
        b_zero_point=1.0,
        error=TypeError,
    ),
    gemm(
        "a_zero_point is outside -128 to 127, the range of a's int8",
        i(2, 2),
        i(2, 2),
        a_zero_point=[0, 128],
    ),
    gemm("alpha='2'; it is a number", f(2, 2), f(2, 2), alpha="2", error=TypeError),
    gemm("beta=1j; it is a number", f(2, 2), f(2, 2), beta=1j, error=TypeError),
    *[
        gemm(
            f"alpha={float(alpha)} with an int32 result; "
            "give a whole number that int32 holds, or out_dtype='float32'",
            i(2, 2),
            i(2, 2),
            alpha=alpha,
        )
        for alpha in (0.5, float("nan"), float("inf"), 2**31)
    ],
    gemm(
        "activation='swish'; it is None or one of relu, gelu, gelu_tanh, silu, sigmoid, tanh",
        f(2, 2),
        f(2, 2),
        activation="swish",
    ),
    gemm(
        "activation=['relu']; it is None or one of relu, gelu, gelu_tanh, silu, sigmoid, tanh",
        f(2, 2),
        f(2, 2),
        activation=["relu"],
    ),
    gemm(
        "activation='gelu' with an int32 result; give out_dtype='float32'",
        i(2, 2),
        i(2, 2),
        activation="gelu",
    ),
    gemm(
        "precision='full'; it is one of highest, high, medium", f(2, 2), f(2, 2), precision="full"
    ),
    # conv2d
    conv2d("layout='CHWN'; it is 'NCHW' or 'NHWC'", X, W, layout="CHWN"),
    conv2d("x.shape=(4, 5, 6); conv2d takes four axes, NCHW", X[0], W),
    conv2d("w.shape=(2, 4, 3); conv2d takes four axes, NHWC", X, W[..., 0], layout="NHWC"),
    conv2d("groups=3; it must divide the 4 channels of x and the 2 filters of w", X, W, groups=3),
    conv2d("groups=0; it must divide the 4 channels of x and the 2 filters of w", X, W, groups=0),
    conv2d(
        "x has 4 channels in 2 groups, so w must have 2; w.shape=(2, 4, 3, 3) has 4", X, W, groups=2
    ),
    conv2d("bias.shape=(2, 1); it is (2,), one a filter", X, W, f(2, 1)),
    conv2d("stride=(0, 0); it is at least 1", X, W, stride=0),
    conv2d("dilation=(1, -1); it is at least 1", X, W, dilation=(1, -1)),
    conv2d("stride=1.5; it is a whole number", X, W, stride=1.5, error=TypeError),
    conv2d("groups='2'; it is a whole number", X, W, groups="2", error=TypeError),
    conv2d("dilation=(1, 2, 3); it is one number or two, height first", X, W, dilation=(1, 2, 3)),
    conv2d("padding='full'; the names are 'valid', 'same' and 'same_lower'", X, W, padding="full"),
    conv2d(
        "padding=(1, 2, 3, 4); it is one number or two, height first", X, W, padding=(1, 2, 3, 4)
    ),
    conv2d(
        "padding=((1, 2), 3); four sides are ((top, bottom), (left, right))",
        X,
        W,
        padding=((1, 2), 3),
    ),
    conv2d("padding=((0, -1), (1, 1)); it is not negative", X, W, padding=((0, -1), (1, 1))),
    conv2d("w.shape=(2, 4, 0, 3); a filter has at least one pixel", X, W[:, :, :0]),
    conv2d("the dilated filter has height 7, larger than the padded image's 5", X, W, dilation=3),
    conv2d(
        "the dilated filter has width 9, larger than the padded image's 8",
        X,
        W,
        dilation=(1, 4),
        padding=(0, 1),
    ),
    conv2d(
        "activation='tanh' with an int32 result; give out_dtype='float32'",
        i(1, 1, 3, 3),
        i(1, 1, 3, 3),
        activation="tanh",
    ),
    # softmax
    softmax("axis='last'; it is an int, a tuple of ints, or None", f(3), "last", error=TypeError),
    softmax(
        "axis=(0, 1.0); it is an int, a tuple of ints, or None", f(3), (0, 1.0), error=TypeError
    ),
    softmax("axis=2 is out of range; x has 2 axes", f(2, 3), 2),
    softmax("axis=-3 is out of range; x has 2 axes", f(2, 3), (0, -3)),
    softmax("axis=1 is out of range; x has 0 axes", f(), 1),
    softmax("axis=(1, -1) names an axis twice", f(2, 3), (1, -1)),
    softmax("where.shape=(2,) does not broadcast to x.shape=(2, 3)", f(2, 3), where=f(2) > 0),
    # attention
    attention("layout='SBHD'; it is 'BHSD' or 'BSHD'", Q, K, K, layout="SBHD"),
    attention("layout=['BHSD']; it is 'BHSD' or 'BSHD'", Q, K, K, layout=["BHSD"]),
    attention(
        "q.shape=(4, 3, 8), k.shape=(2, 2, 5, 8), v.shape=(2, 2, 5, 8); "
        "attention takes four axes, BHSD, or three without B",
        Q[0],
        K,
        K,
    ),
    attention(f"{SHOWN}(1, 2, 5, 8): the batch B differs", Q, K, K[:1]),
    attention(f"{SHOWN}(2, 2, 4, 8): k and v differ in heads or in length", Q, K, K[:, :, :4]),
    attention(f"{SHOWN}(2, 1, 5, 8): k and v differ in heads or in length", Q, K, K[:, :1]),
    attention(
        "q.shape=(2, 4, 3, 7), k.shape=(2, 2, 5, 8), v.shape=(2, 2, 5, 8): "
        "the head size is 7 in q and 8 in k",
        Q[..., :7],
        K,
        K,
    ),
    attention(
        "q.shape=(2, 3, 3, 8), k.shape=(2, 2, 5, 8), v.shape=(2, 2, 5, 8): "
        "3 query heads are no multiple of 2 key heads",
        Q[:, :3],
        K,
        K,
    ),
    attention(
        "mask.shape=(3, 4) does not broadcast to (B, Hq, Sq, Skv) = (2, 4, 3, 5)",
        Q,
        K,
        K,
        mask=f(3, 4) > 0,
    ),
    attention(
        "mask.shape=() does not broadcast to (B, Hq, Sq, Skv) = (2, 4, 3, 5)", Q, K, K, mask=f() > 0
    ),
    attention(
        "causal_alignment is needed: with Sq=3 and Skv=5, 'upper-left' (offset 0) and "
        "'lower-right' (offset kv_length - q_length) differ",
        Q,
        K,
        K,
        is_causal=True,
    ),
    attention(
        "causal_alignment is needed: with these lengths, 'upper-left' (offset 0) and "
        "'lower-right' (offset kv_length - q_length) differ",
        Q,
        K,
        K,
        is_causal=True,
        kv_lengths=[3, 4],
    ),
    attention(
        "causal_alignment='bottom'; it is 'upper-left', 'lower-right', or an offset",
        Q,
        K,
        K,
        causal_alignment="bottom",
    ),
    attention(
        "causal_alignment has dtype float64; it holds whole numbers",
        Q,
        K,
        K,
        causal_alignment=1.0,
        error=TypeError,
    ),
    attention(
        "causal_alignment.shape=(3,); it is (2,), one for each batch entry",
        Q,
        K,
        K,
        causal_alignment=[1, 2, 3],
    ),
    *[
        attention(
            f"causal_alignment holds {2**62} to {2**62}; it is from -2**61 to 2**61",
            Q,
            K,
            K,
            causal_alignment=offset,
        )
        for offset in (2**62, np.array([2**62] * 2))
    ],
    *[
        attention(
            f"window={window!r}; it is (left, right), each None or >= 0", Q, K, K, window=window
        )
        for window in (3, (1, 2, 3), (-1, 0), (1.5, None), "ab")
    ],
    attention("scale='x'; it is a number", Q, K, K, scale="x", error=TypeError),
    attention("softcap=[1]; it is a number", Q, K, K, softcap=[1], error=TypeError),
    *[
        attention(
            f"softcap={cap}; it is positive and finite, or None for no cap", Q, K, K, softcap=cap
        )
        for cap in (0, -1.5, float("nan"), float("inf"))
    ],
    attention("q_lengths holds -1 to 3; it is from 0 to 3", Q, K, K, q_lengths=np.array([-1, 3])),
    attention("kv_lengths holds 0 to 6; it is from 0 to 5", Q, K, K, kv_lengths=np.array([0, 6])),
    attention(
        "kv_lengths has dtype float32; it holds whole numbers",
        Q,
        K,
        K,
        kv_lengths=f(2),
        error=TypeError,
    ),
    attention(
        "q_lengths.shape=(1, 2); it is (2,), one for each batch entry",
        Q,
        K,
        K,
        q_lengths=np.array([[1, 2]]),
    ),
    attention("precision=1; it is one of highest, high, medium", Q, K, K, precision=1),
    # backends
    gemm(
        "no backend 'nunba'; did you mean 'numba'?",
        f(2, 2),
        f(2, 2),
        backend="Nunba/packed",
        error=errors.BackendNotFoundError,
    ),
    gemm(
        f"no backend 'tpu'; there are: {', '.join(registry.paths())}",
        f(2, 2),
        f(2, 2),
        backend="tpu",
        error=errors.BackendNotFoundError,
    ),
    softmax(
        "backend=3; it is a name such as 'numba' or 'numba/packed'",
        f(2),
        backend=3,
        error=TypeError,
    ),
    softmax(
        "numpy has no softmax kernel 'rows'; there are: reference",
        f(2),
        backend="numpy/rows",
        error=errors.UnsupportedError,
    ),
]

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
