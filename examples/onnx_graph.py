"""A walker for ONNX graphs: polykern for convolutions, products and softmax, NumPy for the rest.

A node of ONNX is a function of arrays with named attributes. A table from the type of a node to a
Python function of the same form is therefore nearly the whole interpreter; what is left is to let
go of each value once its last reader has run.

The tables hold what `read_text.py` needs, with the meaning of operator set 12: there an axis is an
attribute, and Softmax takes all axes from `axis` on as one. A node of another type is refused by
name before anything runs. Letters as everywhere: ``N C H W`` in, ``K`` filters of ``R S``.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from polykern import ops

OPSET = 12
Array = np.ndarray
Function = Callable[..., Array]
Pair = tuple[int, int]


class Node(NamedTuple):
    """One step: ``values[output] = function(*inputs, **attributes)``; then `last_reads` can go."""

    op_type: str
    function: Function
    inputs: Sequence[str]
    attributes: dict[str, Any]
    output: str
    last_reads: Sequence[str]


class Graph:
    """An ONNX model as a function of arrays, on one backend (None: polykern's choice)."""

    def __init__(self, path: str | Path, backend: str | None = None) -> None:
        model = onnx.load(path)
        opset = next(entry.version for entry in model.opset_import if not entry.domain)
        if opset != OPSET:
            raise NotImplementedError(f"{path}: operator set {opset}; this walker knows {OPSET}")
        steps = [node for node in model.graph.node if node.op_type != "Constant"]
        known = KERNELS.keys() | PLAIN.keys()
        unknown = {step.op_type for step in steps} - known
        if unknown:
            raise NotImplementedError(
                f"{path}: no function for {', '.join(sorted(unknown))}; "
                f"the tables of this walker hold {', '.join(sorted(known))}"
            )
        self.metadata = {entry.key: entry.value for entry in model.metadata_props}
        self.constants = {
            node.output[0]: numpy_helper.to_array(attributes_of(node)["value"])
            for node in model.graph.node
            if node.op_type == "Constant"
        }
        for tensor in model.graph.initializer:
            self.constants[tensor.name] = numpy_helper.to_array(tensor)
        self.inputs = [x.name for x in model.graph.input if x.name not in self.constants]
        self.outputs = [x.name for x in model.graph.output]
        self.nodes = self._schedule(steps, backend)

    def _schedule(self, steps: list[onnx.NodeProto], backend: str | None) -> list[Node]:
        """The nodes in the order of the file, which ONNX demands to be an order that runs."""
        last_reader = {name: i for i, step in enumerate(steps) for name in step.input}
        nodes = []
        for i, step in enumerate(steps):
            attributes = attributes_of(step)
            if step.op_type in KERNELS:
                attributes["backend"] = backend
            function = KERNELS.get(step.op_type) or PLAIN[step.op_type]
            last_reads = {name for name in step.input if last_reader[name] == i}
            last_reads -= {"", *self.outputs}  # "" stands for an optional input left out
            (output,) = step.output
            nodes.append(
                Node(step.op_type, function, step.input, attributes, output, tuple(last_reads))
            )
        return nodes

    def __call__(self, *inputs: Array) -> list[Array]:
        """The outputs of the model for these inputs, both in its order."""
        values = self.constants | dict(zip(self.inputs, inputs, strict=True))
        for node in self.nodes:
            arguments = [values[name] if name else None for name in node.inputs]
            try:
                values[node.output] = node.function(*arguments, **node.attributes)
            except Exception as error:
                error.add_note(f"in the {node.op_type} node that makes {node.output!r}")
                raise
            for name in node.last_reads:
                del values[name]
        return [values[name] for name in self.outputs]


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes by name, lists as tuples."""
    values = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    kernel_shape: Pair | None = None,  # known from w
    strides: Pair = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilations: Pair = (1, 1),
    group: int = 1,
    backend: str | None = None,
) -> Array:
    """(N, C, H, W) with (K, C/group, R, S); ONNX lists all starts of the padding, then all ends."""
    top, left, bottom, right = pads
    padding = ((top, bottom), (left, right))
    shape = {"stride": strides, "padding": padding, "dilation": dilations, "groups": group}
    return ops.conv2d(x, w, bias, **shape, backend=backend)


def softmax(x: Array, *, axis: int = 1, backend: str | None = None) -> Array:
    """Over all axes from `axis` on: they are one until operator set 13."""
    return ops.softmax(x, axis=tuple(range(axis % x.ndim, x.ndim)), backend=backend)


def batch_normalization(
    x: Array,
    scale: Array,
    shift: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,  # matters only in training
) -> Array:
    """Each channel of (N, C, H, W) times a gain plus an offset; the other four are (C,)."""
    gain = scale / np.sqrt(variance + epsilon)
    return x * gain[:, None, None] + (shift - mean * gain)[:, None, None]


def average_pool(
    x: Array,
    *,
    kernel_shape: Pair,
    strides: Pair = (1, 1),
    pads: tuple[int, ...] = (0, 0, 0, 0),
    ceil_mode: int = 0,
    count_include_pad: int = 0,  # matters only with padding
) -> Array:
    """The mean of each window that lies wholly inside the picture."""
    if any(pads) or ceil_mode:
        raise NotImplementedError(f"{pads=} and {ceil_mode=}; only 0 is known")
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel_shape, axis=(2, 3))
    return windows[:, :, :: strides[0], :: strides[1]].mean(axis=(4, 5))


def reshape(x: Array, shape: Array) -> Array:
    """A 0 in `shape` keeps the size of that axis, a -1 takes what is left."""
    return x.reshape([size or x.shape[axis] for axis, size in enumerate(shape.tolist())])


def cut(x: Array, starts: Array, ends: Array, axes: Array, steps: Array | None = None) -> Array:
    """ONNX Slice: one start, end and step for each axis named."""
    steps = np.ones_like(starts) if steps is None else steps
    index = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes.tolist(), starts, ends, steps, strict=True):
        index[axis] = slice(*bounds)
    return x[tuple(index)]


KERNELS: dict[str, Function] = {"Conv": conv, "MatMul": ops.gemm, "Softmax": softmax}
PLAIN: dict[str, Function] = {
    "Add": np.add,
    "AveragePool": average_pool,
    "BatchNormalization": batch_normalization,
    "Cast": lambda x, to: x.astype(helper.tensor_dtype_to_np_dtype(to)),
    "Clip": np.clip,
    "Concat": lambda *xs, axis: np.concatenate(xs, axis),
    "Div": np.divide,
    "GlobalAveragePool": lambda x: x.mean(axis=(2, 3), keepdims=True),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
    "Mul": np.multiply,
    "Pow": np.power,
    "ReduceMean": lambda x, axes=None, keepdims=1: x.mean(axes, keepdims=bool(keepdims)),
    "Relu": lambda x: np.maximum(x, 0),
    "Reshape": reshape,
    "Shape": lambda x: np.array(x.shape),
    "Sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),  # exp(-x) by itself overflows
    "Slice": cut,
    "Sqrt": np.sqrt,
    "Squeeze": lambda x, axes=None: x.squeeze(axes),
    "Sub": np.subtract,
    "Transpose": lambda x, perm=None: x.transpose(perm),
}
