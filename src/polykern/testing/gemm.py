"""The cases of gemm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from polykern.ops.activation import NAMES as ACTIVATIONS
from polykern.testing.case import Arguments, Array, Build, Case, Shape, by, numbers, ones
from polykern.testing.layout import LAYOUTS

OP = "gemm"

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_INT8 = ("int8", "uint8")

# One below, at and above what tiles, vectors and registers hold.
_EDGES = (
    (1, 1, 1),
    (15, 17, 16),
    (17, 33, 31),
    (63, 65, 64),
    (64, 64, 1),
    (65, 1, 65),
    (127, 129, 33),
    (129, 127, 130),
    (33, 257, 5),
    (2, 100, 300),
    (1, 300, 40),
    (300, 1, 7),
    (5, 7, 515),
)


def _call(
    a: Shape,
    b: Shape,
    c: Shape | None = None,
    *,
    dtype: str = "float32",
    b_dtype: str | None = None,
    c_dtype: str | None = None,
    layout: Callable[[Array], Array] = np.asarray,
    vectors: Mapping[str, tuple[str, Shape]] | None = None,
    **kwargs: Any,
) -> Build:
    """A call with arrays of these shapes; `vectors` are dtype and shape of scales, zero points."""

    def build(rng: np.random.Generator) -> Arguments:
        args = [numbers(rng, dtype, a), numbers(rng, b_dtype or dtype, b)]
        if c is not None:
            args.append(numbers(rng, c_dtype or dtype, c))
        made = {name: numbers(rng, *what) for name, what in (vectors or {}).items()}
        return tuple(map(layout, args)), {**kwargs, **made}

    return build


def _types() -> Iterator[Case]:
    mixed = [("float16", "bfloat16"), ("bfloat16", "float32"), ("float32", "float64")]
    mixed += [("float16", "float16"), *product(_FLOAT8, _FLOAT8), ("float8_e5m2", "float16")]
    same = [(dtype, dtype) for dtype in _FLOATS if dtype != "float16"]
    for a, b in (*same, *mixed, *product(_INT8, _INT8)):
        yield Case(OP, f"{a}-{b}", _call((17, 23), (23, 19), dtype=a, b_dtype=b))
    for dtype, c in (("float16", "float32"), ("float8_e4m3fn", "bfloat16"), ("float32", "float64")):
        build = _call((9, 8), (8, 10), (10,), dtype=dtype, c_dtype=c, beta=0.5)
        yield Case(OP, f"{dtype}-c-{c}", build)
    for dtype, out in (
        ("float64", "float32"),
        ("float32", "float64"),
        ("float32", "float16"),
        ("float32", "bfloat16"),
        ("float16", "float32"),
        ("bfloat16", "float64"),
        ("float8_e5m2", "float32"),
        ("int8", "float32"),
        ("int8", "float64"),
        ("uint8", "bfloat16"),
    ):
        yield Case(OP, f"{dtype}-to-{out}", _call((9, 33), (33, 7), dtype=dtype, out_dtype=out))
    for precision in ("highest", "high", "medium"):
        build = _call((40, 200), (200, 30), precision=precision)
        yield Case(OP, f"precision-{precision}", build)


def _formula() -> Iterator[Case]:
    for activation in ACTIVATIONS:
        for dtype in ("float32", "float64", "bfloat16"):
            build = _call((11, 5), (5, 18), (18,), dtype=dtype, activation=activation, alpha=2.0)
            yield Case(OP, f"{activation}-{dtype}", build)
    build = _call((7, 6), (6, 9), dtype="int8", activation="relu")
    yield Case(OP, "relu-int8", build)
    build = _call((7, 6), (6, 9), dtype="int8", activation="gelu", alpha=1e-4, out_dtype="float32")
    yield Case(OP, "gelu-int8-to-float32", build)
    for alpha, beta in product((0.0, 1.0, -0.75), (0.0, 1.0, 2.5)):
        build = _call((7, 6), (6, 9), (7, 9), alpha=alpha, beta=beta)
        yield Case(OP, f"alpha-{alpha}-beta-{beta}", build)
    build = _call((4, 4), (4, 4), alpha=np.float64(0.5), beta=np.float64(2))
    yield Case(OP, "alpha-float64-scalar", build)
    of_c: tuple[Shape, ...] = (
        (),
        (1,),
        (8,),
        (1, 8),
        (8, 1),
        (8, 8),
        (1, 1, 8),
        (3, 1, 8),
        (3, 8, 8),
    )
    for c in of_c:
        yield Case(OP, f"c-{by(c)}", _call((3, 8, 5), (5, 8), c, beta=2.0))
    for dtype, c in {"int32": (9,), "int8": (7, 1), "uint8": (7, 9)}.items():
        build = _call((7, 6), (6, 9), c, dtype="uint8", c_dtype=dtype, alpha=2, beta=-3)
        yield Case(OP, f"integers-c-{dtype}", build)


def _shapes() -> Iterator[Case]:
    for trans_a, trans_b in product((False, True), (False, True)):
        a, b = ((5, 7) if trans_a else (7, 5)), ((3, 5) if trans_b else (5, 3))
        name = f"trans-{'t' if trans_a else 'n'}{'t' if trans_b else 'n'}"
        for suffix, batch in (("", ()), ("-batch", (2, 3))):
            build = _call((*batch, *a), (*batch[1:], *b), trans_a=trans_a, trans_b=trans_b)
            yield Case(OP, name + suffix, build)
    batches: tuple[tuple[Shape, Shape], ...] = (
        ((3, 4, 5), (3, 5, 6)),
        ((3, 4, 5), (5, 6)),
        ((4, 5), (3, 5, 6)),
        ((2, 1, 4, 5), (1, 3, 5, 6)),
        ((1, 4, 5), (2, 3, 5, 6)),
        ((5,), (5,)),
        ((5,), (5, 6)),
        ((4, 5), (5,)),
        ((5,), (3, 5, 6)),
        ((2, 3, 4, 5), (5,)),
        ((2, 1, 2, 1, 4, 5), (1, 2, 1, 2, 5, 3)),
    )
    for left, right in batches:
        yield Case(OP, by(left, right), _call(left, right))
    yield Case(OP, "vector-trans-ignored", _call((5,), (6, 5), trans_a=True, trans_b=True))
    yield Case(OP, "vector-c", _call((4, 5), (5,), (4,), beta=-1.0, activation="tanh"))
    empties: tuple[tuple[Shape, Shape], ...] = (
        ((0, 4), (4, 3)),
        ((3, 4), (4, 0)),
        ((3, 0), (0, 4)),
        ((0, 0), (0, 0)),
        ((0, 3, 4), (4, 5)),
        ((2, 0, 3, 4), (1, 4, 5)),
        ((0,), (0,)),
        ((2, 3, 0), (0, 4)),
    )
    for left, right in empties:
        yield Case(OP, f"empty-{by(left, right)}", _call(left, right))
    yield Case(OP, "empty-sum-c", _call((3, 0), (0, 4), (4,), beta=2.0, activation="sigmoid"))
    yield Case(OP, "empty-sum-int8", _call((3, 0), (0, 4), (4,), dtype="int8", c_dtype="int32"))
    for m, n, k in _EDGES:
        yield Case(OP, f"edge-{m}x{n}x{k}", _call((m, k), (k, n), (n,), activation="relu"))
        yield Case(OP, f"edge-int8-{m}x{n}x{k}", _call((m, k), (k, n), dtype="int8"))
    for m, n, k in ((65, 67, 300), (130, 33, 17)):
        yield Case(OP, f"edge-float64-{m}x{n}x{k}", _call((m, k), (k, n), dtype="float64"))
        yield Case(OP, f"edge-float16-{m}x{n}x{k}", _call((m, k), (k, n), dtype="float16"))
    for (m, n), k in product(((1, 700), (700, 1), (3, 130), (130, 4), (1, 1)), (0, 1, 37, 700)):
        name = f"thin-{m}x{n}x{k}"
        yield Case(OP, name, _call((m, k), (k, n), (n,), activation="gelu", beta=-2.0))
        yield Case(OP, f"{name}-trans", _call((k, m), (n, k), trans_a=True, trans_b=True))
    for dtype in ("float64", "float16", "bfloat16", "int8"):
        vectors = {"a_scale": ("float32", (2,)), "b_scale": ("float32", (90,))}
        build = _call((3, 2, 150), (150, 90), dtype=dtype, vectors=vectors, activation="relu")
        yield Case(OP, f"thin-{dtype}-batch-scales", build)
        yield Case(OP, f"thin-{dtype}-vector", _call((150,), (150, 90), dtype=dtype, alpha=2.0))
    for k in (511, 512, 513, 1300):  # round the blocks of K, where sums are carried over
        yield Case(OP, f"deep-{k}", _call((6, k), (k, 10), (6, 10), beta=0.5, activation="gelu"))


def _memory() -> Iterator[Case]:
    for name, layout in LAYOUTS.items():
        for dtype in ("float32", "float64", "float16", "int8"):
            c_dtype = "int32" if dtype == "int8" else dtype
            build = _call((19, 13), (13, 21), (19, 21), dtype=dtype, c_dtype=c_dtype, layout=layout)
            yield Case(OP, f"{name}-{dtype}", build)
        yield Case(OP, f"{name}-thin", _call((2, 40), (40, 70), (70,), layout=layout))
        yield Case(OP, f"{name}-thin-columns", _call((70, 40), (40, 2), layout=layout))
        build = _call((2, 3, 5, 6), (3, 7, 6), (3, 1, 7), layout=layout, trans_b=True, beta=2.0)
        yield Case(OP, f"{name}-batch", build)

    def repeated(rng: np.random.Generator) -> Arguments:
        a = np.broadcast_to(numbers(rng, "float32", (1, 9)), (12, 9))
        b = np.broadcast_to(numbers(rng, "float32", (9, 1)), (2, 9, 5))
        return (a, b, np.broadcast_to(np.float32(0.5), (12, 5))), {}

    def one_array(rng: np.random.Generator) -> Arguments:
        a = numbers(rng, "float32", (70, 70))
        return (a, a, a), {"beta": 0.5}

    def overlapping(rng: np.random.Generator) -> Arguments:
        line = numbers(rng, "float32", (30,))
        a = np.lib.stride_tricks.sliding_window_view(line, 8)
        return (a, a[:8].T[:, :6]), {}

    yield Case(OP, "stride-0", repeated)
    yield Case(OP, "one-array-thrice", one_array)
    yield Case(OP, "overlapping-rows", overlapping)


def _quantized() -> Iterator[Case]:
    for dtype, (a, b) in product(_INT8, (((), ()), ((7,), (9,)), ((1,), ()))):
        zeros = {"a_zero_point": (dtype, a), "b_zero_point": (dtype, b)}
        scales = {"a_scale": ("float32", a), "b_scale": ("float32", b)}
        name = f"{dtype}-{len(a)}-{len(b)}"
        yield Case(OP, f"zero-points-{name}", _call((7, 6), (6, 9), dtype=dtype, vectors=zeros))
        build = _call((7, 6), (6, 9), (9,), dtype=dtype, c_dtype="float32", vectors=scales)
        yield Case(OP, f"scales-{name}", build)
        build = _call(
            (2, 7, 6),
            (6, 9),
            dtype=dtype,
            vectors=zeros | scales,
            out_dtype="float16",
            activation="silu",
            alpha=1e-3,
        )
        yield Case(OP, f"zero-points-scales-{name}", build)
    mixed = {"a_zero_point": ("uint8", ()), "b_scale": ("float64", (9,))}
    build = _call((7, 6), (6, 9), dtype="uint8", b_dtype="int8", vectors=mixed)
    yield Case(OP, "zero-point-a-scale-b", build)
    one = {"b_zero_point": ("int8", (9,))}
    build = _call((6, 7), (9, 6), dtype="int8", vectors=one, trans_a=True, trans_b=True, alpha=-2)
    yield Case(OP, "zero-point-trans", build)
    for dtype in ("float32", "bfloat16", "float8_e4m3fn"):
        both = {"a_scale": (("float32"), (7,)), "b_scale": ("float32", ())}
        build = _call((7, 6), (6, 9), (7, 9), dtype=dtype, c_dtype="float32", vectors=both)
        yield Case(OP, f"scales-{dtype}", build)
    vectors = {"a_scale": ("float32", (4,)), "b_scale": ("float32", (1,))}
    yield Case(OP, "scales-vector-b", _call((4, 6), (6,), vectors=vectors))


def _special() -> Iterator[Case]:
    def stall(dtype: str, terms: int) -> Build:
        return lambda rng: ((ones(dtype, (3, terms)), ones(dtype, (terms, 2))), {})

    for dtype, terms in (("float16", 4096), ("bfloat16", 1024), ("float8_e4m3fn", 1024)):
        yield Case(OP, f"long-sum-{dtype}", stall(dtype, terms))
    yield Case(OP, "long-sum-uint8", _call((2, 3000), (3000, 3), dtype="uint8"))

    def wide(rng: np.random.Generator) -> Arguments:
        return (np.full((2, 2), 300, "f2"), np.full((2, 3), 300, "f2")), {"out_dtype": "float32"}

    def overflow(rng: np.random.Generator) -> Arguments:
        return (np.array([[300, 1], [-300, 1]], "f2"), np.array([[300, 1], [2, 1]], "f2")), {}

    def int32_wraps(rng: np.random.Generator) -> Arguments:
        a, b = np.full((2, 40), 127, "i1"), np.full((40, 3), -128, "i1")
        return (a, b, np.full((2, 3), -(2**31), "i4")), {"alpha": 3, "beta": 1}

    yield Case(OP, "float16-to-float32-large", wide)
    yield Case(OP, "float16-overflows", overflow)
    yield Case(OP, "int32-wraps", int32_wraps)

    def spoiled(where: str, value: float, rows: int = 20, **kwargs: Any) -> Build:
        def build(rng: np.random.Generator) -> Arguments:
            shapes = {"a": (rows, 18), "b": (18, 35), "c": (rows, 35)}
            args = {name: numbers(rng, "float32", shape) for name, shape in shapes.items()}
            args[where][...] = value if "alpha" in kwargs or "beta" in kwargs else args[where]
            args[where][3, 4] = value
            return tuple(args.values()), kwargs

        return build

    for value in (np.nan, np.inf, -np.inf):
        for where in "abc":
            yield Case(OP, f"{value}-in-{where}", spoiled(where, value))
            yield Case(OP, f"thin-{value}-in-{where}", spoiled(where, value, rows=4))
        yield Case(OP, f"beta-0-c-{value}", spoiled("c", value, beta=0.0))
        yield Case(OP, f"alpha-0-a-{value}", spoiled("a", value, alpha=0.0))
        yield Case(OP, f"alpha-0-b-{value}", spoiled("b", value, alpha=0.0, activation="gelu"))
    for activation in ACTIVATIONS:
        yield Case(OP, f"{activation}-keeps-nan", spoiled("a", np.nan, activation=activation))

    def extremes(activation: str) -> Build:
        values = [0.0, -0.0, 1e-40, -1e-40, 1e-20, -1e-20, 0.5, -0.5, 5.0, -5.0, 9.5, -9.5]
        values += [20.0, -20.0, 89.0, -89.0, 104.0, -104.0, 1e4, -1e4, 1e30, -1e30]
        values += [np.inf, -np.inf, np.nan]
        column = np.array(values, "f4")[:, None]
        return lambda rng: ((column, np.ones((1, 3), "f4")), {"activation": activation})

    for activation in ACTIVATIONS:
        yield Case(OP, f"{activation}-extremes", extremes(activation))

    def tiny(rng: np.random.Generator) -> Arguments:
        return (numbers(rng, "float32", (6, 5)) * np.float32(1e-38), np.eye(5, dtype="f4")), {}

    yield Case(OP, "subnormal", tiny)


CASES = (*_types(), *_formula(), *_shapes(), *_memory(), *_quantized(), *_special())
