"""Kernels for CPUs, compiled by Numba: every core, vector registers, packed tiles."""

from __future__ import annotations

from polykern.arrays import into
from polykern.backend.numba import (
    attention_decode,
    attention_flash,
    conv2d_depthwise,
    conv2d_direct,
    conv2d_implicit,
    gemm_packed,
    gemm_thin,
    softmax_rows,
)
from polykern.registry import Backend

BACKEND = Backend(
    name="numba",
    kernels=(
        gemm_thin.KERNEL,
        gemm_packed.KERNEL,
        conv2d_depthwise.KERNEL,
        conv2d_direct.KERNEL,
        conv2d_implicit.KERNEL,
        softmax_rows.KERNEL,
        attention_decode.KERNEL,
        attention_flash.KERNEL,
    ),
    asarray=into,
    synchronize=lambda: None,  # a launch returns when its work is done
)
