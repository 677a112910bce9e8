"""Any shape, strides, dtypes and options that the contract allows, on every kernel.

What is drawn is a call; what must hold of it is what the conformance kit checks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from polykern import dtypes, testing
from polykern.errors import UnsupportedError
from polykern.ops.activation import NAMES as ACTIVATIONS
from polykern.testing.case import numbers
from polykern.testing.layout import LAYOUTS

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Call = tuple[tuple[Any, ...], dict[str, Any]]


FLOATS = st.sampled_from(dtypes.FLOATS)
# Small most of the time, and now and then beyond a tile.
LENGTH = st.integers(0, 9) | st.integers(1, 40) | st.sampled_from([63, 64, 65, 129])
FEW = st.integers(1, 6)
FACTOR = st.sampled_from([1.0, 0.0, -1.0, 0.5, 3.0])


def maybe(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def array(draw: DrawFn, dtype: str, shape: Shape) -> Array:
    """Numbers of that dtype and shape, somewhere in memory, perhaps with repeated axes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    held = list(shape)
    for axis in range(len(shape)):
        if shape[axis] > 1 and draw(st.integers(0, 9)) == 0:
            held[axis] = 1
    x = numbers(rng, dtype, tuple(held))
    if dtype in dtypes.FLOATS and draw(st.integers(0, 3)) == 0:
        scale = draw(st.sampled_from([1e-3, 30.0, 1000.0]))
        x = (x * scale).astype(x.dtype)
    name = draw(st.sampled_from([None, None, None, *LAYOUTS]))
    native = dtype not in ("bfloat16", *dtypes.FLOAT8)
    if name and x.ndim and (native or name != "swapped-bytes"):
        x = LAYOUTS[name](x)
    if x.ndim > 1 and draw(st.booleans()):
        order = draw(st.permutations(range(x.ndim)))
        x = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    return np.broadcast_to(x, shape)


@st.composite
def broadcast(draw: DrawFn, shape: Shape, least: int = 0) -> Shape:
    """A shape that broadcasts to this one."""
    kept = draw(st.integers(least, len(shape)))
    tail = shape[len(shape) - kept :]
    return tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in tail)


@st.composite
def gemm_calls(draw: DrawFn) -> Call:
    m, n, k = draw(LENGTH), draw(LENGTH), draw(LENGTH)
    batch = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
    kwargs: dict[str, Any] = {"trans_a": trans_a, "trans_b": trans_b}
    a = (*draw(broadcast(batch)), *((k, m) if trans_a else (m, k)))
    b = (*draw(broadcast(batch)), *((n, k) if trans_b else (k, n)))
    if draw(st.integers(0, 5)) == 0:
        a = (k,)
    if draw(st.integers(0, 5)) == 0:
        b = (k,)
    whole = draw(st.integers(0, 3)) == 0
    number = st.sampled_from(dtypes.INT8) if whole else FLOATS | st.sampled_from(dtypes.FLOAT8)
    dtype_a, dtype_b = draw(number), draw(number)
    scaled = draw(st.integers(0, 3)) == 0
    if scaled:
        for name, length in (("a_scale", 1 if len(a) == 1 else m), ("b_scale", n)):
            length = 1 if name == "b_scale" and len(b) == 1 else length
            shape = draw(st.sampled_from([None, (), (1,), (length,)]))
            if shape is not None:
                kwargs[name] = draw(array("float32", shape))
        scaled = len(kwargs) > 2
    if whole and draw(st.booleans()):
        kwargs["a_zero_point"] = draw(array(dtype_a, ()))
        kwargs["b_zero_point"] = draw(array(dtype_b, (1 if len(b) == 1 else n,)))
    exact = whole and not scaled and draw(st.booleans())
    if exact:
        kwargs |= {"alpha": draw(st.integers(-3, 3)), "beta": draw(st.integers(-3, 3))}
        kwargs["activation"] = draw(st.sampled_from([None, "relu"]))
        added = st.sampled_from(["int8", "uint8", "int32"])
    else:
        kwargs |= {"alpha": draw(FACTOR), "beta": draw(FACTOR)}
        kwargs["activation"] = draw(maybe(st.sampled_from(ACTIVATIONS)))
        kwargs["out_dtype"] = draw(FLOATS) if whole else draw(maybe(FLOATS))
        added = FLOATS
    rows = np.broadcast_shapes(a[:-2], b[:-2])
    result = rows + (m,) * (len(a) > 1) + (n,) * (len(b) > 1)
    args = [draw(array(dtype_a, a)), draw(array(dtype_b, b))]
    if draw(st.booleans()):
        args.append(draw(array(draw(added), draw(broadcast(result)))))
    event("integers" if whole else "floats")
    return tuple(args), kwargs


@st.composite
def conv2d_calls(draw: DrawFn) -> Call:
    groups = draw(st.sampled_from([1, 1, 2, 3, 17, 64]))
    channels = draw(FEW | st.just(33)) if groups < 17 else 1
    filters = groups * (draw(FEW | st.just(17)) if groups < 17 else draw(st.integers(1, 2)))
    r, s = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    stride = draw(st.integers(1, 3) | st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.just(1) | st.tuples(st.integers(1, 3), st.integers(1, 3)))
    side = st.integers(0, 3)
    pads = st.tuples(st.tuples(side, side), st.tuples(side, side))
    padding = draw(st.sampled_from(["valid", "same", "same_lower"]) | side | pads)
    least = [
        gap * (taps - 1) + 1 for gap, taps in zip(np.broadcast_to(dilation, 2), (r, s), strict=True)
    ]
    h, w = (draw(st.integers(int(n), int(n) + 12)) for n in least)
    whole = draw(st.integers(0, 3)) == 0
    number = st.sampled_from(dtypes.INT8) if whole else FLOATS
    exact = whole and draw(st.booleans())
    layout = draw(st.sampled_from(["NCHW", "NHWC"]))
    image = (draw(st.integers(0, 3)), channels * groups, h, w)
    window = (filters, channels, r, s)
    if layout == "NHWC":
        image, window = ((a, c, d, b) for a, b, c, d in (image, window))
    args = [draw(array(draw(number), image)), draw(array(draw(number), window))]
    if draw(st.booleans()):
        kind = st.sampled_from(["int8", "int32"]) if exact else FLOATS
        args.append(draw(array(draw(kind), (filters,))))
    kwargs = {
        "stride": stride,
        "dilation": dilation if isinstance(dilation, int) else tuple(dilation),
        "padding": padding,
        "groups": groups,
        "layout": layout,
        "activation": draw(st.sampled_from([None, "relu"] if exact else [None, *ACTIVATIONS])),
        "out_dtype": None if exact else draw(FLOATS) if whole else draw(maybe(FLOATS)),
    }
    event(f"{layout}, {'grouped' if groups > 1 else 'whole'}")
    return tuple(args), kwargs


@st.composite
def softmax_calls(draw: DrawFn) -> Call:
    shape = tuple(draw(st.lists(st.integers(0, 9) | st.sampled_from([63, 65, 130]), max_size=4)))
    while np.prod(shape, dtype=int) > 30_000:
        shape = shape[1:]
    axes = list(range(len(shape)))
    axis = draw(
        st.none() | st.sampled_from(axes) | st.lists(st.sampled_from(axes), unique=True).map(tuple)
        if axes
        else st.sampled_from([None, -1, ()])
    )
    x = draw(array(draw(FLOATS), shape))
    if x.size and draw(st.integers(0, 3)) == 0:
        x = x.copy()
        bad = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        x[tuple(draw(st.integers(0, n - 1)) for n in shape)] = bad
    kwargs = {"log": draw(st.booleans()), "out_dtype": draw(maybe(FLOATS))}
    if draw(st.booleans()):
        kwargs["where"] = draw(array("bool", draw(broadcast(shape))))
    event("where" if "where" in kwargs else "all")
    return (x, axis), kwargs


@st.composite
def attention_calls(draw: DrawFn) -> Call:
    batch, shared = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    heads = shared * draw(st.integers(1, 3))
    queries, keys = draw(LENGTH), draw(LENGTH)
    d, dv = draw(st.integers(0, 9) | st.sampled_from([16, 33, 64])), draw(st.integers(1, 20))
    layout = draw(st.sampled_from(["BHSD", "BSHD"]))
    args = []
    for h, n, size in ((heads, queries, d), (shared, keys, d), (shared, keys, dv)):
        shape = (batch, h, n, size) if layout == "BHSD" else (batch, n, h, size)
        args.append(draw(array(draw(FLOATS), shape)))
    offset = st.integers(-queries - 2, keys + 2)
    kwargs: dict[str, Any] = {
        "layout": layout,
        "return_lse": draw(st.booleans()),
        "scale": draw(maybe(st.sampled_from([0.0, 0.3, -1.0]))),
        "softcap": draw(maybe(st.sampled_from([0.5, 20.0]))),
        "is_causal": draw(st.booleans()),
        "causal_alignment": draw(st.sampled_from(["upper-left", "lower-right"]) | offset),
        "window": draw(maybe(st.tuples(maybe(st.integers(0, 40)), maybe(st.integers(0, 40))))),
    }
    if draw(st.integers(0, 3)) == 0:
        offsets = draw(st.lists(offset, min_size=batch, max_size=batch))
        kwargs["causal_alignment"] = np.array(offsets, "i8")
    for name, most in (("q_lengths", queries), ("kv_lengths", keys)):
        if draw(st.integers(0, 2)) == 0:
            lengths = draw(st.lists(st.integers(0, most), min_size=batch, max_size=batch))
            kwargs[name] = np.array(lengths, draw(st.sampled_from(["i8", "i4"])))
    if draw(st.booleans()):
        shape = draw(broadcast((batch, heads, queries, keys), least=1))
        mask = draw(array(draw(FLOATS | st.just("bool")), shape))
        if mask.dtype != bool:
            hidden = draw(array("bool", shape))
            mask = np.where(hidden, mask, np.array(-np.inf, mask.dtype))
        kwargs["mask"] = mask
    event(f"{'mask' if 'mask' in kwargs else 'no mask'}, {layout}")
    return tuple(args), kwargs


def holds(op: str, pin: str, call: Call) -> None:
    case = testing.Case(op, "drawn", lambda rng: call)
    try:
        testing.check(case, pin)
    except UnsupportedError:
        event("refused")


quiet = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@quiet
@given(call=gemm_calls())
def test_gemm(pin: str, call: Call) -> None:
    holds("gemm", pin, call)


@quiet
@given(call=conv2d_calls())
def test_conv2d(pin: str, call: Call) -> None:
    holds("conv2d", pin, call)


@quiet
@given(call=softmax_calls())
def test_softmax(pin: str, call: Call) -> None:
    holds("softmax", pin, call)


@quiet
@given(call=attention_calls())
def test_attention(pin: str, call: Call) -> None:
    holds("attention", pin, call)
