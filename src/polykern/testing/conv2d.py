"""The cases of conv2d."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from polykern.ops.activation import NAMES as ACTIVATIONS
from polykern.testing.case import Arguments, Array, Build, Case, Shape, numbers, ones
from polykern.testing.layout import LAYOUTS

OP = "conv2d"

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_INT8 = ("int8", "uint8")
_LAYOUTS = ("NCHW", "NHWC")
_LAST = (0, 2, 3, 1)


def _call(
    x: Shape,
    w: Shape,
    bias: bool = False,
    *,
    dtype: str = "float32",
    w_dtype: str | None = None,
    bias_dtype: str | None = None,
    memory: Callable[[Array], Array] = np.asarray,
    layout: str = "NCHW",
    **kwargs: Any,
) -> Build:
    """A call with arrays of these NCHW shapes, the axes in the order of the layout."""

    def build(rng: np.random.Generator) -> Arguments:
        args = [numbers(rng, dtype, x), numbers(rng, w_dtype or dtype, w)]
        if layout == "NHWC":
            args = [np.ascontiguousarray(one.transpose(_LAST)) for one in args]
        if bias:
            args.append(numbers(rng, bias_dtype or dtype, w[:1]))
        return tuple(map(memory, args)), {"layout": layout, **kwargs}

    return build


def _both(name: str, *args: Any, **kwargs: Any) -> Iterator[Case]:
    """The case in both layouts."""
    for layout in _LAYOUTS:
        yield Case(OP, f"{name}-{layout.lower()}", _call(*args, layout=layout, **kwargs))


def _types() -> Iterator[Case]:
    mixed = [("float16", "bfloat16"), ("bfloat16", "float32"), ("float32", "float64")]
    same = [(dtype, dtype) for dtype in _FLOATS]
    for x, w in (*same, *mixed, *product(_INT8, _INT8)):
        yield from _both(f"{x}-{w}", (2, 5, 7, 6), (4, 5, 3, 2), dtype=x, w_dtype=w, padding=1)
    for dtype, bias in (("float16", "float32"), ("int8", "int32"), ("uint8", "int8")):
        name = f"{dtype}-bias-{bias}"
        yield from _both(name, (2, 5, 7, 6), (4, 5, 3, 3), True, dtype=dtype, bias_dtype=bias)
    for dtype, out in (
        ("float64", "float32"),
        ("float32", "float64"),
        ("float32", "float16"),
        ("float16", "float32"),
        ("int8", "float32"),
        ("uint8", "bfloat16"),
    ):
        build = _call((2, 5, 7, 6), (4, 5, 3, 3), dtype=dtype, out_dtype=out)
        yield Case(OP, f"{dtype}-to-{out}", build)
    for precision in ("highest", "high", "medium"):
        build = _call((1, 30, 8, 9), (20, 30, 3, 3), precision=precision, padding=1)
        yield Case(OP, f"precision-{precision}", build)
    for activation in ACTIVATIONS:
        for dtype in ("float32", "float64", "bfloat16"):
            build = _call(
                (2, 3, 6, 7), (5, 3, 3, 3), True, dtype=dtype, activation=activation, padding=1
            )
            yield Case(OP, f"{activation}-{dtype}", build)
    yield Case(OP, "relu-int8", _call((1, 3, 6, 7), (5, 3, 3, 3), dtype="int8", activation="relu"))
    build = _call((1, 3, 6, 7), (5, 3, 3, 3), dtype="int8", activation="tanh", out_dtype="float32")
    yield Case(OP, "tanh-int8-to-float32", build)


def _windows() -> Iterator[Case]:
    for name, x, w, kwargs in (
        ("pointwise", (2, 5, 7, 6), (3, 5, 1, 1), {}),
        ("pointwise-stride", (2, 5, 7, 6), (3, 5, 1, 1), {"stride": 2}),
        ("pointwise-padding", (2, 5, 7, 6), (3, 5, 1, 1), {"padding": 1}),
        ("row-filter", (1, 3, 6, 9), (4, 3, 1, 5), {}),
        ("column-filter", (1, 3, 9, 6), (4, 3, 5, 1), {"padding": (2, 0)}),
        ("whole-image", (2, 3, 5, 6), (4, 3, 5, 6), {}),
        ("one-window", (2, 2, 3, 3), (3, 2, 3, 3), {"dilation": 2, "padding": 1}),
        ("stride-rest", (1, 2, 9, 8), (2, 2, 3, 3), {"stride": 3, "padding": ((1, 0), (0, 0))}),
        ("stride-beyond-filter", (1, 2, 11, 12), (2, 2, 2, 3), {"stride": (5, 4)}),
        ("stride-beyond-image", (1, 2, 5, 6), (2, 2, 2, 3), {"stride": (9, 11)}),
        ("two-strides", (2, 3, 9, 11), (4, 3, 3, 3), {"stride": (1, 2)}),
        ("two-dilations", (2, 3, 9, 11), (4, 3, 3, 2), {"dilation": (2, 3)}),
        ("stride-and-dilation", (1, 3, 8, 8), (4, 3, 3, 3), {"stride": 2, "dilation": 2}),
        ("padding-pair", (1, 2, 5, 6), (2, 2, 3, 3), {"padding": (2, 1)}),
        ("padding-four", (1, 2, 5, 6), (2, 2, 3, 2), {"padding": ((1, 0), (2, 3))}),
        ("padding-lists", (1, 2, 5, 6), (2, 2, 3, 2), {"padding": [[0, 2], [1, 0]]}),
        ("padding-beyond-filter", (1, 2, 3, 4), (2, 2, 2, 2), {"padding": 5}),
        ("padding-valid", (1, 2, 5, 6), (2, 2, 3, 2), {"padding": "valid", "stride": 2}),
        ("first-layer", (1, 3, 33, 30), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
        ("deep", (1, 64, 9, 10), (40, 64, 3, 3), {"padding": 1}),
        ("deep-pointwise", (2, 130, 5, 7), (33, 130, 1, 1), {}),
        ("large-filter", (1, 2, 20, 19), (3, 2, 11, 9), {"padding": 4, "stride": (2, 1)}),
        ("two-by-two", (2, 3, 13, 17), (17, 3, 2, 2), {"stride": 2}),
        (
            "numpy-integers",
            (1, 2, 6, 6),
            (2, 2, 3, 3),
            {"stride": np.int64(2), "groups": np.int8(1)},
        ),
    ):
        yield from _both(name, x, w, True, **kwargs)
    for kind, stride, dilation in product(("same", "same_lower"), (1, 2, 3), (1, 2)):
        for r, s in ((3, 2), (4, 5), (1, 1)):
            name = f"{kind}-{r}x{s}-stride-{stride}-dilation-{dilation}"
            build = _call(
                (1, 2, 8, 7), (3, 2, r, s), padding=kind, stride=stride, dilation=dilation
            )
            yield Case(OP, name, build)
    for groups, x, w in (
        (2, (2, 4, 5, 5), (6, 2, 3, 3)),
        (3, (1, 9, 6, 5), (3, 3, 3, 3)),
        (5, (1, 5, 6, 7), (5, 1, 3, 3)),
        (3, (2, 3, 6, 5), (6, 1, 3, 3)),
        (17, (1, 17, 8, 9), (17, 1, 5, 5)),
        (40, (1, 40, 9, 7), (40, 1, 3, 3)),
        (4, (1, 68, 5, 6), (36, 17, 3, 3)),
        (7, (1, 14, 5, 6), (7, 2, 1, 1)),
    ):
        name = f"groups-{groups}-{x[1]}-to-{w[0]}"
        yield from _both(name, x, w, True, groups=groups, padding=1)
        yield from _both(f"{name}-stride", x, w, groups=groups, stride=2, activation="relu")
    for dtype in ("float64", "float16", "uint8"):
        yield from _both(
            f"depthwise-{dtype}", (2, 6, 9, 8), (12, 1, 3, 3), dtype=dtype, groups=6, padding="same"
        )
    build = _call((1, 6, 9, 8), (6, 1, 3, 3), groups=6, dilation=3, padding=3)
    yield Case(OP, "depthwise-dilation", build)
    windows: dict[str, tuple[int, int, dict[str, Any]]] = {
        "plain": (3, 3, {}),
        "same": (3, 3, {"padding": "same"}),
        "five": (5, 4, {"padding": (2, 1), "stride": 2}),
        "dilation": (3, 2, {"padding": 3, "dilation": (2, 3), "stride": (1, 2)}),
    }
    for channels, (name, (r, s, options)) in product((16, 31, 65), windows.items()):
        x, w = (2, channels, 11, 9), (channels, 1, r, s)
        title = f"depthwise-{channels}-{name}"
        yield from _both(title, x, w, True, groups=channels, activation="silu", **options)
    for dtype in ("float64", "float16", "int8"):
        x, w = (2, 40, 11, 9), (40, 1, 3, 3)
        yield from _both(f"depthwise-40-{dtype}", x, w, dtype=dtype, groups=40, padding=1)


def _sizes() -> Iterator[Case]:
    for c, k, size in (
        (1, 1, 1),
        (1, 17, 15),
        (15, 1, 17),
        (17, 33, 7),
        (33, 15, 16),
        (64, 64, 6),
        (65, 63, 5),
        (3, 130, 8),
        (16, 16, 31),
        (8, 9, 33),
    ):
        yield from _both(f"edge-{c}-{k}-{size}", (1, c, size, size), (k, c, 3, 3), padding=1)
    for p, q in ((1, 40), (40, 1), (3, 65), (2, 129), (5, 30)):
        yield from _both(f"result-{p}x{q}", (2, 4, p + 2, q + 2), (6, 4, 3, 3), True)
    for name, x, w, kwargs in (
        ("no-images", (0, 3, 5, 5), (4, 3, 3, 3), {}),
        ("no-filters", (2, 3, 5, 5), (0, 3, 3, 3), {}),
        ("no-channels", (2, 0, 5, 5), (4, 0, 3, 3), {"activation": "sigmoid"}),
        ("no-pixels-same", (2, 3, 0, 5), (4, 3, 3, 3), {"padding": "same"}),
        ("no-pixels-padded", (2, 3, 0, 5), (4, 3, 2, 2), {"padding": 1}),
    ):
        yield from _both(name, x, w, True, **kwargs)
    yield Case(OP, "many-images", _call((1000, 2, 3, 3), (2, 2, 3, 3), True))


def _memory() -> Iterator[Case]:
    for name, memory in LAYOUTS.items():
        yield from _both(name, (2, 5, 9, 8), (4, 5, 3, 3), True, memory=memory, padding=1)
        for channels in (6, 40):
            x, w = (2, channels, 9, 8), (channels, 1, 3, 3)
            title = f"{name}-depthwise-{channels}"
            yield from _both(title, x, w, memory=memory, groups=channels)
        yield from _both(f"{name}-pointwise", (2, 6, 5, 4), (7, 6, 1, 1), memory=memory)
        yield from _both(f"{name}-int8", (1, 4, 6, 5), (3, 4, 2, 2), dtype="int8", memory=memory)
        build = _call((1, 4, 6, 5), (3, 4, 2, 2), dtype="float64", memory=memory, stride=2)
        yield Case(OP, f"{name}-float64", build)

    def channels_last(rng: np.random.Generator) -> Arguments:
        args = numbers(rng, "float32", (2, 7, 6, 5)), numbers(rng, "float32", (4, 3, 3, 5))
        return tuple(one.transpose(0, 3, 1, 2) for one in args), {}

    def repeated(rng: np.random.Generator) -> Arguments:
        x = np.broadcast_to(numbers(rng, "float32", (1, 3, 1, 6)), (2, 3, 5, 6))
        w = np.broadcast_to(numbers(rng, "float32", (4, 1, 1, 1)), (4, 3, 3, 2))
        return (x, w, np.broadcast_to(np.float32(0.5), (4,))), {}

    def cut(rng: np.random.Generator) -> Arguments:
        x = numbers(rng, "float32", (2, 6, 9, 7))[:, ::2, ::-1, 1:]
        return (x, numbers(rng, "float32", (4, 3, 3, 6))[:, :, :, ::-2]), {}

    yield Case(OP, "channels-last-view", channels_last)
    yield Case(OP, "stride-0", repeated)
    yield Case(OP, "cut", cut)


def _special() -> Iterator[Case]:
    def stall(dtype: str, channels: int) -> Build:
        shapes = ((1, channels, 3, 3), (2, channels, 3, 3))
        return lambda rng: (tuple(ones(dtype, shape) for shape in shapes), {})

    def impulse(rng: np.random.Generator) -> Arguments:
        x = np.zeros((1, 1, 5, 5), "f4")
        x[0, 0, 2, 2] = 1
        return (x, np.arange(1, 10, dtype="f4").reshape(1, 1, 3, 3)), {}

    def spoiled(where: int, value: float, layout: str, size: int, groups: int = 1) -> Build:
        def build(rng: np.random.Generator) -> Arguments:
            channels, filters = (4, 9) if groups == 1 else (groups, groups)
            x, w = (2, channels, 12, 13), (filters, channels // groups, size, size)
            args, kwargs = _call(x, w, True, layout=layout, groups=groups)(rng)
            args[where].reshape(-1)[args[where].size // 2] = value
            return args, kwargs

        return build

    def overflow(rng: np.random.Generator) -> Arguments:
        w = np.array([300, -300, 1], "f2").reshape(3, 1, 1, 1)
        return (np.full((1, 1, 2, 3), 300, "f2"), w), {}

    yield Case(OP, "float16-overflows", overflow)
    yield Case(OP, "long-sum-float16", stall("float16", 512))
    yield Case(OP, "long-sum-bfloat16", stall("bfloat16", 256))
    yield Case(OP, "not-flipped", impulse)
    for value, (where, name) in product((np.nan, np.inf), enumerate(("x", "w", "bias"))):
        for layout, size in product(_LAYOUTS, (1, 3)):
            title = f"{value}-in-{name}-{size}x{size}-{layout.lower()}"
            yield Case(OP, title, spoiled(where, value, layout, size))
            yield Case(OP, f"depthwise-{title}", spoiled(where, value, layout, size, 33))
    for activation in ACTIVATIONS:

        def nan_kept(rng: np.random.Generator, activation: str = activation) -> Arguments:
            x = numbers(rng, "float32", (1, 3, 8, 9))
            x[0, 1, 4, 4] = np.nan
            return (x, numbers(rng, "float32", (5, 3, 3, 3))), {"activation": activation}

        yield Case(OP, f"{activation}-keeps-nan", nan_kept)


CASES = (*_types(), *_windows(), *_sizes(), *_memory(), *_special())
