"""The cases of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from polykern.testing.case import Arguments, Array, Build, Case, Shape, numbers
from polykern.testing.layout import LAYOUTS

OP = "attention"

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_BATCH, _HEADS, _SQ, _SKV = 2, 3, 9, 11


def _call(
    sizes: tuple[int, int, int] = (_BATCH, _HEADS, _HEADS),
    lengths: tuple[int, int] = (_SQ, _SKV),
    d: tuple[int, int] = (8, 8),
    *,
    dtype: str | tuple[str, str, str] = "float32",
    mask: tuple[str, Shape] | None = None,
    axes: int = 4,
    layout: str = "BHSD",
    memory: Callable[[Array], Array] = np.asarray,
    scale_of: float = 1.0,
    **kwargs: Any,
) -> Build:
    """A call; `sizes` are B, Hq, Hkv, `lengths` Sq, Skv, `d` D, Dv; 3 `axes` leave out B."""
    (batch, hq, hkv), (sq, skv) = sizes, lengths
    types = (dtype,) * 3 if isinstance(dtype, str) else dtype
    shapes = ((batch, hq, sq, d[0]), (batch, hkv, skv, d[0]), (batch, hkv, skv, d[1]))

    def build(rng: np.random.Generator) -> Arguments:
        args = []
        for shape, kind in zip(shapes, types, strict=True):
            x = numbers(rng, kind, shape)
            if scale_of != 1.0:
                x = (x * scale_of).astype(x.dtype)
            x = x[0] if axes == 3 else x
            args.append(memory(x.swapaxes(-3, -2) if layout == "BSHD" else x))
        made = {} if mask is None else {"mask": memory(_mask(rng, *mask))}
        return tuple(args), {**kwargs, **made, "layout": layout}

    return build


def _mask(rng: np.random.Generator, dtype: str, shape: Shape) -> Array:
    """Some keys hidden; for floats, the others with something added to their score."""
    if dtype == "bool":
        return numbers(rng, "bool", shape)
    added = numbers(rng, dtype, shape)
    return np.where(numbers(rng, "bool", shape), added, np.array(-np.inf, added.dtype))


def _types() -> Iterator[Case]:
    for dtype, lse in product(_FLOATS, (False, True)):
        name = f"{dtype}-lse" if lse else dtype
        yield Case(OP, name, _call(dtype=dtype, return_lse=lse))
        build = _call(dtype=dtype, return_lse=lse, is_causal=True, causal_alignment="lower-right")
        yield Case(OP, f"{name}-causal", build)
    for kinds in (
        ("float16", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "bfloat16"),
        ("float32", "float32", "float64"),
    ):
        yield Case(OP, "-".join(kinds), _call(dtype=kinds, return_lse=True))
    for dtype, added in product(("float32", "float16"), _FLOATS):
        build = _call(dtype=dtype, mask=(added, (_SQ, _SKV)), return_lse=True)
        yield Case(OP, f"{dtype}-mask-{added}", build)
    for precision in ("highest", "high", "medium"):
        yield Case(OP, f"precision-{precision}", _call(precision=precision, d=(64, 40)))


def _shapes() -> Iterator[Case]:
    for hq, hkv in ((6, 2), (5, 1), (4, 4), (8, 4)):
        mask = ("bool", (_BATCH, hq, _SQ, _SKV))
        for layout in ("BHSD", "BSHD"):
            name = f"heads-{hq}-{hkv}-{layout.lower()}"
            build = _call((_BATCH, hq, hkv), layout=layout, mask=mask, return_lse=True)
            yield Case(OP, name, build)
    for axes, layout in product((3, 4), ("BHSD", "BSHD")):
        build = _call((1, 4, 2), axes=axes, layout=layout, return_lse=True, mask=("bool", (_SKV,)))
        yield Case(OP, f"{axes}-axes-{layout.lower()}", build)
    for d in ((1, 1), (3, 5), (7, 7), (8, 20), (40, 8), (64, 64), (80, 80), (130, 100), (256, 256)):
        yield Case(OP, f"head-{d[0]}-{d[1]}", _call(d=d))
    for dtype in ("float64", "bfloat16"):
        yield Case(OP, f"head-72-130-{dtype}", _call(d=(72, 130), dtype=dtype, lengths=(20, 70)))
    for sq, skv in (
        (1, 1),
        (1, 77),
        (5, 63),
        (64, 64),
        (65, 65),
        (127, 130),
        (33, 257),
        (257, 33),
        (1, 1000),
        (200, 3),
    ):
        for causal in (False, True):
            name = f"{'causal-' if causal else ''}lengths-{sq}-{skv}"
            build = _call(
                (1, 2, 1),
                (sq, skv),
                (16, 12),
                return_lse=True,
                is_causal=causal,
                causal_alignment="lower-right",
            )
            yield Case(OP, name, build)
    build = _call((1, 2, 2), (300, 300), (32, 32), is_causal=True)
    yield Case(OP, "causal-300", build)
    for sizes, lengths, d in (
        ((2, 2, 2), (3, 0), (8, 5)),
        ((2, 4, 2), (0, 5), (8, 6)),
        ((0, 2, 2), (3, 4), (8, 8)),
        ((2, 0, 0), (3, 4), (8, 8)),
        ((2, 0, 2), (3, 4), (8, 8)),
        ((2, 2, 2), (0, 0), (8, 8)),
        ((2, 2, 2), (3, 4), (0, 5)),
        ((2, 2, 2), (3, 4), (8, 0)),
    ):
        name = "empty-" + "-".join(map(str, (*sizes, *lengths, *d)))
        yield Case(OP, name, _call(sizes, lengths, d, return_lse=True))


def _scores() -> Iterator[Case]:
    for scale in (0, 1, -0.3, np.float64(0.5), 1e-3, 30.0):
        yield Case(OP, f"scale-{scale}", _call(scale=scale, return_lse=True))
    for softcap in (0.5, 1, 30.0, np.float32(2), 1e4):
        mask = ("float32", (_SQ, _SKV))
        yield Case(OP, f"softcap-{softcap}", _call(softcap=softcap, scale=2.0, mask=mask))
    yield Case(OP, "softcap-float64", _call(softcap=1.5, dtype="float64", return_lse=True))
    yield Case(OP, "softcap-float16", _call(softcap=1.5, dtype="float16", return_lse=True))
    for kind, shape in product(
        ("bool", "float32"),
        (
            (_SKV,),
            (1,),
            (_SQ, _SKV),
            (_SQ, 1),
            (1, _SKV),
            (_HEADS, _SQ, _SKV),
            (1, _SQ, _SKV),
            (_HEADS, 1, 1),
            (_BATCH, 1, 1, _SKV),
            (1, _HEADS, _SQ, _SKV),
            (_BATCH, 1, _SQ, 1),
            (_BATCH, _HEADS, _SQ, _SKV),
        ),
    ):
        name = f"mask-{kind}-{'x'.join(map(str, shape))}"
        yield Case(OP, name, _call(mask=(kind, shape), return_lse=True))
    yield Case(OP, "large-scores", _call(scale_of=40.0, return_lse=True))
    yield Case(OP, "large-scores-float64", _call(scale_of=40.0, dtype="float64"))

    def float16_products(rng: np.random.Generator) -> Arguments:
        q, k = np.full((1, 1, 2, 128), 256, "f2"), np.full((1, 1, 4, 128), 128, "f2")
        k[:, :, 0] = 256
        return (q, k, numbers(rng, "float16", (1, 1, 4, 16))), {}

    yield Case(OP, "float16-products-overflow", float16_products)


def _bounds() -> Iterator[Case]:
    shapes = ((7, 7), (3, 7), (7, 3), (20, 70))
    alignments: tuple[Any, ...] = ("upper-left", "lower-right", 0, 2, -2, np.int64(5), 100, -100)
    for lengths, alignment in product(shapes, alignments):
        name = f"causal-{lengths[0]}-{lengths[1]}-{alignment}"
        build = _call((1, 2, 1), lengths, is_causal=True, causal_alignment=alignment)
        yield Case(OP, name, build)
    yield Case(OP, "causal-square", _call(lengths=(9, 9), is_causal=True, return_lse=True))
    yield Case(OP, "causal-no-queries", _call(lengths=(0, 0), is_causal=True))
    windows = ((2, 0), (0, 0), (2, 1), (None, 1), (3, None), (None, None), (1000, 1000), (0, 3))
    for window, alignment in product(windows, (None, "lower-right", 3)):
        left, right = window
        name = f"window-{left}-{right}-{alignment}"
        build = _call((1, 2, 2), (20, 25), window=window, causal_alignment=alignment)
        yield Case(OP, name, build)
    for window in windows:
        build = _call((1, 2, 2), (20, 20), window=window, is_causal=True)
        yield Case(OP, f"causal-window-{window[0]}-{window[1]}", build)
    build = _call((1, 2, 1), (200, 230), window=(17, 3), causal_alignment="lower-right")
    yield Case(OP, "window-long", build)
    offsets = np.array([3, -4])
    for is_causal, bounds in product((True, False), (None, (2, None), (2, 1), (None, 0))):
        for kind in ("i8", "i4"):
            given = offsets.astype(kind)
            build = _call(is_causal=is_causal, window=bounds, causal_alignment=given)
            yield Case(OP, f"offsets-{kind}-{is_causal}-{bounds}".replace(" ", ""), build)
    for name, q, kv in (
        ("q", [9, 4], None),
        ("kv", None, [5, 11]),
        ("both", [3, 8], [7, 2]),
        ("none", [0, 9], [11, 0]),
    ):
        of: dict[str, Any] = {
            "q_lengths": None if q is None else np.array(q),
            "kv_lengths": None if kv is None else np.array(kv, "i4"),
        }
        yield Case(OP, f"lengths-{name}", _call(**of, return_lse=True))
        yield Case(OP, f"lengths-{name}-bshd", _call(**of, layout="BSHD", return_lse=True))
        for alignment in ("upper-left", "lower-right", np.array([1, -2])):
            shown = alignment if isinstance(alignment, str) else "offsets"
            build = _call(**of, is_causal=True, causal_alignment=alignment, return_lse=True)
            yield Case(OP, f"causal-lengths-{name}-{shown}", build)
            build = _call(**of, window=(3, 1), causal_alignment=alignment)
            yield Case(OP, f"window-lengths-{name}-{shown}", build)
    equal = np.array([4, 9])
    build = _call(lengths=(9, 9), is_causal=True, q_lengths=equal, kv_lengths=equal)
    yield Case(OP, "causal-equal-lengths", build)
    for dtype, layout in product(_FLOATS, ("BHSD", "BSHD")):
        build = _call(
            (2, 4, 2),
            (70, 90),
            (24, 20),
            dtype=dtype,
            layout=layout,
            mask=("float32", (2, 1, 70, 90)),
            is_causal=True,
            causal_alignment=np.array([20, 15]),
            window=(40, None),
            softcap=3.0,
            q_lengths=np.array([70, 33]),
            kv_lengths=np.array([80, 66]),
            return_lse=True,
        )
        yield Case(OP, f"everything-{dtype}-{layout.lower()}", build)


def _memory() -> Iterator[Case]:
    for name, memory in LAYOUTS.items():
        for kind, dtype in product(("bool", "float32"), ("float32", "float64", "float16")):
            build = _call(mask=(kind, (_SQ, _SKV)), dtype=dtype, memory=memory, return_lse=True)
            yield Case(OP, f"{name}-{kind}-{dtype}", build)
        yield Case(OP, f"{name}-bshd", _call(layout="BSHD", memory=memory, d=(20, 12)))
        queries, keys, past = (memory(np.array(x)) for x in ([9, 4], [5, 11], [2, 7]))
        build = _call(q_lengths=queries, kv_lengths=keys, is_causal=True, causal_alignment=past)
        yield Case(OP, f"{name}-lengths", build)

    def repeated(rng: np.random.Generator) -> Arguments:
        q = np.broadcast_to(numbers(rng, "float32", (1, 4, 1, 8)), (2, 4, 5, 8))
        k = np.broadcast_to(numbers(rng, "float32", (2, 1, 6, 8)), (2, 4, 6, 8))
        return (q, k, k), {"mask": np.broadcast_to(numbers(rng, "bool", (6,)), (2, 4, 5, 6))}

    def one_array(rng: np.random.Generator) -> Arguments:
        x = numbers(rng, "float32", (1, 2, 40, 16))
        return (x, x, x), {"is_causal": True}

    yield Case(OP, "stride-0", repeated)
    yield Case(OP, "one-array-thrice", one_array)


def _special() -> Iterator[Case]:
    for value in (np.nan, np.inf):
        for how in ("bool", "float", "causal", "left", "right", "lengths"):
            for dtype in ("float32", "float64", "bfloat16"):
                build = _unseen(how, value, dtype, (_SQ, _SKV))
                yield Case(OP, f"unseen-{value}-{how}-{dtype}", build)
            yield Case(OP, f"unseen-{value}-{how}-long", _unseen(how, value, "float32", (70, 150)))
        for where in ("q", "k", "v"):
            yield Case(OP, f"{value}-in-{where}", _spoiled(where, value))
    for kind in ("bool", "float32"):
        yield Case(OP, f"blind-queries-{kind}", _blind(kind, (_SQ, _SKV)))
        yield Case(OP, f"blind-queries-{kind}-long", _blind(kind, (70, 150)))


def _unseen(how: str, value: float, dtype: str, lengths: tuple[int, int]) -> Build:
    """Bad numbers in the keys, values and queries that take no part, whatever hides them."""

    def build(rng: np.random.Generator) -> Arguments:
        (q, k, v), kwargs = _call((2, 2, 1), lengths, dtype=dtype, return_lse=True)(rng)
        sq, skv = lengths
        hidden = np.zeros((2, skv), bool)
        if how in ("bool", "float"):
            hidden[0, 1::3] = hidden[1, skv // 2 :] = True
            added = np.where(hidden, -np.inf, 0.25).astype("f4")
            kwargs["mask"] = (~hidden if how == "bool" else added)[:, None, None]
        elif how == "causal":
            kwargs |= {"is_causal": True, "causal_alignment": -3}
            hidden[:, sq - 3 :] = True
        elif how == "left":
            kwargs |= {"window": (2, None), "causal_alignment": 5}
            hidden[:, :3] = True
        elif how == "right":
            kwargs |= {"window": (None, 1), "causal_alignment": -4}
            hidden[:, sq - 3 :] = True
        else:
            kwargs |= {"q_lengths": np.array([sq, 4]), "kv_lengths": np.array([5, skv - 1])}
            hidden[0, 5:] = hidden[1, -1] = True
            q[1, :, 4:] = value
        for x in (k, v):
            x[np.broadcast_to(hidden[:, None], x.shape[:3])] = value
        return (q, k, v), kwargs

    return build


def _spoiled(where: str, value: float) -> Build:
    """A bad number that some queries see, and others do not."""

    def build(rng: np.random.Generator) -> Arguments:
        args, kwargs = _call((1, 2, 2), (70, 70), is_causal=True, return_lse=True)(rng)
        args["qkv".index(where)][0, 1, 37, 3] = value
        return args, kwargs

    return build


def _blind(kind: str, lengths: tuple[int, int]) -> Build:
    """Queries that see no key, between others."""

    def build(rng: np.random.Generator) -> Arguments:
        args, kwargs = _call((1, 2, 2), lengths, return_lse=True)(rng)
        mask = _mask(rng, kind, lengths)
        mask[1::4] = mask[-1] = False if kind == "bool" else -np.inf
        return args, {**kwargs, "mask": mask}

    return build


def _few_queries() -> Iterator[Case]:
    """As a model writes word by word: one query or a few, many keys, which threads may share."""
    keys = 1100
    for (hq, hkv), sq in product(((2, 2), (4, 1), (8, 2)), (1, 2, 3)):
        build = _call((1, hq, hkv), (sq, keys), (24, 20), return_lse=True)
        yield Case(OP, f"few-{hq}-{hkv}-{sq}", build)
    for dtype, layout in product(_FLOATS, ("BHSD", "BSHD")):
        build = _call(
            (2, 4, 2),
            (2, keys),
            (40, 33),
            dtype=dtype,
            layout=layout,
            mask=("float32", (2, 1, 2, keys)),
            is_causal=True,
            causal_alignment=np.array([1050, 20]),
            window=(900, None),
            softcap=3.0,
            q_lengths=np.array([2, 1]),
            kv_lengths=np.array([1060, 30]),
            return_lse=True,
        )
        yield Case(OP, f"few-everything-{dtype}-{layout.lower()}", build)
    for lengths in ([1, keys], [0, 1024], [511, 513]):
        build = _call((2, 2, 1), (1, keys), kv_lengths=np.array(lengths), return_lse=True)
        yield Case(OP, f"few-lengths-{lengths[0]}-{lengths[1]}", build)
    for window in ((0, 0), (600, 3), (None, 700)):
        build = _call((1, 2, 1), (2, keys), window=window, causal_alignment=700, return_lse=True)
        yield Case(OP, f"few-window-{window[0]}-{window[1]}", build)
    for how, value in product(("bool", "float", "causal", "left", "right"), (np.nan, np.inf)):
        yield Case(OP, f"few-unseen-{value}-{how}", _unseen(how, value, "float32", (4, keys)))
    for kind in ("bool", "float32"):
        yield Case(OP, f"few-blind-{kind}", _blind(kind, (2, keys)))
    build = _call((1, 2, 2), (1, keys), memory=LAYOUTS["stepped"], mask=("bool", (keys,)))
    yield Case(OP, "few-stepped", build)
    build = _call((1, 2, 2), (1, keys), scale_of=40.0, return_lse=True)
    yield Case(OP, "few-large-scores", build)


CASES = (*_types(), *_shapes(), *_scores(), *_bounds(), *_memory(), *_special(), *_few_queries())
