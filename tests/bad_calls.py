"""Calls with bad arguments: for each the exception and the whole text that they must raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from polykern import errors, ops, registry

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
