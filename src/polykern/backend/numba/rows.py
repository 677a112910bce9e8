"""Unit-stride windows into arrays of any strides, so that LLVM sees loops it can vectorise.

A kernel is compiled for any strides, and a loop over ``array[i, j]`` then walks unknown steps.
``row_from`` gives the same memory as a contiguous 1-D array, to be used after a look at the
stride; ``scratch`` gives a thread its own contiguous memory.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

LINE_BYTES = 64  # a vector load that crosses a cache line costs two


@intrinsic  # type: ignore[untyped-decorator]
def row_from(typingctx, array, index, length):  # type: ignore[no-untyped-def]
    """``array[index : index + length]`` along the last axis, whose stride must be one element.

    The index is a tuple, never negative. The result does not keep the memory alive.
    """
    row = types.Array(array.dtype, 1, "C", readonly=not array.mutable)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(array)(context, builder, args[0])
        indices = [
            context.cast(builder, value, index[axis], types.intp)
            for axis, value in enumerate(arrayobj.cgutils.unpack_tuple(builder, args[1]))
        ]
        first = arrayobj.cgutils.get_item_pointer(
            context, builder, array, source, indices, wraparound=False
        )
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(source.data.type.pointee))
        result = context.make_array(row)(context, builder)
        arrayobj.populate_array(
            result, data=first, shape=[args[2]], strides=[itemsize], itemsize=itemsize, meminfo=None
        )
        return result._getvalue()

    return row(array, index, types.intp), generate


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def scratch(count, like):  # type: ignore[no-untyped-def]
    """Uninitialised contiguous elements of the dtype of `like`, from the start of a cache line."""
    slack = LINE_BYTES // like.itemsize
    memory = np.empty(count + slack, like.dtype)
    return memory[(-memory.ctypes.data % LINE_BYTES) // like.itemsize :]
