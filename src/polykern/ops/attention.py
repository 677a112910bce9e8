"""Scaled dot-product attention: the call, its value, its reference."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from polykern import arrays as door
from polykern import dispatch, dtypes
from polykern.ops import visibility

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    is_causal: bool = False,
    causal_alignment: str | int | Any = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    q_lengths: Any = None,
    kv_lengths: Any = None,
    layout: str = "BHSD",
    return_lse: bool = False,
    precision: str | None = None,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """Attention: ``softmax(softcap(scale * Q K^T) + mask) V``.

    Letters: ``B`` batch, ``Hq`` query heads, ``Hkv`` key and value heads, ``Sq Skv`` lengths,
    ``D`` head size of q and k, ``Dv`` of v.

    Parameters
    ----------
    q : array, (B, Hq, Sq, D); (B, Sq, Hq, D) in layout BSHD; either without B
        Its library and device are those of the result.
    k : array, (B, Hkv, Skv, D), likewise
        Hq is a multiple of Hkv; query head h reads head ``h // (Hq / Hkv)``.
    v : array, (B, Hkv, Skv, Dv), likewise
    mask : bool or float array, broadcastable to (B, Hq, Sq, Skv), optional
        True lets a query see a key; a float is added to the score, and -inf hides the key.
    is_causal : bool
        Query i sees key j only if ``j <= i + offset``.
    causal_alignment : {"upper-left", "lower-right"}, int, or int array (B,)
        The offset: 0; the kv_length less the q_length of the batch entry; or the number given,
        a cache's past length. Needed with `is_causal` where the two names differ; a `window`
        alone counts from the upper left.
    window : (left, right), optional
        Query i sees only ``i + offset - left <= j <= i + offset + right``; None is no bound.
    scale : float, optional
        Default ``1 / sqrt(D)``. Dimensionless.
    softcap : float, optional
        ``c * tanh(score / c)``, before the mask. Positive.
    q_lengths, kv_lengths : int array (B,), optional
        Queries at or past their length give 0; keys at or past theirs are not seen.
    layout : {"BHSD", "BSHD"}
        Of q, k, v and the result.
    return_lse : bool
        Also return the log-sum-exp of the scores of each query.
    precision : {"highest", "high", "medium"}, optional
        As in `gemm`.
    out : array of the result's shape and dtype, optional; with `return_lse` a tuple of two
        Written and returned; it must not overlap an input.
    backend : str, optional
        ``"numba"``, ``"numba/flash"``; default: the best where the arrays live.

    Returns
    -------
    array, (B, Hq, Sq, Dv), in the layout, of the promoted type of q, k and v
    array, (B, Hq, Sq), float32 (float64 for float64), if `return_lse`
        A query that sees no key gives 0, and -inf for its log-sum-exp. A key that is not seen
        never influences the result, even if it holds NaN.

    Raises
    ------
    TypeError
        A dtype that attention does not take; the message lists those it takes.
    ValueError
        Shapes that do not fit together, or an alignment that is needed and not given.
    UnsupportedError
        No kernel of the backend takes this call; the message lists each reason.

    Notes
    -----
    Cost: ``2 (D + Dv)`` FLOP for each query and key that the causal and window bounds let meet,
    and head. Scores, their softmax and the sums over keys are float32 (float64 for float64 inputs
    or mask). Error: see the accuracy page of the documentation.

    References
    ----------
    ONNX Attention (23 to 25). Dao, FlashAttention-2, 2023, for the blocked form.
    """
    like = q
    q, k, v = door.adopt("q", q), door.adopt("k", k), door.adopt("v", v)
    if mask is not None:
        mask = door.adopt("mask", mask)
    left, right = visibility.bounds(window, is_causal)
    if layout not in ("BHSD", "BSHD"):
        raise ValueError(f"layout={layout!r}; it is 'BHSD' or 'BSHD'")
    shapes = (q.shape, k.shape, v.shape)
    batch, sq, skv = _batch_and_lengths(shapes, layout)
    data, offset = visibility.read(
        batch, sq, skv, q_lengths, kv_lengths, causal_alignment, is_causal
    )
    softcap = 0.0 if softcap is None else _cap(softcap)
    problem = Attention(
        *shapes,
        dtypes.names[q.dtype],
        dtypes.names[k.dtype],
        dtypes.names[v.dtype],
        None if mask is None else (mask.shape, dtypes.names[mask.dtype]),
        left,
        right,
        offset,
        layout,
        bool(return_lse),
        dispatch.precision(precision),
    )
    inputs = dict(zip(_INPUTS, (q, k, v, mask, *data), strict=True))
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 0.0
    scalars = (door.number("scale", scale), softcap)
    return dispatch.run(problem, inputs, scalars, out=out, like=like, backend=backend)


def _cap(softcap: Any) -> float:
    cap = door.number("softcap", softcap)
    if not 0 < cap < math.inf:
        raise ValueError(f"softcap={softcap}; it is positive and finite, or None for no cap")
    return cap


_INPUTS = ("q", "k", "v", "mask", "q_lengths", "kv_lengths", "offset")


def _heads_first(shape: Shape, layout: str) -> tuple[int, int, int, int]:
    """(B, H, S, D) of a shape in the layout, with or without B."""
    b, h, s, d = (1, *shape)[-4:]
    return (b, h, s, d) if layout == "BHSD" else (b, s, h, d)


@lru_cache(maxsize=4096)
def _batch_and_lengths(shapes: tuple[Shape, Shape, Shape], layout: str) -> tuple[int, int, int]:
    """B, Sq and Skv of shapes that fit together."""
    shown = ", ".join(f"{name}.shape={s}" for name, s in zip("qkv", shapes, strict=True))
    if {len(shape) for shape in shapes} not in ({3}, {4}):
        raise ValueError(f"{shown}; attention takes four axes, {layout}, or three without B")
    (b, hq, sq, d), k, v = (_heads_first(shape, layout) for shape in shapes)
    if not b == k[0] == v[0]:
        raise ValueError(f"{shown}: the batch B differs")
    if k[1] != v[1] or k[2] != v[2]:
        raise ValueError(f"{shown}: k and v differ in heads or in length")
    if k[3] != d:
        raise ValueError(f"{shown}: the head size is {d} in q and {k[3]} in k")
    if hq % k[1] if k[1] else hq:
        raise ValueError(f"{shown}: {hq} query heads are no multiple of {k[1]} key heads")
    return b, sq, k[2]


class Attention(NamedTuple):
    """An attention before its numbers. Causal is ``right = 0``."""

    q_shape: Shape
    k_shape: Shape
    v_shape: Shape
    q_dtype: str
    k_dtype: str
    v_dtype: str
    mask: tuple[Shape, str] | None
    left: int | None  # key j is seen by query i only if i + offset - left <= j
    right: int | None  # and j <= i + offset + right
    offset: int | None  # None: by batch entry, known only with the numbers
    layout: str
    return_lse: bool
    precision: str
    home: str = "cpu"
    in_place: str = ""
    op: str = "attention"

    @property
    def B(self) -> int:
        return _heads_first(self.q_shape, self.layout)[0]

    @property
    def Hq(self) -> int:
        return _heads_first(self.q_shape, self.layout)[1]

    @property
    def Hkv(self) -> int:
        return _heads_first(self.k_shape, self.layout)[1]

    @property
    def Sq(self) -> int:
        return _heads_first(self.q_shape, self.layout)[2]

    @property
    def Skv(self) -> int:
        return _heads_first(self.k_shape, self.layout)[2]

    @property
    def D(self) -> int:
        return self.q_shape[-1]

    @property
    def Dv(self) -> int:
        return self.v_shape[-1]

    @property
    def mask_kind(self) -> str | None:
        """ "bool", "float" or None."""
        return None if self.mask is None else "bool" if self.mask[1] == "bool" else "float"

    @property
    def out_shape(self) -> Shape:
        return (*self.q_shape[:-1], self.Dv)

    @property
    def out_dtype(self) -> str:
        return dtypes.promote(self.q_dtype, self.k_dtype, self.v_dtype)

    @property
    def lse_dtype(self) -> str:
        return "float64" if self.out_dtype == "float64" else "float32"

    @property
    def results(self) -> tuple[tuple[Shape, str], ...]:
        result = (self.out_shape, self.out_dtype)
        if not self.return_lse:
            return (result,)
        batch = (self.B,) if len(self.q_shape) == 4 else ()
        return (result, ((*batch, self.Hq, self.Sq), self.lse_dtype))

    @property
    def accumulate(self) -> str:
        """The dtype of the scores, their softmax and the sums over keys."""
        added = () if self.mask_kind != "float" or self.mask is None else (self.mask[1],)
        return dtypes.accumulator(self.q_dtype, self.k_dtype, self.v_dtype, *added)

    @property
    def pairs(self) -> int:
        """How many queries and keys meet, for one head: at most, where offsets are data."""
        return visibility.pairs(self.Sq, self.Skv, self.left, self.right, self.offset)

    @property
    def flops(self) -> int:
        return 2 * self.B * self.Hq * self.pairs * (self.D + self.Dv)

    @property
    def nbytes(self) -> int:
        operands = [
            (self.q_shape, self.q_dtype),
            (self.k_shape, self.k_dtype),
            (self.v_shape, self.v_dtype),
            *self.results,
        ]
        return dtypes.nbytes(operands if self.mask is None else [*operands, self.mask])

    def __str__(self) -> str:
        heads = f"{self.Hq}" if self.Hq == self.Hkv else f"{self.Hq}/{self.Hkv}"
        sizes = f"{self.D}" if self.Dv == self.D else f"{self.D}/{self.Dv}"
        bounds = "" if self.left is self.right is None else f", window ({self.left}, {self.right})"
        mask = f", {self.mask_kind} mask" if self.mask else ""
        return (
            f"{self.B} batch x {heads} heads, {self.Sq} queries x {self.Skv} keys, "
            f"head size {sizes}{bounds}{mask}, {self.layout} {self.q_dtype} -> {self.out_dtype}"
        )

    def check(self) -> None:
        """Raise what the contract says of bad dtypes and masks; shapes were checked before."""
        for name, dtype in (("q", self.q_dtype), ("k", self.k_dtype), ("v", self.v_dtype)):
            dtypes.check(name, dtype, dtypes.FLOATS, "attention")
        if self.mask is not None:
            shape, dtype = self.mask
            dtypes.check("mask", dtype, ("bool", *dtypes.FLOATS), "attention")
            scores = (self.B, self.Hq, self.Sq, self.Skv)
            if not 1 <= len(shape) <= 4 or not dtypes.broadcasts(shape, scores):
                raise ValueError(
                    f"mask.shape={shape} does not broadcast to (B, Hq, Sq, Skv) = {scores}"
                )

    def heads_first(self, x: Any) -> Any:
        """The view (B, H, S, D) of an array in the layout."""
        if x.ndim == 3:
            x = x[None]
        return x if self.layout == "BHSD" else x.swapaxes(1, 2)

    def operands(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """q, k, v as (B, H, S, D), the mask as (B, Hq, Sq, Skv) or None, lengths, offsets (B,)."""
        q, k, v, mask, *data = arrays
        if mask is not None:
            mask = np.broadcast_to(mask, (self.B, self.Hq, self.Sq, self.Skv))
        return (*map(self.heads_first, (q, k, v)), mask, *data)

    def reference(
        self, arrays: tuple[Any, ...], scalars: tuple[float, ...], accumulate: str | None = None
    ) -> Any:
        """The contract in NumPy, unrounded: in `accumulate`, by default the problem's."""
        dtype = accumulate or self.accumulate
        result = np.empty((self.B, self.Hq, self.Sq, self.Dv), dtype)
        lse = np.empty((self.B, self.Hq, self.Sq), dtype)
        for b in range(self.B):
            for h in range(self.Hq):
                scores, seen, v = self.head(arrays, scalars, b, h, dtype)
                result[b, h], lse[b, h] = _weighted_sum(scores, seen, v)
        result = self._as_given(result)
        return (result, lse.reshape(self.results[1][0])) if self.return_lse else result

    def _as_given(self, result: Array) -> Array:
        """(B, H, S, D) in the layout of q."""
        if self.layout == "BSHD":
            result = result.swapaxes(1, 2)
        return result.reshape(self.out_shape)

    def head(
        self, arrays: tuple[Any, ...], scalars: tuple[float, ...], b: int, h: int, dtype: str
    ) -> tuple[Array, Array, Array]:
        """For one head: the scores (Sq, Skv), which of them are seen, and v (Skv, Dv)."""
        q, k, v, mask, q_lengths, kv_lengths, offset = self.operands(arrays)
        scale, softcap = (np.dtype(dtype).type(scalar) for scalar in scalars)
        shared = h // max(1, self.Hq // max(1, self.Hkv))
        scores = (q[b, h].astype(dtype) @ k[b, shared].astype(dtype).T) * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        seen = visibility.seen(self.Sq, self.Skv, self.left, self.right, offset[b])
        seen[q_lengths[b] :] = False
        seen[:, kv_lengths[b] :] = False
        if self.mask_kind == "bool":
            seen &= mask[b, h]
        elif self.mask_kind == "float":
            seen &= mask[b, h] != -np.inf
            scores = scores + mask[b, h].astype(dtype)
        return np.where(seen, scores, -np.inf).astype(dtype), seen, v[b, shared].astype(dtype)

    def error_bound(
        self,
        arrays: tuple[Any, ...],
        scalars: tuple[float, ...],
        multiply: str | None = None,
        accumulate: str | None = None,
    ) -> Any:
        """The largest error, elementwise, of a kernel of that arithmetic; float64."""
        accumulate = accumulate or self.accumulate
        u, product = dtypes.roundoff(accumulate), dtypes.roundoff(multiply or accumulate)
        magnitudes = self._magnitudes(arrays)
        result = np.empty((self.B, self.Hq, self.Sq, self.Dv))
        lse_error = np.empty((self.B, self.Hq, self.Sq))
        for b in range(self.B):
            for h in range(self.Hq):
                scores, seen, v = self.head(arrays, scalars, b, h, "float64")
                size = self.head(magnitudes, (abs(scalars[0]), 0.0), b, h, "float64")[0]
                inexact = seen & np.isfinite(scores)
                size = np.where(inexact, size, 0)
                with np.errstate(all="ignore"):
                    largest = np.max(scores, axis=1, keepdims=True, initial=-np.inf)
                    distance = np.where(inexact, np.abs(scores - largest), 0)
                    weights = np.where(seen, np.exp(scores - largest), 0)
                    total = np.sum(weights, axis=1, keepdims=True)
                    weights = np.where(total > 0, weights / total, 0)
                    # of each score: its products and their sum, scale, softcap, mask, maximum
                    score = (2 * product + dtypes.growth(self.D, accumulate) + 8 * u) * size
                    score = score + 2 * u * distance + 8 * u
                    mean = np.sum(weights * score, axis=1, keepdims=True)
                    relative = np.expm1(score + mean + dtypes.growth(self.Skv, accumulate))
                    relative += 2 * product + dtypes.growth(self.Skv, accumulate) + 8 * u
                    safe = np.where(np.isfinite(v), np.abs(v), 0)
                    result[b, h] = (weights * relative) @ safe
                    lse_error[b, h] = (mean + dtypes.growth(self.Skv, accumulate))[:, 0]
                    lse_error[b, h] += 4 * u * (1 + np.abs(np.log(total[:, 0]) + largest[:, 0]))
        exact = self._replace(return_lse=True).reference(arrays, scalars, "float64")
        error = self._as_given(result) + dtypes.roundoff(self.out_dtype) * np.abs(exact[0])
        least = dtypes.underflow(self.out_dtype)
        values = np.abs(arrays[2].astype("float64"))
        most = np.max(values, initial=0, where=np.isfinite(values))
        error = error + least + self.Skv * dtypes.least_normal(accumulate) * (1 + most)
        if not self.return_lse:
            return error
        lse_rounding = dtypes.roundoff(self.lse_dtype) * np.abs(exact[1])
        return error, lse_error.reshape(exact[1].shape) + lse_rounding

    def _magnitudes(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operands with every number replaced by its magnitude, a -inf in the mask by 0."""
        q, k, v, mask, *data = arrays
        if self.mask_kind == "float":
            mask = np.where(np.isfinite(mask), np.abs(mask.astype("float64")), 0)
        return (np.abs(q.astype("float64")), np.abs(k.astype("float64")), v, mask, *data)


def _weighted_sum(scores: Array, seen: Array, v: Array) -> tuple[Array, Array]:
    """The softmax of the scores times v, and the log-sum-exp; 0 and -inf where no key is seen."""
    largest = np.max(scores, axis=1, keepdims=True, initial=-np.inf)
    blind = largest == -np.inf
    weights = np.exp(scores - np.where(blind, 0, largest).astype(scores.dtype))
    total = np.sum(weights, axis=1, keepdims=True)
    # 0 times NaN is NaN: keys with a NaN or an infinity go to the queries that see them alone
    finite = np.isfinite(v).all(axis=1)
    result = weights @ np.where(finite.reshape(-1, 1), v, 0).astype(v.dtype)
    for j in np.flatnonzero(~finite):
        column = seen[:, j : j + 1]
        result += np.where(column, weights[:, j : j + 1] * v[j], 0).astype(v.dtype)
    result = np.where(blind, 0, result / total).astype(scores.dtype)
    return result, (largest + np.log(total))[:, 0]
