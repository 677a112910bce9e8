"""Unit-stride windows into arrays of any strides, so that LLVM sees loops it can vectorise.

A kernel is compiled for any strides, and a loop over ``array[i, j]`` then walks unknown steps.
``row_from`` gives the same memory as a contiguous 1-D array, to be used after a look at the
stride. ``scratch`` gives a thread its own contiguous memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from polykern.backend.numba import jit

LINE_BYTES = 64  # a vector load that crosses a cache line costs two


@intrinsic
def row_from(typingctx, array, index, length):
    """The elements from ``array[index]`` on along an axis whose stride is one element.

    The index is a tuple, never negative. The result does not keep the memory alive.
    """
    row = types.Array(array.dtype, 1, "C", readonly=not array.mutable)
    return row(array, index, types.intp), _window(row)


@intrinsic
def line_from(typingctx, array, index, length):
    """The same along the last axis, of any stride; a slice would count references."""
    line = types.Array(array.dtype, 1, "A", readonly=not array.mutable)
    return line(array, index, types.intp), _window(line)


def _window(result_type: types.Array) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, index_type, _ = signature.args
        source = context.make_array(kind)(context, builder, args[0])
        indices = [
            context.cast(builder, value, index_type[axis], types.intp)
            for axis, value in enumerate(cgutils.unpack_tuple(builder, args[1]))
        ]
        first = cgutils.get_item_pointer(context, builder, kind, source, indices, wraparound=False)
        itemsize = stride = source.itemsize
        if result_type.layout == "A":
            stride = builder.extract_value(source.strides, kind.ndim - 1)
        result = context.make_array(result_type)(context, builder)
        arrayobj.populate_array(
            result, data=first, shape=[args[2]], strides=[stride], itemsize=itemsize, meminfo=None
        )
        return result._getvalue()

    return generate


@intrinsic
def copy(typingctx, target, source):
    """``target[:] = source`` of rows of one dtype and length that share no memory.

    The library's memcpy is faster than a loop where rows are short.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, origin = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, args, strict=True)
        ]
        length = builder.extract_value(to.shape, 0)
        cgutils.raw_memcpy(builder, to.data, origin.data, length, to.itemsize)
        return context.get_dummy_value()

    return types.void(target, source), generate


@jit.device
def scratch(count, like):
    """Uninitialised contiguous elements of the dtype of `like`, from the start of a cache line."""
    slack = LINE_BYTES // like.itemsize
    memory = np.empty(count + slack, like.dtype)
    return memory[(-memory.ctypes.data % LINE_BYTES) // like.itemsize :]
