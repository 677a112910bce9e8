"""Two-dimensional convolution: the call, its value, its reference."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from polykern import arrays as door
from polykern import dispatch, dtypes
from polykern.ops import activation as activations

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Pair = tuple[int, int]


def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: int | Pair = 1,
    padding: int | Pair | tuple[Pair, Pair] | str = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: str | None = None,
    out_dtype: Any = None,
    precision: str | None = None,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """Convolution of images: ``activation(x * w + bias)``.

    ``(x * w)[n, k, p, q]`` is the sum over c, r, s of ``x[n, c, p + r, q + s] w[k, c, r, s]`` (at
    stride 1, without padding): a cross-correlation, as in ONNX and PyTorch.

    Letters: ``N`` images, ``C`` channels, ``H W`` image size, ``K`` filters, ``R S`` filter size,
    ``P Q`` result size.

    Parameters
    ----------
    x : array, (N, C, H, W); (N, H, W, C) in layout NHWC
        Its library and device are those of the result.
    w : array, (K, C/groups, R, S); (K, R, S, C/groups) in layout NHWC
    bias : array, (K,), optional
        int32 for 8-bit integers.
    stride, dilation : int or (int, int), default 1
        Pixels, at least 1; height first.
    padding : int, (ph, pw), ((top, bottom), (left, right)), "valid", "same" or "same_lower"
        Pixels of zeros. "same" gives ``P = ceil(H / stride)`` with the odd pixel at the end
        (ONNX SAME_UPPER), "same_lower" with the odd pixel at the start.
    groups : int, default 1
        A divisor of C and K; filters of group g see the channels of group g.
    layout : {"NCHW", "NHWC"}
        Of x, w and the result.
    activation : {None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"}
        Applied to the sums before they are rounded to `out_dtype`.
    out_dtype : dtype, optional
        Default: the promoted type of `x`, `w` and `bias`; int32 for int8 and uint8.
    precision : {"highest", "high", "medium"}, optional
        As in `gemm`.
    out : array of the result's shape and dtype, optional
        Written and returned; it must not overlap an input.
    backend : str, optional
        ``"numba"``, ``"numba/implicit"``; default: the best where the arrays live.

    Returns
    -------
    array, (N, K, P, Q), or (N, P, Q, K) in layout NHWC, of `out_dtype`
        ``P = floor((H + top + bottom - dilation (R - 1) - 1) / stride) + 1``, Q likewise.

    Raises
    ------
    TypeError
        A dtype that conv2d does not take; the message lists those it takes.
    ValueError
        Channels that do not match, or a filter larger than the padded image.
    UnsupportedError
        No kernel of the backend takes this call; the message lists each reason.

    Notes
    -----
    Cost: ``2 N K P Q (C/groups) R S`` FLOP. Error: as gemm's, with (C/groups) R S for its K.

    References
    ----------
    ONNX Conv, ConvInteger.
    """
    like = x
    x, w = door.adopt("x", x), door.adopt("w", w)
    if bias is not None:
        bias = door.adopt("bias", bias)
    problem = Conv2d(
        x.shape,
        w.shape,
        None if bias is None else bias.shape,
        dtypes.names[x.dtype],
        dtypes.names[w.dtype],
        None if bias is None else dtypes.names[bias.dtype],
        _pair("stride", stride),
        padding if isinstance(padding, str) else _pads(padding),
        _pair("dilation", dilation),
        _index("groups", groups),
        layout,
        activation,
        None if out_dtype is None else dtypes.named(out_dtype),
        dispatch.precision(precision),
    )
    inputs = {"x": x, "w": w, "bias": bias}
    return dispatch.run(problem, inputs, (), out=out, like=like, backend=backend)


def _index(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}; it is a whole number") from None


def _pair(name: str, value: Any) -> Pair:
    if type(value) is int:
        return (value, value)
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ValueError(f"{name}={value!r}; it is one number or two, height first")
        return (_index(name, value[0]), _index(name, value[1]))
    return (_index(name, value),) * 2


def _pads(padding: Any) -> tuple[Pair, Pair]:
    if isinstance(padding, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in padding):
        if len(padding) != 2 or not all(isinstance(p, (tuple, list)) for p in padding):
            raise ValueError(f"padding={padding!r}; four sides are ((top, bottom), (left, right))")
        return _pair("padding", padding[0]), _pair("padding", padding[1])
    height, width = _pair("padding", padding)
    return ((height, height), (width, width))


_SAME = ("same", "same_lower")
_FIRST = (0, 3, 1, 2)  # the axes of NHWC in the order of NCHW


class Conv2d(NamedTuple):
    """A convolution before its numbers."""

    x_shape: Shape
    w_shape: Shape
    bias_shape: Shape | None
    x_dtype: str
    w_dtype: str
    bias_dtype: str | None
    stride: Pair
    asked_padding: tuple[Pair, Pair] | str
    dilation: Pair
    groups: int
    layout: str
    activation: str | None
    asked_dtype: str | None
    precision: str
    home: str = "cpu"
    in_place: str = ""
    op: str = "conv2d"

    @property
    def image(self) -> Shape:
        """(N, C, H, W)."""
        return self._channels_first(self.x_shape)

    @property
    def filters(self) -> Shape:
        """(K, C/groups, R, S)."""
        return self._channels_first(self.w_shape)

    def _channels_first(self, shape: Shape) -> Shape:
        return shape if self.layout == "NCHW" else tuple(shape[axis] for axis in _FIRST)

    @property
    def padding(self) -> tuple[Pair, Pair]:
        """((top, bottom), (left, right)), in numbers."""
        if self.asked_padding == "valid":
            return ((0, 0), (0, 0))
        if not isinstance(self.asked_padding, str):
            return self.asked_padding
        sides = []
        for axis in (0, 1):
            length, window = self.image[2 + axis], self._window(axis)
            steps = -(-length // self.stride[axis])
            total = max(0, (steps - 1) * self.stride[axis] + window - length)
            less, more = total // 2, total - total // 2
            sides.append((less, more) if self.asked_padding == "same" else (more, less))
        return (sides[0], sides[1])

    def _window(self, axis: int) -> int:
        """The pixels that a dilated filter spans along an axis."""
        return self.dilation[axis] * (self.filters[2 + axis] - 1) + 1

    @property
    def result(self) -> Shape:
        """(N, K, P, Q)."""
        lengths = [
            (self.image[2 + axis] + sum(self.padding[axis]) - self._window(axis))
            // self.stride[axis]
            + 1
            for axis in (0, 1)
        ]
        return (self.image[0], self.filters[0], *lengths)

    @property
    def out_shape(self) -> Shape:
        n, k, p, q = self.result
        return self.result if self.layout == "NCHW" else (n, p, q, k)

    @property
    def out_dtype(self) -> str:
        if self.asked_dtype is not None:
            return self.asked_dtype
        if self.x_dtype in dtypes.INT8:
            return "int32"
        return dtypes.promote(self.x_dtype, self.w_dtype, self.bias_dtype or self.x_dtype)

    @property
    def results(self) -> tuple[tuple[Shape, str], ...]:
        return ((self.out_shape, self.out_dtype),)

    @property
    def accumulate(self) -> str:
        """The dtype of the sums."""
        if self.x_dtype in dtypes.INT8:
            return "int32"
        return dtypes.accumulator(self.x_dtype, self.w_dtype, self.bias_dtype or self.x_dtype)

    @property
    def epilogue(self) -> str:
        """The dtype in which the bias and the activation are applied."""
        if self.accumulate != "int32":
            return self.accumulate
        return {"int32": "int32", "float64": "float64"}.get(self.out_dtype, "float32")

    @property
    def terms(self) -> int:
        """The length of each sum: (C/groups) R S."""
        return self.filters[1] * self.filters[2] * self.filters[3]

    @property
    def flops(self) -> int:
        n, k, p, q = self.result
        return 2 * n * k * p * q * self.terms

    @property
    def nbytes(self) -> int:
        arrays = [(self.x_shape, self.x_dtype), (self.w_shape, self.w_dtype), *self.results]
        if self.bias_shape is not None and self.bias_dtype is not None:
            arrays.append((self.bias_shape, self.bias_dtype))
        return dtypes.nbytes(arrays)

    def __str__(self) -> str:
        n, c, h, w = self.image
        k, _, r, s = self.filters
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        return (
            f"{n}x{c}x{h}x{w} with {k} filters {r}x{s}, stride {self.stride[0]}x{self.stride[1]}"
            f"{groups}, {self.layout} {self.x_dtype} -> {self.out_dtype}"
        )

    def check(self) -> None:
        """Raise what the contract says of bad arguments."""
        if self.layout not in ("NCHW", "NHWC"):
            raise ValueError(f"layout={self.layout!r}; it is 'NCHW' or 'NHWC'")
        integers = self.x_dtype in dtypes.INT8
        dtypes.check("x", self.x_dtype, dtypes.FLOATS + dtypes.INT8, "conv2d")
        same_kind = dtypes.INT8 if integers else dtypes.FLOATS
        dtypes.check("w", self.w_dtype, same_kind, "conv2d with this x")
        results = ("int32", *dtypes.FLOATS) if integers else dtypes.FLOATS
        dtypes.check("the result (out_dtype)", self.out_dtype, results, "conv2d of these types")
        if self.bias_dtype is not None:
            fitting = ("int32", *dtypes.INT8) if self.epilogue == "int32" else dtypes.FLOATS
            dtypes.check("bias", self.bias_dtype, fitting, f"conv2d with a {self.out_dtype} result")
        activations.check(self.activation)
        if self.epilogue == "int32" and self.activation not in (None, "relu"):
            raise ValueError(
                f"activation={self.activation!r} with an int32 result; give out_dtype='float32'"
            )
        self._check_shapes()
        self._check_windows()

    def _check_shapes(self) -> None:
        for name, shape in (("x", self.x_shape), ("w", self.w_shape)):
            if len(shape) != 4:
                raise ValueError(f"{name}.shape={shape}; conv2d takes four axes, {self.layout}")
        channels, filters = self.image[1], self.filters[0]
        if self.groups < 1 or channels % self.groups or filters % self.groups:
            raise ValueError(
                f"groups={self.groups}; it must divide the {channels} channels of x "
                f"and the {filters} filters of w"
            )
        if self.filters[1] * self.groups != channels:
            raise ValueError(
                f"x has {channels} channels in {self.groups} groups, so w must have "
                f"{channels // self.groups}; w.shape={self.w_shape} has {self.filters[1]}"
            )
        if self.bias_shape not in (None, (filters,)):
            raise ValueError(f"bias.shape={self.bias_shape}; it is ({filters},), one a filter")

    def _check_windows(self) -> None:
        for name, pair in (("stride", self.stride), ("dilation", self.dilation)):
            if min(pair) < 1:
                raise ValueError(f"{name}={pair}; it is at least 1")
        if isinstance(self.asked_padding, str) and self.asked_padding not in ("valid", *_SAME):
            raise ValueError(
                f"padding={self.asked_padding!r}; the names are 'valid', 'same' and 'same_lower'"
            )
        if min(self.filters[2:]) < 1:
            raise ValueError(f"w.shape={self.w_shape}; a filter has at least one pixel")
        for axis, name in ((0, "height"), (1, "width")):
            pads = self.padding[axis]
            if min(pads) < 0:
                raise ValueError(f"padding={self.padding}; it is not negative")
            padded = self.image[2 + axis] + sum(pads)
            if self._window(axis) > padded and self.asked_padding not in _SAME:
                raise ValueError(
                    f"the dilated filter has {name} {self._window(axis)}, "
                    f"larger than the padded image's {padded}"
                )

    def channels_first(self, arrays: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """Views (N, C, H, W) of x and (K, C/groups, R, S) of w; the bias or None."""
        x, w, bias = arrays
        if self.layout == "NHWC":
            x, w = x.transpose(_FIRST), w.transpose(_FIRST)
        return x, w, bias

    def channels_first_view(self, result: Any) -> Any:
        """The view (N, K, P, Q) of an array of the result's shape."""
        return result if self.layout == "NCHW" else result.transpose(_FIRST)

    def reference(
        self,
        arrays: tuple[Any, ...],
        scalars: tuple[float, ...] = (),
        accumulate: str | None = None,
    ) -> Array:
        """The contract in NumPy, unrounded: in the dtype of the epilogue, or in `accumulate`."""
        x, w, bias = self.channels_first(arrays)
        integers = self.accumulate == "int32"
        sums = self._sums(x, w, "int32" if integers else accumulate or self.accumulate)
        dtype = "int32" if self.epilogue == "int32" else accumulate or self.epilogue
        result = sums.astype(dtype, copy=False)
        if bias is not None:
            result = result + bias.astype(dtype)[:, None, None]
        result = activations.reference(self.activation, result)
        return self._as_given(result)

    def _as_given(self, result: Array) -> Array:
        """(N, K, P, Q) in the layout."""
        return result if self.layout == "NCHW" else result.transpose(0, 2, 3, 1)

    def _sums(self, x: Array, w: Array, dtype: str) -> Array:
        """One matrix product for each pixel of the filter, added up."""
        n, k, p, q = self.result
        groups = self.groups
        padded = np.pad(x.astype(dtype, copy=False), ((0, 0), (0, 0), *self.padding))
        taps = w.astype(dtype, copy=False).reshape(groups, k // groups, *w.shape[1:])
        sums = np.zeros((n, groups, k // groups, p * q), dtype)
        (down, across), (step_h, step_w) = self.dilation, self.stride
        for r in range(w.shape[2]):
            rows = slice(r * down, r * down + (p - 1) * step_h + 1, step_h)
            for s in range(w.shape[3]):
                columns = slice(s * across, s * across + (q - 1) * step_w + 1, step_w)
                pixels = padded[:, :, rows, columns].reshape(n, groups, w.shape[1], p * q)
                sums += taps[:, :, :, r, s] @ pixels
        return sums.reshape(n, k, p, q)

    def error_bound(
        self,
        arrays: tuple[Any, ...],
        scalars: tuple[float, ...] = (),
        multiply: str | None = None,
        accumulate: str | None = None,
    ) -> Array:
        """The largest error, elementwise, of a kernel of that arithmetic; float64."""
        if self.epilogue == "int32":
            return np.zeros(self.out_shape)
        x, w, bias = self.channels_first(arrays)
        x, w = np.abs(x.astype("float64")), np.abs(w.astype("float64"))
        magnitudes = self._sums(x, w, "float64")
        growth = 2 * dtypes.roundoff(multiply or self.accumulate)
        growth += dtypes.growth(self.terms, accumulate or self.accumulate)
        u = dtypes.roundoff(self.epilogue)
        total = magnitudes
        if bias is not None:
            total = total + np.abs(bias.astype("float64"))[:, None, None]
        below = self.terms * dtypes.underflow(self.accumulate)
        error = self._as_given(growth * magnitudes + 4 * u * total + below)
        exact = self._replace(activation=None).reference(arrays, (), "float64")
        error = activations.error_bound(self.activation, exact, error, u)
        result = activations.reference(self.activation, exact)
        error = error + dtypes.roundoff(self.out_dtype) * np.abs(result)
        least = dtypes.underflow(self.out_dtype) + 8 * dtypes.underflow(self.epilogue)
        return error + least
